//! History for code outside of channels: confirmed broadcasts, reading what is kept of a topic, and
//! deleting it.

mod confirmations;

use std::fmt;
use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use simurgh_core::{Broadcast, BroadcastError, HistoryRequest, Mailboxes, Node, Publisher, Range};
use simurgh_proto::message::Payload;
use simurgh_shard::server::Server;
use tokio::sync::oneshot;

pub(crate) use self::confirmations::Confirmations;
use crate::pubsub::PubSub;
pub use simurgh_core::{
    GapReason, HistoryConfig, HistoryPage, HistoryRule as History, HistoryTopic, KeptAt,
    KeptMessage, Position, Resume, Since,
};

/// The most messages that [`HistoryQuery`] returns, unless it has a lower
/// [limit](HistoryQuery::limit).
pub const PAGE_MESSAGES_MAX: usize = 1_000;

/// Why a broadcast is not confirmed as kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NotKept {
    /// No channel declares a history for the topic; no member has received it.
    #[error("{NO_HISTORY}")]
    NoHistory,
    /// An id must have 1 to 128 bytes; no member has received it.
    #[error("the id of a broadcast must have 1 to 128 bytes")]
    BadId,
    /// The payload is too large, or the server is congested; no member has received it.
    #[error("{0}")]
    Refused(#[source] BroadcastError),
    /// The broker has not stored it (the log has the reason), or too many broadcasts wait
    /// for the broker; no member has received it.
    #[error("{NOT_STORED}")]
    NotStored,
    /// The broker is unreachable, and only the members on this node have received it
    /// ([`Cluster::local_when_away`](crate::Cluster::local_when_away)). No other member will.
    #[error("the broker is unreachable: only members on this node received the message")]
    LocalOnly,
    /// No confirmation came within this time
    /// ([`HistoryConfig::confirm_timeout`]). It may still be
    /// kept; repeated with the same id, it is kept once.
    #[error(
        "unconfirmed: not known to be stored after {}, repeat it with the same id",
        humantime::format_duration(*.0)
    )]
    Unconfirmed(Duration),
    /// The shard of the topic has ended: the server drains or has stopped.
    #[error("{ENDED}")]
    Ended,
}

/// Why a topic's history cannot be read or deleted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HistoryError {
    /// No channel declares a history for the topic.
    #[error("{NO_HISTORY}")]
    NoHistory,
    /// The broker has not done it, or has not answered in time.
    #[error("{NOT_STORED}")]
    NotConfirmed,
    /// The shard of the topic has ended: the server drains or has stopped.
    #[error("{ENDED}")]
    Ended,
}

const NO_HISTORY: &str = "no channel declares a history for this topic";
const NOT_STORED: &str = "the broker did not confirm it: try again later";
const ENDED: &str = "the server has stopped or is stopping";

/// Confirmed broadcasts, and stored histories. A topic has a history if its channel declares one
/// ([`ChannelRoute::history`](crate::ChannelRoute::history)).
///
/// ```
/// use simurgh::{
///     ChannelRoute, Endpoint, Join, Outcome, Payload, ShardChannel, ShardContext, UserSocket,
///     history::History, json,
/// };
///
/// # struct Room;
/// # impl ShardChannel for Room {
/// #     fn handle_in(&mut self, _: &mut ShardContext<'_>, _: &str, _: Payload<'_>) -> Outcome {
/// #         Outcome::NoReply
/// #     }
/// # }
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let user_socket = UserSocket::new("/socket")
///     .channel(ChannelRoute::on_shard("orders:*", |_, _| Join::ok(Room))
///     .history(History::default()));
/// let endpoint = Endpoint::builder().socket(user_socket).start_local()?;
/// let pubsub = endpoint.pubsub();
///
/// let paid = pubsub.broadcast_kept("orders:7", "paid", json!({"total": 12})).await?;
/// // Repeated until it is known to be kept, it is kept once.
/// for is_duplicate in [false, true] {
///     let sent = json!({"by": "mail"});
///     let kept = pubsub.broadcast_once("orders:7", "sent", sent, "order 7 sent").await?;
///     assert_eq!(kept.is_duplicate, is_duplicate);
/// }
///
/// let page = pubsub.history("orders:7").after(paid).limit(10).await?;
/// assert_eq!(page.gap, None);
/// let events: Vec<&str> = page.messages.iter().map(|message| message.event()).collect();
/// assert_eq!(events, ["sent"]);
///
/// pubsub.forget("orders:7").await?;
/// assert!(pubsub.history("orders:7").await?.messages.is_empty());
/// # Ok(())
/// # }
/// ```
impl PubSub {
    /// Broadcasts to all members and subscriptions of a topic, and waits until the topic's history
    /// has it. Nothing is broadcast before the first poll.
    pub async fn broadcast_kept(
        &self,
        topic: &str,
        event: &str,
        payload: impl Into<Payload<'static>>,
    ) -> Result<Position, NotKept> {
        let broadcast = Broadcast::new(topic, event, payload.into());
        Ok(keep(&self.0, broadcast, None).await?.position)
    }

