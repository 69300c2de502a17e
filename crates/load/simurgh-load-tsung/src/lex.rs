//! Splits text into markup, well-formed or not, for [`super::repair`].

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

#[derive(Clone, Copy, Debug)]
pub(super) struct Piece<'a> {
    pub(super) kind: Kind,
    pub(super) name: &'a str,
    pub(super) start: usize,
    pub(super) end: usize,
}

/// Splits `text`; the pieces are adjacent and cover it.
pub(super) fn pieces(text: &str) -> Vec<Piece<'_>> {
    let mut pieces = Vec::new();
    let mut start = 0;
    while let Some(rest) = text.get(start..).filter(|rest| !rest.is_empty()) {
        let (kind, name, length) = markup(rest).unwrap_or_else(|| {
            // The first character may be a `<` that does not begin markup.
            let next = rest.match_indices('<').map(|found| found.0).find(|&at| at > 0);
            (Kind::Text, "", next.unwrap_or(rest.len()))
        });
        pieces.push(Piece { kind, name, start, end: start + length });
        start += length;
    }
    pieces
}

/// The markup at the start of `rest`: kind, name, length. Unclosed markup ends with the text.
fn markup(rest: &str) -> Option<(Kind, &str, usize)> {
    for (begin, end) in [("<!--", "-->"), ("<![CDATA[", "]]>"), ("<?", "?>")] {
        if rest.starts_with(begin) {
            let length = rest.find(end).map_or(rest.len(), |at| at + end.len());
            return Some((Kind::Other, "", length));
        }
    }
    if rest.starts_with("<!DOCTYPE") {
        let mut depth = 0_u32;
        let end = find_unquoted(rest, |_, c| {
            depth = match c {
                '[' => depth + 1,
                ']' => depth.saturating_sub(1),
                _ => depth,
            };
            c == '>' && depth == 0
        });
        return Some((Kind::Doctype, "", end.map_or(rest.len(), |at| at + 1)));
    }
    let inner = rest.strip_prefix('<')?;
    let (is_close, inner) = inner.strip_prefix('/').map_or((false, inner), |inner| (true, inner));
    let is_name = |c: char| c.is_alphanumeric() || matches!(c, '_' | '-' | ':' | '.');
    let name = inner.get(..inner.find(|c| !is_name(c)).unwrap_or(inner.len()))?;
    if !name.starts_with(|c: char| c.is_alphabetic() || c == '_') {
        return None;
    }
    // An unclosed tag ends where the next one begins.
    let end = find_unquoted(rest, |at, c| c == '>' || (c == '<' && at > 0));
    let end = end.map_or(rest.len(), |at| {
        at + usize::from(rest.get(at..).is_some_and(|end| end.starts_with('>')))
    });
    let kind = match rest.get(..end) {
        _ if is_close => Kind::Close,
        Some(tag) if tag.ends_with("/>") => Kind::Empty,
        _ => Kind::Open,
    };
    Some((kind, name, end))
}

/// The position of the first wanted character outside of quotes.
pub(super) fn find_unquoted(
    text: &str,
    mut is_wanted: impl FnMut(usize, char) -> bool,
) -> Option<usize> {
    let mut quote = None;
    let found = text.char_indices().find(|&(at, c)| match quote {
        Some(open) => {
            quote = Some(open).filter(|_| c != open);
            false
        }
        None if matches!(c, '"' | '\'') => {
            quote = Some(c);
            false
        }
        None => is_wanted(at, c),
    });
    found.map(|(at, _)| at)
}

/// The straight quote for a typographic one.
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
    fn brackets_in_quotes_and_comments_are_ignored() {
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
    fn unterminated_markup_ends_with_the_text() {
        for text in ["<", "<a", "<a b=\"", "<!--", "<![CDATA[", "<?x", "<!DOCTYPE [", "</", "<é"] {
            cut(text);
        }
    }
}
