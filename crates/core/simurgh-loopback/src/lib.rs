//! A broker and its adapter in memory: for nodes of one process, with a clock that its owner
//! advances, and with every fault of a real broker's links, from a seed.
//!
//! ```text
//!   Loopback ─► outbox ─► pipe ─► broker: receivers, storage
//!   Loopback ◄─ inbox ◄── pipe ◄────┘
//! ```
//!
//! It behaves as NATS does. Each node has one link to the one broker, in order in both directions;
//! a node does not receive what it publishes, unless that was stored; the broker knows of an
//! interest when it arrives there. A cut link is not noticed for seconds: messages sent meanwhile
//! wait in it, and arrive late if the link is repaired in time; otherwise they are lost. Then
//! follow [`Event::Down`], attempts to connect, and [`Event::Up`]; unconfirmed envelopes are sent
//! again, so that others may get them twice.
//!
//! A network has no thread, and only works in [`Network::advance`]. The same seed and the same
//! calls give the same events.
#![forbid(unsafe_code)]

mod client;
mod state;
mod stream;
#[cfg(test)]
mod tests;

use std::ops::RangeInclusive;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use simurgh_cluster::adapter::Fetch;
use simurgh_cluster::{
    Adapter, Event, Generation, Interest, NodeId, Prefix, QueueFull, Space, SplitMix64, Subject,
    Ticket, Wanted,
};

pub use self::stream::{StreamLimits, UNIX_MS};

use self::client::{Client, Link, Request, whole};
use self::state::State;
use self::stream::Stream;

/// How a network behaves without faults.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NetworkConfig {
    /// Nanoseconds from a node to the broker or back; messages of a link stay in order.
    pub delay_ns: RangeInclusive<u64>,
    /// How many of a million messages to a node are lost, with [`Event::Lost`].
    pub loss_per_million: u32,
    /// How many of a million messages to a node overtake one of another publisher.
    pub reorder_per_million: u32,
    /// Nanoseconds until a node notices that nothing comes through its link.
    pub dead_after_ns: RangeInclusive<u64>,
    /// Envelopes received and not polled by a node; more are lost, with [`Event::Lost`].
    pub inbox_max: usize,
    /// How much the broker stores; `None`: nothing.
    pub kept: Option<StreamLimits>,
    /// By how many nanoseconds a copy lags behind when it answers a fetch that is not from the
    /// leader: drawn for each fetch, 10 s at most.
    pub lag_ns: RangeInclusive<u64>,
    /// How many of a million stored messages to a node are lost without notice.
    pub vanish_per_million: u32,
    /// How many of a million stored messages to a node are delivered twice.
    pub double_per_million: u32,
}

impl Default for NetworkConfig {
    fn default() -> Self {
        Self {
            delay_ns: 30_000..=100_000,
            loss_per_million: 0,
            reorder_per_million: 0,
            dead_after_ns: 4_000_000_000..=6_000_000_000,
            inbox_max: 1 << 16,
            kept: Some(StreamLimits::default()),
            lag_ns: 0..=0,
            vanish_per_million: 0,
            double_per_million: 0,
        }
    }
}

/// An entry of the broker's log ([`Network::take_log`]).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LogEntry {
    /// An envelope was stored, with the broker's number.
    Stored(u64, Bytes),
    /// A new epoch begins, with what was stored up to a number.
    Remade {
        /// The epoch, as in [`Event::Up`].
        epoch: u64,
        /// The number; 0 for an empty storage.
        head: u64,
    },
}

/// The direction of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Both directions.
    Both,
    /// From the node to the broker.
    Sending,
    /// From the broker to the node.
    Hearing,
}

/// The broker's data after a restart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RestartData {
    /// Everything.
    Stays,
    /// Nothing; a new epoch begins.
    Lost,
    /// Everything except the last so many nanoseconds, 10 s at most, as after a restore of an older
    /// copy; a new epoch begins.
    Older(u64),
}

/// A broker, the links to it, and the clock. Nodes are numbered from 0, in the order of
/// [`adapter`](Self::adapter); a call for another number panics.
///
/// A clone is the same network.
#[derive(Clone, Debug)]
pub struct Network {
    state: Arc<Mutex<State>>,
}

