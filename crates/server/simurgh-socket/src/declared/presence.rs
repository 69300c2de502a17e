//! Presence in a declared channel: keys and metas of members (PROTOCOL §10).

use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::Value;
use simurgh_channel::{PresenceError, ShardContext};
use simurgh_proto::message::Payload;

use super::template::{Source, Template};
use crate::ids::Ids;

const KEYS: [&str; 2] = ["key", "meta"];

/// The events of presence; members must not forge them.
pub(super) const EVENTS: [&str; 3] = ["presence_state", "presence_diff", "presence_summary"];

#[derive(Debug)]
pub(super) struct Presence {
    /// `None`: the socket's id, or a random one.
    key: Option<Template>,
    meta: Template,
    /// Whether the meta template has its own `online_at`.
    has_online_at: bool,
    ids: Ids,
}

/// The presence of one member, as far as its join defines it.
#[derive(Debug, PartialEq)]
pub(super) struct Present {
    /// `None`: the socket's id, or a random one.
    key: Option<String>,
    meta: Payload<'static>,
}

impl Presence {
    /// Checks a declaration; `None`: members are not tracked. Mistakes come with their key.
    pub(super) fn compile(value: &Value) -> Result<Option<Self>, Vec<(&'static str, String)>> {
        let table = match value {
            Value::Bool(false) => return Ok(None),
            Value::Bool(true) => &serde_json::Map::new(),
            Value::Object(table) => table,
            _ => {
                let why = "must be true, false, or a table such as { key = \"$user\", meta = {} }";
                return Err(vec![("presence", why.to_owned())]);
            }
        };
        let mut mistakes = Vec::new();
        for key in table.keys().filter(|key| !KEYS.contains(&key.as_str())) {
            mistakes.push(("presence", format!("{key}: no such key; the keys are key and meta")));
        }
        let key = table.get("key").map(|key| match key {
            Value::String(_) => Template::compile(key),
            _ => Err("must be a text, such as \"$user\"".to_owned()),
        });
        let key = key.transpose().map_err(|why| mistakes.push(("presence.key", why)));
        let empty = Value::Object(serde_json::Map::new());
        let meta = table.get("meta").unwrap_or(&empty);
        let has_online_at = meta.get("online_at").is_some();
        let meta = match meta {
            Value::Object(_) => Template::compile(meta),
            _ => Err("must be a table, such as { name = \"$user\" }".to_owned()),
        };
        let meta = meta.map_err(|why| mistakes.push(("presence.meta", why)));
        match (key, meta) {
            (Ok(key), Ok(meta)) if mistakes.is_empty() => {
                Ok(Some(Self { key, meta, has_online_at, ids: Ids::default() }))
            }
            _ => Err(mistakes),
        }
    }

    /// Whether all members receive this field of a join's payload.
    #[cfg(feature = "token")]
    pub(super) fn shows(&self, field: &str) -> bool {
        self.meta.shows(field) || self.key.as_ref().is_some_and(|key| key.shows(field))
    }

    pub(super) fn templates(&self) -> impl Iterator<Item = &Template> {
        self.key.iter().chain([&self.meta])
    }

    /// Forms of the key that the client fills.
    pub(super) fn key_of_client(&self) -> impl Iterator<Item = String> {
        self.key.iter().flat_map(Template::of_client)
    }

    /// The presence of a member with such a join; `None` where the key's template gives neither a
    /// text nor a number: the member is not tracked.
    pub(super) fn present(&self, source: &Source<'_>) -> Option<Present> {
        let key = match &self.key {
            None => None,
            Some(key) => match serde_json::from_str(key.fill(source).json()?).ok()? {
                Value::String(key) => Some(key),
                Value::Number(key) => Some(key.to_string()),
                _ => return None,
            },
        };
        let meta = self.meta.fill(source);
        let meta = if self.has_online_at { meta } else { with_online_at(meta) };
        Some(Present { key, meta })
    }

    /// Tracks the member, and pushes the list to it.
    pub(super) fn track(
        &self,
        ctx: &mut ShardContext<'_>,
        Present { key, meta }: Present,
        own_subject: Option<&str>,
    ) -> Result<(), PresenceError> {
        let of_socket = || own_subject.or(ctx.socket_id()).map(str::to_owned);
        let key = key.or_else(of_socket).unwrap_or_else(|| self.ids.hex());
        ctx.presence().track(&key, meta)?;
        ctx.presence().push_state();
        Ok(())
    }
}

