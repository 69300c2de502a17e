//! Stores, and the events of followed topics.

use std::time::Duration;

use simurgh_history::StoredAt;

use crate::envelope::Item;

/// A broadcast to store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoreItem<'a> {
    /// The caller's number for it, unique on this node.
    pub number: u64,
    /// The broadcast.
    pub item: Item<'a>,
    /// Its publisher's id for it: what comes again with the same id is stored once.
    pub id: Option<&'a str>,
    /// After which time the engine may remove it; none: by its own limits.
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
    /// When it was stored, in milliseconds since 1970: by the engine's clock, or when it came, by
    /// this node's.
    pub at_ms: u64,
    /// The caller's number, if this node had it stored. None also if that is not known any more,
    /// ten seconds after the answer.
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

/// An event of a followed topic. The first is `Begun` or `Unknown`, the last `Ended`. Positions
/// grow from one to the next, except for a `Begun`, which begins anew.
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
    /// What the engine has is not known now: there is no link, or no answer. Clients that ask what
    /// they missed cannot be answered. `Known`, `Begun` or `Ended` follows; messages in order may
    /// come before that.
    Unknown,
    /// It is known again: nothing is behind the last message.
    Known,
    /// The topic is not followed any more.
    Ended,
}

/// Why something is not stored.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// It may be stored, or not: the engine has not answered in time.
    #[error("the engine has not confirmed it in time")]
    Unconfirmed,
    /// It is not, and will not be: why.
    #[error("not stored: {0}")]
    Refused(Box<str>),
    /// It is not: too much waits to be stored.
    #[error("too much waits to be stored")]
    Full,
}

pub(crate) trait HistorySink {
    fn history(&mut self, topic: &str, what: HistoryEvent<'_>);
    fn stored(&mut self, topic: &str, number: u64, outcome: Result<StoredAt, StoreError>);
}
