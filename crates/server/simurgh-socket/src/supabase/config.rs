//! The configuration in a client's join (PROTOCOL §11.2).

use serde_json::{Map, Value};
use simurgh_proto::message::Payload;
use thiserror::Error;

/// Most changes of tables that a join may ask for: each is encoded for its id on a shard.
pub(super) const CHANGES_MAX: usize = 100;

/// The settings of a join. Missing or misshapen ones are ignored, as with Supabase; only changes
/// that cannot be answered are an error.
#[derive(Debug, Default, PartialEq)]
pub(super) struct JoinConfig {
    /// Broadcasts are acknowledged.
    pub(super) ack: bool,
    /// The sender receives its own broadcasts.
    pub(super) own: bool,
    /// The list of present members is sent.
    pub(super) presence: bool,
    /// Key of its presence; none: a random one.
    pub(super) key: Option<String>,
    /// The topic requires tokens.
    pub(super) private: bool,
    /// The requested changes of tables, each with its id.
    pub(super) changes: Vec<Map<String, Value>>,
    pub(super) token: Option<String>,
}

/// Why `postgres_changes` are refused.
#[derive(Debug, PartialEq, Eq, Error)]
pub(super) enum WrongChanges {
    #[error("expected objects")]
    NoObject,
    #[error("expected {CHANGES_MAX} objects at most")]
    TooMany,
}

impl JoinConfig {
    pub(super) fn read(payload: &Payload<'_>) -> Result<Self, WrongChanges> {
        let Ok(payload) = payload.parse::<Value>() else { return Ok(Self::default()) };
        let config = &payload["config"];
        let (broadcast, presence) = (&config["broadcast"], &config["presence"]);
        let token = [&payload["user_token"], &payload["access_token"]];
        Ok(Self {
            ack: flag(&broadcast["ack"]),
            own: flag(&broadcast["self"]),
            presence: flag(&presence["enabled"]),
            key: key(&presence["key"]),
            private: flag(&config["private"]),
            changes: changes(&config["postgres_changes"])?,
            token: token.into_iter().find_map(Value::as_str).map(str::to_owned),
        })
    }

    /// The answer: the changes in the requested order.
    pub(super) fn response(&self) -> Payload<'static> {
        Payload::from(serde_json::json!({ "postgres_changes": self.changes }))
    }
}

/// Some clients send booleans as strings.
fn flag(value: &Value) -> bool {
    match value {
        Value::Bool(flag) => *flag,
        Value::String(text) => text.eq_ignore_ascii_case("true"),
        _ => false,
    }
}

fn key(value: &Value) -> Option<String> {
    match value {
        Value::String(key) => Some(key.clone()).filter(|key| !key.is_empty()),
        Value::Number(key) => Some(key.to_string()),
        _ => None,
    }
}

/// The requested changes, without nulls, with ids.
fn changes(value: &Value) -> Result<Vec<Map<String, Value>>, WrongChanges> {
    let Value::Array(wanted) = value else { return Ok(Vec::new()) };
    if wanted.len() > CHANGES_MAX {
        return Err(WrongChanges::TooMany);
    }
    let wanted = wanted.iter().filter(|wanted| !wanted.is_null());
    wanted
        .map(|wanted| {
            let mut wanted = wanted.as_object().cloned().ok_or(WrongChanges::NoObject)?;
            wanted.remove("id");
            let id = id(&Value::Object(wanted.clone()).to_string());
            wanted.insert("id".to_owned(), id.into());
            Ok(wanted)
        })
        .collect()
}