impl Network {
    /// At time 0, without nodes.
    pub fn new(seed: u64, config: NetworkConfig) -> Self {
        let mut rng = SplitMix64::new(seed);
        let stream = config.kept.clone().map(|limits| Stream::new(limits, rng.next()));
        let remade = |it: &Stream| LogEntry::Remade { epoch: it.epoch, head: 0 };
        let log = stream.iter().map(remade).collect();
        let state = State { rng, config, is_alive: true, stream, log, ..State::default() };
        Self { state: Arc::new(Mutex::new(state)) }
    }

    /// Changes the state, and then wakes the nodes that have events, outside the lock.
    fn with<R>(&self, act: impl FnOnce(&mut State) -> R) -> R {
        let mut guard = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let result = act(&mut guard);
        let wakers = guard.wakers();
        drop(guard);
        wakers.into_iter().for_each(std::task::Waker::wake);
        result
    }

    fn change(&self, node: usize, change: impl FnOnce(&mut Client)) {
        self.with(|state| {
            change(&mut state.clients[node]);
            state.end_broken();
            state.watch_links();
        });
    }

    /// Adds a node of the cluster with this prefix, and returns its adapter.
    pub fn adapter(&self, prefix: &Prefix) -> Loopback {
        let node = self.with(|state| {
            let NetworkConfig { inbox_max, loss_per_million, .. } = state.config;
            state.clients.push(Client::new(prefix.clone(), inbox_max, loss_per_million));
            state.clients.len() - 1
        });
        Loopback { network: self.clone(), node }
    }

    /// Advances the clock and does everything that is due by then.
    pub fn advance(&self, now_ns: u64) {
        self.with(|state| state.advance(now_ns));
    }

    /// The time.
    pub fn now_ns(&self) -> u64 {
        self.with(|state| state.now_ns)
    }

    /// When the next event is due, if no node acts before.
    pub fn next_at_ns(&self) -> Option<u64> {
        self.with(|state| state.next().map(|(at_ns, ..)| at_ns))
    }

    /// Cuts a node's link, in one direction or both. What is sent waits in the link. The node
    /// notices after [`NetworkConfig::dead_after_ns`]; then it is lost.
    pub fn cut(&self, node: usize, direction: Direction) {
        self.change(node, |client| {
            client.cannot_send |= direction != Direction::Hearing;
            client.cannot_receive |= direction != Direction::Sending;
        });
    }

    /// Repairs a node's link. Waiting messages are delivered first.
    pub fn mend(&self, node: usize) {
        self.change(node, |client| (client.cannot_send, client.cannot_receive) = (false, false));
    }

    /// Ends a node's link at once, with everything in flight. The node connects again.
    pub fn reset(&self, node: usize) {
        self.with(|state| state.end_link(node, "it was reset"));
    }

    /// Loses so many of a million messages to this node, with [`Event::Lost`].
    pub fn lossy(&self, node: usize, per_million: u32) {
        self.change(node, |client| client.lossy_per_million = per_million);
    }

    /// Partitions the broker, so that nodes of different groups do not reach each other. Their
    /// links stay up, and nothing is reported. Only the first group, which nodes in no group also
    /// belong to, has the stored messages. No group ends the partition.
    pub fn partition(&self, groups: &[&[usize]]) {
        self.with(|state| {
            for (node, client) in state.clients.iter_mut().enumerate() {
                client.group = groups.iter().position(|it| it.contains(&node)).unwrap_or(0);
            }
        });
    }

    /// Freezes the broker, or thaws it. What is sent to a frozen one waits, and nodes notice as
    /// with cut links. A thawed one first processes what waited, also on links that have ended.
    pub fn set_frozen(&self, is_frozen: bool) {
        self.with(|state| {
            state.is_frozen = is_frozen;
            state.watch_links();
        });
    }

    /// Ends the broker: everything in flight is lost, and all links end.
    pub fn kill(&self) {
        self.with(State::kill);
    }

    /// Restarts the broker, and ends it before if it runs.
    pub fn restart(&self, data: RestartData) {
        self.with(|state| {
            state.kill();
            state.is_alive = true;
            let epoch = state.rng.next();
            let now_ns = state.now_ns;
            let Some(kept) = state.stream.as_mut() else { return };
            match data {
                RestartData::Stays => return,
                RestartData::Lost => *kept = Stream::new(kept.limits.clone(), epoch),
                RestartData::Older(ns) => kept.set_back(now_ns.saturating_sub(ns), epoch),
            }
            let head = kept.head(now_ns);
            state.log.push(LogEntry::Remade { epoch, head });
        });
    }

