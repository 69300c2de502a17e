//! Answers as input of captures and checks.

use std::borrow::Cow;

use html5gum::{DefaultEmitter, State, Token, Tokenizer};
use simurgh_load_client::http::Kept;

/// One answer: bytes that the caller owns.
pub struct AnswerText<'a> {
    whole: &'a [u8],
    head_bytes: usize,
}

impl<'a> AnswerText<'a> {
    /// An answer without a head: a frame, or a reply's `response`.
    #[must_use]
    pub fn body_only(body: &'a [u8]) -> Self {
        Self::http(body, 0)
    }

    /// An HTTP answer: head and body in one piece, and the head's length in bytes.
    #[must_use]
    pub fn http(whole: &'a [u8], head_bytes: usize) -> Self {
        Self { whole, head_bytes: head_bytes.min(whole.len()) }
    }

    /// The kept part of an HTTP answer.
    #[must_use]
    pub fn kept(kept: &'a Kept) -> Self {
        let (whole, head_bytes) = kept.whole();
        Self::http(whole, head_bytes)
    }

    /// Head and body.
    #[must_use]
    pub fn whole(&self) -> &'a [u8] {
        self.whole
    }

    /// Status line and headers; `None` where there are none.
    #[must_use]
    pub fn head(&self) -> Option<&'a [u8]> {
        self.whole.get(..self.head_bytes).filter(|head| !head.is_empty())
    }

    /// The part after the head.
    #[must_use]
    pub fn body(&self) -> &'a [u8] {
        self.whole.get(self.head_bytes..).unwrap_or_default()
    }
}

/// Decodes `&amp;`, `&#39;` and all other character references of HTML.
#[must_use]
pub fn decode_html(text: &str) -> Cow<'_, str> {
    if !text.contains('&') {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('&') {
        let (before, reference) = rest.split_at(at);
        out.push_str(before);
        let is_part = |char: char| char.is_ascii_alphanumeric() || matches!(char, '#' | ';');
        let inner = reference.get(1..).unwrap_or_default();
        // Only the reference, because the tokenizer changes line ends and NULs.
        let end = reference.len() - inner.trim_start_matches(is_part).len();
        let (reference, after) = reference.split_at(end);
        decode_reference(reference, &mut out);
        rest = after;
    }
    out.push_str(rest);
    Cow::Owned(out)
}

fn decode_reference(reference: &str, out: &mut String) {
    let mut tokenizer = Tokenizer::new_with_emitter(reference, DefaultEmitter::default());
    // In this state only references are interpreted.
    tokenizer.set_state(State::RcData);
    for token in tokenizer.flatten() {
        if let Token::String(piece) = token {
            out.push_str(&String::from_utf8_lossy(&piece));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn html_references_are_decoded_and_other_text_is_unchanged() {
        let table = [
            ("plain <b>", "plain <b>"),
            ("a &amp; b &lt;i&gt; &quot;&apos;&#39;&#x27;", "a & b <i> \"'''"),
            ("&eacute;&euro;&nbsp;x", "\u{e9}\u{20ac}\u{a0}x"),
            ("<b>&amp;</b> </title> &amp", "<b>&</b> </title> &"),
            ("&amp;amp;", "&amp;"),
            ("&unknown; & &;", "&unknown; & &;"),
            ("a\r\n\0&lt;\rb", "a\r\n\0<\rb"),
            ("&am&amp;p;&#128512;&#0;&#xD800;", "&am&p;\u{1f600}\u{fffd}\u{fffd}"),
        ];
        for (text, wanted) in table {
            assert_eq!(decode_html(text), wanted, "{text}");
        }
    }

    #[test]
    fn response_head_and_body_are_separated() {
        let answer = AnswerText::http(b"HTTP/1.1 200 OK\r\n\r\nbody", 19);
        assert_eq!(answer.head(), Some(&b"HTTP/1.1 200 OK\r\n\r\n"[..]));
        assert_eq!(answer.body(), b"body");
        let frame = AnswerText::body_only(b"body");
        assert_eq!((frame.head(), frame.body()), (None, &b"body"[..]));
        assert_eq!(AnswerText::http(b"ab", 9).body(), b"");
    }
}
