//! Messages between the home of a kept topic and the broker that keeps and numbers the broadcasts
//! of several nodes. They pass through the cluster's thread, which puts those of the broker in
//! order.

use core::time::Duration;

pub use simurgh_history::NotKept;
use simurgh_history::{EngineEvent, Place};

use crate::broadcast::Broadcast;
use simurgh_data::prelude::*;

/// Bytes that an item is charged on its way to its home, in addition to its broadcast.
const ITEM_BYTES: usize = 64;

/// A broadcast that the broker is to keep.
#[derive(Debug)]
pub struct StoreRequest {
    /// Identifies the answer; no other store or purge of this node has it.
    pub number: u64,
    /// The broadcast with its topic.
    pub broadcast: Broadcast,
    /// The excluded client, by the hash of its id; 0: none.
    pub sender: u64,
    /// A broadcast with the same id is kept only once, on all nodes.
    pub id: Option<Box<str>>,
    /// The broker may delete it after this time; `None`: its own limits decide.
    pub age: Option<Duration>,
}

/// An event of a topic from the broker, for the topic's home.
pub type FromEngine = EngineEvent<KeptItem>;

/// A broadcast that the broker has kept.
#[derive(Debug)]
pub struct KeptItem {
    /// The broker's number for it.
    pub seq: u64,
    /// Its index among those with this number, from 0.
    pub index: u16,
    /// When it was kept: milliseconds since 1970; 0 if that is not known.
    pub at_ms: u64,
    /// The number that this node gave it, if this node had it kept.
    pub mine: Option<u64>,
    /// The excluded client, by the hash of its id; 0: none.
    pub sender: u64,
    /// The broadcast. Its excepted channel only matters if it is of this node.
    pub broadcast: Broadcast,
}

/// The bytes that an event is charged on its way to the home.
pub fn weight(event: &FromEngine) -> usize {
    match event {
        FromEngine::Begun { messages, .. } => messages.iter().map(KeptItem::weight).sum(),
        FromEngine::Next(item) => item.weight(),
        _ => 0,
    }
}

impl KeptItem {
    fn weight(&self) -> usize {
        self.broadcast.weight() + ITEM_BYTES
    }

    /// Its place in the topic's history.
    #[inline]
    pub fn place(&self) -> Place {
        place(self.seq, self.index)
    }
}

/// The distance between two numbers of one shard's stores: the remainder identifies the shard.
pub const NUMBERS_APART: u64 = 1 << 16;

/// The shard that gave a store its number.
pub fn shard_of(number: u64) -> usize {
    (number % NUMBERS_APART) as usize
}

/// The last item that a number can have. A place behind all items of a number has it, too.
const LAST_ITEM: u16 = Place::ITEM_MAX - 1;

/// The place of an item of a number.
pub fn place(seq: u64, index: u16) -> Place {
    Place { seq, item: index.min(LAST_ITEM) }
}

/// The place behind all items of a number.
pub fn behind(seq: u64) -> Place {
    match seq {
        0 => Place::ZERO,
        _ => Place { seq, item: LAST_ITEM },
    }
}

/// The place of a topic that had nothing up to a number. Nodes begin to follow it at different
/// times, so a client from another node may have a higher one of these and has missed nothing.
pub fn nothing_up_to(seq: u64) -> Place {
    match seq {
        0 => Place::ZERO,
        _ => Place { seq, item: Place::ITEM_MAX },
    }
}

/// Whether a place is one of [`nothing_up_to`].
pub fn is_of_nothing(place: Place) -> bool {
    place.item == Place::ITEM_MAX
}
