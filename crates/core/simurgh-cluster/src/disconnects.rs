//! Disconnects of a socket id on all nodes, requested until each node has confirmed.
//!
//! Other orders of applications go the same way, as bytes that only applications know. Each node
//! carries one out once, and confirms it with the number of sockets or channels that it concerned.
//!
//! "At most once" is not enough for a ban. So each disconnect has a number and a lifetime; it is
//! sent to all nodes, and again to those that have not confirmed after 1, 3, 7, 15, 31 and 47 s,
//! and at once to every node that sends a hello within its lifetime.
//!
//! # The outcome
//!
//! The [`DisconnectOutcome`] is reported as soon as no node is waited for, and at the end of the
//! lifetime at the latest. Every node that had to confirm is in one of three places:
//!
//! - *Confirmed*: it has closed the sockets of that id.
//! - *Missing*: it has not confirmed, and may still serve such a socket. It did not answer in time,
//!   or is gone by silence: it may have ended, or be cut off from the broker while it serves its
//!   clients, and the other nodes cannot know which. It is not waited for, but receives the request
//!   if it sends a hello within the lifetime, and never after that: an application that bans a user
//!   and finds a missing node must have the client refused where its token is checked, and
//!   disconnect again when the node is back.
//! - *In neither*: it sent a bye, or was started again under its name. Its sockets are closed.
//!
//! The nodes that must confirm are [`Peers::iter`](crate::Peers::iter), silent ones too, and
//! [`Peers::unaccounted`](crate::Peers::unaccounted) at the start. The requesting node closes its
//! own sockets itself.

use alloc::collections::{BTreeMap, BTreeSet};

use crate::node_id::NodeId;
use crate::peers::GoneReason;
use crate::time::SECOND;
use simurgh_data::prelude::*;

#[cfg(test)]
mod tests;

/// The longest span between two sends; it doubles each time.
const SPAN_MAX_NS: u64 = 16 * SECOND;
/// Up to so many nodes are asked again one by one; beyond that all nodes are asked.
const ONE_BY_ONE: usize = 4;
const SPAN_MIN_NS: u64 = SECOND / 1000;
/// The most nodes that have confirmed or must, over all disconnects: at most 16 bytes each.
const NODES_MAX: usize = 1 << 20;
/// The most bytes of all orders.
const BYTES_MAX: usize = 64 << 20;

/// Bounds of disconnects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DisconnectsConfig {
    /// How many may be open.
    pub queue_max: usize,
    /// Their lifetime, in nanoseconds.
    pub life_ns: u64,
    /// The time until a disconnect is first sent again, in nanoseconds; it doubles each time.
    pub again_ns: u64,
}

impl Default for DisconnectsConfig {
    /// 10,000; 60 s; 1 s.
    fn default() -> Self {
        Self { queue_max: 10_000, life_ns: 60 * SECOND, again_ns: SECOND }
    }
}

/// The number of a disconnect at the node that requests it, from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DisconnectNumber(pub u64);

/// The limit of open disconnects is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("too many disconnects wait for other nodes")]
pub struct TooManyDisconnects;

/// The outcome of a disconnect on other nodes, [as documented](crate::Disconnects).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DisconnectOutcome {
    /// Nodes that have closed all sockets of that id, in the order of their answers.
    pub confirmed: Vec<NodeId>,
    /// Nodes that may still serve such a socket.
    pub missing: Vec<NodeId>,
    /// How many sockets or channels an order concerned on the nodes that have confirmed.
    pub count: u64,
}

/// A request to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DisconnectSend<'a> {
    /// The number to confirm.
    pub number: DisconnectNumber,
    /// The id of the sockets to close; empty for another order.
    pub socket_id: &'a str,
    /// The order; empty: a disconnect.
    pub order: &'a [u8],
    /// The node to send it to; `None`: all nodes.
    pub to: Option<NodeId>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Waiting {
    Local,
    /// It is gone after silence: not waited for, but asked if it sends a hello.
    Lost,
}

#[derive(Debug)]
struct Disconnect {
    socket_id: Box<str>,
    order: Box<[u8]>,
    count: u64,
    ends_ns: u64,
    /// When it is sent again to all that have not confirmed, and the span after that.
    again_ns: u64,
    span_ns: u64,
    open: Vec<(NodeId, Waiting)>,
    confirmed: Vec<NodeId>,
    is_reported: bool,
}

impl Disconnect {
    fn is_waiting(&self) -> bool {
        self.open.iter().any(|it| it.1 == Waiting::Local)
    }

    fn nodes(&self) -> usize {
        self.open.len() + self.confirmed.len()
    }

    fn take_outcome(&mut self) -> Option<DisconnectOutcome> {
        let is_reported = core::mem::replace(&mut self.is_reported, true);
        let missing = self.open.iter().map(|it| it.0).collect();
        let (confirmed, count) = (self.confirmed.clone(), self.count);
        (!is_reported).then_some(DisconnectOutcome { confirmed, missing, count })
    }
}

