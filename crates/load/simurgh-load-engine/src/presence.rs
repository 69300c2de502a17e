//! How long presence takes: from a join to the list of who is there, and from a join or a leave to
//! each member who is told of it.
//!
//! A step that changes a presence says its key. When such a step was meant to begin is noted for
//! all workers of this host; a member who gets a `presence_diff` finds there since when what it
//! tells is so. Each diff goes to all members in the same bytes, so a worker reads one once.

use std::hash::{BuildHasher, RandomState};

use simurgh_load_record::{Count, ErrorKind, Metric};
use simurgh_load_scenario::answer::{PRESENCE_DIFF, PRESENCE_STATE, PresenceDiff};

use super::program::{ChannelCommand, ChannelOp};
use super::worker::Worker;

/// The presence of one key at one topic, as its user has changed it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Presence {
    came: Change,
    went: Change,
}

/// When a change was meant to be made, and which diff tells of it.
#[derive(Clone, Copy, Debug, Default)]
struct Change {
    /// By the workers' clock; 0: not made.
    at_ns: u64,
    /// Hash of the `phx_ref` that first told of it; 0: nobody was told yet. Whoever else is told of
    /// this change is told the same one, and another one is another change.
    told: u64,
}

/// A list of who is present that a user waits for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AwaitedList {
    topic: u64,
    since_us: u32,
}

/// The diff that came last, read.
#[derive(Default)]
pub(crate) struct LastDiff {
    topic: String,
    payload: String,
    /// Since when what it tells is so.
    since_ns: Vec<u64>,
}

/// Presences by topic and key.
#[derive(Debug, Default)]
pub(crate) struct Presences {
    hasher: RandomState,
    by_key: std::sync::Mutex<std::collections::HashMap<u64, Presence>>,
}

impl Presences {
    fn hash(&self, of: impl std::hash::Hash) -> u64 {
        // 0 stands for none.
        self.hasher.hash_one(of).max(1)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, std::collections::HashMap<u64, Presence>> {
        self.by_key.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn changed(&self, topic: &str, key: &str, command: ChannelCommand, at_ns: u64) {
        let change = Change { at_ns, told: 0 };
        let id = self.hash((topic, key));
        let mut presences = self.lock();
        let presence = presences.entry(id).or_default();
        match command {
            ChannelCommand::Join | ChannelCommand::Push => presence.came = change,
            ChannelCommand::Leave => presence.went = change,
        }
    }

    /// Since when what a diff tells is so, as far as it is known here.
    fn told(&self, topic: &str, diff: &PresenceDiff<'_>, since_ns: &mut Vec<u64>) {
        let mut presences = self.lock();
        let came = diff.joins.0.iter().map(|entry| (true, entry));
        let went = diff.leaves.0.iter().map(|entry| (false, entry));
        for (is_join, (key, phx_ref)) in came.chain(went) {
            let Some(presence) = presences.get_mut(&self.hash((topic, &**key))) else { continue };
            let change = if is_join { &mut presence.came } else { &mut presence.went };
            // Whoever changes is in both lists, and has not gone.
            if !is_join && diff.joins.0.iter().any(|(joined, _)| joined == key) {
                continue;
            }
            let told = self.hash(&**phx_ref);
            if change.told == 0 {
                change.told = told;
            }
            if change.at_ns != 0 && change.told == told {
                since_ns.push(change.at_ns);
            }
        }
    }
}

impl Worker {
    /// Notes when a step changes the presence of a key, and that a join is followed by a list.
    pub(super) fn note_presence(&mut self, u: u32, op: &ChannelOp, topic: &str, now_ns: u64) {
        let Some(key) = &op.push.presence else { return };
        let key = self.with_user(u, |maker, user| maker.text(user, key)).unwrap_or_default();
        let shared = std::sync::Arc::clone(&self.maker.shared);
        let Some(user) = self.users.get(u) else { return };
        let since_us = user.since_us;
        let ago_ns = Self::elapsed_us(since_us, now_ns) * 1000;
        shared.presences.changed(topic, &key, op.command, now_ns.saturating_sub(ago_ns));
        if op.command == ChannelCommand::Join {
            let topic = shared.presences.hash(topic);
            let lists = &mut user.extra().lists;
            lists.retain(|list| list.topic != topic);
            lists.push(AwaitedList { topic, since_us });
        }
    }

    /// Takes down what a presence message says; others are not looked at.
    pub(super) fn presence_in(
        &mut self,
        u: u32,
        topic: &str,
        event: &str,
        payload: Option<&str>,
        received_ns: u64,
    ) {
        match event {
            PRESENCE_STATE => {
                self.recorder.count(Count::PresenceStates, 1);
                self.list_in(u, topic, received_ns);
            }
            PRESENCE_DIFF => {
                self.recorder.count(Count::PresenceDiffs, 1);
                if self.program.tracks {
                    self.diff_in(u, topic, payload.unwrap_or_default(), received_ns);
                }
            }
            _ => {}
        }
    }

    fn list_in(&mut self, u: u32, topic: &str, received_ns: u64) {
        let Some(user) = self.users.get(u) else { return };
        let Some(extra) = user.extra.as_mut().filter(|extra| !extra.lists.is_empty()) else {
            return;
        };
        let topic = self.maker.shared.presences.hash(topic);
        if let Some(at) = extra.lists.iter().position(|list| list.topic == topic) {
            let list = extra.lists.swap_remove(at);
            let took_us = Self::elapsed_us(list.since_us, received_ns);
            self.recorder.time(Metric::PresenceState, took_us);
            user.tidy();
        }
    }

    fn diff_in(&mut self, u: u32, topic: &str, payload: &str, received_ns: u64) {
        let mut last = std::mem::take(&mut self.last_diff);
        if last.topic != topic || last.payload != payload {
            last.since_ns.clear();
            match serde_json::from_str::<PresenceDiff<'_>>(payload) {
                Ok(diff) => self.maker.shared.presences.told(topic, &diff, &mut last.since_ns),
                Err(error) => {
                    let origin = self.users.get(u).map_or(0.into(), |user| user.origin());
                    let text = || format!("presence_diff of {topic}: {error}");
                    self.recorder.error_with(ErrorKind::MessageMalformed, origin, text);
                }
            }
            last.topic.replace_range(.., topic);
            last.payload.replace_range(.., payload);
        }
        for since_ns in &last.since_ns {
            self.recorder.time(Metric::PresenceDiff, received_ns.saturating_sub(*since_ns) / 1000);
        }
        self.last_diff = last;
    }
}
