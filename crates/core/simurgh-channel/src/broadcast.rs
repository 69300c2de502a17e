//! A message to all members of a topic.

use simurgh_history::Position;
use simurgh_proto::message::Payload;
use thiserror::Error;

use crate::id::{ChannelId, NOBODY_PLAIN};

/// A message to all members of a topic, on every shard.
#[derive(Debug)]
pub struct Broadcast {
    #[doc(hidden)]
    pub topic: Box<str>,
    #[doc(hidden)]
    pub event: Box<str>,
    #[doc(hidden)]
    pub payload: Payload<'static>,
    /// The member who does not get it (`broadcast_from`).
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
    /// The client that is left out, by the hash of its id; 0: nobody.
    pub sender: u64,
    /// It is not a broadcast but a notice of the position itself, for members who are told
    /// positions.
    pub is_notice: bool,
}

impl Broadcast {
    /// One that is made outside of channels: it is for all members.
    pub fn new(
        topic: impl Into<Box<str>>,
        event: impl Into<Box<str>>,
        payload: Payload<'static>,
    ) -> Self {
        Self { topic: topic.into(), event: event.into(), payload, except: None, kept: None }
    }

    /// Leaves out a listener, by its name.
    pub fn but_for(mut self, name: ChannelId) -> Self {
        self.except = Some(name);
        self
    }

    /// A notice for those members of a topic who are told positions: there was nothing for them up
    /// to this one, or something is missing. Nobody else gets it.
    pub fn notice(topic: &str, event: &str, json: String, position: Position) -> Self {
        let mut notice = Self::new(topic, event, Payload::from_json(json)).but_for(NOBODY_PLAIN);
        notice.kept = Some(Box::new(KeptMark { position, sender: 0, is_notice: true }));
        notice
    }

    /// Whether it is not a broadcast but such a notice.
    #[inline]
    pub fn is_notice(&self) -> bool {
        self.kept.as_ref().is_some_and(|mark| mark.is_notice)
    }

    /// The member of this node who does not get it.
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

    /// The payload, shared by all who receive it.
    #[inline]
    pub fn payload(&self) -> &Payload<'static> {
        &self.payload
    }

    /// Its position in its topic's history, if it is kept.
    #[inline]
    pub fn position(&self) -> Option<Position> {
        self.kept.as_ref().map(|mark| mark.position)
    }

    /// Bytes it is counted with while it is under way.
    #[inline]
    pub fn weight(&self) -> usize {
        Self::weight_of(&self.topic, &self.event, &self.payload)
    }

    /// Bytes that a broadcast of these parts is counted with while it is under way.
    #[inline]
    pub fn weight_of(topic: &str, event: &str, payload: &Payload<'_>) -> usize {
        payload.len() + topic.len() + event.len() + 64
    }
}

/// Why a broadcast was not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum BroadcastError {
    /// Too many bytes of broadcasts are under way; the publisher should try again later.
    #[error("too many bytes of broadcasts are under way, try again later")]
    Congested,
    /// With its names it is more than nodes of a cluster send each other; members on this node do
    /// not get it either, so that all see the same.
    #[error("a payload of {bytes} bytes is too large for the cluster: {bytes_max} is the most")]
    TooLargeForCluster {
        /// Size of the payload.
        bytes: usize,
        /// Largest there may be, with these names.
        bytes_max: usize,
    },
    /// No node has this name.
    #[error("no node has this name")]
    UnknownNode,
    /// Half of what may wait for one reader ([`Config::outbound_bytes_max`](crate::Config)) is the
    /// most.
    #[error(
        "a payload of {bytes} bytes cannot be broadcast: {bytes_max} is the most \
         (half of outbound_bytes_max)"
    )]
    TooLarge {
        /// Size of the payload.
        bytes: usize,
        /// Largest there may be.
        bytes_max: usize,
    },
}