#[cfg(feature = "hooks")]
impl Present {
    /// The presence `{"key", "meta"}` of an application's answer, in place of the declared one.
    pub(super) fn granted(value: &Value) -> Self {
        let key = value.get("key").and_then(Value::as_str).map(str::to_owned);
        let meta = value.get("meta").cloned().filter(Value::is_object);
        let meta = meta.unwrap_or_else(|| serde_json::json!({}));
        let has_online_at = meta.get("online_at").is_some();
        let meta = Payload::from(meta);
        Self { key, meta: if has_online_at { meta } else { with_online_at(meta) } }
    }
}

fn with_online_at(meta: Payload<'static>) -> Payload<'static> {
    let Some(fields) = meta.json().and_then(|json| json.strip_prefix('{')) else { return meta };
    let comma = if fields == "}" { "" } else { "," };
    Payload::from_json(format!("{{\"online_at\":\"{}\"{comma}{fields}", unix_seconds()))
}

/// As text, like a channel made by Phoenix's generator.
fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::declared::template::Identity;

    fn present(declared: Value, joined: Value) -> Option<(Option<String>, Value)> {
        let presence = Presence::compile(&declared).unwrap().unwrap();
        let payload = Payload::from(joined);
        let (topic, event) = ("rooms:a", "phx_join");
        let source = Source { identity: Identity::default(), payload: &payload, topic, event };
        let Present { key, meta } = presence.present(&source)?;
        Some((key, meta.parse().unwrap()))
    }

    #[test]
    fn presence_follows_its_templates() {
        let since = unix_seconds();
        let (key, meta) = present(json!(true), json!({"user": "ann"})).unwrap();
        let online_at: u64 = meta["online_at"].as_str().unwrap().parse().unwrap();
        assert!((since..=unix_seconds()).contains(&online_at));
        assert_eq!((key, meta.as_object().unwrap().len()), (None, 1));

        let declared = json!({"key": "$user", "meta": {"name": "$user", "in": "$subtopic"}});
        let (key, meta) = present(declared.clone(), json!({"user": "ä\"n"})).unwrap();
        assert_eq!(key.as_deref(), Some("ä\"n"));
        assert_eq!((&meta["name"], &meta["in"]), (&json!("ä\"n"), &json!("a")));
        assert!(meta["online_at"].is_string());
        let (key, _) = present(declared.clone(), json!({"user": 7})).unwrap();
        assert_eq!(key.as_deref(), Some("7"));
        let own = json!({"key": "fixed", "meta": {"online_at": "$at"}});
        let expected = (Some("fixed".to_owned()), json!({"online_at": 5}));
        assert_eq!(present(own, json!({"at": 5})), Some(expected));
        // A member without a key is not tracked.
        for user in [json!(null), json!(true), json!({"a": 1}), json!(["a"])] {
            assert_eq!(present(declared.clone(), json!({"user": user})), None);
        }
        assert_eq!(present(declared, json!([1])), None);
    }

    #[test]
    fn invalid_presence_is_refused_with_its_place() {
        assert!(Presence::compile(&json!(false)).unwrap().is_none());
        for (declared, key, why) in [
            (json!("yes"), "presence", "must be true, false, or a table"),
            (json!(1), "presence", "must be true, false, or a table"),
            (json!({"keys": "$a"}), "presence", "keys: no such key; the keys are key and meta"),
            (json!({"key": 5}), "presence.key", "must be a text"),
            (json!({"key": "$a.b"}), "presence.key", "\"$a.b\" is not a form"),
            (json!({"meta": "$payload"}), "presence.meta", "must be a table"),
            (json!({"meta": {"a": "$"}}), "presence.meta", "\"$\" is not a form"),
        ] {
            let mistakes = Presence::compile(&declared).unwrap_err();
            assert_eq!(mistakes.len(), 1, "{mistakes:?}");
            assert!(mistakes[0].0 == key && mistakes[0].1.contains(why), "{mistakes:?}");
        }
        assert_eq!(Presence::compile(&json!({"key": "$", "meta": 1})).unwrap_err().len(), 2);
    }
}