    /// As [`broadcast_kept`](Self::broadcast_kept), but only once for the same id, of 1 to 128
    /// bytes: a repetition within two minutes is neither kept nor received again, and returns the
    /// position of the first. A topic remembers the last 10,000 ids.
    pub async fn broadcast_once(
        &self,
        topic: &str,
        event: &str,
        payload: impl Into<Payload<'static>>,
        id: &str,
    ) -> Result<KeptAt, NotKept> {
        let broadcast = Broadcast::new(topic, event, payload.into());
        keep(&self.0, broadcast, Some(id.into())).await
    }

    /// The stored messages of a topic, by default from the oldest on. Await it.
    pub fn history(&self, topic: impl Into<Box<str>>) -> HistoryQuery {
        let range = Range { since: None, limit: PAGE_MESSAGES_MAX, is_reverse: false };
        HistoryQuery { server: self.0.now(), topic: topic.into(), range }
    }

    /// The topics that have a history, page by page. Await it. A topic that exists from the first
    /// page to the last is listed exactly once.
    ///
    /// ```
    /// # async fn all(pubsub: simurgh::PubSub) -> Result<(), simurgh::history::HistoryError> {
    /// let mut query = pubsub.history_topics().limit(100);
    /// loop {
    ///     let page = query.clone().await?;
    ///     for it in &page.topics {
    ///         println!("{}: {} messages up to {}", it.name, it.messages, it.position);
    ///     }
    ///     let Some(next) = page.next else { break };
    ///     query = query.after(next);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn history_topics(&self) -> HistoryTopicsQuery {
        let (server, limit) = (self.0.now(), PAGE_MESSAGES_MAX);
        HistoryTopicsQuery { server, from: HistoryCursor::default(), limit }
    }

    /// Deletes the history of a topic, and returns the last position. Numbering continues after
    /// it; a client that resumes with an older position gets a gap, `purged`. The ids of
    /// broadcasts stay.
    pub async fn forget(&self, topic: &str) -> Result<Position, HistoryError> {
        if !self.0.now().keeps(topic) {
            return Err(HistoryError::NoHistory);
        }
        let (answer, answered) = self.0.answer();
        self.0.request_history(HistoryRequest::Forget(topic.into(), answer));
        let forgotten = answered.await.map_err(|_| HistoryError::Ended)?;
        forgotten.map_err(|_| HistoryError::NotConfirmed)
    }
}

/// Reads the history of a topic when awaited; see [`PubSub::history`].
#[derive(Clone, Debug)]
#[must_use = "nothing is sent before it is awaited"]
pub struct HistoryQuery {
    server: Arc<Server>,
    topic: Box<str>,
    range: Range,
}

impl HistoryQuery {
    /// Starts after a position: that of the last message of a page gives the next page. In
    /// [reverse](Self::reverse) older messages follow.
    pub fn after(mut self, position: Position) -> Self {
        self.range.since = Some(position);
        self
    }

    /// Limits the number of messages, to [`PAGE_MESSAGES_MAX`] at most. Fewer are returned if they
    /// exceed 4 MiB together, but at least one, if there is any.
    pub fn limit(mut self, messages: usize) -> Self {
        self.range.limit = messages.min(PAGE_MESSAGES_MAX);
        self
    }

    /// Returns messages from the newest to the oldest.
    pub fn reverse(mut self) -> Self {
        self.range.is_reverse = true;
        self
    }
}

impl IntoFuture for HistoryQuery {
    type Output = Result<HistoryPage, HistoryError>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        let Self { server, topic, range } = self;
        Box::pin(async move {
            if !server.keeps(&topic) {
                return Err(HistoryError::NoHistory);
            }
            let (answer, answered) = server.answer();
            server.request_history(HistoryRequest::Read(topic, range, answer));
            answered.await.map_err(|_| HistoryError::Ended)
        })
    }
}

