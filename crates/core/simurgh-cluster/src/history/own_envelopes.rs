//! The stored envelopes of this node, to recognize them when they are received.

use alloc::collections::BTreeMap;

use simurgh_data::prelude::*;

/// How long an envelope that was not received is remembered after its answer.
const UNHEARD_NS: u64 = 10_000_000_000;

/// The callers' numbers for the broadcasts in this node's envelopes, until an envelope was both
/// answered and delivered.
#[derive(Debug, Default)]
pub(super) struct OwnEnvelopes {
    by_n: BTreeMap<u64, Numbers>,
}

#[derive(Debug)]
struct Numbers {
    all: Box<[u64]>,
    is_heard: bool,
    /// When it is forgotten; `None` before the answer.
    due_ns: Option<u64>,
}

impl OwnEnvelopes {
    pub(super) fn add(&mut self, n: u64, numbers: Vec<u64>) {
        self.by_n.insert(n, Numbers { all: numbers.into(), is_heard: false, due_ns: None });
    }

    pub(super) fn numbers(&self, n: u64) -> &[u64] {
        self.by_n.get(&n).map_or(&[], |it| &*it.all)
    }

    /// Records an answer; `is_followed`: the envelope will be delivered here.
    pub(super) fn answered(&mut self, n: u64, is_followed: bool, now_ns: u64) {
        match self.by_n.get_mut(&n) {
            Some(it) if is_followed && !it.is_heard => {
                it.due_ns = Some(now_ns.saturating_add(UNHEARD_NS));
            }
            Some(_) => drop(self.by_n.remove(&n)),
            None => {}
        }
    }

    /// Records the only delivery of an envelope.
    pub(super) fn receive(&mut self, n: u64) {
        match self.by_n.get_mut(&n) {
            Some(it) if it.due_ns.is_none() => it.is_heard = true,
            Some(_) => drop(self.by_n.remove(&n)),
            None => {}
        }
    }

    pub(super) fn remove(&mut self, n: u64) {
        self.by_n.remove(&n);
    }

    pub(super) fn expire(&mut self, now_ns: u64) {
        while let Some(first) = self.by_n.first_entry()
            && first.get().due_ns.is_some_and(|due_ns| due_ns <= now_ns)
        {
            first.remove();
        }
    }

    /// When the first is forgotten, if it was answered.
    pub(super) fn next_ns(&self) -> Option<u64> {
        self.by_n.first_key_value().and_then(|(_, it)| it.due_ns)
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.by_n.len()
    }
}
