//! The history of a declared channel: `true`, or a table of limits.

use serde::{Deserialize, Deserializer, de};
use serde_json::Value;
use simurgh_channel::HistoryRule;

use super::size;

const TAKES: &str =
    "true, false, or a table such as { count = 100, age = \"5m\", bytes = \"1MiB\" }";

pub(super) fn deserialize<'de, D: Deserializer<'de>>(
    from: D,
) -> Result<Option<HistoryRule>, D::Error> {
    read(&Value::deserialize(from)?).map_err(de::Error::custom)
}

fn read(value: &Value) -> Result<Option<HistoryRule>, String> {
    let table = match value {
        Value::Bool(on) => return Ok(on.then(HistoryRule::default)),
        Value::Object(table) => table,
        other => return Err(format!("{other} is not allowed: use {TAKES}")),
    };
    let mut rule = HistoryRule::default();
    for (key, value) in table {
        let wrong = |takes: &str| format!("{key}: {value} is not {takes}");
        match key.as_str() {
            "count" => {
                let count = value.as_u64().and_then(|it| usize::try_from(it).ok());
                let count = count.filter(|it| *it > 0);
                rule.count = count.ok_or_else(|| wrong("a whole number of 1 or more"))?;
            }
            "bytes" => {
                let bytes = size::read(value).filter(|it| *it > 0);
                rule.bytes = bytes.ok_or_else(|| wrong("a size such as \"1MiB\""))?;
            }
            "age" => {
                let age = value.as_str().and_then(|it| humantime::parse_duration(it).ok());
                let age = age.filter(|it| !it.is_zero());
                rule.age = age.ok_or_else(|| wrong("a time such as \"5m\""))?;
            }
            "only_own" => {
                rule.only_own = value.as_bool().ok_or_else(|| wrong("true or false"))?;
            }
            "on_join" => {
                let count = value.as_u64().and_then(|it| u32::try_from(it).ok());
                rule.on_join = count.ok_or_else(|| wrong("a whole number"))?;
            }
            _ => {
                return Err(format!(
                    "{key}: no such key; the keys are count, age, bytes, only_own and on_join"
                ));
            }
        }
    }
    if rule.only_own && rule.on_join > 0 {
        return Err("on_join shows what was sent before a client's first join, which only_own \
            forbids: remove one of them"
            .to_owned());
    }
    Ok(Some(rule))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::json;

    use super::*;

    #[test]
    fn history_settings_are_read() {
        assert_eq!(read(&json!(false)), Ok(None));
        assert_eq!(read(&json!(true)), Ok(Some(HistoryRule::default())));
        assert_eq!(read(&json!({})), Ok(Some(HistoryRule::default())));
        let rule = read(&json!({"count": 7, "age": "90s", "bytes": "64KiB", "only_own": true}))
            .unwrap()
            .unwrap();
        assert_eq!((rule.count, rule.bytes), (7, 65_536));
        assert_eq!((rule.age, rule.only_own), (Duration::from_secs(90), true));
    }

    #[test]
    fn invalid_history_is_refused_with_the_allowed_values() {
        for (value, expected) in [
            (json!("yes"), TAKES),
            (json!(5), TAKES),
            (
                json!({"size": 5}),
                "size: no such key; the keys are count, age, bytes, only_own and on_join",
            ),
            (json!({"count": 0}), "count: 0 is not a whole number of 1 or more"),
            (json!({"count": "5"}), "count: \"5\" is not a whole number"),
            (json!({"age": 5}), "age: 5 is not a time such as \"5m\""),
            (json!({"age": "0s"}), "age: \"0s\" is not a time"),
            (json!({"bytes": "much"}), "bytes: \"much\" is not a size such as \"1MiB\""),
        ] {
            let error = read(&value).unwrap_err();
            assert!(error.contains(expected), "{value}: {error}");
        }
    }
}
