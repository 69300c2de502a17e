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
mod engine;
mod pipe;
mod state;
mod stream;
mod subjects;
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

use self::client::{Client, Link, Request};
use self::state::{Engine, State};
use self::stream::Stream;
use self::subjects::Subjects;

/// How a network behaves without faults.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NetworkConfig {
    /// Nanoseconds that a message takes between a node and the broker. It never overtakes another
    /// message on its link.
    pub delay_ns: RangeInclusive<u64>,
    /// How many of a million messages to a node are lost, with [`Event::Lost`].
    pub loss_per_million: u32,
    /// How many of a million messages to a node overtake one of another publisher.
    pub reorder_per_million: u32,
    /// Nanoseconds until a node notices that nothing comes through its link.
    pub dead_after_ns: RangeInclusive<u64>,
    /// The most messages in flight to a node; beyond that the broker ends the link.
    pub pending_max: usize,
    /// The most envelopes that a node has received and not polled; further ones are lost, with
    /// [`Event::Lost`].
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
    /// Whether everything stored is recorded for [`Network::take_log`].
    pub has_log: bool,
}

impl Default for NetworkConfig {
    fn default() -> Self {
        Self {
            delay_ns: 30_000..=100_000,
            loss_per_million: 0,
            reorder_per_million: 0,
            dead_after_ns: 4_000_000_000..=6_000_000_000,
            pending_max: 1 << 20,
            inbox_max: 1 << 16,
            kept: Some(StreamLimits::default()),
            lag_ns: 0..=0,
            vanish_per_million: 0,
            double_per_million: 0,
            has_log: false,
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
/// [`adapter`](Self::adapter); calls for an unknown node change nothing.
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
        let epoch = stream.as_ref().map(|it| it.epoch).filter(|_| config.has_log);
        let log = epoch.map(|epoch| LogEntry::Remade { epoch, head: 0 }).into_iter().collect();
        let engine = Engine { is_alive: true, stream, log, ..Engine::default() };
        let (now_ns, subjects, clients) = (0, Subjects::default(), Vec::new());
        let state = State { now_ns, rng, config, subjects, clients, engine };
        Self { state: Arc::new(Mutex::new(state)) }
    }

    /// Adds a node of the cluster with this prefix, and returns its adapter.
    pub fn adapter(&self, prefix: &Prefix) -> Loopback {
        let node = with(&self.state, |state| {
            let NetworkConfig { inbox_max, loss_per_million, .. } = state.config;
            state.clients.push(Client::new(prefix.clone(), inbox_max, loss_per_million));
            state.engine.links.push(None);
            state.clients.len() - 1
        });
        Loopback { state: Arc::clone(&self.state), node }
    }

    /// Advances the clock and does everything that is due by then.
    pub fn advance(&self, now_ns: u64) {
        with(&self.state, |state| state.advance(now_ns));
    }

    /// The time.
    pub fn now_ns(&self) -> u64 {
        with(&self.state, |state| state.now_ns)
    }

    /// When the next event is due, if no node acts before.
    pub fn next_at_ns(&self) -> Option<u64> {
        with(&self.state, |state| state.next().map(|(at_ns, ..)| at_ns))
    }

    /// Cuts a node's link, in one direction or both. What is sent waits in the link. The node
    /// notices after [`NetworkConfig::dead_after_ns`]; then it is lost.
    pub fn cut(&self, node: usize, direction: Direction) {
        self.change(node, |client| match direction {
            Direction::Both => (client.cannot_send, client.cannot_receive) = (true, true),
            Direction::Sending => client.cannot_send = true,
            Direction::Hearing => client.cannot_receive = true,
        });
    }

    /// Repairs a node's link. Waiting messages are delivered first.
    pub fn mend(&self, node: usize) {
        self.change(node, |client| (client.cannot_send, client.cannot_receive) = (false, false));
    }

    /// Ends a node's link at once, with everything in flight. The node connects again.
    pub fn reset(&self, node: usize) {
        with(&self.state, |state| state.end_link(node, "it was reset"));
    }

    /// Loses so many of a million messages to this node, with [`Event::Lost`].
    pub fn lossy(&self, node: usize, per_million: u32) {
        self.change(node, |client| client.lossy_per_million = per_million);
    }

    /// Partitions the broker, so that nodes of different groups do not reach each other. Their
    /// links stay up, and nothing is reported. Only the first group, which nodes in no group also
    /// belong to, has the stored messages.
    pub fn partition(&self, groups: &[&[usize]]) {
        with(&self.state, |state| {
            for (node, client) in state.clients.iter_mut().enumerate() {
                client.group = groups.iter().position(|it| it.contains(&node)).unwrap_or(0);
            }
        });
    }

    /// Ends the partition.
    pub fn heal(&self) {
        self.partition(&[]);
    }

    /// Freezes the broker: what is sent to it waits. Nodes notice as if their links were cut.
    pub fn freeze(&self) {
        with(&self.state, |state| {
            state.engine.is_frozen = true;
            state.watch_links();
        });
    }

    /// Thaws the broker, which first processes what waited, also on links that have ended since.
    pub fn thaw(&self) {
        with(&self.state, |state| {
            state.engine.is_frozen = false;
            state.watch_links();
        });
    }

    /// Ends the broker: everything in flight is lost, and all links end.
    pub fn kill(&self) {
        with(&self.state, |state| {
            (state.engine.is_alive, state.engine.is_frozen) = (false, false);
            for node in 0..state.clients.len() {
                state.forget_link(node);
            }
            state.end_broken();
        });
    }

    /// Restarts the broker, and ends it before if it runs.
    pub fn restart(&self, data: RestartData) {
        self.kill();
        with(&self.state, |state| {
            state.engine.is_alive = true;
            state.engine.boot += 1;
            let epoch = state.rng.next();
            let (now_ns, has_log) = (state.now_ns, state.config.has_log);
            let Some(kept) = state.engine.stream.as_mut() else { return };
            match data {
                RestartData::Stays => return,
                RestartData::Lost => *kept = Stream::new(kept.limits.clone(), epoch),
                RestartData::Older(ns) => kept.set_back(now_ns.saturating_sub(ns), epoch),
            }
            let head = kept.seq;
            state.engine.log.extend(has_log.then_some(LogEntry::Remade { epoch, head }));
        });
    }

    /// Takes the leader from the storage, as during an election: nothing is stored, and no ticket
    /// is answered. Links stay up, and all else works.
    pub fn lose_leader(&self) {
        with(&self.state, |state| state.engine.has_no_leader = true);
    }

    /// Gives the storage a leader again. Requests made meanwhile are not answered.
    pub fn elect_leader(&self) {
        with(&self.state, |state| state.engine.has_no_leader = false);
    }

    /// The broker's log since the last call; empty without [`NetworkConfig::has_log`]. Its first
    /// entry has the epoch.
    pub fn take_log(&self) -> Vec<LogEntry> {
        with(&self.state, |state| std::mem::take(&mut state.engine.log))
    }

    /// Whether the broker has confirmed all changes of a node's interests.
    pub fn is_settled(&self, node: usize) -> bool {
        with(&self.state, |state| state.clients.get(node).is_some_and(Client::is_settled))
    }

    /// Whether the broker delivers to a node what others publish on a topic.
    pub fn is_heard(&self, node: usize, topic: &str) -> bool {
        with(&self.state, |state| {
            let client = state.clients.get(node).filter(|it| it.link == Link::Up);
            let prefix = client.and_then(|it| it.prefix.as_ref());
            let subject = prefix.map(|prefix| prefix.topic(Space::Broadcast, topic));
            subject.is_some_and(|subject| {
                state.subjects.receivers(subject.as_str()).any(|it| it as usize == node)
            })
        })
    }

    /// How many topics and buckets of topics a node wants.
    pub fn wanted_topics(&self, node: usize) -> usize {
        with(&self.state, |state| state.clients.get(node).map_or(0, Client::wanted_topics))
    }

    fn change(&self, node: usize, change: impl FnOnce(&mut Client)) {
        with(&self.state, |state| {
            if let Some(client) = state.clients.get_mut(node) {
                change(client);
            }
            state.end_broken();
            state.watch_links();
        });
    }
}

/// A node's adapter. Dropping it ends the node as a crash does: what it has sent stays in flight.
#[derive(Debug)]
pub struct Loopback {
    state: Arc<Mutex<State>>,
    node: usize,
}

impl Loopback {
    /// Its number in the [`Network`].
    pub const fn node(&self) -> usize {
        self.node
    }
}

impl Adapter for Loopback {
    fn start(&mut self, _me: NodeId) {
        with(&self.state, |state| state.start(self.node));
    }

