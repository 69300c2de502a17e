//! From a publisher to all shards, and what holds a publisher back that is faster than its readers.

use std::sync::Arc;
use std::time::Duration;

use simurgh_reactor::{Key, Next};

use super::conn::Phase;
use super::flow::{Flow, Posted};
use super::{Io, Mail, Shard};
use crate::channel::Broadcast;

/// How often held publishers are looked at while nothing else happens.
const HELD_LOOK: Duration = Duration::from_millis(5);
/// Publishers that are read again in one turn: each of them may bring as much as one read holds.
const RELEASED_MAX: usize = 16;

/// A socket that is not read because it published more than is to be under way.
pub(super) struct Held {
    key: Key,
    flow: Arc<Flow>,
}

impl Shard {
    /// A broadcast made on this shard by `publisher`: here at once, elsewhere by mail.
    pub(super) fn publish(&mut self, io: &mut Io, publisher: Key, broadcast: Broadcast) {
        let weight = broadcast.weight();
        let (bytes, bytes_max) = (broadcast.payload().len(), self.hub.broadcast_bytes_max());
        if bytes > bytes_max {
            self.metrics.errors_broadcast_too_big.add(1);
            let topic = broadcast.topic();
            return tracing::warn!(topic, bytes, bytes_max, "broadcast too large, not sent");
        }
        let flow = self.flow(broadcast.topic());
        let is_first = flow.bytes() == 0;
        let charge = Some(flow.charge(weight));
        let broadcast = Arc::new(broadcast);
        for (shard, mailbox) in self.hub.mailboxes.iter().enumerate() {
            mailbox.charge(weight);
            let posted = || Posted::new(Arc::clone(&broadcast), charge.clone());
            if shard != usize::from(self.index) && !mailbox.post_anyway(Mail::Broadcast(posted())) {
                mailbox.done(weight);
            }
        }
        self.enqueue(Posted::new(broadcast, charge));
        let is_too_much = flow.bytes() > self.hub.flow_bytes_max()
            || (self.hub.is_congested() && !is_first)
            || self.hub.is_jammed();
        // Once: what a held socket's channels go on to publish holds it no more than before.
        if is_too_much && io.conn_ref(publisher).is_some() && !io.is_held(publisher) {
            self.metrics.publishers_held.add(1);
            io.hold(publisher);
            self.held.push_back(Held { key: publisher, flow });
        }
    }

    /// What this shard's members have under way on a topic.
    fn flow(&mut self, topic: &str) -> Arc<Flow> {
        match self.topics.find(topic).and_then(|id| self.topics.get_mut(id)) {
            Some(topic) => Arc::clone(topic.flow.get_or_insert_default()),
            None => self.fanout.elsewhere.of(topic),
        }
    }

    /// Whether a socket is not read for what it published.
    pub(super) fn is_held_back(&self, key: Key) -> bool {
        self.held.iter().any(|held| held.key == key)
    }

    /// A socket is gone, and with it what held it back.
    pub(super) fn forget_held(&mut self, key: Key) {
        self.held.retain(|held| held.key != key);
    }

    /// Publishers read again once enough of what they published has left.
    pub(super) fn release_held(&mut self, io: &mut Io) {
        let is_relieved = !self.held.is_empty() && self.hub.is_relieved();
        let mut released = 0;
        for _ in 0..self.held.len() {
            let Some(held) = self.held.pop_front() else { return };
            let under_way = held.flow.bytes();
            let may_go = under_way <= self.hub.flow_bytes_max() / 2
                && (is_relieved || (under_way == 0 && !self.hub.is_jammed()));
            if !may_go || released == RELEASED_MAX {
                self.held.push_back(held);
                continue;
            }
            released += 1;
            // A socket that waits for a decision of the application stays held for that.
            if io.conn_ref(held.key).is_some_and(|conn| conn.phase != Phase::Pending) {
                io.release(held.key);
            }
        }
    }

    /// When held publishers are looked at again.
    pub(super) fn held_due(&self) -> Next {
        if self.held.is_empty() { Next::Idle } else { Next::After(HELD_LOOK) }
    }
}
