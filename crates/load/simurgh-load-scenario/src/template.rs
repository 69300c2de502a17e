//! Texts with placeholders.

use serde::{Deserialize, Serialize};

/// Index into [`Scenario::vars`](super::Scenario::vars).
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct VarId(pub u16);

/// Text or bytes with placeholders.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Template {
    /// In order; literals are never adjacent.
    pub parts: Vec<Part>,
}

impl Template {
    /// A text without placeholders.
    pub fn literal(text: &str) -> Self {
        Part::Literal(text.as_bytes().to_vec()).into()
    }

    /// Adds a part; adjacent literals are merged.
    pub fn push(&mut self, part: Part) {
        match (self.parts.last_mut(), part) {
            (_, Part::Literal(text)) if text.is_empty() => {}
            (Some(Part::Literal(before)), Part::Literal(text)) => before.extend(text),
            (_, part) => self.parts.push(part),
        }
    }

    /// The text, if it has no placeholders.
    pub fn constant(&self) -> Option<&[u8]> {
        match self.parts.as_slice() {
            [] => Some(b""),
            [Part::Literal(text)] => Some(text),
            _ => None,
        }
    }

    /// Adds a literal.
    pub fn push_literal(&mut self, text: &[u8]) {
        self.push(Part::Literal(text.to_vec()));
    }
}

impl From<Part> for Template {
    fn from(part: Part) -> Self {
        Self::from_iter([part])
    }
}

impl FromIterator<Part> for Template {
    fn from_iter<I: IntoIterator<Item = Part>>(parts: I) -> Self {
        let mut template = Self::default();
        parts.into_iter().for_each(|part| template.push(part));
        template
    }
}

/// A piece of a [`Template`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Part {
    /// Literal bytes.
    Literal(Vec<u8>),
    /// The value of a variable; one that was never set becomes `undefined`, counted as an error.
    Var(VarId),
    /// An element of a variable that holds a list, by index from 0.
    Element(VarId, u32),
    /// A generated value.
    Value(Generated),
}

/// Values that are generated when needed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Generated {
    /// The user's number, from 1 over the whole run (`tsung_userid`).
    UserId,
    /// Unique over all runs: seconds since 1970, a dash, the user's number.
    ReallyUniqueId,
    /// Whole number from first to last, both included.
    RandomNumber(i64, i64),
    /// This many letters and digits, drawn each time.
    RandomString(u32),
    /// Sender's stamp: sender, number and time; receivers find it anywhere in a frame (see
    /// `simurgh_load_engine::stamp`).
    Stamp,
    /// The next row of a file, unchanged (Tsung's `ts_file_server:get_next_line`).
    NextLine(u16),
    /// Any row of a file, unchanged.
    RandomLine(u16),
    /// Seconds since 1970.
    UnixTime,
    /// Host of the user's server.
    TargetHost,
    /// Port of the user's server.
    TargetPort,
    /// Lower-case MD5 of a template (`ts_digest:md5hex`).
    Md5(Box<Template>),
    /// Lower-case HMAC with SHA-256: its key and its text.
    HmacSha256(Box<(Template, Template)>),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn adjacent_template_literals_are_joined() {
        let literal = |text: &str| Part::Literal(text.as_bytes().to_vec());
        let id = Part::Value(Generated::UserId);
        let parts = [literal("a"), literal(""), literal("b"), id.clone(), literal("")];
        assert_eq!(Template::from_iter(parts).parts, [literal("ab"), id]);
    }
}
