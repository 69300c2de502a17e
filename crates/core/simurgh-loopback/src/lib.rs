//! An adapter without an engine: nodes of one process, a clock that its owner turns, and every
//! fault that a real engine's links have, from a seed.
//!
//! ```text
//!   Loopback ─► outbox ─► pipe ─► engine: who hears it, what is kept
//!   Loopback ◄─ inbox ◄── pipe ◄────┘
//! ```
//!
//! It behaves as NATS does. One engine; to each node one link, in order in both directions; nobody
//! hears himself, unless it was stored; the engine knows of an interest when it arrived there. A
//! link that is cut is not noticed for seconds: what is sent meanwhile waits in it, comes late if
//! the cut is mended in time, and is lost if not. Then [`Event::Down`], attempts to connect, and
//! [`Event::Up`]; what was not confirmed is sent again, so that others may hear it twice.
//!
//! A network has no thread, and does nothing but in [`Network::advance`]. The same seed and the
//! same calls give the same events.
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
    Adapter, Event, Generation, Interest, NodeId, Prefix, QueueFull, SplitMix64, Subject, Ticket,
    Wanted,
};

pub use self::stream::{StreamLimits, UNIX_MS};

use self::client::{Client, Request};
use self::state::{Engine, State};
use self::stream::Stream;
use self::subjects::Subjects;

/// How a network behaves while nobody disturbs it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NetworkConfig {
    /// Nanoseconds that anything takes from a node to the engine, or from it to a node. What is
    /// behind another thing on its link is there after it.
    pub delay_ns: RangeInclusive<u64>,
    /// Of a million messages to a node, so many are lost, and [`Event::Lost`] says so.
    pub loss_per_million: u32,
    /// Of a million messages to a node, so many overtake one of another publisher.
    pub reorder_per_million: u32,
    /// Nanoseconds until a node notices that nothing comes through its link.
    pub dead_after_ns: RangeInclusive<u64>,
    /// Messages to a node that may be under way; at more, the engine ends the link.
    pub pending_max: usize,
    /// Envelopes that a node may have received and not polled; more are lost, and
    /// [`Event::Lost`] says so.
    pub inbox_max: usize,
    /// What the engine keeps; none: nothing.
    pub kept: Option<StreamLimits>,
    /// Nanoseconds by which a copy lags behind that answers a fetch which is not from the leader;
    /// another one each time, 10 s at most.
    pub lag_ns: RangeInclusive<u64>,
    /// Of a million stored messages to a node, so many are lost, and nobody says so.
    pub vanish_per_million: u32,
    /// Of a million stored messages to a node, so many come twice.
    pub double_per_million: u32,
    /// All that is ever stored is remembered for [`Network::take_log`].
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

/// What became of what the engine keeps, in its order ([`Network::take_log`]).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LogEntry {
    /// An envelope was stored, with the engine's number.
    Stored(u64, Bytes),
    /// All is of another epoch from here on, and begins with what had been stored up to a number.
    Remade {
        /// As [`Event::Up`] says it.
        epoch: u64,
        /// The number; 0: with nothing.
        head: u64,
    },
}

/// Which direction of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Neither sends nor hears.
    Both,
    /// The node hears, but what it sends does not arrive.
    Sending,
    /// What the node sends arrives, but it hears nothing.
    Hearing,
}

/// What becomes of what the engine kept when it is started again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RestartData {
    /// It is there.
    Stays,
    /// It is gone; what is kept from now on is of another epoch.
    Lost,
    /// What was stored in the last so many nanoseconds, 10 s at most, is gone, as after a restore
    /// of an older copy; what is kept from now on is of another epoch.
    Older(u64),
}

