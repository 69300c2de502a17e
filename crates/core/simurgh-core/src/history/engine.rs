//! What the home of a kept topic and an engine say to each other, where it is the engine that keeps
//! the broadcasts of several nodes, and gives the numbers. These go by way of the cluster's thread,
//! whose machine puts what the engine says in order; so nothing here is borrowed.

use std::time::Duration;

use simurgh_history::{Epoch, Place, Position};

use crate::broadcast::Broadcast;

/// What an item is counted with on its way to its home, beside its broadcast.
const ITEM_BYTES: usize = 64;

/// What is wanted of a topic's history: as much as its pattern declares.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retention {
    /// Broadcasts.
    pub count: u32,
    /// Bytes of them.
    pub bytes: usize,
    /// Milliseconds that they are kept for.
    pub age_ms: u64,
}

/// A broadcast that the engine is to keep.
#[derive(Debug)]
pub struct StoreRequest {
    /// By which it is answered, once: no other store or purge of this node has it.
    pub number: u64,
    /// What is broadcast, and on which topic.
    pub broadcast: Broadcast,
    /// The client that is left out, by the hash of its id; 0: nobody.
    pub sender: u64,
    /// Repeated with the same id it is kept once, whichever node is told.
    pub id: Option<Box<str>>,
    /// The engine may forget it after so long; none: by its own limits.
    pub age: Option<Duration>,
}

/// What the engine has of a topic, as the home hears it: [`Begun`](Self::Begun) comes first.
#[derive(Debug)]
pub enum FromEngine {
    /// The topic is followed from here on.
    Begun {
        /// Of the engine's numbers: with another one all is anew.
        epoch: u64,
        /// What has this number or a lower one may be missing here.
        floor: u64,
        /// What had this number or a lower one was forgotten by somebody's wish; 0: none is known.
        purged: u64,
        /// Up to this number the topic has nothing but the messages.
        head: u64,
        /// What the engine has, oldest first.
        messages: Vec<KeptItem>,
    },
    /// The next one, in order.
    Next(KeptItem),
    /// Something up to this number is missing, and cannot be had any more.
    Gap {
        /// All of the numbers up to this one.
        through: u64,
    },
    /// All that is older than this was to be forgotten, by somebody's wish. The wish itself stands
    /// there.
    Purged {
        /// Its number.
        seq: u64,
        /// Which one it is of several with this number.
        index: u16,
    },
    /// What the engine has cannot be known now. `Known` or `Begun` follows.
    Unknown,
    /// It is known again, and nothing was missed.
    Known,
    /// Nobody here wants the topic any more: it is followed no longer.
    Ended,
}

/// A broadcast that the engine has kept.
#[derive(Debug)]
pub struct KeptItem {
    /// The engine's number for it.
    pub seq: u64,
    /// Which one it is of several with this number, from 0.
    pub index: u16,
    /// When it was kept: milliseconds since 1970; 0 if that is not known.
    pub at_ms: u64,
    /// The number that this node gave it, if this node has had it kept.
    pub mine: Option<u64>,
    /// The client that is left out, by the hash of its id; 0: nobody.
    pub sender: u64,
    /// What is broadcast. Its exception is looked at only if it is this node's own.
    pub broadcast: Broadcast,
}

/// Where the engine has kept a broadcast.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoredAt {
    /// Of its numbers.
    pub epoch: u64,
    /// Its number.
    pub seq: u64,
    /// Which one it is of several with this number.
    pub index: u16,
    /// One with the same id had been kept before: nobody hears it again.
    pub is_duplicate: bool,
}

/// Why it is not known that a broadcast is kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NotKept {
    /// The engine has not answered in time: it may be kept, or may not.
    Unconfirmed,
    /// The engine does not keep it, and says why.
    Refused(Box<str>),
    /// Too much waits for the engine.
    Full,
    /// The engine is away, and the members on this node alone have heard it, as the server is set
    /// to do: for its channel it is done.
    LocalOnly,
}

impl FromEngine {
    /// Bytes it is counted with on its way to the home.
    pub(crate) fn weight(&self) -> usize {
        match self {
            Self::Begun { messages, .. } => messages.iter().map(KeptItem::weight).sum(),
            Self::Next(item) => item.weight(),
            _ => 0,
        }
    }
}

impl KeptItem {
    fn weight(&self) -> usize {
        self.broadcast.weight() + ITEM_BYTES
    }

    /// Where it stands.
    pub(crate) fn place(&self) -> Place {
        place(self.seq, self.index)
    }
}

impl StoredAt {
    /// As clients have it.
    pub(crate) fn position(&self) -> Position {
        let epoch = Epoch::from_seed(self.epoch);
        Position { epoch, place: place(self.seq, self.index) }
    }
}

/// The numbers of a shard's stores are so far apart: the rest is the shard.
pub(crate) const NUMBERS_APART: u64 = 1 << 16;

/// The shard that has given the number of a store.
pub(crate) fn shard_of(number: u64) -> usize {
    (number % NUMBERS_APART) as usize
}

/// The last item that a number can have: what is behind all items of a number stands there.
const LAST_ITEM: u16 = Place::ITEM_MAX - 1;

/// Where an item of a number stands.
pub(crate) fn place(seq: u64, index: u16) -> Place {
    Place { seq, item: index.min(LAST_ITEM) }
}

/// The place behind all items of a number.
pub(crate) fn behind(seq: u64) -> Place {
    match seq {
        0 => Place::ZERO,
        _ => Place { seq, item: LAST_ITEM },
    }
}

/// The place of a topic that had nothing up to a number. Nodes begin to follow it at other times,
/// so a client may come from another node with a higher one of these and has missed nothing.
pub(crate) fn nothing_up_to(seq: u64) -> Place {
    match seq {
        0 => Place::ZERO,
        _ => Place { seq, item: Place::ITEM_MAX },
    }
}

/// Whether a place is one of those.
pub(crate) fn is_of_nothing(place: Place) -> bool {
    place.item == Place::ITEM_MAX
}
