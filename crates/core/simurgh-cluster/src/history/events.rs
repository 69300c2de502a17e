//! Stores, and the events of followed topics.

use std::time::Duration;

use simurgh_history::{NotKept, StoredAt};

use crate::envelope::Item;

/// A broadcast to store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoreItem<'a> {
    /// The caller's number for it, unique on this node.
    pub number: u64,
    /// The broadcast.
    pub item: Item<'a>,
    /// Its publisher's id: a repeated id is stored once.
    pub id: Option<&'a str>,
    /// The time after which the engine may remove it; `None`: by its own limits.
    pub age: Option<Duration>,
}

/// The position of a stored broadcast.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct HistoryPosition {
    /// The engine's number for its envelope.
    pub seq: u64,
    /// Its place in the envelope.
    pub index: u16,
}

/// A stored broadcast.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HistoryItem<'a> {
    /// The engine's number for its envelope.
    pub seq: u64,
    /// Its place in the envelope.
    pub index: u16,
    /// When it was stored, by the engine's clock, or received, by this node's, in milliseconds
    /// since 1970.
    pub at_ms: u64,
    /// The caller's number, if this node had it stored. `None` also from ten seconds after the
    /// answer on.
    pub mine: Option<u64>,
    /// The broadcast; with the excepted member only if this node published it.
    pub item: Item<'a>,
}

impl HistoryItem<'_> {
    /// Its position.
    pub const fn at(&self) -> HistoryPosition {
        HistoryPosition { seq: self.seq, index: self.index }
    }
}

/// An event of a followed topic. The first is `Begun`, `Unknown` or `Unavailable`, the last
/// `Ended`. Positions grow from one event to the next, except for a `Begun`, which restarts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HistoryEvent<'a> {
    /// The topic begins.
    Begun {
        /// The epoch of all numbers until the next `Begun`.
        epoch: u64,
        /// Messages up to this number may be missing.
        floor: u64,
        /// Messages up to this number were purged; 0, if none is known.
        purged: u64,
        /// Everything between `floor` and this number is among the messages.
        head: u64,
        /// The messages, oldest first.
        messages: &'a [HistoryItem<'a>],
    },
    /// The next message.
    Next(HistoryItem<'a>),
    /// Some messages behind the last one are lost, or may be.
    Gap {
        /// The highest number that may be lost, which is below that of the next message.
        through: u64,
    },
    /// Everything before this position was purged. The purge has this position itself.
    Purged(HistoryPosition),
    /// The engine's messages are unknown now: there is no link, or no answer. Clients that ask what
    /// they missed cannot be answered. `Known`, `Begun` or `Ended` follows; messages in order may
    /// be received before that.
    Unknown,
    /// As `Unknown`, but there is a link, to an engine that stores nothing: waiting does not help.
    Unavailable,
    /// They are known again: nothing is behind the last message.
    Known,
    /// The topic is not followed any more.
    Ended,
}

pub(crate) trait HistorySink {
    fn history(&mut self, topic: &str, what: HistoryEvent<'_>);
    fn stored(&mut self, topic: &str, number: u64, outcome: Result<StoredAt, NotKept>);
}
