//! A message to all members of a topic.

use simurgh_history::Position;
use simurgh_proto::json::JsonError;
use simurgh_proto::message::Payload;
use thiserror::Error;

use crate::id::{ChannelId, NOBODY_PLAIN};
use simurgh_data::prelude::*;

/// A message to all members of a topic, on every shard.
#[derive(Debug)]
pub struct Broadcast {
    #[doc(hidden)]
    pub topic: Box<str>,
    #[doc(hidden)]
    pub event: Box<str>,
    #[doc(hidden)]
    pub payload: Payload<'static>,
    /// The member that does not get it (`broadcast_from`).
    #[doc(hidden)]
    pub except: Option<ChannelId>,
    /// Its position in its topic's history, if it is kept.
    #[doc(hidden)]
    pub kept: Option<Box<KeptMark>>,
}

/// The place of a broadcast that is kept.
#[derive(Debug)]
pub struct KeptMark {
    /// Its place in its topic's history.
    pub position: Position,
    /// The excluded client, by the hash of its id; 0: none.
    pub sender: u64,
    /// It is not a broadcast but a notice of the position itself, for members that receive
    /// positions.
    pub is_notice: bool,
}

impl Broadcast {
    /// A broadcast from outside of channels: it is for all members.
    pub fn new(
        topic: impl Into<Box<str>>,
        event: impl Into<Box<str>>,
        payload: Payload<'static>,
    ) -> Self {
        Self { topic: topic.into(), event: event.into(), payload, except: None, kept: None }
    }

    /// Excludes a listener, by its name.
    pub fn but_for(mut self, name: ChannelId) -> Self {
        self.except = Some(name);
        self
    }

    /// A notice for the members of a topic that receive positions: there was nothing for them up to
    /// this one, or something is missing.
    pub fn notice(topic: &str, event: &str, json: String, position: Position) -> Self {
        let mut notice = Self::new(topic, event, Payload::from_json(json)).but_for(NOBODY_PLAIN);
        notice.kept = Some(Box::new(KeptMark { position, sender: 0, is_notice: true }));
        notice
    }

    /// Whether it is such a notice and not a broadcast.
    #[inline]
    pub fn is_notice(&self) -> bool {
        self.kept.as_ref().is_some_and(|mark| mark.is_notice)
    }

    /// The member of this node that does not get it.
    #[inline]
    pub fn except(&self) -> Option<ChannelId> {
        self.except
    }

    /// The topic it was made on.
    #[inline]
    pub fn topic(&self) -> &str {
        &self.topic
    }

    /// The event.
    #[inline]
    pub fn event(&self) -> &str {
        &self.event
    }

    /// The payload, shared by all receivers.
    #[inline]
    pub fn payload(&self) -> &Payload<'static> {
        &self.payload
    }

    /// Its position in its topic's history, if it is kept.
    #[inline]
    pub fn position(&self) -> Option<Position> {
        self.kept.as_ref().map(|mark| mark.position)
    }

    /// The bytes that it is charged while it is in flight.
    #[inline]
    pub fn weight(&self) -> usize {
        Self::weight_of(&self.topic, &self.event, &self.payload)
    }

    /// The bytes that a broadcast of these parts is charged while it is in flight.
    #[inline]
    pub fn weight_of(topic: &str, event: &str, payload: &Payload<'_>) -> usize {
        payload.len() + topic.len() + event.len() + 64
    }
}

/// The receivers of a channel's broadcast.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Audience {
    /// All members.
    All,
    /// All except the channel that broadcasts.
    Others,
}

/// A broadcast that topics with a history keep once if it has an id.
#[derive(Debug)]
pub struct Publication {
    /// The broadcast.
    pub broadcast: Broadcast,
    /// Its id. With one it may be a repetition, so no channel waits until it is kept.
    pub id: Option<Box<str>>,
}

impl Publication {
    /// A broadcast of this channel, without an id.
    pub fn by(
        channel: ChannelId,
        audience: Audience,
        topic: Box<str>,
        event: Box<str>,
        payload: Payload<'static>,
    ) -> Self {
        let except = (audience == Audience::Others).then_some(channel);
        Self { broadcast: Broadcast { topic, event, payload, except, kept: None }, id: None }
    }
}

/// The longest topic of a broadcast, bytes: longer ones cannot be joined either.
pub const TOPIC_BYTES_MAX: usize = 16 << 10;
/// The longest event of a broadcast, bytes: binary frames and other nodes take no longer one.
pub const EVENT_BYTES_MAX: usize = 255;

/// Why a broadcast was not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum BroadcastError {
    /// Too many bytes of broadcasts are in flight; the publisher should try again later.
    #[error("too many bytes of broadcasts are in flight: try again later")]
    Congested,
    /// With its names it is too large for the nodes of a cluster; members on this node do not get
    /// it either, so that all see the same.
    #[error("a payload of {bytes} bytes is too large for the cluster: the maximum is {bytes_max}")]
    TooLargeForCluster {
        /// Size of the payload.
        bytes: usize,
        /// The largest allowed, with these names.
        bytes_max: usize,
    },
    /// Only the server itself sends events with this prefix; clients would take it for the server.
    #[error("events that begin with \"phx_\" or \"simurgh:\" are reserved")]
    Reserved,
    /// The topic has more bytes than [`TOPIC_BYTES_MAX`].
    #[error("a topic of {0} bytes is too long: the maximum is {TOPIC_BYTES_MAX}")]
    TopicTooLong(usize),
    /// The event has more bytes than [`EVENT_BYTES_MAX`].
    #[error("an event of {0} bytes is too long: the maximum is {EVENT_BYTES_MAX}")]
    EventTooLong(usize),
    /// The payload is not what a client may send.
    #[error("payload: {0}")]
    Payload(JsonError),
    /// No node has this name.
    #[error("no node has this name")]
    UnknownNode,
    /// Half of what may wait for one reader ([`Config::outbound_bytes_max`](crate::Config)) is the
    /// most.
    #[error(
        "a payload of {bytes} bytes is too large: the maximum is {bytes_max} (half of \
         outbound_bytes_max)"
    )]
    TooLarge {
        /// Size of the payload.
        bytes: usize,
        /// The largest allowed.
        bytes_max: usize,
    },
}
