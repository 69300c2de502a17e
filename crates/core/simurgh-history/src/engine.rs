//! The contract between a node and a broker that keeps topics for several nodes.

use alloc::boxed::Box;
use alloc::vec::Vec;

use thiserror::Error;

/// How much of a topic a broker keeps, as the topic's pattern declares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retention {
    /// The most broadcasts, the newest; one at least.
    pub count: u32,
    /// The most bytes of them, the newest; one broadcast at least.
    pub bytes: usize,
    /// Milliseconds after which the broker removes a broadcast, the same on all nodes; 0: never.
    pub age_ms: u64,
}

/// Where the broker has kept a broadcast.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoredAt {
    /// The epoch of its numbers.
    pub epoch: u64,
    /// Its index among several with this number.
    pub seq: u64,
    /// Which one it is of several with this number.
    pub index: u16,
    /// Whether one with the same id had been kept before, here: it is not delivered again.
    pub is_duplicate: bool,
}

/// An event of a topic whose broadcasts a broker keeps; `M` is a node's form of a broadcast. The
/// first is `Begun`, `Unknown` or `Unavailable`, the last `Ended`. Numbers grow from one event to
/// the next, except for a `Begun`, which restarts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EngineEvent<M> {
    /// The topic is followed from here on.
    Begun {
        /// The epoch of the broker's numbers: another one makes all positions before invalid.
        epoch: u64,
        /// Broadcasts up to this number may be missing here.
        floor: u64,
        /// Broadcasts up to this number were purged on request; 0: none is known.
        purged: u64,
        /// Up to this number the topic has only `messages`.
        head: u64,
        /// The broker's messages, oldest first.
        messages: Vec<M>,
    },
    /// The next one, in order.
    Next(M),
    /// Messages up to this number are missing, or may be, and cannot be fetched any more.
    Gap {
        /// The last number that may be missing, below that of the next message.
        through: u64,
    },
    /// Everything older than this was purged on request. The request itself has this place.
    Purged {
        /// Its number.
        seq: u64,
        /// Its index among those with this number.
        index: u16,
    },
    /// The broker's messages are unknown now: there is no link, or no answer. Clients that ask what
    /// they missed cannot be answered. `Known`, `Begun` or `Ended` follows; messages in order may
    /// be received before that.
    Unknown,
    /// As `Unknown`, but there is a link, to a broker that stores nothing: waiting does not help.
    Unavailable,
    /// They are known again: nothing was missed.
    Known,
    /// The topic is no longer followed.
    Ended,
}

impl<M> EngineEvent<M> {
    /// The same event with another form of its messages.
    pub fn map<N>(self, mut form: impl FnMut(M) -> N) -> EngineEvent<N> {
        match self {
            Self::Begun { epoch, floor, purged, head, messages } => {
                let messages = messages.into_iter().map(form).collect();
                EngineEvent::Begun { epoch, floor, purged, head, messages }
            }
            Self::Next(message) => EngineEvent::Next(form(message)),
            Self::Gap { through } => EngineEvent::Gap { through },
            Self::Purged { seq, index } => EngineEvent::Purged { seq, index },
            Self::Unknown => EngineEvent::Unknown,
            Self::Unavailable => EngineEvent::Unavailable,
            Self::Known => EngineEvent::Known,
            Self::Ended => EngineEvent::Ended,
        }
    }
}

/// Why a broadcast may not be kept.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum NotKept {
    /// The broker has not answered in time: it may be kept, or not.
    #[error("the broker did not confirm it in time")]
    Unconfirmed,
    /// The broker does not keep it, and will not, with its reason.
    #[error("not stored: {0}")]
    Refused(Box<str>),
    /// It is not kept: too much waits for the broker.
    #[error("too much waits to be stored")]
    Full,
    /// There is no link to the broker, and the broadcast was delivered on this node only, as the
    /// server is configured to do.
    #[error("not connected to the broker: it was delivered on this node only")]
    LocalOnly,
}
