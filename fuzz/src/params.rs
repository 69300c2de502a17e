//! Any text as a query: the result is bounded, and the fast and full readers of `vsn` agree.
use serde_json::Value;
use simurgh_proto::params::{DEPTH_MAX, NotAString, decode, vsn};

/// Runs the target over one input.
pub fn run(data: &[u8]) {
    let query = String::from_utf8_lossy(data);
    let quick = vsn(&query);
    let Ok(params) = decode(&query) else { return };
    assert!(params.is_object());
    let levels = levels(&params);
    // A list of objects is two levels for one pair of brackets.
    assert!(levels <= 2 * (DEPTH_MAX + 1), "{levels} levels");
    let whole = match params.get("vsn") {
        None => Ok(None),
        Some(Value::String(vsn)) => Ok(Some(vsn.into())),
        Some(_) => Err(NotAString),
    };
    assert_eq!(quick, whole);
}

/// How deep the value nests; every leaf must be a string.
fn levels(value: &Value) -> usize {
    let deepest = match value {
        Value::String(_) => return 0,
        Value::Array(items) => items.iter().map(levels).max(),
        Value::Object(members) => members.values().map(levels).max(),
        other => panic!("a form has no {other}"),
    };
    1 + deepest.unwrap_or(0)
}
