//! JSON patterns with `_` for any value, and how a value differs from one.

use std::fmt;

use serde::Serialize;
use serde_json::Value;

/// An expected JSON value; the braces in [`assert_push!`](crate::assert_push) become one.
#[derive(Debug, Clone, PartialEq)]
pub enum Pattern {
    /// `_`: any value.
    Any,
    /// Exactly this value.
    Is(Value),
    /// An object that has these members, and may have others.
    Object(Vec<(String, Pattern)>),
    /// An array that begins with these values.
    Array {
        /// Its first values.
        items: Vec<Pattern>,
        /// `..`: more may follow.
        is_open: bool,
    },
}

/// One place where a value differs from the expected one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    /// Such as `user.names[2]`; empty for the value itself.
    path: String,
    /// The expected value; `None` if none was expected.
    expected: Option<String>,
    /// The actual value; `None` if there is none.
    found: Option<String>,
    /// The number of values that differ.
    weight: usize,
}

impl Pattern {
    /// An object with any members.
    pub fn object() -> Self {
        Self::Object(Vec::new())
    }

    /// The empty array.
    pub fn array() -> Self {
        Self::Array { items: Vec::new(), is_open: false }
    }

    /// This value. Panics if JSON has no such value, as for a map whose keys are not strings.
    #[track_caller]
    pub fn is(value: &impl Serialize) -> Self {
        match serde_json::to_value(value) {
            Ok(value) => Self::Is(value),
            Err(error) => super::fail(&format!("what is expected is no JSON: {error}")),
        }
    }

    /// Adds a member to an object.
    #[must_use]
    pub fn with(mut self, key: &str, value: Self) -> Self {
        if let Self::Object(members) = &mut self {
            members.push((key.to_owned(), value));
        }
        self
    }

    /// Adds a value to an array.
    #[must_use]
    pub fn then(mut self, value: Self) -> Self {
        if let Self::Array { items, .. } = &mut self {
            items.push(value);
        }
        self
    }

    /// Allows further values at the end of an array.
    #[must_use]
    pub fn and_more(mut self) -> Self {
        if let Self::Array { is_open, .. } = &mut self {
            *is_open = true;
        }
        self
    }

    /// The places where a value differs; empty if it matches.
    pub fn differences(&self, found: &Value) -> Vec<Difference> {
        let mut all = Vec::new();
        self.compare("", found, &mut all);
        all
    }

    fn compare(&self, path: &str, found: &Value, into: &mut Vec<Difference>) {
        match (self, found) {
            (Self::Any, _) => {}
            (Self::Is(expected), _) => compare_values(path, expected, found, into),
            (Self::Object(members), Value::Object(object)) => {
                for (key, expected) in members {
                    let path = member(path, key);
                    match object.get(key) {
                        Some(found) => expected.compare(&path, found, into),
                        None => into.push(Difference::of(path, Some(expected), None::<&Value>)),
                    }
                }
            }
            (Self::Array { items, is_open }, Value::Array(array)) => {
                for (at, expected) in items.iter().enumerate() {
                    let path = format!("{path}[{at}]");
                    match array.get(at) {
                        Some(found) => expected.compare(&path, found, into),
                        None => into.push(Difference::of(path, Some(expected), None::<&Value>)),
                    }
                }
                if !is_open {
                    add_surplus(path, items.len(), array, into);
                }
            }
            _ => into.push(Difference::of(path.to_owned(), Some(self), Some(found))),
        }
    }
}

fn compare_values(path: &str, expected: &Value, found: &Value, into: &mut Vec<Difference>) {
    match (expected, found) {
        (Value::Object(expected), Value::Object(found)) => {
            for (key, value) in expected {
                let path = member(path, key);
                match found.get(key) {
                    Some(found) => compare_values(&path, value, found, into),
                    None => into.push(Difference::of(path, Some(value), None::<&Value>)),
                }
            }
            for (key, value) in found.iter().filter(|(key, _)| !expected.contains_key(*key)) {
                into.push(Difference::of(member(path, key), None::<&Value>, Some(value)));
            }
        }
        (Value::Array(expected), Value::Array(found)) => {
            for (at, value) in expected.iter().enumerate() {
                let path = format!("{path}[{at}]");
                match found.get(at) {
                    Some(found) => compare_values(&path, value, found, into),
                    None => into.push(Difference::of(path, Some(value), None::<&Value>)),
                }
            }
            add_surplus(path, expected.len(), found, into);
        }
        _ if expected == found => {}
        _ => into.push(Difference::of(path.to_owned(), Some(expected), Some(found))),
    }
}

/// Adds the values of an array beyond the expected ones.
fn add_surplus(path: &str, expected: usize, found: &[Value], into: &mut Vec<Difference>) {
    for (at, value) in found.iter().enumerate().skip(expected) {
        into.push(Difference::of(format!("{path}[{at}]"), None::<&Value>, Some(value)));
    }
}

fn member(path: &str, key: &str) -> String {
    let is_word = !key.is_empty() && key.chars().all(|it| it.is_alphanumeric() || it == '_');
    match (path.is_empty(), is_word) {
        (true, true) => key.to_owned(),
        (false, true) => format!("{path}.{key}"),
        (_, false) => format!("{path}[{key:?}]"),
    }
}

