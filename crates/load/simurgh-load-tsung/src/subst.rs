//! `%%_variable%%` and `%%module:function%%` in texts.

use simurgh_load_scenario::Generated;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Piece<'a> {
    Text(&'a str),
    /// A variable, and its element, counted from 1 as in Tsung.
    Var(&'a str, Option<u32>),
    /// `module:function`.
    Call(&'a str),
}

/// Functions that can be called in texts and by `setdynvars`.
pub(super) const CALLS: &[&str] = &[
    "ts_user_server:get_unique_id",
    "ts_user_server:get_really_unique_id",
    "ts_file_server:get_next_line",
    "ts_file_server:get_random_line",
];

/// Splits a text. A `%%` that begins no placeholder is text and, unlike in Tsung, does not swallow
/// the rest; the second result says whether there is one.
pub(super) fn pieces(text: &str) -> (Vec<Piece<'_>>, bool) {
    let mut pieces = Vec::new();
    let (mut from, mut search, mut lone) = (0, 0, false);
    while let Some(found) = text.get(search..).and_then(|rest| rest.find("%%")) {
        let at = search + found;
        let after = text.get(at + 2..).unwrap_or_default();
        let marked = after.split_once("%%").and_then(|(inner, _)| Some((inner, marker(inner)?)));
        let Some((inner, piece)) = marked else {
            lone = true;
            search = at + 1;
            // Of `%%%%` the second pair may begin one; a single pair is skipped as a whole.
            if !after.starts_with('%') {
                search = at + 2;
            }
            continue;
        };
        if at > from {
            pieces.push(Piece::Text(text.get(from..at).unwrap_or_default()));
        }
        pieces.push(piece);
        from = at + 2 + inner.len() + 2;
        search = from;
    }
    if from < text.len() {
        pieces.push(Piece::Text(text.get(from..).unwrap_or_default()));
    }
    (pieces, lone)
}

fn marker(inner: &str) -> Option<Piece<'_>> {
    if let Some(name) = inner.strip_prefix('_') {
        return variable(name).map(|(name, element)| Piece::Var(name, element));
    }
    let (module, function) = inner.split_once(':')?;
    (is_name(module) && is_name(function)).then_some(Piece::Call(inner))
}

/// `name` or `name[1]`.
pub(super) fn variable(text: &str) -> Option<(&str, Option<u32>)> {
    let (name, element) = match text.split_once('[') {
        Some((name, index)) => (name, Some(index.strip_suffix(']')?.parse().ok()?)),
        None => (text, None),
    };
    is_name(name).then_some((name, element))
}

fn is_name(name: &str) -> bool {
    !name.is_empty() && name.chars().all(|c| c.is_alphanumeric() || matches!(c, '_' | '-' | '.'))
}

/// The value of a call, if there is one; `file` is the file server without a name.
pub(super) fn call(name: &str, file: Option<u16>) -> Option<Generated> {
    match name {
        "ts_user_server:get_unique_id" => Some(Generated::UserId),
        "ts_user_server:get_really_unique_id" => Some(Generated::ReallyUniqueId),
        "ts_file_server:get_next_line" => file.map(Generated::NextLine),
        "ts_file_server:get_random_line" => file.map(Generated::RandomLine),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tsung_text_is_split_at_its_substitutions() {
        let (found, lone) = pieces("a%%_b%%%%c:d%%é%%_e[2]%%");
        let wanted = [
            Piece::Text("a"),
            Piece::Var("b", None),
            Piece::Call("c:d"),
            Piece::Text("é"),
            Piece::Var("e", Some(2)),
        ];
        assert_eq!((found.as_slice(), lone), (&wanted[..], false));
        assert_eq!(pieces(""), (vec![], false));
        assert_eq!(pieces("50%"), (vec![Piece::Text("50%")], false));
    }

    #[test]
    fn lone_percent_pair_is_literal_text() {
        assert_eq!(pieces("100%% and"), (vec![Piece::Text("100%% and")], true));
        let wanted = vec![Piece::Text("1%% x "), Piece::Var("y", None)];
        assert_eq!(pieces("1%% x %%_y%%"), (wanted, true));
        let wanted = vec![Piece::Text("%%"), Piece::Var("y", None), Piece::Text("%%")];
        assert_eq!(pieces("%%%%_y%%%%"), (wanted, true));
        assert_eq!(pieces("%%%"), (vec![Piece::Text("%%%")], true));
    }
}
