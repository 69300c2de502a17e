//! Cuts text into markup without asking whether it is well-formed, for [`super::repair`].

use std::sync::LazyLock;

use regex::{Captures, Regex, RegexBuilder};

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

/// Comments, CDATA, instructions; a DOCTYPE with its declarations; a tag, which ends at the latest
/// where the next one begins; text up to the next `<`. Quotes hide brackets, and what is never
/// closed ends with the text.
#[allow(clippy::expect_used, reason = "a constant, which every test compiles")]
static PIECE: LazyLock<Regex> = LazyLock::new(|| {
    let quoted = r#""[^"]*(?:"|\z)|'[^']*(?:'|\z)"#;
    let pattern = format!(
        r#"(?s)(?<other><!--.*?(?:-->|\z)|<!\[CDATA\[.*?(?:\]\]>|\z)|<\?.*?(?:\?>|\z))
        |(?<doctype><!DOCTYPE(?:[^\[>"']|{quoted}|\[(?:[^\]"']|{quoted})*)*>?)
        |<(?<close>/?)(?<name>[\p{{Alphabetic}}_][\p{{Alphabetic}}\p{{N}}_:.\-]*)
            (?:[^<>"']|{quoted})*>?
        |<?[^<]+|<"#
    );
    RegexBuilder::new(&pattern).ignore_whitespace(true).build().expect("the pattern is right")
});

/// Cuts `text`; the pieces lie side by side and cover it.
pub(super) fn pieces(text: &str) -> Vec<Piece<'_>> {
    let piece = |found: Captures<'_>| {
        let whole = found.get_match();
        let name = found.name("name").map_or(0..0, |name| name.range());
        let kind = match &found {
            it if it.name("other").is_some() => Kind::Other,
            it if it.name("doctype").is_some() => Kind::Doctype,
            it if name.is_empty() || it.name("name").is_none() => Kind::Text,
            it if it.name("close").is_some_and(|slash| !slash.is_empty()) => Kind::Close,
            _ if whole.as_str().ends_with("/>") => Kind::Empty,
            _ => Kind::Open,
        };
        Piece {
            kind,
            name: text.get(name).unwrap_or_default(),
            start: whole.start(),
            end: whole.end(),
        }
    };
    PIECE.captures_iter(text).map(piece).collect()
}

/// Quotes that a word processor makes of straight ones.
pub(super) fn straight(c: char) -> Option<char> {
    match c {
        '\u{201c}' | '\u{201d}' | '\u{201e}' | '\u{201f}' | '\u{ab}' | '\u{bb}' => Some('"'),
        '\u{2018}' | '\u{2019}' | '\u{201a}' | '\u{201b}' => Some('\''),
        _ => None,
    }
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
