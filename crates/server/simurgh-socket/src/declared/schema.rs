//! JSON Schemas of payloads (2020-12): compiled at the start, without references to files or URLs,
//! and with patterns that take linear time.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use jsonschema::{PatternOptions, Validator};
use serde_json::Value;
use simurgh_proto::message::Payload;

use crate::shape::Misfit;

/// The longest place in a payload that a reply names, characters: the client chooses its keys.
const AT_MAX: usize = 200;
/// The rule for a payload that cannot be read: binary, too deep, or a number out of range.
const UNREADABLE: &str = "json";

/// A schema, and how many payloads it has refused.
#[derive(Debug)]
pub(super) struct Schema {
    validator: Validator,
    refused: AtomicU64,
}

impl Schema {
    /// Compiles the schema of a key, or of the file that another key names; `None` without either.
    /// The error names its key.
    pub(super) fn read(
        (key, value): (&'static str, Option<&Value>),
        (file_key, path): (&'static str, Option<&Path>),
    ) -> Result<Option<Self>, (&'static str, String)> {
        match (value, path) {
            (None, None) => Ok(None),
            (Some(value), None) => Self::compile(value).map(Some).map_err(|why| (key, why)),
            (None, Some(path)) => Self::of_file(path).map(Some).map_err(|why| (file_key, why)),
            (Some(_), Some(_)) => Err((file_key, format!("{key} is set, too: remove one of them"))),
        }
    }

    fn of_file(path: &Path) -> Result<Self, String> {
        let name = path.display();
        let text = std::fs::read_to_string(path);
        let text = text.map_err(|error| format!("cannot read {name}: {error}"))?;
        let value: Value =
            serde_json::from_str(&text).map_err(|error| format!("{name}: not JSON: {error}"))?;
        Self::compile(&value).map_err(|why| format!("{name}: {why}"))
    }

    fn compile(value: &Value) -> Result<Self, String> {
        let options = jsonschema::options().with_pattern_options(PatternOptions::regex());
        let validator = options.build(value).map_err(|error| {
            format!("no JSON Schema, at \"{}\": {error}", error.instance_path())
        })?;
        Ok(Self { validator, refused: AtomicU64::new(0) })
    }

    /// The first rule that a payload breaks.
    pub(super) fn check(&self, payload: &Payload<'_>) -> Result<(), Misfit> {
        let value = payload.json().and_then(|json| serde_json::from_str::<Value>(json).ok());
        let (at, rule) = match &value {
            None => (String::new(), UNREADABLE.to_owned()),
            Some(value) => match self.validator.validate(value) {
                Ok(()) => return Ok(()),
                Err(error) => {
                    let at = error.instance_path().as_str().chars().take(AT_MAX).collect();
                    (at, error.kind().keyword().to_owned())
                }
            },
        };
        self.refused.fetch_add(1, Relaxed);
        Err(Misfit::Schema { at, rule })
    }

    /// How many payloads it has refused.
    pub(super) fn refused(&self) -> u64 {
        self.refused.load(Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn of(value: Value) -> Result<Schema, String> {
        Schema::compile(&value)
    }

    fn broken(schema: &Schema, text: &str) -> (String, String) {
        match schema.check(&Payload::checked(text).unwrap()) {
            Err(Misfit::Schema { at, rule }) => (at, rule),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn first_broken_rule_is_named_with_its_place() {
        let schema = of(json!({
            "type": "object", "required": ["body"], "additionalProperties": false,
            "properties": {
                "body": {"type": "string", "maxLength": 3},
                "a/b": {"items": {"pattern": "^(a+)+$"}},
                "email": {"format": "email"},
            },
        }));
        let schema = schema.unwrap();
        for text in [r#"{"body":"üüü"}"#, r#"{"body":"","a/b":["aa"],"email":"no"}"#] {
            assert_eq!(schema.check(&Payload::checked(text).unwrap()), Ok(()), "{text}");
        }
        let a = "a".repeat(30_000);
        for (text, at, rule) in [
            (r#"{"body":"four"}"#.to_owned(), "/body", "maxLength"),
            ("{}".to_owned(), "", "required"),
            (r#"{"body":"","more":1}"#.to_owned(), "", "additionalProperties"),
            (format!(r#"{{"body":"","a/b":["a","{a}!"]}}"#), "/a~1b/1", "pattern"),
            (r#"{"body":1e999}"#.to_owned(), "", "json"),
            (format!("{}{}", "[".repeat(200), "]".repeat(200)), "", "json"),
        ] {
            assert_eq!(broken(&schema, &text), (at.to_owned(), rule.to_owned()), "{text:.40}");
        }
        assert_eq!(schema.refused(), 6);
        let bytes = Payload::from_bytes(vec![1]);
        assert!(schema.check(&bytes).is_err());
    }

    #[test]
    fn place_in_the_reply_is_bounded() {
        let schema = of(json!({"additionalProperties": {"type": "integer"}})).unwrap();
        let text = json!({"k".repeat(5_000): "x"}).to_string();
        assert_eq!(broken(&schema, &text).0.chars().count(), AT_MAX);
    }

    #[test]
    fn wrong_schemas_are_refused_with_their_place() {
        for (schema, says) in [
            (json!(7), "no JSON Schema, at \"\": 7 is not of types"),
            (json!({"properties": {"a": {"type": "strin"}}}), "at \"/properties/a/type\""),
            // Lookahead would need an engine that goes back.
            (json!({"properties": {"a": {"pattern": "(?=a)"}}}), "at \"/properties/a/pattern\""),
            (json!({"$ref": "https://example.com/schema"}), "https://example.com/schema"),
            (json!({"$ref": "file:///etc/passwd"}), "file:///etc/passwd"),
        ] {
            let error = of(schema).err().unwrap();
            assert!(error.contains(says), "{error}");
        }
        // A circle of references ends.
        assert_eq!(of(json!({"$ref": "#"})).unwrap().check(&Payload::EMPTY_OBJECT), Ok(()));
    }
}