/// The disconnects that a node has requested from all others.
#[derive(Debug)]
pub struct Disconnects {
    config: DisconnectsConfig,
    last: u64,
    all: BTreeMap<u64, Disconnect>,
    /// When the disconnects that wait for a node are sent again.
    again: BTreeSet<(u64, u64)>,
    /// Disconnects whose outcomes were reported, dropped from the front when there is no room:
    /// first those without a missing node, oldest first.
    reported: BTreeSet<(bool, u64)>,
    sends: BTreeSet<(u64, Option<NodeId>)>,
    outcomes: VecDeque<(DisconnectNumber, DisconnectOutcome)>,
    nodes: usize,
    bytes: usize,
}

impl Disconnects {
    /// Without disconnects.
    pub const fn new(config: DisconnectsConfig) -> Self {
        Self {
            config,
            last: 0,
            all: BTreeMap::new(),
            again: BTreeSet::new(),
            reported: BTreeSet::new(),
            sends: BTreeSet::new(),
            outcomes: VecDeque::new(),
            nodes: 0,
            bytes: 0,
        }
    }

    /// Asks all others to close the sockets of an id. `here` are the nodes that are not gone,
    /// `lost` those that are gone by silence and unaccounted for.
    /// [`poll_outcome`](Self::poll_outcome) always returns its outcome.
    ///
    /// # Errors
    /// There is no room, and nothing is sent. Disconnects whose outcomes were reported make room.
    pub fn start(
        &mut self,
        socket_id: &str,
        here: impl IntoIterator<Item = NodeId>,
        lost: impl IntoIterator<Item = NodeId>,
        now_ns: u64,
    ) -> Result<DisconnectNumber, TooManyDisconnects> {
        self.begin(socket_id, &[], here, lost, now_ns)
    }