    fn publish(&mut self, to: &Subject, envelope: Bytes) -> Result<(), QueueFull> {
        with(&self.state, |state| state.publish(self.node, to, envelope))
    }

    fn store(
        &mut self,
        to: &Subject,
        id: &str,
        age: Option<Duration>,
        envelope: Bytes,
        ticket: Ticket,
    ) -> Result<(), QueueFull> {
        with(&self.state, |state| {
            let (to, id) = (to.as_str().into(), id.into());
            state.ask(self.node, Request::Store { to, id, age, envelope }, ticket)
        })
    }

    fn purge(&mut self, of: &Subject, before: u64, ticket: Ticket) -> Result<(), QueueFull> {
        let of = of.as_str().into();
        with(&self.state, |state| state.ask(self.node, Request::Purge { of, before }, ticket))
    }

    fn interest(&mut self, changes: &[(Interest, Wanted)]) -> Generation {
        with(&self.state, |state| state.interest(self.node, changes))
    }

    fn fetch(&mut self, what: Fetch, ticket: Ticket) -> Result<(), QueueFull> {
        with(&self.state, |state| state.ask(self.node, Request::Fetch(what), ticket))
    }

    fn poll_event(&mut self, context: &mut Context<'_>) -> Poll<Event> {
        let event = with(&self.state, |state| {
            state.clients.get_mut(self.node).and_then(|it| it.poll(context.waker()))
        });
        event.map_or(Poll::Pending, Poll::Ready)
    }

    fn in_flight(&self) -> usize {
        with(&self.state, |state| state.clients.get(self.node).map_or(0, |it| it.outbox.len()))
    }
}

impl Drop for Loopback {
    fn drop(&mut self) {
        with(&self.state, |state| state.leave(self.node));
    }
}

/// Changes the state, and then wakes the nodes that have events, outside the lock.
fn with<R>(state: &Mutex<State>, act: impl FnOnce(&mut State) -> R) -> R {
    let mut guard = state.lock().unwrap_or_else(PoisonError::into_inner);
    let result = act(&mut guard);
    let wakers = guard.wakers();
    drop(guard);
    wakers.into_iter().for_each(std::task::Waker::wake);
    result
}
