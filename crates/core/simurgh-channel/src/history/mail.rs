//! Mail between shards about the histories of topics, and requests from outside.

use simurgh_data::Key;
use simurgh_history::{GapReason, Position, Since, StoredAt};
use simurgh_proto::message::Payload;

use super::engine::{FromEngine, NotKept};
use crate::broadcast::Broadcast;
use crate::flow::{Charge, Posted};
use crate::id::ChannelId;
use simurgh_data::prelude::*;

/// Where a broadcast is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeptAt {
    /// Its place in its topic's history.
    pub position: Position,
    /// A broadcast with the same id had been kept before: it was not delivered again.
    pub is_duplicate: bool,
}

/// Called when a broadcast is kept, on a shard: it must be short. It is dropped without being
/// called if the shard has ended. Only a broker may fail to keep a broadcast.
pub type KeptCallback = Box<dyn FnOnce(Result<KeptAt, NotKept>) + Send>;

/// Which caller is informed that a broadcast is kept.
#[derive(derive_more::Debug)]
pub enum KeptFor {
    /// Nobody.
    Nobody,
    /// A channel that waits for it; of another shard, unless a broker keeps the broadcast.
    Channel {
        /// The channel.
        channel: ChannelId,
        /// The ticket that the channel waits for.
        ticket: u32,
        /// It has broadcast on its own topic, and receives the broadcast itself.
        is_member: bool,
    },
    /// The process that this one takes over from; it gave the request this number.
    Predecessor(u64),
    /// Code outside of channels.
    Caller(#[debug(skip)] KeptCallback),
}

/// A broadcast on its way to the home of its topic, to which its weight is charged.
#[derive(Debug)]
pub struct KeepRequest {
    /// The broadcast to keep.
    pub broadcast: Broadcast,
    /// Its charge in its publisher's flow.
    pub charge: Option<Arc<Charge>>,
    /// The excluded client, by the hash of its id; 0: none.
    pub sender: u64,
    /// The client that caused it, by hashes of 32 bits, neither of them 0: of its user, or of its
    /// address if it has none, and below it of its address. 0: none.
    pub client: u64,
    /// A broadcast with the same id is kept only once.
    pub id: Option<Box<str>>,
    /// Which caller is informed.
    pub kept_for: KeptFor,
}

/// A broadcast that is kept.
#[derive(Debug, Clone)]
pub struct Kept {
    /// The excluded client, by the hash of its id; 0: none.
    pub sender: u64,
    /// Its event and payload.
    pub content: KeptContent,
}

/// Event and payload of a broadcast that is kept.
#[derive(Debug, Clone)]
pub enum KeptContent {
    /// A copy: a short payload takes less memory than the broadcast around it.
    Json(Arc<str>, Box<str>),
    /// A copy of a binary payload.
    Binary(Arc<str>, Box<[u8]>),
    /// The broadcast that members got.
    Shared(Arc<Broadcast>),
}

impl KeptContent {
    /// The event.
    pub fn event(&self) -> &str {
        match self {
            Self::Json(event, _) | Self::Binary(event, _) => event,
            Self::Shared(broadcast) => broadcast.event(),
        }
    }

    /// The payload.
    pub fn payload(&self) -> Payload<'_> {
        match self {
            Self::Json(_, text) => Payload::Json((&**text).into()),
            Self::Binary(_, data) => Payload::Binary((&**data).into()),
            Self::Shared(broadcast) => broadcast.payload().borrow(),
        }
    }
}

/// The messages of a topic that a client has missed; shared by all clients that missed the same.
#[derive(Debug)]
pub struct Missed {
    /// Why messages are missing.
    pub gap: Option<GapReason>,
    /// The position behind which the messages begin.
    pub after: Position,
    /// The position up to which the messages are complete.
    pub through: Position,
    /// Whether more follows, which is requested later.
    pub more: bool,
    /// The number of messages, with those that are requested later.
    pub count: usize,
    /// The messages, in order.
    pub messages: Vec<(Position, Kept)>,
}

/// A request for what a client has missed.
#[derive(Debug)]
pub struct MissedRequest {
    /// The topic.
    pub topic: Box<str>,
    /// The client's position.
    pub since: Since,
    /// Whether it wants an incomplete answer.
    pub partial: bool,
    /// An earlier message is lost to it.
    pub torn: bool,
    /// The broker's state is unknown; the topic's home determines it.
    pub is_away: bool,
    /// The hash of the client's id; 0: it has none.
    pub client: u64,
    /// The shard to which the answer is sent.
    pub shard: u16,
    /// The member or join that gets them.
    pub requester: Requester,
}

