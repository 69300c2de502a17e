//! What goes in and out: stores, and what is told of a topic that is followed.

use std::time::Duration;

use crate::envelope::Item;

/// Of a kept topic's pattern: how much of it is wanted here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retention {
    /// Envelopes; of more the newest. One at least.
    pub count: u32,
    /// Bytes of envelopes; of more the newest, but one at least.
    pub bytes: usize,
    /// Milliseconds after which the engine forgets what is stored in such a topic; 0, if it does
    /// not for its age. Where several nodes publish, all must have the same.
    pub age_ms: u64,
}

/// What is to be stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoreItem<'a> {
    /// The caller's for it; none else of this node has it.
    pub number: u64,
    /// The broadcast.
    pub item: Item<'a>,
    /// Its publisher's id for it: what comes with the same again is stored once.
    pub id: Option<&'a str>,
    /// After which the engine may forget it; none: after its own limits.
    pub age: Option<Duration>,
}

/// Where a broadcast of a kept topic stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct HistoryPosition {
    /// The engine's number for its envelope.
    pub seq: u64,
    /// Its place in that.
    pub index: u16,
}

/// A broadcast of a kept topic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HistoryItem<'a> {
    /// The engine's number for its envelope.
    pub seq: u64,
    /// Its place in that.
    pub index: u16,
    /// When it was stored, in milliseconds since 1970: by the engine's clock, or when this node
    /// heard it, by its own.
    pub at_ms: u64,
    /// If this node had it stored: the number that was given for it. None also if that is not
    /// known any more, ten seconds after the answer.
    pub mine: Option<u64>,
    /// The broadcast; who is excepted only if this node published it.
    pub item: Item<'a>,
}

impl HistoryItem<'_> {
    /// Where it stands.
    pub const fn at(&self) -> HistoryPosition {
        HistoryPosition { seq: self.seq, index: self.index }
    }
}

/// What is told of a topic that is followed. The first is `Begun` or `Unknown`, the last `Ended`.
/// Positions grow from one to the next, but for a `Begun`, which begins anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HistoryEvent<'a> {
    /// From here on it is followed.
    Begun {
        /// Of all numbers until the next `Begun`.
        epoch: u64,
        /// What is at or below this number may be missing here.
        floor: u64,
        /// What was at or below this number was forgotten by somebody's wish; 0, if none is known.
        purged: u64,
        /// Everything between floor and this number is among the messages.
        head: u64,
        /// What the engine has, oldest first.
        messages: &'a [HistoryItem<'a>],
    },
    /// The next one.
    Next(HistoryItem<'a>),
    /// Of what is behind the last one and not behind this number something is missing, or may be,
    /// and cannot be had any more.
    Gap {
        /// Less than the number of whatever comes next.
        through: u64,
    },
    /// Everything before this position is to be forgotten: somebody wished so. The wish has this
    /// position itself.
    Purged(HistoryPosition),
    /// What the engine has cannot be known now: there is no link, or no answer. Who asks what they
    /// missed cannot be told. Followed by `Known`, `Begun` or `Ended`; what is in order may come
    /// before that.
    Unknown,
    /// It is known again: there is nothing behind the last one.
    Known,
    /// It is not followed any more.
    Ended,
}

/// Where something is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoredAt {
    /// Of the number.
    pub epoch: u64,
    /// The engine's number for its envelope.
    pub seq: u64,
    /// Its place in that.
    pub index: u16,
    /// It had been stored before under its publisher's id: where is said.
    pub is_duplicate: bool,
}

/// Why something is not stored.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// It may be stored, or not: the engine has not said in time.
    #[error("the engine has not confirmed it in time")]
    Unconfirmed,
    /// It is not, and will not be: why, in words.
    #[error("not stored: {0}")]
    Refused(Box<str>),
    /// It is not: too much waits to be stored.
    #[error("too much waits to be stored")]
    Full,
}

/// Who is told.
pub(crate) trait HistorySink {
    fn history(&mut self, topic: &str, what: HistoryEvent<'_>);
    fn stored(&mut self, topic: &str, number: u64, outcome: Result<StoredAt, StoreError>);
}
