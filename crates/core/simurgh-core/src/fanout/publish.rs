//! From a publisher to all shards, and holding back a publisher that is faster than its readers.

use core::time::Duration;

use simurgh_channel::{Broadcast, Charge, Flow, Node, Posted, Publisher};
use simurgh_data::{Key, Next};
use simurgh_history::{GAP, Position};

use super::delivery::Registry;
use super::state::{Fanout, Held, Publishers};
use crate::socket::Socket;
use crate::sockets::Sockets;
use simurgh_data::prelude::*;

/// How often held publishers are checked while nothing else happens.
const HELD_POLL_INTERVAL: Duration = Duration::from_millis(5);
/// Publishers that are read again in one turn: each may bring as much as one read holds.
const RELEASED_MAX: usize = 16;

pub(crate) struct Admitted {
    flow: Arc<Flow>,
    pub(crate) charge: Arc<Charge>,
    is_first: bool,
}

/// A broadcast that all shards get from here.
pub(crate) struct Spread {
    pub(crate) broadcast: Arc<Broadcast>,
    pub(crate) charge: Option<Arc<Charge>>,
    /// Except this one, which has it already.
    pub(crate) apart: Option<usize>,
}

impl<N: Node> Fanout<N> {
    #[inline]
    pub(crate) fn publish(
        &mut self,
        registry: &mut Registry,
        out: &mut impl Sockets,
        publisher: Key,
        broadcast: Broadcast,
    ) {
        let Some(admitted) = self.admit(registry, &broadcast) else { return };
        let broadcast = Arc::new(broadcast);
        self.node.send_to_cluster(&broadcast);
        let charge = Some(Arc::clone(&admitted.charge));
        self.spread(registry, Spread { broadcast, charge, apart: None });
        self.hold_back(out, publisher, admitted);
    }

    /// Counts a broadcast of this shard in its flow; `None` if it must not be sent.
    #[inline(always)]
    pub(crate) fn admit(
        &mut self,
        registry: &mut Registry,
        broadcast: &Broadcast,
    ) -> Option<Admitted> {
        let (topic, event) = (broadcast.topic(), broadcast.event());
        if let Err(error) = self.node.fits(topic, event, broadcast.payload().len()) {
            self.metrics.errors_broadcast_too_big.add(1);
            tracing::warn!(topic, %error, "cannot send a broadcast");
            return None;
        }
        Some(self.charge(registry, broadcast.topic(), broadcast.weight()))
    }

    /// Counts bytes that a member of this shard causes on a topic in that topic's flow.
    #[inline]
    pub(crate) fn charge(
        &mut self,
        registry: &mut Registry,
        topic: &str,
        bytes: usize,
    ) -> Admitted {
        let flow = self.flow(registry, topic);
        let is_first = flow.bytes() == 0;
        let charge = flow.charge(bytes);
        Admitted { flow, charge, is_first }
    }

    /// Passes a broadcast on: here at once, to other shards by mail.
    #[inline(always)]
    pub(crate) fn spread(&mut self, registry: &mut Registry, spread: Spread) {
        let Spread { broadcast, charge, apart } = spread;
        let own = usize::from(self.shard);
        for shard in (0..self.node.shards()).filter(|it| *it != own && Some(*it) != apart) {
            let posted = Posted::new(Arc::clone(&broadcast), charge.clone());
            self.node.post_charged(shard, posted);
        }
        self.node.charge(own, broadcast.weight());
        self.enqueue(registry, Posted::new(broadcast, charge));
    }

    /// Stops reading a publisher that has too much in flight.
    #[inline(always)]
    pub(crate) fn hold_back(&mut self, out: &mut impl Sockets, publisher: Key, admitted: Admitted) {
        let Admitted { flow, is_first, .. } = admitted;
        let is_too_much = flow.bytes() > self.node.config().flow_bytes_max()
            || (self.node.is_congested() && !is_first)
            || self.node.is_jammed();
        // Counted once, whatever else the channels of a held socket publish. A socket that is held
        // for another reason is held by this afterwards; one that closes must be read for the
        // answer to its close.
        if is_too_much && out.socket(publisher).is_some_and(Socket::is_open) {
            let held = self.held.get_or_insert_default();
            if held.keys.insert(publisher) {
                self.metrics.publishers_held.add(1);
                out.hold(publisher);
                held.queue.push_back(Held { key: publisher, flow });
            }
        }
    }

