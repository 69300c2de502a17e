//! The templates' values, and escaping of text.

use std::fmt::{self, Write};

use askama::Template;
use askama::filters::{Escaper, Html};

/// The parts of every page: head, navigation, flash message, footer.
pub(crate) struct Page<'a> {
    pub(crate) title: &'a str,
    pub(crate) path: &'a str,
    pub(crate) csrf_token: &'a str,
    pub(crate) flash: Option<&'a str>,
    pub(crate) links: &'a [Link],
    pub(crate) version: &'static str,
}

pub(crate) struct Link {
    pub(crate) href: &'static str,
    pub(crate) text: &'static str,
}

/// A further link of the page.
pub(crate) struct Guide {
    pub(crate) href: &'static str,
    pub(crate) title: &'static str,
    pub(crate) text: &'static str,
}

#[derive(Template)]
#[template(path = "index.html")]
pub(crate) struct Index<'a> {
    pub(crate) page: Page<'a>,
    pub(crate) guides: &'a [Guide],
}

/// Escapes as askama's own [`Html`], searching blocks: nearly all text needs no escaping.
#[derive(Clone, Copy, Default)]
pub(crate) struct FastHtml;

impl Escaper for FastHtml {
    fn write_escaped_str<W: Write>(&self, mut dest: W, string: &str) -> fmt::Result {
        let mut rest = string;
        while let Some((plain, special, behind)) = cut_at_special(rest) {
            dest.write_str(plain)?;
            Html.write_escaped_str(&mut dest, special)?;
            rest = behind;
        }
        dest.write_str(rest)
    }
}

/// Bytes that are searched together.
const BLOCK_BYTES: usize = 16;

/// The text before the first special character of HTML, that character, and the rest.
fn cut_at_special(text: &str) -> Option<(&str, &str, &str)> {
    let bytes = text.as_bytes();
    let (blocks, rest) = bytes.as_chunks::<BLOCK_BYTES>();
    let from = match blocks.iter().position(has_special) {
        Some(block) => block * BLOCK_BYTES,
        None => {
            let mut last = [0; BLOCK_BYTES];
            last.get_mut(..rest.len())?.copy_from_slice(rest);
            has_special(&last).then_some(bytes.len() - rest.len())?
        }
    };
    let at = from + bytes.get(from..)?.iter().position(|byte| is_special(*byte))?;
    let (plain, rest) = text.split_at_checked(at)?;
    let (special, behind) = rest.split_at_checked(1)?;
    Some((plain, special, behind))
}

/// A sum without a branch: compilers make a dozen instructions of it, for all bytes at once.
fn has_special(block: &[u8; BLOCK_BYTES]) -> bool {
    block.iter().fold(0, |found, byte| found | u8::from(is_special(*byte))) != 0
}

fn is_special(byte: u8) -> bool {
    (byte == b'"') | (byte == b'&') | (byte == b'\'') | (byte == b'<') | (byte == b'>')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn escaped(escaper: impl Escaper, text: &str) -> String {
        let mut out = String::new();
        escaper.write_escaped_str(&mut out, text).unwrap();
        out
    }

    /// At each place of a block and of the rest after the last one.
    #[test]
    fn html_escaping_equals_that_of_askama() {
        for filler in ["a", "ü", "鳥"] {
            for before in 0..40 {
                for special in ["", "<", ">", "&", "\"", "'", "<b>&\"'</b>"] {
                    for after in [0, 1, 15, 16, 33] {
                        let (before, after) = (filler.repeat(before), filler.repeat(after));
                        let text = format!("{before}{special}{after}{special}");
                        assert_eq!(escaped(FastHtml, &text), escaped(Html, &text), "{text}");
                    }
                }
            }
        }
        assert_eq!(escaped(FastHtml, "<&>"), "&#60;&#38;&#62;");
    }
}
