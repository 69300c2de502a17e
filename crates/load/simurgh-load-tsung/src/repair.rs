//! Repairs mistakes of files that were copied from slides and web pages.
//!
//! Each repair gives a warning. Line ends are kept, so that line numbers stay the same.

use std::borrow::Cow;

use simurgh_load_scenario::Diagnostic;

use super::lex::{Kind, Piece, find_unquoted, pieces, straight};

struct Edit {
    start: usize,
    end: usize,
    with: String,
}

/// The repaired text, with a warning for each repair.
pub(super) fn repair<'a>(text: &'a str, warnings: &mut Vec<Diagnostic>) -> Cow<'a, str> {
    let mut repairer =
        Repairer { text, edits: Vec::new(), warnings, open: Vec::new(), counted: (0, 1) };
    repairer.head();
    let pieces = pieces(text);
    let mut rooted = false;
    for (index, piece) in pieces.iter().enumerate() {
        repairer.piece(*piece);
        rooted |= matches!(piece.kind, Kind::Open | Kind::Empty);
        if rooted && repairer.open.is_empty() && matches!(piece.kind, Kind::Close | Kind::Empty) {
            repairer.tail(pieces.get(index + 1..).unwrap_or_default());
            break;
        }
    }
    apply(text, repairer.edits)
}

fn apply(text: &str, mut edits: Vec<Edit>) -> Cow<'_, str> {
    if edits.is_empty() {
        return Cow::Borrowed(text);
    }
    edits.sort_by_key(|edit| edit.start);
    let mut repaired = String::with_capacity(text.len());
    let mut at = 0;
    for edit in edits {
        repaired.push_str(text.get(at..edit.start).unwrap_or_default());
        repaired.push_str(&edit.with);
        at = at.max(edit.end);
    }
    repaired.push_str(text.get(at..).unwrap_or_default());
    Cow::Owned(repaired)
}

struct Repairer<'a, 'w> {
    text: &'a str,
    edits: Vec<Edit>,
    warnings: &'w mut Vec<Diagnostic>,
    open: Vec<&'a str>,
    /// A position, and its line.
    counted: (usize, u32),
}

