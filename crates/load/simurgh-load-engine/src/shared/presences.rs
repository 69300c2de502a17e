//! The times at which users of this host changed presences.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hash, RandomState};
use std::sync::{Mutex, MutexGuard, PoisonError};

use simurgh_load_scenario::answer::PresenceDiff;

use crate::program::ChannelCommand;

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Presence {
    came: Change,
    went: Change,
}

/// When a change was due, and which diff reports it.
#[derive(Clone, Copy, Debug, Default)]
struct Change {
    /// By the workers' clock; 0: not made.
    at_ns: u64,
    /// Hash of the `phx_ref` in the first diff that reported it, the same in all; 0: none yet.
    phx_ref: u64,
}

#[derive(Debug, Default)]
pub(crate) struct Presences {
    hasher: RandomState,
    by_key: Mutex<HashMap<u64, Presence>>,
}

impl Presences {
    pub(crate) fn hash(&self, of: impl Hash) -> u64 {
        // 0 means none.
        self.hasher.hash_one(of).max(1)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<u64, Presence>> {
        self.by_key.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn changed(&self, topic: &str, key: &str, command: ChannelCommand, at_ns: u64) {
        let change = Change { at_ns, phx_ref: 0 };
        let id = self.hash((topic, key));
        let mut presences = self.lock();
        let presence = presences.entry(id).or_default();
        match command {
            ChannelCommand::Join | ChannelCommand::Push => presence.came = change,
            ChannelCommand::Leave => presence.went = change,
        }
    }

    /// Since when the content of a diff is so, as far as it is known here.
    pub(crate) fn since(&self, topic: &str, diff: &PresenceDiff<'_>, since_ns: &mut Vec<u64>) {
        let mut presences = self.lock();
        let came = diff.joins.0.iter().map(|entry| (true, entry));
        let went = diff.leaves.0.iter().map(|entry| (false, entry));
        for (is_join, (key, phx_ref)) in came.chain(went) {
            let Some(presence) = presences.get_mut(&self.hash((topic, &**key))) else { continue };
            let change = if is_join { &mut presence.came } else { &mut presence.went };
            // A changed presence is in both lists, and has not left.
            if !is_join && diff.joins.0.iter().any(|(joined, _)| joined == key) {
                continue;
            }
            let phx_ref = self.hash(&**phx_ref);
            if change.phx_ref == 0 {
                change.phx_ref = phx_ref;
            }
            if change.at_ns != 0 && change.phx_ref == phx_ref {
                since_ns.push(change.at_ns);
            }
        }
    }
}