    /// Asks all others to carry out an order, likewise; it has at least one byte.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub fn order(
        &mut self,
        order: &[u8],
        here: impl IntoIterator<Item = NodeId>,
        lost: impl IntoIterator<Item = NodeId>,
        now_ns: u64,
    ) -> Result<DisconnectNumber, TooManyDisconnects> {
        self.begin("", order, here, lost, now_ns)
    }

    fn begin(
        &mut self,
        socket_id: &str,
        order: &[u8],
        here: impl IntoIterator<Item = NodeId>,
        lost: impl IntoIterator<Item = NodeId>,
        now_ns: u64,
    ) -> Result<DisconnectNumber, TooManyDisconnects> {
        let here = here.into_iter().map(|it| (it, Waiting::Local));
        let lost = lost.into_iter().map(|it| (it, Waiting::Lost));
        let mut open: Vec<_> = here.chain(lost).collect();
        open.sort_by_key(|it| (it.0, it.1 != Waiting::Local));
        open.dedup_by_key(|it| it.0);
        if open.len() > NODES_MAX || order.len() > BYTES_MAX {
            return Err(TooManyDisconnects);
        }
        while self.is_full(open.len(), order.len()) {
            let (_, oldest) = self.reported.first().copied().ok_or(TooManyDisconnects)?;
            self.forget(oldest);
        }
        self.last += 1;
        self.nodes += open.len();
        self.bytes += order.len();
        let again_ns = now_ns.saturating_add(self.config.again_ns);
        let disconnect = Disconnect {
            socket_id: socket_id.into(),
            order: order.into(),
            count: 0,
            ends_ns: now_ns.saturating_add(self.config.life_ns),
            again_ns,
            span_ns: self.config.again_ns,
            open,
            confirmed: Vec::new(),
            is_reported: false,
        };
        self.all.insert(self.last, disconnect);
        self.again.insert((again_ns, self.last));
        self.sends.insert((self.last, None));
        self.settle(self.last);
        Ok(DisconnectNumber(self.last))
    }

    /// A node has confirmed a disconnect. Other answers are ignored.
    pub fn answered(&mut self, node: NodeId, number: DisconnectNumber) {
        self.done(node, number, 0);
    }

    /// A node has carried out an order, which concerned so many sockets or channels there.
    pub fn done(&mut self, node: NodeId, number: DisconnectNumber, count: u64) {
        let Some(it) = self.all.get_mut(&number.0) else { return };
        let Some(at) = it.open.iter().position(|it| it.0 == node) else { return };
        it.open.remove(at);
        it.confirmed.push(node);
        it.count = it.count.saturating_add(count);
        self.settle(number.0);
    }

    /// A node sends a hello, or joins without one: every open disconnect is sent to it, unless it
    /// has confirmed. It may have received none.
    pub fn hello(&mut self, node: NodeId, now_ns: u64) {
        for (number, it) in &mut self.all {
            if it.confirmed.contains(&node) {
                continue;
            }
            match it.open.iter_mut().find(|it| it.0 == node) {
                Some((_, waiting)) => *waiting = Waiting::Local,
                None if self.nodes < NODES_MAX => {
                    it.open.push((node, Waiting::Local));
                    self.nodes += 1;
                }
                None => continue,
            }
            for has_missing in [false, true] {
                self.reported.remove(&(has_missing, *number));
            }
            self.again.remove(&(it.again_ns, *number));
            it.span_ns = self.config.again_ns;
            it.again_ns = now_ns.saturating_add(it.span_ns);
            self.again.insert((it.again_ns, *number));
            self.sends.insert((*number, Some(node)));
        }
    }

    /// A node is gone: it is not waited for any more.
    pub fn gone(&mut self, node: NodeId, why: GoneReason) {
        let mut changed = Vec::new();
        for (number, it) in &mut self.all {
            let Some(at) = it.open.iter().position(|it| it.0 == node) else { continue };
            if why == GoneReason::Silent {
                it.open[at].1 = Waiting::Lost;
            } else {
                it.open.remove(at);
                self.nodes -= 1;
            }
            changed.push(*number);
        }
        self.sends.retain(|it| it.1 != Some(node));
        changed.into_iter().for_each(|it| self.settle(it));
    }

    /// Ends disconnects after their lifetime, and sends others again.
    pub fn tick(&mut self, now_ns: u64) {
        while let Some((number, it)) = self.all.iter_mut().next()
            && it.ends_ns <= now_ns
        {
            let number = *number;
            let outcome = it.take_outcome().map(|it| (DisconnectNumber(number), it));
            self.outcomes.extend(outcome);
            self.forget(number);
        }
        while let Some(&(again_ns, number)) = self.again.first()
            && again_ns <= now_ns
        {
            self.again.pop_first();
            let Some(it) = self.all.get_mut(&number) else { continue };
            it.span_ns = it.span_ns.saturating_mul(2).clamp(SPAN_MIN_NS, SPAN_MAX_NS);
            it.again_ns = now_ns.saturating_add(it.span_ns);
            self.again.insert((it.again_ns, number));
            let here = it.open.iter().filter(|it| it.1 == Waiting::Local);
            if here.clone().count() > ONE_BY_ONE {
                self.sends.insert((number, None));
            } else {
                self.sends.extend(here.map(|it| (number, Some(it.0))));
            }
        }
    }

    /// When [`tick`](Self::tick) has something to do next.
    pub fn next_ns(&self) -> Option<u64> {
        let ends_ns = self.all.first_key_value().map(|(_, it)| it.ends_ns);
        ends_ns.into_iter().chain(self.again.first().map(|it| it.0)).min()
    }

    /// The next request to send. One that cannot be published now may be dropped: it is sent again.
    pub fn poll_send(&mut self) -> Option<DisconnectSend<'_>> {
        loop {
            let (number, to) = self.sends.pop_first()?;
            let is_open = |it: &Disconnect| {
                to.is_none_or(|node| it.open.iter().any(|(open, _)| *open == node))
            };
            if self.all.get(&number).is_some_and(is_open) {
                let it = self.all.get(&number)?;
                let number = DisconnectNumber(number);
                return Some(DisconnectSend {
                    number,
                    socket_id: &it.socket_id,
                    order: &it.order,
                    to,
                });
            }
        }
    }

    /// The next outcome; one for each disconnect.
    pub fn poll_outcome(&mut self) -> Option<(DisconnectNumber, DisconnectOutcome)> {
        self.outcomes.pop_front()
    }

    /// How many are open.
    pub fn len(&self) -> usize {
        self.all.len()
    }

    /// Whether none is open.
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    fn is_full(&self, more_nodes: usize, more_bytes: usize) -> bool {
        self.all.len() >= self.config.queue_max
            || self.nodes + more_nodes > NODES_MAX
            || self.bytes + more_bytes > BYTES_MAX
    }

    /// Reports the outcome when no node is waited for, and stops sending the disconnect again.
    fn settle(&mut self, number: u64) {
        let Some(it) = self.all.get_mut(&number) else { return };
        if it.is_waiting() {
            return;
        }
        self.again.remove(&(it.again_ns, number));
        self.reported.remove(&(true, number));
        self.reported.insert((!it.open.is_empty(), number));
        self.outcomes.extend(it.take_outcome().map(|it| (DisconnectNumber(number), it)));
    }

    fn forget(&mut self, number: u64) {
        let Some(it) = self.all.remove(&number) else { return };
        self.nodes -= it.nodes();
        self.bytes -= it.order.len();
        self.again.remove(&(it.again_ns, number));
        for has_missing in [false, true] {
            self.reported.remove(&(has_missing, number));
        }
    }
}