impl<'a> Repairer<'a, '_> {
    fn warn(&mut self, at: usize, what: impl Into<String>) {
        // Pieces come in order, so this never goes back.
        let between = self.text.as_bytes().get(self.counted.0..at).unwrap_or_default();
        let lines = u32::try_from(memchr::memchr_iter(b'\n', between).count()).unwrap_or_default();
        self.counted = (at, self.counted.1.saturating_add(lines));
        self.warnings.push(Diagnostic::at(self.counted.1, what).help("repaired"));
    }

    /// Blank lines before `<?xml` make it an instruction that XML forbids.
    fn head(&mut self) {
        let blanks = self.text.len() - self.text.trim_start().len();
        if blanks > 0 && self.text.trim_start().starts_with("<?xml ") {
            let declaration = self.text.trim_start().find("?>").map_or(0, |at| at + 2);
            self.warn(0, "the file begins with blanks before its `<?xml`");
            let with = newlines(self.text.get(..blanks + declaration).unwrap_or_default());
            self.edits.push(Edit { start: 0, end: blanks + declaration, with });
        }
    }

    fn piece(&mut self, piece: Piece<'a>) {
        match piece.kind {
            Kind::Open | Kind::Empty => {
                let name = self.lead(piece, 1);
                self.quotes(piece);
                if piece.kind == Kind::Open {
                    self.open.push(name);
                }
            }
            Kind::Close => {
                let name = self.lead(piece, 2);
                if self.open.last() == Some(&name) {
                    self.open.pop();
                }
            }
            Kind::Text => self.bare_end(piece),
            Kind::Doctype | Kind::Other => {}
        }
    }

    /// `<lead>` for `<load>`; returns the right name.
    fn lead(&mut self, piece: Piece<'a>, from: usize) -> &'a str {
        if piece.name != "lead" {
            return piece.name;
        }
        if from == 1 {
            self.warn(piece.start, "<lead> is not an element of Tsung; <load> is meant");
        }
        let start = piece.start + from;
        self.edits.push(Edit { start, end: start + piece.name.len(), with: "load".to_owned() });
        "load"
    }

    /// Curly quotes around attribute values.
    fn quotes(&mut self, piece: Piece<'a>) {
        let tag = self.text.get(piece.start..piece.end).unwrap_or_default();
        let mut found = false;
        find_unquoted(tag, |at, c| {
            if let Some(plain) = straight(c) {
                found = true;
                let start = piece.start + at;
                let with = plain.to_string();
                self.edits.push(Edit { start, end: start + c.len_utf8(), with });
            }
            false
        });
        if found {
            self.warn(piece.start, format!("<{}> has curly quotes", piece.name));
        }
    }

    /// `/clients>` for `</clients>`.
    fn bare_end(&mut self, piece: Piece<'a>) {
        let text = self.text.get(piece.start..piece.end).unwrap_or_default();
        let mut from = 0;
        while let Some(name) = self.open.last() {
            let wanted = format!("/{name}>");
            let Some(found) = text.get(from..).and_then(|rest| rest.find(&wanted)) else { return };
            let at = from + found;
            from = at + wanted.len();
            let before = text.get(..at).unwrap_or_default();
            if !before.is_empty() && !before.ends_with(char::is_whitespace) {
                continue;
            }
            let start = piece.start + at;
            self.warn(start, format!("`{wanted}` lacks its `<`"));
            self.edits.push(Edit { start, end: start, with: "<".to_owned() });
            self.open.pop();
        }
    }

    /// Closing tags after the end of the root.
    fn tail(&mut self, rest: &[Piece<'a>]) {
        let only_ends = rest.iter().all(|piece| match piece.kind {
            Kind::Close | Kind::Other => true,
            Kind::Text => {
                self.text.get(piece.start..piece.end).is_none_or(|text| text.trim().is_empty())
            }
            Kind::Open | Kind::Empty | Kind::Doctype => false,
        });
        let Some(first) = rest.iter().find(|piece| piece.kind == Kind::Close) else { return };
        if only_ends {
            let what = format!("</{}> is after the end of the scenario", first.name);
            self.warn(first.start, what);
            let with = newlines(self.text.get(first.start..).unwrap_or_default());
            self.edits.push(Edit { start: first.start, end: self.text.len(), with });
        }
    }
}

fn newlines(text: &str) -> String {
    text.chars().filter(|&c| c == '\n').collect()
}

/// The payload with straight quotes, if that makes it JSON.
pub(super) fn json_quotes(text: &str) -> Option<String> {
    if !text.contains(|c| straight(c).is_some()) {
        return None;
    }
    let plain: String = text.chars().map(|c| straight(c).unwrap_or(c)).collect();
    (!is_json(text) && is_json(&plain)).then_some(plain)
}

/// Whether it is JSON once its placeholders are replaced.
fn is_json(text: &str) -> bool {
    let mut filled = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("%%") {
        filled.push_str(before);
        match after.split_once("%%") {
            Some((_, after)) => {
                filled.push('0');
                rest = after;
            }
            None => rest = after,
        }
    }
    filled.push_str(rest);
    serde_json::from_str::<serde::de::IgnoredAny>(&filled).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn repaired(text: &str) -> (String, Vec<String>) {
        let mut warnings = Vec::new();
        let text = repair(text, &mut warnings).into_owned();
        (text, warnings.iter().map(ToString::to_string).collect())
    }

    #[test]
    fn valid_xml_is_not_repaired() {
        let text = "<?xml version=\"1.0\"?>\n<a b=\"“x”\">z/a> “y” <b c='d'/><!-- /a> --></a>\n";
        let text = text.to_owned();
        assert_eq!(repaired(&text), (text.clone(), vec![]));
    }

    #[test]
    fn element_lead_is_repaired_to_load() {
        let (text, warnings) = repaired("<t>\n<lead a=\"1\">x</load>\n<lead/></t>");
        assert_eq!(text, "<t>\n<load a=\"1\">x</load>\n<load/></t>");
        let what = "<lead> is not an element of Tsung; <load> is meant (repaired)";
        assert_eq!(warnings, [format!("line 2: {what}"), format!("line 3: {what}")]);
        assert_eq!(repaired("<lead></lead>").0, "<load></load>");
    }

    #[test]
    fn end_tag_without_its_bracket_is_repaired() {
        let (text, warnings) = repaired("<t><clients>\n<client/>\n/clients>\n<x/></t>");
        assert_eq!(text, "<t><clients>\n<client/>\n</clients>\n<x/></t>");
        assert_eq!(warnings, ["line 3: `/clients>` lacks its `<` (repaired)"]);
        assert_eq!(repaired("<a><b>/b>\n/a>").0, "<a><b></b>\n</a>");
    }

    #[test]
    fn end_tags_after_the_end_of_the_scenario_are_removed() {
        let (text, warnings) = repaired("<t><s>\n</s></t>\n</s>\n</t>\n");
        assert_eq!(text, "<t><s>\n</s></t>\n\n\n");
        assert_eq!(warnings, ["line 3: </s> is after the end of the scenario (repaired)"]);
        let (text, warnings) = repaired("<t></t><u></u>");
        assert_eq!((text.as_str(), warnings.len()), ("<t></t><u></u>", 0));
    }

    #[test]
    fn curly_quotes_are_straightened_in_tags() {
        let (text, warnings) = repaired("<a\nb=“c” d=‘e’ f=\"“g”\">“h”</a>");
        assert_eq!(text, "<a\nb=\"c\" d='e' f=\"“g”\">“h”</a>");
        assert_eq!(warnings, ["line 1: <a> has curly quotes (repaired)"]);
    }

    #[test]
    fn blanks_before_the_xml_declaration_are_removed() {
        let (text, warnings) = repaired("\n <?xml version=\"1.0\"?>\n<a/>");
        assert_eq!(text, "\n\n<a/>");
        assert_eq!(warnings.len(), 1);
    }

    #[test]
    fn curly_quotes_in_json_are_straightened() {
        assert_eq!(json_quotes("{“a”: %%_n%%}").as_deref(), Some("{\"a\": %%_n%%}"));
        assert_eq!(json_quotes("{\"a\": \"“b”\"}"), None);
        assert_eq!(json_quotes("he said “no”"), None);
        assert_eq!(json_quotes("{\"a\": 1}"), None);
    }
}