    /// Adds a broadcast, whose weight is charged to this shard, to its topic's log.
    pub(crate) fn enqueue(&mut self, registry: &mut Registry, posted: Posted) {
        self.metrics.broadcasts.add(1);
        if let Some(listeners) = &self.listeners {
            listeners.deliver(posted.broadcast());
        }
        self.append(registry, posted);
    }

    /// The same without listeners: a notice is for members that receive positions.
    #[inline(always)]
    pub(crate) fn append(&mut self, registry: &mut Registry, posted: Posted) {
        let found = registry.find(posted.broadcast().topic());
        let Some((id, topic)) = found.and_then(|id| Some((id, registry.topic_mut(id)?))) else {
            return self.delivered(posted.broadcast().weight());
        };
        let members = topic.len() as u32;
        let delivery = &mut topic.deliveries;
        if let Some(mark) = &posted.broadcast().kept {
            delivery
                .note_position(mark.position, mark.is_notice && posted.broadcast().event() == GAP);
        }
        delivery.log.push(posted);
        delivery.deliveries = delivery.deliveries.saturating_add(members);
        if !delivery.in_fanout {
            delivery.in_fanout = true;
            delivery.begin_pass();
            topic.begin_pass_at_first();
            self.active.push_back(id);
            self.count_active();
        }
    }

    pub(crate) fn note_told(
        &mut self,
        registry: &mut Registry,
        membership: u32,
        position: Position,
    ) {
        let topic = registry.member(membership).map(|it| it.topic);
        if let Some(topic) = topic.and_then(|id| registry.topic_mut(id)) {
            topic.deliveries.note_position(position, false);
        }
    }

    pub(crate) fn listens_to(&self, topic: &str) -> bool {
        self.listeners.as_ref().is_some_and(|it| it.has(topic))
    }

    #[cfg(test)]
    pub(crate) fn listens(&self) -> usize {
        self.listeners.as_ref().map_or(0, |it| it.topics())
    }

    #[inline]
    fn flow(&mut self, registry: &mut Registry, topic: &str) -> Arc<Flow> {
        match registry.find(topic).and_then(|id| registry.topic_mut(id)) {
            Some(topic) => {
                // A topic that is about to be closed here leaves its flow behind.
                let is_left = topic.len() == 0;
                let flow = &mut topic.deliveries.flow;
                let kept = || match is_left {
                    true => self.memberless.of(&topic.name),
                    false => self.memberless.kept(&topic.name).unwrap_or_default(),
                };
                Arc::clone(flow.get_or_insert_with(kept))
            }
            None => self.memberless.of(topic),
        }
    }

    pub(crate) fn holds_back(&self, key: Key) -> bool {
        self.held.as_ref().is_some_and(|held| held.keys.contains(&key))
    }

    pub(crate) fn forget(&mut self, key: Key) {
        if let Some(held) = &mut self.held {
            held.keys.remove(&key);
        }
    }

    pub(crate) fn release_held(&mut self, out: &mut impl Sockets) -> Next {
        let held = self.held.as_deref_mut().filter(|held| !held.queue.is_empty());
        let Some(Publishers { queue, keys }) = held else { return Next::Idle };
        let flow_bytes_max = self.node.config().flow_bytes_max();
        let is_relieved = self.node.is_relieved();
        let mut released = 0;
        for _ in 0..queue.len() {
            let Some(held) = queue.pop_front() else { break };
            if !keys.contains(&held.key) {
                continue;
            }
            let under_way = held.flow.bytes();
            let may_go = under_way <= flow_bytes_max / 2
                && (is_relieved || (under_way == 0 && !self.node.is_jammed()));
            if !may_go || released == RELEASED_MAX {
                queue.push_back(held);
                continue;
            }
            released += 1;
            keys.remove(&held.key);
            // A socket that also waits for something else stays held.
            if out.socket(held.key).is_some_and(|socket| !socket.phase.is_pending()) {
                out.release(held.key);
            }
        }
        match queue.is_empty() {
            // Messages behind what they published may be handled in this turn, whose fan-out is
            // over.
            _ if released > 0 => Next::Now,
            true => Next::Idle,
            false => Next::After(HELD_POLL_INTERVAL),
        }
    }
}
