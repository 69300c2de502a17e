//! What the sockets of a user socket, and their channels, may say in how much time, and how much at
//! once.
//!
//! Here are the words; `meters` keeps what has been said, `metering` asks it, and the rooms that
//! carry out do what follows. Where no user socket has a limit, there are no meters and nothing is
//! asked.

pub(crate) mod meters;
mod rate;

use std::time::Duration;

use simurgh_proto::message::Payload;

use crate::metrics::{Counter, ShardMetrics};
pub use rate::{Bucket, Rate, RateError, TooFewTokens};

/// What is limited.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Limit {
    /// Joins of a socket.
    Joins,
    /// Messages of a socket, or for a channel.
    Messages,
    /// Their bytes.
    Bytes,
    /// What channels do with their presences while they handle messages.
    PresenceCalls,
    /// The size of one payload.
    PayloadBytes,
}

impl Limit {
    /// As clients, counters and settings name it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Joins => "joins",
            Self::Messages => "messages",
            Self::Bytes => "bytes",
            Self::PresenceCalls => "presence_calls",
            Self::PayloadBytes => "payload_bytes",
        }
    }

    /// What a close frame says.
    pub(crate) fn close_reason(self) -> &'static str {
        match self {
            Self::Joins => "rate_limited: joins",
            Self::Messages => "rate_limited: messages",
            Self::Bytes => "rate_limited: bytes",
            Self::PresenceCalls => "rate_limited: presence_calls",
            Self::PayloadBytes => "payload_too_large",
        }
    }

    pub(crate) fn counter(self, metrics: &ShardMetrics) -> &Counter {
        match self {
            Self::Joins => &metrics.limited_joins,
            Self::Messages => &metrics.limited_messages,
            Self::Bytes => &metrics.limited_bytes,
            Self::PresenceCalls => &metrics.limited_presence_calls,
            Self::PayloadBytes => &metrics.limited_payload_bytes,
        }
    }
}

/// What becomes of a message that exceeds a limit. In each case no channel sees it, and it is
/// counted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum LimitPolicy {
    /// It is answered with an error that names the limit (PROTOCOL §6.7).
    #[default]
    Reply,
    /// Nothing is said.
    Drop,
    /// Its socket is closed with 1008, and a reason that names the limit.
    Close,
}

/// A rate, and what becomes of what exceeds it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RateLimit {
    /// How much.
    pub rate: Rate,
    /// What of the rest.
    pub policy: LimitPolicy,
}

impl From<Rate> for RateLimit {
    fn from(rate: Rate) -> Self {
        Self { rate, policy: LimitPolicy::default() }
    }
}

impl RateLimit {
    /// Has another policy.
    pub fn or(self, policy: LimitPolicy) -> Self {
        Self { policy, ..self }
    }
}

/// A size, and what becomes of what exceeds it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SizeLimit {
    /// The most.
    pub bytes_max: usize,
    /// What of the rest.
    pub policy: LimitPolicy,
}

/// What one socket may say, on all its topics together. By default as much as it likes.
///
/// Bytes are those of a message's refs, topic, event and payload as they came, whatever its
/// serializer; of a plain message its data.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SocketLimits {
    /// Joins.
    pub joins: Option<RateLimit>,
    /// Messages, joins and all others among them. A heartbeat or a leave that exceeds this is
    /// answered as ever, unless the policy is to close.
    pub messages: Option<RateLimit>,
    /// Their bytes; as for messages.
    pub bytes: Option<RateLimit>,
    /// What its channels do with their presences while they handle messages, but to end one.
    pub presence_calls: Option<RateLimit>,
}

/// What one socket may say on one topic. By default as much as it likes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ChannelLimits {
    /// Messages for the channel; its joins and leaves are none. Who joins anew begins with what it
    /// had.
    pub messages: Option<RateLimit>,
    /// Their bytes, counted as in [`SocketLimits`].
    pub bytes: Option<RateLimit>,
    /// What the channel does with its presences while it handles messages, but to end one.
    pub presence_calls: Option<RateLimit>,
    /// The size of the payload of a message or a join.
    pub payload_bytes: Option<SizeLimit>,
}

impl SocketLimits {
    pub(crate) fn rates(&self) -> impl Iterator<Item = Rate> {
        let Self { joins, messages, bytes, presence_calls } = *self;
        [joins, messages, bytes, presence_calls].into_iter().flatten().map(|it| it.rate)
    }
}

impl ChannelLimits {
    pub(crate) fn rates(&self) -> impl Iterator<Item = Rate> {
        let Self { messages, bytes, presence_calls, payload_bytes: _ } = *self;
        [messages, bytes, presence_calls].into_iter().flatten().map(|it| it.rate)
    }
}

/// A limit that was exceeded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Exceeded {
    pub(crate) limit: Limit,
    pub(crate) policy: LimitPolicy,
    /// After how much time the same would pass; none: it never would.
    pub(crate) wait: Option<Duration>,
}

impl Exceeded {
    /// What an error reply says.
    pub(crate) fn response(&self) -> Payload<'static> {
        let limit = self.limit.name();
        Payload::from_json(match (self.limit, self.wait) {
            (Limit::PayloadBytes, _) => r#"{"reason":"payload_too_large"}"#.to_owned(),
            (_, None) => format!(r#"{{"reason":"rate_limited","limit":"{limit}"}}"#),
            (_, Some(wait)) => {
                let ms = wait.as_nanos().div_ceil(1_000_000);
                format!(r#"{{"reason":"rate_limited","limit":"{limit}","retry_after_ms":{ms}}}"#)
            }
        })
    }
}
