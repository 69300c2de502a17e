//! Cuts text into markup without asking whether it is well-formed, for [`super::repair`].

/// What a [`Piece`] is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Text,
    /// `<a ..>`
    Open,
    /// `</a>`
    Close,
    /// `<a ../>`
    Empty,
    /// `<!DOCTYPE ..>`
    Doctype,
    /// Comments, CDATA and instructions.
    Other,
}

/// A stretch of the text.
#[derive(Clone, Copy, Debug)]
pub(super) struct Piece<'a> {
    pub(super) kind: Kind,
    /// The tag's name.
    pub(super) name: &'a str,
    pub(super) start: usize,
    pub(super) end: usize,
}

/// Cuts `text`; the pieces lie side by side and cover it.
pub(super) fn pieces(text: &str) -> Vec<Piece<'_>> {
    let mut pieces = Vec::new();
    let mut at = 0;
    while at < text.len() {
        let rest = text.get(at..).unwrap_or_default();
        let (kind, name, length) = markup(rest).unwrap_or_else(|| {
            let length = rest.get(1..).and_then(|tail| tail.find('<')).map(|found| found + 1);
            // What begins with another character than `<` may begin with a long one.
            let length = if rest.starts_with('<') { length } else { rest.find('<') };
            (Kind::Text, "", length.unwrap_or(rest.len()))
        });
        let end = at + length.max(1);
        pieces.push(Piece { kind, name, start: at, end });
        at = end;
    }
    pieces
}

/// The markup that `rest` begins with: what it is, its name, its length.
fn markup(rest: &str) -> Option<(Kind, &str, usize)> {
    let until = |end: &str| rest.find(end).map_or(rest.len(), |at| at + end.len());
    if rest.starts_with("<!--") {
        return Some((Kind::Other, "", until("-->")));
    }
    if rest.starts_with("<![CDATA[") {
        return Some((Kind::Other, "", until("]]>")));
    }
    if rest.starts_with("<?") {
        return Some((Kind::Other, "", until("?>")));
    }
    if rest.starts_with("<!DOCTYPE") {
        return Some((Kind::Doctype, "", doctype_length(rest)));
    }
    let (closing, from) = if rest.starts_with("</") { (true, 2) } else { (false, 1) };
    let tail = if rest.starts_with('<') { rest.get(from..)? } else { return None };
    let name_length = tail.find(|c: char| !is_name(c)).unwrap_or(tail.len());
    let name = tail.get(..name_length)?;
    if !name.starts_with(|c: char| c.is_alphabetic() || c == '_') {
        return None;
    }
    let length = tag_length(rest);
    let empty = rest.get(..length).is_some_and(|tag| tag.ends_with("/>"));
    let kind = match (closing, empty) {
        (true, _) => Kind::Close,
        (false, true) => Kind::Empty,
        (false, false) => Kind::Open,
    };
    Some((kind, name, length))
}

fn is_name(c: char) -> bool {
    c.is_alphanumeric() || matches!(c, '_' | '-' | ':' | '.')
}

/// Quotes that a word processor makes of straight ones.
pub(super) fn straight(c: char) -> Option<char> {
    match c {
        '\u{201c}' | '\u{201d}' | '\u{201e}' | '\u{201f}' | '\u{ab}' | '\u{bb}' => Some('"'),
        '\u{2018}' | '\u{2019}' | '\u{201a}' | '\u{201b}' => Some('\''),
        _ => None,
    }
}

/// Up to the `>` that stands in no quotes.
fn tag_length(tag: &str) -> usize {
    let mut quote = None;
    for (at, c) in tag.char_indices() {
        match quote {
            Some(open) if c == open => quote = None,
            Some(_) => {}
            None if c == '"' || c == '\'' => quote = Some(c),
            None if c == '>' => return at + 1,
            // A tag that was never closed ends where the next begins.
            None if c == '<' && at > 0 => return at,
            None => {}
        }
    }
    tag.len()
}

fn doctype_length(rest: &str) -> usize {
    let (mut quote, mut depth) = (None, 0_u32);
    for (at, c) in rest.char_indices() {
        match (quote, c) {
            (Some(open), c) if c == open => quote = None,
            (Some(_), _) => {}
            (None, '"' | '\'') => quote = Some(c),
            (None, '[') => depth += 1,
            (None, ']') => depth = depth.saturating_sub(1),
            (None, '>') if depth == 0 => return at + 1,
            (None, _) => {}
        }
    }
    rest.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cut(text: &str) -> Vec<(Kind, &str)> {
        let pieces = pieces(text);
        let mut at = 0;
        for piece in &pieces {
            assert_eq!(piece.start, at, "no gaps");
            at = piece.end;
        }
        assert_eq!(at, text.len());
        pieces.iter().map(|p| (p.kind, &text[p.start..p.end])).collect()
    }

    #[test]
    fn quotes_and_comments_hide_brackets() {
        let found = cut("<!-- <a> --><a x='>'>é < 1</a><b y=\"/>\"/><![CDATA[<c>]]>");
        let kinds: Vec<Kind> = found.iter().map(|piece| piece.0).collect();
        use Kind::{Close, Empty, Open, Other, Text};
        assert_eq!(kinds, [Other, Open, Text, Text, Close, Empty, Other]);
        assert_eq!(found[1].1, "<a x='>'>");
        assert_eq!(found[5].1, "<b y=\"/>\"/>");
    }

    #[test]
    fn a_doctype_may_hold_declarations() {
        let found = cut("<!DOCTYPE a SYSTEM \"x>\" [<!ENTITY b \"]>\">]><a/>");
        assert_eq!(found.len(), 2);
        assert_eq!(found[1], (Kind::Empty, "<a/>"));
    }

    #[test]
    fn what_never_ends_ends_with_the_text() {
        for text in ["<", "<a", "<a b=\"", "<!--", "<![CDATA[", "<?x", "<!DOCTYPE [", "</", "<é"] {
            cut(text);
        }
    }
}