/// The one that requests missed messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Requester {
    /// A join: its socket, and the ticket it waits for.
    Join(Key, u32),
    /// A member that was sent a part.
    Member(ChannelId),
}

/// Which part of a topic's history is read.
#[derive(Debug, Clone, Copy)]
pub struct Range {
    /// Where it begins, exclusive; `None`: at the end that is read first.
    pub since: Option<Position>,
    /// The most messages.
    pub limit: usize,
    /// Whether it is read from the newest to the oldest.
    pub is_reverse: bool,
}

/// A broadcast that is kept, as it is read from a topic's history.
#[derive(Debug, Clone)]
pub struct KeptMessage {
    /// Its place in its topic's history.
    pub position: Position,
    /// When it was kept, in milliseconds since 1970.
    pub at_ms: u64,
    #[doc(hidden)]
    pub content: KeptContent,
}

impl KeptMessage {
    /// The event.
    pub fn event(&self) -> &str {
        self.content.event()
    }

    /// The payload, as members got it.
    pub fn payload(&self) -> Payload<'_> {
        self.content.payload()
    }
}

/// Part of a topic's history.
#[derive(Debug)]
pub struct HistoryPage {
    /// Why messages behind the given position are missing; `None` if none is.
    pub gap: Option<GapReason>,
    /// The oldest message that is kept.
    pub first: Option<Position>,
    /// The last assigned position; the others are of the same epoch.
    pub position: Position,
    /// In the requested order.
    pub messages: Vec<KeptMessage>,
}

/// A topic with a history.
#[derive(Debug, Clone)]
pub struct HistoryTopic {
    /// Its name.
    pub name: Box<str>,
    /// Messages that are kept.
    pub messages: usize,
    /// The bytes charged for them.
    pub bytes: u64,
    /// The last assigned position.
    pub position: Position,
}

/// Some of the topics of a shard.
#[derive(Debug)]
pub struct HistoryTopics {
    /// The topics, in the order of the shard's table.
    pub topics: Vec<HistoryTopic>,
    /// The place to continue from; `None` if these were the last.
    pub next: Option<u32>,
}

/// Receives a page of a topic's history, on a shard: it must be short.
pub type PageCallback = Box<dyn FnOnce(HistoryPage) + Send>;

/// A request about the history of a topic, from outside of channels. Callbacks run on a shard: they
/// must be short. They are dropped without being called if the shard has ended.
#[derive(derive_more::Debug)]
pub enum HistoryRequest {
    /// Reads a part of what is kept.
    Read(Box<str>, Range, #[debug(skip)] PageCallback),
    /// Forgets everything that is kept; answered with the last assigned position.
    Forget(Box<str>, #[debug(skip)] Box<dyn FnOnce(Result<Position, NotKept>) + Send>),
    /// Lists the topics that a shard keeps, from a place on, at most so many.
    Topics(u16, u32, usize, #[debug(skip)] Box<dyn FnOnce(HistoryTopics) + Send>),
}

/// About the history of a topic.
#[derive(Debug)]
pub enum HistoryMail {
    /// For the home of the topic, from outside of channels.
    Request(HistoryRequest),
    /// All shards together keep too much, and this one the most: it drops some.
    Evict,
    /// For the home of the topic.
    RequestMissed(Box<MissedRequest>),
    /// From the home: what a client has missed, for its socket, which waits with this ticket; and
    /// how many of the messages that client sent itself.
    Missed(Key, u32, Arc<Missed>, usize),
    /// From the home: the next part for a member.
    Portion(ChannelId, Arc<Missed>),
    /// For the home of the topic.
    Keep(Box<KeepRequest>),
    /// From the home: the broadcast that a channel waits for with this ticket, as all shards get
    /// it; its weight was charged to this shard.
    Kept(ChannelId, u32, Posted),
    /// From the home: why the broadcast that a channel waits for with this ticket is not kept;
    /// `None`: it is kept.
    Confirmed(ChannelId, u32, Option<NotKept>),
    /// From the home: a notice for members that receive positions; its weight was charged to this
    /// shard.
    Notice(Posted),
    /// For the home of the topic, to which its weight was charged: from the broker.
    Engine(Box<str>, FromEngine),
    /// For the shard that assigned this number: the outcome of a store or a purge.
    Stored(u64, Result<StoredAt, NotKept>),
}
