//! Parses presence messages (PROTOCOL §10).

use std::borrow::Cow;
use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, Visitor};

use super::json::children;
use crate::PresenceList;

/// The event with all presences.
pub const PRESENCE_STATE: &str = "presence_state";
/// The event for presences that joined or left.
pub const PRESENCE_DIFF: &str = "presence_diff";

/// The payload of a `presence_diff`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
pub struct PresenceDiff<'a> {
    /// New and changed presences.
    #[serde(borrow)]
    pub joins: Entries<'a>,
    /// Presences that left or changed.
    #[serde(borrow)]
    pub leaves: Entries<'a>,
}

/// Keys, each with the `phx_ref` of its last meta, in the order of the text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Entries<'a>(pub Vec<(Cow<'a, str>, Cow<'a, str>)>);

#[derive(Deserialize)]
struct Entry<'a> {
    #[serde(borrow)]
    metas: Vec<Meta<'a>>,
}

#[derive(Deserialize)]
struct Meta<'a> {
    #[serde(borrow, default)]
    phx_ref: Text<'a>,
}

/// A text that is borrowed if it has no escapes.
#[derive(Default, Deserialize)]
struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

impl<'de: 'a, 'a> Deserialize<'de> for Entries<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct InOrder;
        impl<'de> Visitor<'de> for InOrder {
            type Value = Entries<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of keys with metas")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut entries = Vec::new();
                while let Some((Text(key), entry)) = map.next_entry::<Text<'de>, Entry<'de>>()? {
                    let last = entry.metas.into_iter().next_back();
                    entries.push((key, last.map(|meta| meta.phx_ref.0).unwrap_or_default()));
                }
                Ok(Entries(entries))
            }
        }
        deserializer.deserialize_map(InOrder)
    }
}

pub(super) fn event_of(list: PresenceList) -> &'static str {
    match list {
        PresenceList::State => PRESENCE_STATE,
        PresenceList::Joins | PresenceList::Leaves => PRESENCE_DIFF,
    }
}

pub(super) fn lists(list: PresenceList, payload: &str, key: &[u8]) -> bool {
    let (payload, mut found) = (payload.trim_start(), false);
    let mut search = |entries| {
        children(entries, |name, _| found |= name.is_some_and(|name| name.as_bytes() == key));
    };
    let within = match list {
        PresenceList::State => None,
        PresenceList::Joins => Some("joins"),
        PresenceList::Leaves => Some("leaves"),
    };
    match within {
        None => search(payload),
        within => children(payload, |name, entries| {
            if name == within {
                search(entries);
            }
        }),
    }
    found
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Map, Value, json};

    use super::*;

    fn entries() -> impl Strategy<Value = Map<String, Value>> {
        let key = prop_oneof!["[a-c]{0,2}", "\\PC{0,3}", Just("joins\"\\\n".to_owned())];
        let meta = ("[A-Z]{0,3}", any::<bool>()).prop_map(|(phx_ref, more)| match more {
            true => json!({"joins": {"a": {}}, "phx_ref": phx_ref, "typing": [null, 1]}),
            false => json!({"phx_ref": phx_ref}),
        });
        let entry = proptest::collection::vec(meta, 0..3).prop_map(|metas| json!({"metas": metas}));
        proptest::collection::btree_map(key, entry, 0..4)
            .prop_map(|entries| entries.into_iter().collect())
    }

    fn read(entries: &Map<String, Value>) -> Vec<(String, String)> {
        let phx_ref = |entry: &Value| {
            let metas = entry["metas"].as_array().unwrap();
            metas.last().map_or("", |meta| meta["phx_ref"].as_str().unwrap()).to_owned()
        };
        entries.iter().map(|(key, entry)| (key.clone(), phx_ref(entry))).collect()
    }

    proptest! {
        #[test]
        fn presence_diff_shows_joins_and_leaves(joins in entries(), leaves in entries()) {
            let text = json!({"joins": joins, "leaves": leaves}).to_string();
            let diff: PresenceDiff<'_> = serde_json::from_str(&text).unwrap();
            let owned = |entries: &Entries<'_>| -> Vec<(String, String)> {
                entries.0.iter().map(|(key, it)| (key.to_string(), it.to_string())).collect()
            };
            prop_assert_eq!(owned(&diff.joins), read(&joins));
            prop_assert_eq!(owned(&diff.leaves), read(&leaves));
        }

        #[test]
        fn key_is_found_in_its_list(joins in entries(), leaves in entries(), key in "[a-c]{0,2}") {
            let text = json!({"joins": joins, "leaves": leaves}).to_string();
            let is_in = |list, text: &str| lists(list, text, key.as_bytes());
            prop_assert_eq!(is_in(PresenceList::Joins, &text), joins.contains_key(&key));
            prop_assert_eq!(is_in(PresenceList::Leaves, &text), leaves.contains_key(&key));
            prop_assert!(!is_in(PresenceList::State, &text));
            let state = Value::Object(joins.clone()).to_string();
            prop_assert_eq!(is_in(PresenceList::State, &state), joins.contains_key(&key));
        }

        #[test]
        fn presence_parser_accepts_or_refuses_any_text(text in "\\PC{0,40}", key in "\\PC{0,3}") {
            for list in [PresenceList::State, PresenceList::Joins, PresenceList::Leaves] {
                let found = lists(list, &text, key.as_bytes());
                let is_object = text.trim_start().starts_with('{');
                prop_assert!(!found || is_object);
            }
            let _ = serde_json::from_str::<PresenceDiff<'_>>(&text);
        }
    }
}
