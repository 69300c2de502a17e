//! Limits on what the sockets of a user socket, and their channels, may send.

mod rate;

pub use self::rate::{Bucket, Rate, RateError, TooFewTokens};
use crate::metrics::{Counter, ShardMetrics};

/// A limited quantity.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
#[non_exhaustive]
pub enum Limit {
    /// Joins of a socket.
    Joins,
    /// Messages of a socket, or for a channel.
    Messages,
    /// Their bytes.
    Bytes,
    /// Changes of presences that channels make while they handle messages.
    PresenceCalls,
    /// The size of one payload.
    PayloadBytes,
}

impl Limit {
    /// Its name for clients, counters and settings.
    pub fn name(self) -> &'static str {
        self.into()
    }

    /// The reason in a close frame.
    pub fn close_reason(self) -> &'static str {
        match self {
            Self::Joins => "rate_limited: joins",
            Self::Messages => "rate_limited: messages",
            Self::Bytes => "rate_limited: bytes",
            Self::PresenceCalls => "rate_limited: presence_calls",
            Self::PayloadBytes => "payload_too_large",
        }
    }

    /// The counter of excesses.
    pub fn counter(self, metrics: &ShardMetrics) -> &Counter {
        match self {
            Self::Joins => &metrics.limited_joins,
            Self::Messages => &metrics.limited_messages,
            Self::Bytes => &metrics.limited_bytes,
            Self::PresenceCalls => &metrics.limited_presence_calls,
            Self::PayloadBytes => &metrics.limited_payload_bytes,
        }
    }
}

/// How a message that exceeds a limit is handled. In each case no channel sees it, and it is
/// counted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum LimitPolicy {
    /// It is answered with an error that names the limit (PROTOCOL §6.7).
    #[default]
    Reply,
    /// It is not answered.
    Drop,
    /// Its socket is closed with 1008, and a reason that names the limit.
    Close,
}

/// A rate, and how its excess is handled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RateLimit {
    /// How much.
    pub rate: Rate,
    /// How the rest is handled.
    pub policy: LimitPolicy,
}

impl From<Rate> for RateLimit {
    fn from(rate: Rate) -> Self {
        Self { rate, policy: LimitPolicy::default() }
    }
}

impl RateLimit {
    /// Sets another policy.
    pub fn or(self, policy: LimitPolicy) -> Self {
        Self { policy, ..self }
    }
}

/// A size, and how larger payloads are handled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SizeLimit {
    /// The most.
    pub bytes_max: usize,
    /// How larger payloads are handled.
    pub policy: LimitPolicy,
}

/// Limits of one socket, on all its topics together. By default without limits.
///
/// Bytes are those of a message's refs, topic, event and payload as received, whatever its
/// serializer; of a plain message its data.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SocketLimits {
    /// Joins.
    pub joins: Option<RateLimit>,
    /// All messages, joins included. A heartbeat or a leave that exceeds this is answered as usual,
    /// unless the policy is to close.
    pub messages: Option<RateLimit>,
    /// Their bytes; as for messages.
    pub bytes: Option<RateLimit>,
    /// Changes of presences that its channels make while they handle messages, except removals.
    pub presence_calls: Option<RateLimit>,
}

/// Limits of one socket on one topic. By default without limits.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ChannelLimits {
    /// Messages for the channel, without joins and leaves. Another join does not reset them.
    pub messages: Option<RateLimit>,
    /// Their bytes, counted as in [`SocketLimits`].
    pub bytes: Option<RateLimit>,
    /// Changes of presences that the channel makes while it handles messages, except removals.
    pub presence_calls: Option<RateLimit>,
    /// The size of the payload of a message or a join.
    pub payload_bytes: Option<SizeLimit>,
}

impl SocketLimits {
    /// The rates among them.
    pub fn rates(&self) -> impl Iterator<Item = Rate> {
        let Self { joins, messages, bytes, presence_calls } = *self;
        [joins, messages, bytes, presence_calls].into_iter().flatten().map(|it| it.rate)
    }
}

impl ChannelLimits {
    /// The rates among them.
    pub fn rates(&self) -> impl Iterator<Item = Rate> {
        let Self { messages, bytes, presence_calls, payload_bytes: _ } = *self;
        [messages, bytes, presence_calls].into_iter().flatten().map(|it| it.rate)
    }
}
