//! Texts with `%%..%%`, and regular expressions.

use simurgh_load_scenario::{Diagnostic, Generated, Part, Template};

use super::Lower;
use super::variables::USER_ID;
use crate::subst::{self, Piece};

impl Lower<'_> {
    /// A text that is sent, in Latin-1 as by Tsung; `%%..%%` in it is only replaced with `subst`.
    pub(super) fn template(&mut self, text: &str, subst: bool, line: u32) -> Template {
        if !text.is_ascii() {
            let (what, help) = match latin1(text) {
                Some(_) => ("is sent in Latin-1, as by Tsung", "use a TOML scenario for UTF-8"),
                None => ("is sent in UTF-8", "Tsung refuses characters beyond Latin-1"),
            };
            self.warn(line, format!("a text with letters other than ASCII {what}"), help);
        }
        self.bytes_template(text, subst, line)
    }

    /// As [`Self::template`], for the bytes of a file.
    pub(super) fn bytes_template(&mut self, text: &str, subst: bool, line: u32) -> Template {
        let mut template = self.text_template(text, subst, line);
        for part in &mut template.parts {
            if let Part::Literal(literal) = part
                && let Some(bytes) = str::from_utf8(literal).ok().and_then(latin1)
            {
                *literal = bytes;
            }
        }
        template
    }

    /// A text that is compared, in UTF-8.
    pub(super) fn text_template(&mut self, text: &str, subst: bool, line: u32) -> Template {
        let (pieces, lone) = subst::pieces(text);
        if !subst {
            let known = pieces.iter().any(|piece| match piece {
                Piece::Var(..) => true,
                Piece::Call(name) => subst::CALLS.contains(name),
                Piece::Text(_) => false,
            });
            if known {
                let help = "give the request subst=\"true\" if a value is meant";
                let what = "a `%%..%%` is in a place without substitution, and is sent unchanged";
                self.warnings.push(Diagnostic::at(line, what).help(help));
            }
            return Template::literal(text);
        }
        if lone {
            let help = "Tsung would swallow the text after it";
            let what = "a `%%` begins neither a variable nor a function, and is sent unchanged";
            self.warnings.push(Diagnostic::at(line, what).help(help));
        }
        pieces.into_iter().filter_map(|piece| self.part(&piece, line)).collect()
    }

    fn part(&mut self, piece: &Piece<'_>, line: u32) -> Option<Part> {
        match *piece {
            Piece::Text(text) => Some(Part::Literal(text.as_bytes().to_vec())),
            Piece::Var(USER_ID, None) => Some(Part::Value(Generated::UserId)),
            Piece::Var(name, element) => {
                let element = self.element(element, name, line)?;
                let var = self.var_used(name, line);
                Some(element.map_or(Part::Var(var), |element| Part::Element(var, element)))
            }
            Piece::Call("ts_digest:md5hex") => {
                let what = "`ts_digest:md5hex` needs a value, which `%%..%%` cannot give it";
                let help = "make a variable with <setdynvars sourcetype=\"eval\"> and \
                            ts_digest:md5hex(V)";
                self.refuse(line, what, help)
            }
            Piece::Call(name) => self.call(name, line).map(Part::Value),
        }
    }
}

/// The text in Latin-1, if all its characters are there.
pub(super) fn latin1(text: &str) -> Option<Vec<u8>> {
    text.chars().map(|c| u8::try_from(u32::from(c)).ok()).collect()
}