/// An engine, the links to it, and the clock. Nodes are numbered from 0, in the order of
/// [`adapter`](Self::adapter); what is said of one that there is not changes nothing.
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
        let engine = Engine {
            is_alive: true,
            is_frozen: false,
            has_no_leader: false,
            boot: 0,
            stream,
            log,
            links: Vec::new(),
        };
        let state = State {
            now_ns: 0,
            rng,
            config,
            subjects: Subjects::new(),
            clients: Vec::new(),
            engine,
        };
        Self { state: Arc::new(Mutex::new(state)) }
    }

    /// Another node's, of the cluster with this prefix.
    pub fn adapter(&self, prefix: &Prefix) -> Loopback {
        let node = with(&self.state, |state| {
            let NetworkConfig { inbox_max, loss_per_million, .. } = state.config;
            state.clients.push(Client::new(prefix.clone(), inbox_max, loss_per_million));
            state.engine.links.push(None);
            state.clients.len() - 1
        });
        Loopback { state: Arc::clone(&self.state), node }
    }

    /// Everything that happens until then; nothing, if that is past.
    pub fn advance(&self, now_ns: u64) {
        with(&self.state, |state| state.advance(now_ns));
    }

    /// What the clock shows.
    pub fn now_ns(&self) -> u64 {
        with(&self.state, |state| state.now_ns)
    }

    /// When the next thing happens, if nobody does anything until then.
    pub fn next_at_ns(&self) -> Option<u64> {
        with(&self.state, |state| state.next_at_ns())
    }

    /// Lets nothing through a node's link, in one direction or both. What is sent waits in it. The
    /// node notices after [`NetworkConfig::dead_after_ns`]; then it is lost.
    pub fn cut(&self, node: usize, direction: Direction) {
        self.change(node, |client| match direction {
            Direction::Both => (client.cannot_send, client.cannot_hear) = (true, true),
            Direction::Sending => client.cannot_send = true,
            Direction::Hearing => client.cannot_hear = true,
        });
    }

    /// Lets everything through a node's link again, first what waited in it.
    pub fn mend(&self, node: usize) {
        self.change(node, |client| (client.cannot_send, client.cannot_hear) = (false, false));
    }

    /// Ends a node's link at once, with all that is under way in it. The node connects again.
    pub fn reset(&self, node: usize) {
        with(&self.state, |state| state.end_link(node, "it was reset"));
    }

    /// Loses so many of a million messages to this node, and tells it.
    pub fn lossy(&self, node: usize, per_million: u32) {
        self.change(node, |client| client.lossy_per_million = per_million);
    }

    /// Parts the engine, so that nodes of different groups do not hear each other. Their links
    /// stand, and nobody is told. Only the first group has what is kept; nodes of no group are in
    /// that, too.
    pub fn partition(&self, groups: &[&[usize]]) {
        with(&self.state, |state| {
            for (node, client) in state.clients.iter_mut().enumerate() {
                client.group = groups.iter().position(|it| it.contains(&node)).unwrap_or(0);
            }
        });
    }

    /// Makes the engine one again.
    pub fn heal(&self) {
        self.partition(&[]);
    }

    /// Stops the engine: what is sent to it waits. Nodes notice as if their links were cut.
    pub fn freeze(&self) {
        with(&self.state, |state| {
            state.engine.is_frozen = true;
            state.watch_links();
        });
    }

    /// Lets the engine go on, first with what waited, also on links that ended meanwhile.
    pub fn thaw(&self) {
        with(&self.state, |state| {
            state.engine.is_frozen = false;
            state.watch_links();
        });
    }

    /// Ends the engine: all that is under way is lost, all links end.
    pub fn kill(&self) {
        with(&self.state, |state| {
            (state.engine.is_alive, state.engine.is_frozen) = (false, false);
            for node in 0..state.clients.len() {
                state.forget_link(node);
            }
            state.end_broken();
        });
    }

    /// Starts the engine again; ends it before, if that was not done.
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
                RestartData::Lost => *kept = Stream::new(kept.limits().clone(), epoch),
                RestartData::Older(ns) => kept.set_back(now_ns.saturating_sub(ns), epoch),
            }
            let head = kept.last();
            state.engine.log.extend(has_log.then_some(LogEntry::Remade { epoch, head }));
        });
    }

    /// What keeps has no leader, as while another one is elected: nothing is stored, and nobody is
    /// answered. Links stand, and all else goes on.
    pub fn lose_leader(&self) {
        with(&self.state, |state| state.engine.has_no_leader = true);
    }

    /// What keeps has a leader again. What it was asked meanwhile is not answered.
    pub fn elect_leader(&self) {
        with(&self.state, |state| state.engine.has_no_leader = false);
    }

    /// What became of what is kept since this was asked last; nothing, unless
    /// [`NetworkConfig::has_log`]. The first says of which epoch it is.
    pub fn take_log(&self) -> Vec<LogEntry> {
        with(&self.state, |state| std::mem::take(&mut state.engine.log))
    }

    /// Forgets what is kept of a subject; numbers go on.
    pub fn purge(&self, subject: &Subject) {
        with(&self.state, |state| {
            let (name, now_ns) = (state.subjects.of(subject.as_str()), state.now_ns);
            if let Some(kept) = state.engine.stream.as_mut() {
                kept.purge(name, u64::MAX, now_ns);
            }
        });
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

/// A node's adapter. Dropped, the node is gone: what it sent is under way, as after a crash.
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
        let is_taken = with(&self.state, |state| state.publish(self.node, to, envelope));
        if is_taken { Ok(()) } else { Err(QueueFull) }
    }

    fn store(
        &mut self,
        to: &Subject,
        id: &str,
        age: Option<Duration>,
        envelope: Bytes,
        ticket: Ticket,
    ) -> Result<(), QueueFull> {
        let is_taken = with(&self.state, |state| {
            let (to, id) = (state.subjects.of(to.as_str()), id.into());
            state.ask(self.node, Request::Store { to, id, age, envelope }, ticket)
        });
        if is_taken { Ok(()) } else { Err(QueueFull) }
    }

    fn purge(&mut self, of: &Subject, before: u64, ticket: Ticket) -> Result<(), QueueFull> {
        let is_taken = with(&self.state, |state| {
            let of = state.subjects.of(of.as_str());
            state.ask(self.node, Request::Purge { of, before }, ticket)
        });
        if is_taken { Ok(()) } else { Err(QueueFull) }
    }

    fn interest(&mut self, changes: &[(Interest, Wanted)]) -> Generation {
        with(&self.state, |state| state.interest(self.node, changes))
    }

    fn fetch(&mut self, what: Fetch, ticket: Ticket) -> Result<(), QueueFull> {
        let is_taken = with(&self.state, |state| {
            let what = state.request(what);
            state.ask(self.node, what, ticket)
        });
        if is_taken { Ok(()) } else { Err(QueueFull) }
    }

    fn poll_event(&mut self, context: &mut Context<'_>) -> Poll<Event> {
        let event = with(&self.state, |state| {
            state.clients.get_mut(self.node).and_then(|it| it.poll(context.waker()))
        });
        event.map_or(Poll::Pending, Poll::Ready)
    }

    fn in_flight(&self) -> usize {
        with(&self.state, |state| state.clients.get(self.node).map_or(0, Client::in_flight))
    }
}

impl Drop for Loopback {
    fn drop(&mut self) {
        with(&self.state, |state| state.leave(self.node));
    }
}

/// Does something with the state, and wakes who has something to poll then, outside the lock.
fn with<R>(state: &Mutex<State>, act: impl FnOnce(&mut State) -> R) -> R {
    let mut guard = state.lock().unwrap_or_else(PoisonError::into_inner);
    let result = act(&mut guard);
    let wakers = guard.wakers();
    drop(guard);
    wakers.into_iter().for_each(std::task::Waker::wake);
    result
}
