//! Requests for topics' presences that are to be sent.

use alloc::collections::{BTreeMap, BTreeSet};

use crate::node_id::NodeId;
use crate::time::MILLISECOND;
use simurgh_data::prelude::*;

const GATHERED_NS: u64 = 10 * MILLISECOND;
/// After a lost link all topics are requested again: so many at a time,
const AGAIN_MAX: usize = 500;
/// and the next after this pause, or the answers would be more than nodes can hold.
const AGAIN_NS: u64 = 100 * MILLISECOND;
/// The most requests that wait. Further topics are requested when the next delta shows a gap.
const WAITING_MAX: usize = 1 << 20;

#[derive(Debug, Default)]
pub(super) struct PresenceRequests {
    soon: BTreeMap<Option<NodeId>, BTreeSet<Box<str>>>,
    soon_ns: Option<u64>,
    waiting: usize,
    again: VecDeque<(Option<NodeId>, Box<str>)>,
    again_ns: Option<u64>,
}

impl PresenceRequests {
    pub(super) fn add(&mut self, of: Option<NodeId>, topic: &str, now_ns: u64) {
        if self.waiting < WAITING_MAX && self.soon.entry(of).or_default().insert(topic.into()) {
            self.waiting += 1;
        }
        self.soon_ns.get_or_insert(now_ns.saturating_add(GATHERED_NS));
    }

    /// Adds topics to request again, because messages of them may be lost.
    pub(super) fn add_again(
        &mut self,
        of: Option<NodeId>,
        topics: impl IntoIterator<Item = Box<str>>,
        now_ns: u64,
    ) {
        let room = WAITING_MAX.saturating_sub(self.again.len());
        self.again.extend(topics.into_iter().take(room).map(|topic| (of, topic)));
        if !self.again.is_empty() {
            self.again_ns.get_or_insert(now_ns.saturating_add(GATHERED_NS));
        }
    }

    /// Forgets all requests: without a link none can be sent, and over the next link all are made
    /// again.
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    pub(super) fn next_ns(&self) -> Option<u64> {
        self.soon_ns.into_iter().chain(self.again_ns).min()
    }

    pub(super) fn take(&mut self, now_ns: u64) -> BTreeMap<Option<NodeId>, BTreeSet<Box<str>>> {
        let mut presence_requests = BTreeMap::new();
        if self.soon_ns.is_some_and(|due_ns| due_ns <= now_ns) {
            presence_requests = core::mem::take(&mut self.soon);
            (self.soon_ns, self.waiting) = (None, 0);
        }
        if self.again_ns.is_some_and(|due_ns| due_ns <= now_ns) {
            let count = self.again.len().min(AGAIN_MAX);
            for (of, topic) in self.again.drain(..count) {
                presence_requests.entry(of).or_insert_with(BTreeSet::new).insert(topic);
            }
            let is_done = self.again.is_empty();
            self.again_ns = (!is_done).then(|| now_ns.saturating_add(AGAIN_NS));
        }
        presence_requests
    }
}
