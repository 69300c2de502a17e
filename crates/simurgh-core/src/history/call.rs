//! What shards say to each other about the histories of topics, and what is asked from outside.

use std::fmt;
use std::sync::Arc;

use simurgh_history::Position;

use crate::broadcast::Broadcast;
use crate::flow::{Charge, Posted};
use crate::id::ChannelId;

/// Where a broadcast is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeptAt {
    /// Its place in its topic's history.
    pub position: Position,
    /// One with the same id had been kept before: nobody was sent it again.
    pub is_duplicate: bool,
}

/// What somebody does who asked for a broadcast to be kept. It runs on a shard: it is to be short.
/// It is dropped without being called if the shard has ended.
pub type KeptAnswer = Box<dyn FnOnce(KeptAt) + Send>;

/// Who hears that a broadcast is kept.
pub(crate) enum KeptFor {
    Nobody,
    /// A channel of another shard, which waits for the word with this number.
    Channel(ChannelId, u32),
    Asker(KeptAnswer),
}

impl fmt::Debug for KeptFor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nobody => f.write_str("Nobody"),
            Self::Channel(channel, ticket) => {
                f.debug_tuple("Channel").field(channel).field(ticket).finish()
            }
            Self::Asker(_) => f.write_str("Asker"),
        }
    }
}

/// A broadcast on its way to the home of its topic, to which its weight is charged.
#[derive(Debug)]
pub struct Keep {
    pub(crate) broadcast: Broadcast,
    /// Its place in its publisher's flow.
    pub(crate) charge: Option<Arc<Charge>>,
    /// Repeated with the same id it is kept once.
    pub(crate) id: Option<Box<str>>,
    pub(crate) kept_for: KeptFor,
}

/// About the history of a topic.
#[derive(Debug)]
pub enum HistoryMail {
    /// For the home of the topic.
    Keep(Box<Keep>),
    /// From there: the broadcast that a channel waits for, by the number of the word, as it is
    /// passed on to all; its weight was charged to this shard.
    Kept(ChannelId, u32, Posted),
}
