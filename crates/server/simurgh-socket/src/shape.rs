//! The shape of payloads, on which receivers may rely. Members are clients by other authors; one
//! that expects an object throws at `null`, and fails for its user.

use serde::Deserialize;
use serde_json::{Value, json};
use simurgh_proto::message::Payload;

/// The payloads that a channel accepts in joins, events, and publishing to its topics.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PayloadShape {
    /// JSON objects, `{…}`: what all clients of Phoenix send.
    #[default]
    Object,
    /// Any value of JSON.
    Json,
    /// Any value of JSON, and binary.
    Any,
}

/// Why a payload is not accepted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Misfit {
    /// It is of another shape.
    Shape {
        /// The required shape.
        expected: PayloadShape,
        /// Its kind of value.
        found: &'static str,
    },
    /// It breaks a rule of the schema.
    Schema {
        /// Where, as a JSON Pointer.
        at: String,
        /// The keyword of the rule.
        rule: String,
    },
}

impl Misfit {
    /// The fields of the reply to its sender, as a JSON object.
    pub fn fields(&self) -> Value {
        match self {
            Self::Shape { expected, found } => json!({"expected": expected.name(), "found": found}),
            Self::Schema { at, rule } => json!({"expected": "schema", "at": at, "rule": rule}),
        }
    }
}

impl PayloadShape {
    /// Whether a payload fits. Reads one character.
    pub fn check(self, payload: &Payload<'_>) -> Result<(), Misfit> {
        match self.misfit(payload) {
            Some(found) => Err(Misfit::Shape { expected: self, found }),
            None => Ok(()),
        }
    }

    /// The kind of a payload that does not fit; `None` if it fits.
    pub fn misfit(self, payload: &Payload<'_>) -> Option<&'static str> {
        let found = kind(payload);
        let fits = match self {
            Self::Object => found == OBJECT,
            Self::Json => found != BINARY,
            Self::Any => true,
        };
        (!fits).then_some(found)
    }

    /// Its name in a reply.
    pub fn name(self) -> &'static str {
        match self {
            Self::Object => OBJECT,
            Self::Json => "json",
            Self::Any => "any",
        }
    }
}

const OBJECT: &str = "object";
const BINARY: &str = "binary";

/// The kind of value of a payload, whose text is known to be JSON.
fn kind(payload: &Payload<'_>) -> &'static str {
    let Some(text) = payload.json() else { return BINARY };
    match text.trim_start_matches([' ', '\t', '\r', '\n']).bytes().next() {
        Some(b'{') => OBJECT,
        Some(b'[') => "array",
        Some(b'"') => "string",
        Some(b't' | b'f') => "boolean",
        Some(b'n') | None => "null",
        Some(_) => "number",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kind_of_a_value_follows_from_its_first_character() {
        for (text, expected) in [
            ("{}", "object"),
            (" \t\r\n{\"a\":1}", "object"),
            ("[1]", "array"),
            ("\"{}\"", "string"),
            ("true", "boolean"),
            ("false", "boolean"),
            ("null", "null"),
            ("7", "number"),
            ("-0.5e3", "number"),
        ] {
            let payload = Payload::checked(text).unwrap();
            assert_eq!(kind(&payload), expected, "{text}");
            let misfit = (expected != "object").then_some(expected);
            assert_eq!(PayloadShape::Object.misfit(&payload), misfit, "{text}");
            assert_eq!(PayloadShape::Json.misfit(&payload), None, "{text}");
        }
    }

    #[test]
    fn only_shape_any_accepts_binary() {
        let binary = Payload::from_bytes(vec![b'{']);
        assert_eq!(PayloadShape::Object.misfit(&binary), Some("binary"));
        assert_eq!(PayloadShape::Json.misfit(&binary), Some("binary"));
        assert_eq!(PayloadShape::Any.misfit(&binary), None);
    }
}
