//! What shards say to each other about the histories of topics, and what is asked from outside.

use std::fmt;
use std::sync::Arc;

use simurgh_history::{GapReason, Position, Since};
use simurgh_proto::message::Payload;
use simurgh_reactor::Key;

use super::engine::{FromEngine, NotKept, StoredAt};
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
/// It is dropped without being called if the shard has ended. Only of what an engine keeps it is
/// ever told that it is not kept.
pub type KeptCallback = Box<dyn FnOnce(Result<KeptAt, NotKept>) + Send>;

/// Who hears that a broadcast is kept.
pub(crate) enum KeptFor {
    Nobody,
    /// A channel, which waits for the word with this number; of another shard, unless an engine
    /// keeps it.
    Channel {
        channel: ChannelId,
        ticket: u32,
        /// It has broadcast on its own topic, and hears it itself.
        is_member: bool,
    },
    Asker(KeptCallback),
}

impl fmt::Debug for KeptFor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nobody => f.write_str("Nobody"),
            Self::Channel { channel, ticket, .. } => {
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
    /// The client that is left out, by the hash of its id; 0: nobody.
    pub(crate) sender: u64,
    /// Repeated with the same id it is kept once.
    pub(crate) id: Option<Box<str>>,
    pub(crate) kept_for: KeptFor,
}

/// A broadcast that is kept.
#[derive(Debug, Clone)]
pub(crate) struct Kept {
    /// The client that is left out, by the hash of its id; 0: nobody.
    pub(crate) sender: u64,
    pub(crate) what: What,
}

/// What it says.
#[derive(Debug, Clone)]
pub(crate) enum What {
    /// Event and payload: of a short one a copy takes less than the broadcast around it.
    Json(Arc<str>, Box<str>),
    Binary(Arc<str>, Box<[u8]>),
    /// The very one that members got.
    Shared(Arc<Broadcast>),
}

impl What {
    pub(crate) fn event(&self) -> &str {
        match self {
            Self::Json(event, _) | Self::Binary(event, _) => event,
            Self::Shared(broadcast) => broadcast.event(),
        }
    }

    pub(crate) fn payload(&self) -> Payload<'_> {
        match self {
            Self::Json(_, text) => Payload::Json((&**text).into()),
            Self::Binary(_, data) => Payload::Binary((&**data).into()),
            Self::Shared(broadcast) => broadcast.payload().borrow(),
        }
    }
}

/// What a client has missed of a topic; one for all who ask the same.
#[derive(Debug)]
pub struct Missed {
    /// Why it is not all.
    pub(crate) gap: Option<GapReason>,
    /// From which position on the rest follows.
    pub(crate) after: Position,
    /// Up to which it is here.
    pub(crate) through: Position,
    /// Whether more follows, which is to be asked for.
    pub(crate) more: bool,
    /// How many messages that is, with those that are to be asked for.
    pub(crate) count: usize,
    pub(crate) messages: Vec<(Position, Kept)>,
}

/// A client that is told positions, as it joins.
pub(crate) struct Opted {
    /// The hash of its id; 0: it has none.
    pub(crate) client: u64,
    /// It joins for the first time, with this id, where that is to be proved later.
    pub(crate) new: Option<Option<String>>,
    /// Whether it wants what is still there if something is not.
    pub(crate) partial: bool,
    pub(crate) missed: Arc<Missed>,
    /// How many of these messages it has sent itself.
    pub(crate) own: usize,
}

/// What a shard wants to know for a client that was away.
#[derive(Debug)]
pub struct Ask {
    pub(crate) topic: Box<str>,
    pub(crate) since: Since,
    /// Whether it wants what is still there if that is not all.
    pub(crate) partial: bool,
    /// Something before that is lost to it.
    pub(crate) torn: bool,
    /// What the engine has is not known, which its home finds out.
    pub(crate) is_away: bool,
    /// The hash of its id; 0: it has none.
    pub(crate) client: u64,
    /// The shard to which the answer goes.
    pub(crate) shard: u16,
    pub(crate) by: AskedBy,
}

/// For whom it is asked what was missed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AskedBy {
    /// A join: its socket, and the number of what that waits for.
    Join(Key, u32),
    /// A member that was told a part.
    Member(ChannelId),
}

