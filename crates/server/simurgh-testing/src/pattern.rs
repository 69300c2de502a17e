//! JSON patterns with `_` for any value, and how a value differs from one.

use std::fmt;

use serde::Serialize;
use serde_json::Value;

/// An expected JSON value; the braces in [`assert_push!`](crate::assert_push) become one.
#[derive(Debug, Clone, PartialEq)]
pub enum Pattern {
    /// `_`: any value.
    Any,
    /// Exactly this value, which is no object and no array.
    Is(Value),
    /// An object that has these members.
    Object {
        /// Its members.
        members: Vec<(String, Pattern)>,
        /// It may have others.
        is_open: bool,
    },
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
        Self::Object { members: Vec::new(), is_open: true }
    }

    /// The empty array.
    pub fn array() -> Self {
        Self::Array { items: Vec::new(), is_open: false }
    }

    /// This value. Panics if JSON has no such value, as for a map whose keys are not strings.
    #[track_caller]
    pub fn is(value: &impl Serialize) -> Self {
        match serde_json::to_value(value) {
            Ok(value) => value.into(),
            Err(error) => super::fail(&format!("the expected value is not JSON: {error}")),
        }
    }

    /// Adds a member to an object.
    #[must_use]
    pub fn with(mut self, key: &str, value: Self) -> Self {
        if let Self::Object { members, .. } = &mut self {
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
        self.compare(String::new(), Some(found), &mut all);
        all
    }

    fn compare(&self, path: String, found: Option<&Value>, into: &mut Vec<Difference>) {
        match (self, found) {
            (Self::Any, Some(_)) => {}
            (Self::Is(expected), Some(found)) if expected == found => {}
            (Self::Object { members, is_open }, Some(Value::Object(object))) => {
                for (key, expected) in members {
                    expected.compare(member(&path, key), object.get(key), into);
                }
                let is_surplus = |key: &str| !is_open && members.iter().all(|(it, _)| it != key);
                for (key, found) in object.iter().filter(|(key, _)| is_surplus(key)) {
                    into.push(Difference::of(member(&path, key), None, Some(found)));
                }
            }
            (Self::Array { items, is_open }, Some(Value::Array(array))) => {
                for (at, expected) in items.iter().enumerate() {
                    expected.compare(format!("{path}[{at}]"), array.get(at), into);
                }
                let surplus = array.iter().enumerate().skip(items.len());
                for (at, found) in surplus.filter(|_| !is_open) {
                    into.push(Difference::of(format!("{path}[{at}]"), None, Some(found)));
                }
            }
            _ => into.push(Difference::of(path, Some(self), found)),
        }
    }

    /// The number of values without children.
    fn extent(&self) -> usize {
        match self {
            Self::Any | Self::Is(_) => 1,
            Self::Object { members, .. } => {
                members.iter().map(|(_, value)| value.extent()).sum::<usize>().max(1)
            }
            Self::Array { items, .. } => items.iter().map(Self::extent).sum::<usize>().max(1),
        }
    }
}

/// Exactly this value.
impl From<Value> for Pattern {
    fn from(value: Value) -> Self {
        match value {
            Value::Object(members) => {
                let members = members.into_iter().map(|(key, value)| (key, value.into()));
                Self::Object { members: members.collect(), is_open: false }
            }
            Value::Array(items) => {
                Self::Array { items: items.into_iter().map(Self::from).collect(), is_open: false }
            }
            value => Self::Is(value),
        }
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
    fn of(path: String, expected: Option<&Pattern>, found: Option<&Value>) -> Self {
        let weight = match (expected, found) {
            // Another kind of value: any other message is nearer.
            (Some(_), Some(_)) if path.is_empty() => usize::MAX,
            (Some(expected), None) => expected.extent(),
            (None, Some(found)) => Pattern::from(found.clone()).extent(),
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
            Self::Object { members, .. } => {
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
    fn only_named_members_of_objects_must_match() {
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
    fn arrays_match_completely() {
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
    fn pattern_is_shown_as_written() {
        let shown = pattern!({"a": [1, _, ..], "b": {"c": null}, "d": [], "e": [..]}).to_string();
        assert_eq!(shown, r#"{"a": [1, _, ..], "b": {"c": null}, "d": [], "e": [..]}"#);
    }
}