impl Difference {
    fn of(path: String, expected: Option<&impl Extent>, found: Option<&impl Extent>) -> Self {
        let weight = match (expected, found) {
            // Another kind of value: any other message is nearer.
            (Some(_), Some(_)) if path.is_empty() => usize::MAX,
            (Some(expected), None) => expected.extent(),
            (None, Some(found)) => found.extent(),
            _ => 1,
        };
        Self {
            path,
            expected: expected.map(ToString::to_string),
            found: found.map(ToString::to_string),
            weight,
        }
    }

    /// The number of values that exist only on one side, or 1 for a changed value.
    pub(crate) fn weight(&self) -> usize {
        self.weight
    }
}

trait Extent: fmt::Display {
    /// The number of values without children.
    fn extent(&self) -> usize;
}

impl Extent for Value {
    fn extent(&self) -> usize {
        match self {
            Self::Object(members) => members.values().map(Self::extent).sum::<usize>().max(1),
            Self::Array(items) => items.iter().map(Self::extent).sum::<usize>().max(1),
            _ => 1,
        }
    }
}

impl Extent for Pattern {
    fn extent(&self) -> usize {
        match self {
            Self::Any => 1,
            Self::Is(value) => value.extent(),
            Self::Object(members) => {
                members.iter().map(|(_, value)| value.extent()).sum::<usize>().max(1)
            }
            Self::Array { items, .. } => items.iter().map(Self::extent).sum::<usize>().max(1),
        }
    }
}

/// As `body: expected "hi", found "ho"`.
impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.path.is_empty() {
            write!(f, "{}: ", self.path)?;
        }
        match (&self.expected, &self.found) {
            (Some(expected), Some(found)) => write!(f, "expected {expected}, found {found}"),
            (Some(expected), None) => write!(f, "expected {expected}, found nothing"),
            (None, Some(found)) => write!(f, "expected nothing, found {found}"),
            (None, None) => Ok(()),
        }
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Any => f.write_str("_"),
            Self::Is(value) => value.fmt(f),
            Self::Object(members) => {
                f.write_str("{")?;
                for (at, (key, value)) in members.iter().enumerate() {
                    let comma = if at == 0 { "" } else { ", " };
                    write!(f, "{comma}{key:?}: {value}")?;
                }
                f.write_str("}")
            }
            Self::Array { items, is_open } => {
                f.write_str("[")?;
                for (at, value) in items.iter().enumerate() {
                    let comma = if at == 0 { "" } else { ", " };
                    write!(f, "{comma}{value}")?;
                }
                match (*is_open, items.is_empty()) {
                    (true, true) => f.write_str("..]"),
                    (true, false) => f.write_str(", ..]"),
                    (false, _) => f.write_str("]"),
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::Pattern;
    use crate::__testing_json as pattern;

    fn differences(pattern: &Pattern, found: &serde_json::Value) -> Vec<String> {
        pattern.differences(found).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn of_objects_the_named_members_have_to_match() {
        let found = json!({"body": "hi", "id": 7, "by": {"name": "Ann", "age": 7}});
        let name = "Ann";
        for matching in [
            pattern!({}),
            pattern!({"body": "hi"}),
            pattern!({"body": _, "id": 3 + 4,}),
            pattern!({"by": {"name": name}}),
            pattern!({"by": json!({"age": 7, "name": "Ann"})}),
        ] {
            assert_eq!(differences(&matching, &found), [""; 0], "{matching}");
        }
        let unlike = pattern!({"body": "ho", "by": {"name": null}, "no": _, "a b": [1]});
        let expected = [
            r#"body: expected "ho", found "hi""#,
            r#"by.name: expected null, found "Ann""#,
            "no: expected _, found nothing",
            r#"["a b"]: expected [1], found nothing"#,
        ];
        assert_eq!(differences(&unlike, &found), expected);
        let exact = pattern!({"by": json!({"name": "Ann"})});
        assert_eq!(differences(&exact, &found), ["by.age: expected nothing, found 7"]);
    }

    #[test]
    fn arrays_match_from_their_first_value_to_their_last() {
        let found = json!([1, {"a": 2, "b": 3}, null]);
        for matching in [
            pattern!([1, {"a": 2}, null]),
            pattern!([1, ..]),
            pattern!([..]),
            pattern!([_, _, _]),
            pattern!(_),
        ] {
            assert_eq!(differences(&matching, &found), [""; 0], "{matching}");
        }
        assert_eq!(differences(&pattern!([_, _]), &found), ["[2]: expected nothing, found null"]);
        let longer = pattern!([1, _, null, 4]);
        assert_eq!(differences(&longer, &found), ["[3]: expected 4, found nothing"]);
        let object = pattern!([1, {"a": [2]}, ..]);
        assert_eq!(differences(&object, &found), ["[1].a: expected [2], found 2"]);
        assert_eq!(differences(&pattern!({}), &json!(1)), ["expected {}, found 1"]);
    }

    #[test]
    fn it_is_shown_as_it_was_written() {
        let shown = pattern!({"a": [1, _, ..], "b": {"c": null}, "d": [], "e": [..]}).to_string();
        assert_eq!(shown, r#"{"a": [1, _, ..], "b": {"c": null}, "d": [], "e": [..]}"#);
    }
}
