//! Any bytes as the join of a client to a topic with a history.
use serde_json::{Map, Value};
use simurgh_history::{Position, Resume, Since};

/// Runs the target over one input.
pub fn run(data: &[u8]) {
    let Ok(text) = str::from_utf8(data) else { return };
    if let Some(position) = Position::parse(text) {
        assert_eq!(position.to_string(), text, "one spelling each");
    }
    let parsed = Resume::parse(text);
    if let Ok(Some(resume)) = &parsed {
        assert_eq!(resume.id_hash(1).is_some(), resume.id.is_some());
    }
    // Nothing is compared beyond the depth and numbers of serde_json.
    let Ok(payload) = serde_json::from_str::<Map<String, Value>>(text) else { return };
    let said = payload.get("simurgh");
    match (said.map(expected), parsed) {
        (None, parsed) => assert_eq!(parsed, Ok(None)),
        (Some(None), parsed) => assert!(parsed.is_err(), "{parsed:?}"),
        (Some(Some(expected)), parsed) => assert_eq!(parsed, Ok(Some(expected))),
    }
}

/// The same, read from a tree.
fn expected(said: &Value) -> Option<Resume> {
    let said = said.as_object()?;
    let text = |name: &str| said.get(name).map(|value| value.as_str().map(str::to_owned));
    let id = match text("id") {
        None => None,
        Some(id) => Some(id.filter(|id| (8..=64).contains(&id.chars().count()))?),
    };
    let key = match text("key") {
        None => None,
        Some(key) => Some(key.filter(|key| key.chars().count() <= 128)?),
    };
    let since = match said.get("since") {
        None | Some(Value::Null) => Since::Now,
        Some(value) => Position::parse(value.as_str()?).map_or(Since::Unknown, Since::After),
    };
    let seen = match said.get("seen") {
        None | Some(Value::Null) => None,
        Some(value) => Position::parse(value.as_str()?),
    };
    let partial = said.get("partial").map_or(Some(true), Value::as_bool)?;
    Some(Resume { id, since, seen, partial, key })
}