    /// Takes the storage's leader, as an election does, or gives it one again. Without one nothing
    /// is stored, and no ticket is ever answered; links stay up, and all else works.
    pub fn set_leader(&self, has_leader: bool) {
        self.with(|state| state.has_no_leader = !has_leader);
    }

    /// All that the broker has stored since the last call. Its first entry has the epoch.
    pub fn take_log(&self) -> Vec<LogEntry> {
        self.with(|state| std::mem::take(&mut state.log))
    }

    /// Whether the broker has not ended.
    pub fn is_alive(&self) -> bool {
        self.with(|state| state.is_alive)
    }

    /// Whether the broker is frozen.
    pub fn is_frozen(&self) -> bool {
        self.with(|state| state.is_frozen)
    }

    /// Whether a node's link is cut, and whether it loses more than all links do.
    pub fn link_faults(&self, node: usize) -> (bool, bool) {
        self.with(|state| {
            let client = &state.clients[node];
            let is_lossy = client.lossy_per_million > state.config.loss_per_million;
            (client.cannot_send || client.cannot_receive, is_lossy)
        })
    }

    /// The group of a node while the broker is partitioned.
    pub fn group(&self, node: usize) -> usize {
        self.with(|state| state.clients[node].group)
    }

    /// Whether the broker has confirmed all changes of a node's interests.
    pub fn is_settled(&self, node: usize) -> bool {
        self.with(|state| state.clients[node].is_settled())
    }

    /// Whether the broker delivers to a node what others publish on a topic.
    pub fn is_heard(&self, node: usize, topic: &str) -> bool {
        self.with(|state| {
            let client = &state.clients[node];
            let Some(prefix) = client.prefix.as_ref().filter(|_| client.link == Link::Up) else {
                return false;
            };
            let subject = prefix.topic(Space::Broadcast, topic);
            let (subject, whole) = (subject.as_str(), whole(subject.as_str()));
            client.linked.as_ref().is_some_and(|it| it.hears(subject, whole.as_deref()))
        })
    }

    /// How many topics and buckets of topics a node wants.
    pub fn wanted_topics(&self, node: usize) -> usize {
        self.with(|state| state.clients[node].wanted_topics())
    }
}

/// A node's adapter. Dropping it ends the node as a crash does: what it has sent stays in flight.
#[derive(Debug)]
pub struct Loopback {
    network: Network,
    node: usize,
}

impl Loopback {
    fn ask(&self, what: Request, ticket: Ticket) -> Result<(), QueueFull> {
        self.network.with(|state| state.ask(self.node, what, ticket))
    }
}

impl Adapter for Loopback {
    fn start(&mut self, _me: NodeId) {
        self.network.with(|state| state.start(self.node));
    }

    fn publish(&mut self, to: &Subject, envelope: Bytes) -> Result<(), QueueFull> {
        self.network.with(|state| state.publish(self.node, to.as_str().into(), envelope))
    }

    fn store(
        &mut self,
        to: &Subject,
        id: &str,
        age: Option<Duration>,
        envelope: Bytes,
        ticket: Ticket,
    ) -> Result<(), QueueFull> {
        let (to, id) = (to.as_str().into(), id.into());
        self.ask(Request::Store { to, id, age, envelope }, ticket)
    }

    fn purge(&mut self, of: &Subject, before: u64, ticket: Ticket) -> Result<(), QueueFull> {
        self.ask(Request::Purge { of: of.as_str().into(), before }, ticket)
    }

    fn interest(&mut self, changes: &[(Interest, Wanted)]) -> Generation {
        self.network.with(|state| state.interest(self.node, changes))
    }

    fn fetch(&mut self, what: Fetch, ticket: Ticket) -> Result<(), QueueFull> {
        self.ask(Request::Fetch(what), ticket)
    }

    fn poll_event(&mut self, context: &mut Context<'_>) -> Poll<Event> {
        let event = self.network.with(|state| state.clients[self.node].poll(context.waker()));
        event.map_or(Poll::Pending, Poll::Ready)
    }

    fn in_flight(&self) -> usize {
        self.network.with(|state| state.clients[self.node].outbox.len())
    }
}

impl Drop for Loopback {
    fn drop(&mut self) {
        self.network.with(|state| state.leave(self.node));
    }
}