/// Where the next page of a listing of topics begins. As text it is the `next` of
/// `GET /api/history/topics`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct HistoryCursor {
    shard: u16,
    place: u32,
}

impl HistoryCursor {
    /// Parses the output of [`Display`](fmt::Display); `None` for anything else.
    pub fn parse(text: &str) -> Option<Self> {
        let (shard, place) = text.split_once('-')?;
        let is_number = |it: &str| it.bytes().all(|byte| byte.is_ascii_digit());
        if !is_number(shard) || !is_number(place) {
            return None;
        }
        Some(Self { shard: shard.parse().ok()?, place: place.parse().ok()? })
    }
}

impl fmt::Display for HistoryCursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.shard, self.place)
    }
}

/// One page of the topics that have a history.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct HistoryTopics {
    /// In an arbitrary but stable order.
    pub topics: Vec<HistoryTopic>,
    /// The next page; `None` if this is the last.
    pub next: Option<HistoryCursor>,
}

/// Lists topics when awaited; see [`PubSub::history_topics`].
#[derive(Clone, Debug)]
#[must_use = "nothing is sent before it is awaited"]
pub struct HistoryTopicsQuery {
    server: Arc<Server>,
    from: HistoryCursor,
    limit: usize,
}

impl HistoryTopicsQuery {
    /// Continues after a page, with its [`next`](HistoryTopics::next).
    pub fn after(mut self, next: HistoryCursor) -> Self {
        self.from = next;
        self
    }

    /// Limits the number of topics, to [`PAGE_MESSAGES_MAX`] at most.
    pub fn limit(mut self, topics: usize) -> Self {
        self.limit = topics.clamp(1, PAGE_MESSAGES_MAX);
        self
    }
}

impl IntoFuture for HistoryTopicsQuery {
    type Output = Result<HistoryTopics, HistoryError>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    /// Fails only with [`HistoryError::Ended`]. A server that declares no history has no topics.
    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.collect())
    }
}

impl HistoryTopicsQuery {
    /// Shard by shard, each in the order of its slots: a topic keeps its slot while it exists.
    async fn collect(self) -> Result<HistoryTopics, HistoryError> {
        let Self { server, from, limit } = self;
        let HistoryCursor { mut shard, mut place } = from;
        let mut topics = Vec::new();
        while server.has_history() && usize::from(shard) < server.shards() {
            if topics.len() >= limit {
                return Ok(HistoryTopics { topics, next: Some(HistoryCursor { shard, place }) });
            }
            let (answer, answered) = server.answer();
            server.request_history(HistoryRequest::Topics(
                shard,
                place,
                limit - topics.len(),
                answer,
            ));
            let some = answered.await.map_err(|_| HistoryError::Ended)?;
            topics.extend(some.topics);
            (shard, place) = match some.next {
                Some(next) => (shard, next),
                None => (shard + 1, 0),
            };
        }
        Ok(HistoryTopics { topics, next: None })
    }
}

/// Sends a broadcast to be kept, and waits on any runtime. Dropping the future cancels nothing.
async fn keep(
    server: &Server,
    broadcast: Broadcast,
    id: Option<Box<str>>,
) -> Result<KeptAt, NotKept> {
    if !server.keeps(broadcast.topic()) {
        return Err(NotKept::NoHistory);
    }
    let mut confirmations = Confirmations::new(server, 1);
    confirmations.keep(server, broadcast, id)?;
    let (to_asker, outcome) = oneshot::channel();
    // On our runtime also for its timer: the caller's runtime may have none.
    server.spawn(async move {
        // The caller may have stopped waiting.
        let _ = to_asker.send(confirmations.outcomes().await.pop());
    });
    outcome.await.ok().flatten().unwrap_or(Err(NotKept::Ended))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn written_cursor_can_be_read() {
        for (shard, place) in [(0, 0), (3, 17), (u16::MAX, u32::MAX)] {
            let cursor = HistoryCursor { shard, place };
            assert_eq!(HistoryCursor::parse(&cursor.to_string()), Some(cursor));
        }
        for wrong in ["", "-", "0", "0-", "-0", "0-0-0", "+1-0", "65536-0", "0-4294967296", "a-0"] {
            assert_eq!(HistoryCursor::parse(wrong), None, "{wrong}");
        }
    }
}
