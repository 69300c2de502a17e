//! A message to all members of a topic.

use simurgh_history::Position;
use simurgh_proto::message::Payload;

use crate::id::{ChannelId, NOBODY_PLAIN};

/// A message to all members of a topic, on every shard.
#[derive(Debug)]
pub struct Broadcast {
    pub(crate) topic: Box<str>,
    pub(crate) event: Box<str>,
    pub(crate) payload: Payload<'static>,
    /// The member who does not get it (`broadcast_from`).
    pub(crate) except: Option<ChannelId>,
    /// Where it stands in its topic's history, if it is kept.
    pub(crate) kept: Option<Box<Mark>>,
}

/// The place of a broadcast that is kept.
#[derive(Debug)]
pub(crate) struct Mark {
    pub(crate) position: Position,
    /// The client that is left out, by the hash of its id; 0: nobody.
    pub(crate) sender: u64,
    /// It is no broadcast, but word of the position itself, for members who are told positions.
    pub(crate) is_notice: bool,
}

impl Broadcast {
    /// One that no channel made: it is for all members.
    pub fn new(
        topic: impl Into<Box<str>>,
        event: impl Into<Box<str>>,
        payload: Payload<'static>,
    ) -> Self {
        Self { topic: topic.into(), event: event.into(), payload, except: None, kept: None }
    }

    /// The same for all but a listener, by its name.
    pub fn but_for(mut self, name: ChannelId) -> Self {
        self.except = Some(name);
        self
    }

    /// Word to the members of a topic who are told positions: there was nothing for them up to this
    /// one, or something is missing. To nobody else it is said, whatever they speak.
    pub(crate) fn notice(topic: &str, event: &str, json: String, position: Position) -> Self {
        let mut notice = Self::new(topic, event, Payload::from_json(json)).but_for(NOBODY_PLAIN);
        notice.kept = Some(Box::new(Mark { position, sender: 0, is_notice: true }));
        notice
    }

    /// Whether it is no broadcast, but such a word.
    pub(crate) fn is_notice(&self) -> bool {
        self.kept.as_ref().is_some_and(|mark| mark.is_notice)
    }

    /// The member who does not get it, of this node's.
    pub fn except(&self) -> Option<ChannelId> {
        self.except
    }

    /// The topic it was made on.
    pub fn topic(&self) -> &str {
        &self.topic
    }

    /// The event.
    pub fn event(&self) -> &str {
        &self.event
    }

    /// The payload, shared by all who receive it.
    pub fn payload(&self) -> &Payload<'static> {
        &self.payload
    }

    /// Where it stands in its topic's history, if it is kept.
    pub fn position(&self) -> Option<Position> {
        self.kept.as_ref().map(|mark| mark.position)
    }

    /// Bytes it is counted with while it is under way.
    pub fn weight(&self) -> usize {
        weight(&self.topic, &self.event, &self.payload)
    }
}

/// Bytes that a broadcast is counted with while it is under way.
pub(crate) fn weight(topic: &str, event: &str, payload: &Payload<'_>) -> usize {
    payload.len() + topic.len() + event.len() + 64
}

/// Why a broadcast was not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum BroadcastError {
    /// Too many bytes of broadcasts are under way; the publisher should try again later.
    Congested,
    /// With its names it is more than nodes of a cluster send each other; members on this node do
    /// not get it either, so that all see the same.
    TooLargeForCluster {
        /// Size of the payload.
        bytes: usize,
        /// Largest there may be, with these names.
        bytes_max: usize,
    },
    /// No node has this name.
    UnknownNode,
    /// Half of what may wait for one reader ([`Config::outbound_bytes_max`](crate::Config)) is the
    /// most.
    TooLarge {
        /// Size of the payload.
        bytes: usize,
        /// Largest there may be.
        bytes_max: usize,
    },
}

impl std::fmt::Display for BroadcastError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Congested => {
                f.write_str("too many bytes of broadcasts are under way, try again later")
            }
            Self::TooLargeForCluster { bytes, bytes_max } => write!(
                f,
                "a payload of {bytes} bytes is too large for the cluster: {bytes_max} is the most"
            ),
            Self::UnknownNode => f.write_str("no node has this name"),
            Self::TooLarge { bytes, bytes_max } => write!(
                f,
                "a payload of {bytes} bytes cannot be broadcast: {bytes_max} is the most \
                 (half of outbound_bytes_max)"
            ),
        }
    }
}

impl std::error::Error for BroadcastError {}