/// Which part of a topic's history somebody outside of channels wants.
#[derive(Debug, Clone, Copy)]
pub struct Range {
    /// Where it begins, without the message there; none: at the end that is read first.
    pub since: Option<Position>,
    /// Messages at most.
    pub limit: usize,
    /// Whether it goes from the newer to the older.
    pub is_reverse: bool,
}

/// A broadcast that is kept, for whoever reads a topic's history.
#[derive(Debug, Clone)]
pub struct KeptMessage {
    /// Its place in its topic's history.
    pub position: Position,
    /// When it was kept: milliseconds since 1970.
    pub at_ms: u64,
    pub(crate) what: What,
}

impl KeptMessage {
    /// The event.
    pub fn event(&self) -> &str {
        self.what.event()
    }

    /// The payload, as members got it.
    pub fn payload(&self) -> Payload<'_> {
        self.what.payload()
    }
}

/// Part of a topic's history.
#[derive(Debug)]
pub struct HistoryPage {
    /// Why what follows the position that was asked for is not all there; none if it is.
    pub gap: Option<GapReason>,
    /// The oldest message that is kept.
    pub first: Option<Position>,
    /// The last that was given; of its epoch are all of them.
    pub position: Position,
    /// In the order that was asked for.
    pub messages: Vec<KeptMessage>,
}

/// A topic of which something is remembered.
#[derive(Debug, Clone)]
pub struct HistoryTopic {
    /// Its name.
    pub name: Box<str>,
    /// Messages that are kept.
    pub messages: usize,
    /// Bytes that they are counted with.
    pub bytes: u64,
    /// The last position that was given.
    pub position: Position,
}

/// Some of the topics of a shard.
#[derive(Debug)]
pub struct HistoryTopics {
    /// In the order of their places in the shard's table.
    pub topics: Vec<HistoryTopic>,
    /// The place to go on from; none if those were the last.
    pub next: Option<u32>,
}

/// What somebody does who has asked for a page of a topic's history. It runs on a shard.
pub type PageCallback = Box<dyn FnOnce(HistoryPage) + Send>;

/// What somebody outside asks of the home of a topic. Answers run on a shard: they are to be short.
/// They are dropped without being called if the shard has ended.
pub enum HistoryRequest {
    /// Part of what is kept.
    Read(Box<str>, Range, PageCallback),
    /// All that is kept is to be forgotten; answered with the last position that was given.
    Forget(Box<str>, Box<dyn FnOnce(Result<Position, NotKept>) + Send>),
    /// The topics that a shard keeps, from a place on, and so many at most.
    Topics(u16, u32, usize, Box<dyn FnOnce(HistoryTopics) + Send>),
}

impl fmt::Debug for HistoryRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Read(topic, range, _) => f.debug_tuple("Read").field(topic).field(range).finish(),
            Self::Forget(topic, _) => f.debug_tuple("Forget").field(topic).finish(),
            Self::Topics(shard, from, limit, _) => {
                f.debug_tuple("Topics").field(shard).field(from).field(limit).finish()
            }
        }
    }
}

/// About the history of a topic.
#[derive(Debug)]
pub enum HistoryMail {
    /// For the home of the topic, from outside of channels.
    HistoryRequest(HistoryRequest),
    /// What all shards keep is too much, and this one has most of it.
    Evict,
    /// For the home of the topic.
    Ask(Box<Ask>),
    /// From there, for a socket that waits for it, with how much of it that client sent itself.
    Missed(Key, u32, Arc<Missed>, usize),
    /// From there, for a member that was told a part.
    Portion(ChannelId, Arc<Missed>),
    /// For the home of the topic.
    Keep(Box<Keep>),
    /// From there: the broadcast that a channel waits for, by the number of the word, as it is
    /// passed on to all; its weight was charged to this shard.
    Kept(ChannelId, u32, Posted),
    /// From there: whether the broadcast is kept that a channel waits for, by the number of the
    /// word; none: it is.
    Confirmed(ChannelId, u32, Option<NotKept>),
    /// From there: what members of its topic are told of its positions; its weight was charged to
    /// this shard.
    Notice(Posted),
    /// For the home of the topic, to which its weight was charged: what the engine has.
    Engine(Box<str>, FromEngine),
    /// For the shard that has given this number: what the engine has done.
    Stored(u64, Result<StoredAt, NotKept>),
}
