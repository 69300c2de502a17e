//! `Presence.syncState` and `Presence.syncDiff` of the official client, in Rust.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

#[derive(Default)]
pub struct Client {
    state: Map<String, Value>,
}

impl Client {
    pub fn sync_state(&mut self, new: Map<String, Value>) {
        let (mut joins, mut leaves) = (Map::new(), Map::new());
        for (key, presence) in &self.state {
            if !new.contains_key(key) {
                leaves.insert(key.clone(), presence.clone());
            }
        }
        for (key, presence) in new {
            let Some(current) = self.state.get(&key) else {
                joins.insert(key, presence);
                continue;
            };
            let joined = but(&presence, &refs_of(current));
            let left = but(current, &refs_of(&presence));
            if !left.is_empty() {
                let mut gone = current.clone();
                gone["metas"] = left.into();
                leaves.insert(key.clone(), gone);
            }
            if !joined.is_empty() {
                let mut came = presence;
                came["metas"] = joined.into();
                joins.insert(key, came);
            }
        }
        let diff = Map::from_iter([
            ("joins".to_owned(), Value::Object(joins)),
            ("leaves".to_owned(), Value::Object(leaves)),
        ]);
        self.sync_diff(&diff);
    }

    pub fn sync_diff(&mut self, diff: &Map<String, Value>) {
        for (key, presence) in diff["joins"].as_object().unwrap() {
            let mut now = presence.clone();
            if let Some(current) = self.state.get(key) {
                let mut metas = but(current, &refs_of(&now));
                metas.extend(now["metas"].as_array().unwrap().iter().cloned());
                now["metas"] = metas.into();
            }
            self.state.insert(key.clone(), now);
        }
        for (key, presence) in diff["leaves"].as_object().unwrap() {
            let Some(current) = self.state.get_mut(key) else { continue };
            let metas = but(current, &refs_of(presence));
            if metas.is_empty() {
                self.state.remove(key);
            } else {
                current["metas"] = metas.into();
            }
        }
    }

    pub fn state(&self) -> Map<String, Value> {
        self.state.clone()
    }

    pub fn refs(&self) -> BTreeSet<String> {
        self.state.values().flat_map(refs_of).collect()
    }
}

fn refs_of(presence: &Value) -> BTreeSet<String> {
    let metas = presence["metas"].as_array().unwrap().iter();
    metas.map(|meta| meta["phx_ref"].as_str().unwrap().to_owned()).collect()
}

fn but(presence: &Value, refs: &BTreeSet<String>) -> Vec<Value> {
    let metas = presence["metas"].as_array().unwrap().iter();
    metas.filter(|meta| !refs.contains(meta["phx_ref"].as_str().unwrap())).cloned().collect()
}
