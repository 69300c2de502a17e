//! Stores, and the events of followed topics.

use core::time::Duration;

use simurgh_channel::KeptItem;
use simurgh_history::{EngineEvent, NotKept, StoredAt};

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
    /// The time after which the broker may remove it; `None`: by its own limits.
    pub age: Option<Duration>,
}

/// A stored broadcast.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HistoryItem<'a> {
    /// The broker's number for its envelope.
    pub seq: u64,
    /// Its place in the envelope.
    pub index: u16,
    /// When it was stored, by the broker's clock, or received, by this node's, in milliseconds
    /// since 1970.
    pub at_ms: u64,
    /// The caller's number, if this node had it stored. `None` also from ten seconds after the
    /// answer on.
    pub mine: Option<u64>,
    /// The broadcast; with the excepted member only if this node published it.
    pub item: Item<'a>,
}

impl HistoryItem<'_> {
    /// The same for the home of its topic.
    pub fn to_kept(&self, topic: &str) -> KeptItem {
        let Self { seq, index, at_ms, mine, item } = *self;
        let mut broadcast = item.to_broadcast(topic);
        if let Some((_, except)) = mine.zip(item.except) {
            broadcast = broadcast.but_for(except);
        }
        let sender = item.exclusion.unwrap_or(0);
        KeptItem { seq, index, at_ms, mine, sender, broadcast }
    }
}

/// An event of a followed topic.
pub type HistoryEvent<'a> = EngineEvent<HistoryItem<'a>>;

pub(crate) trait HistorySink {
    fn history(&mut self, topic: &str, what: HistoryEvent<'_>);
    fn stored(&mut self, topic: &str, number: u64, outcome: Result<StoredAt, NotKept>);
}