/// The same for equal filters, so that a sender of changes can compute it: FNV-1a of its JSON text
/// with ordered keys, in 27 bits as Supabase's ids have.
fn id(text: &str) -> u32 {
    let hash = text
        .bytes()
        .fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    (hash ^ hash >> 27) & 0x07ff_ffff
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(payload: Value) -> JoinConfig {
        JoinConfig::read(&Payload::from(payload)).unwrap()
    }

    #[test]
    fn all_settings_of_the_clients_are_read() {
        let config = read(json!({
            "config": {
                "broadcast": {"ack": true, "self": true},
                "presence": {"key": "ann", "enabled": true},
                "postgres_changes": [], "private": true,
            },
            "access_token": "t",
        }));
        let expected = JoinConfig {
            ack: true,
            own: true,
            presence: true,
            key: Some("ann".to_owned()),
            private: true,
            changes: vec![],
            token: Some("t".to_owned()),
        };
        assert_eq!(config, expected);
        assert_eq!(config.response().json(), Some(r#"{"postgres_changes":[]}"#));
    }

    #[test]
    fn booleans_can_be_texts() {
        for (value, expected) in [
            (json!("true"), true),
            (json!("True"), true),
            (json!("TRUE"), true),
            (json!("false"), false),
            (json!("yes"), false),
            (json!(1), false),
            (json!(null), false),
            (json!([true]), false),
        ] {
            let said = json!({"config": {"broadcast": {"ack": value, "self": value},
                "presence": {"enabled": value}, "private": value}});
            let JoinConfig { ack, own, presence, private, .. } = read(said);
            assert_eq!([ack, own, presence, private], [expected; 4], "{value}");
        }
    }

    #[test]
    fn other_shapes_are_ignored() {
        let deep = "[".repeat(500) + &"]".repeat(500);
        for text in ["null", "[]", "7", "\"config\"", "{}", r#"{"config":null}"#, &deep] {
            let config = JoinConfig::read(&Payload::checked(text).unwrap());
            assert_eq!(config, Ok(JoinConfig::default()), "{text}");
        }
        for config in [
            json!([]),
            json!("x"),
            json!({"broadcast": 7, "presence": [], "postgres_changes": {}, "private": {}}),
            json!({"broadcast": {"ack": {}}, "presence": {"key": {}}, "postgres_changes": null}),
            json!({"presence": {"key": ""}}),
        ] {
            let said = json!({"config": config, "access_token": 7});
            assert_eq!(read(said), JoinConfig::default());
        }
        assert_eq!(JoinConfig::read(&Payload::from_bytes(vec![1])), Ok(JoinConfig::default()));
        assert_eq!(read(json!({"config": {"presence": {"key": 7}}})).key.as_deref(), Some("7"));
        let proto = json!({"config": {"presence": {"key": "__proto__"}}});
        assert_eq!(read(proto).key.as_deref(), Some("__proto__"));
    }

    #[test]
    fn changes_are_answered_in_order_with_distinct_ids() {
        let wanted = json!([
            {"event": "*", "schema": "public", "table": "b"},
            null,
            {"event": "INSERT", "schema": "public", "table": "a", "filter": "id=eq.1", "id": 9},
            {"event": "*", "schema": "public", "table": "b"},
        ]);
        let config = read(json!({"config": {"postgres_changes": wanted}}));
        let tables: Vec<_> = config.changes.iter().map(|it| it["table"].clone()).collect();
        assert_eq!(tables, ["b", "a", "b"]);
        let ids: Vec<_> = config.changes.iter().map(|it| it["id"].as_u64().unwrap()).collect();
        assert!(ids[0] == ids[2] && ids[0] != ids[1] && ids.iter().all(|id| *id < 1 << 27));
        assert_ne!(ids[1], 9, "ids are the server's");
        let many = |count| {
            let wanted = json!({"config": {"postgres_changes": vec![json!({}); count]}});
            JoinConfig::read(&Payload::from(wanted)).map(|config| config.changes.len())
        };
        assert_eq!(
            (many(CHANGES_MAX), many(CHANGES_MAX + 1)),
            (Ok(CHANGES_MAX), Err(WrongChanges::TooMany))
        );
        for wanted in [json!([7]), json!([[]]), json!(["public"]), json!([{}, true])] {
            let said = Payload::from(json!({"config": {"postgres_changes": wanted}}));
            assert_eq!(JoinConfig::read(&said), Err(WrongChanges::NoObject), "{wanted}");
        }
    }
}
