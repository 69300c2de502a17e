//! What a stay is about, and why it ends.

use simurgh_data::prelude::*;

/// How many partitions there are: each decides about its keys alone.
pub const PARTITIONS: u8 = 16;

/// The three kinds of stays.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, strum::FromRepr)]
#[repr(u8)]
pub enum Kind {
    /// A user is in a topic: `member.joined`, `member.left`.
    Member = 1,
    /// A topic has members: `topic.occupied`, `topic.vacated`.
    Topic = 2,
    /// A user is connected: `user.connected`, `user.disconnected`.
    User = 3,
}

/// Whatever has at most one stay at a time.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key {
    /// The topic, then the user.
    text: Box<str>,
    topic_bytes: u32,
    kind: Kind,
}

impl Key {
    /// A user in a topic. Without a user, it stands for all members of a topic on a node: no hook
    /// wants notices of them, only of the topic.
    pub fn member(topic: &str, user: &str) -> Self {
        Self::new(Kind::Member, topic, user)
    }

    /// A topic.
    pub fn topic_of(topic: &str) -> Self {
        Self::new(Kind::Topic, topic, "")
    }

    /// A user.
    pub fn user_of(user: &str) -> Self {
        Self::new(Kind::User, "", user)
    }

    pub(crate) fn new(kind: Kind, topic: &str, user: &str) -> Self {
        let mut text = String::with_capacity(topic.len() + user.len());
        text.push_str(topic);
        text.push_str(user);
        Self { text: text.into(), topic_bytes: topic.len() as u32, kind }
    }

    /// Its kind.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// The topic; empty for a user's connections.
    pub fn topic(&self) -> &str {
        self.text.get(..self.topic_bytes as usize).unwrap_or_default()
    }

    /// The user; empty for a topic.
    pub fn user(&self) -> &str {
        self.text.get(self.topic_bytes as usize..).unwrap_or_default()
    }

    /// Whether no hook wants notices of it.
    pub fn is_hidden(&self) -> bool {
        self.kind == Kind::Member && self.user().is_empty()
    }

    /// The partition that decides about it: the first hex digit of the topic's CRC-32, or the
    /// user's. A topic's members are in the partition of the topic.
    pub fn partition(&self) -> u8 {
        let by = if self.kind == Kind::User { self.user() } else { self.topic() };
        (crc32fast::hash(by.as_bytes()) >> 28) as u8
    }
}

/// Why a stay ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, strum::FromRepr, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
#[repr(u8)]
pub enum Reason {
    /// The client left.
    Left = 1,
    /// The connection was closed.
    Closed = 2,
    /// An order of the application.
    Kicked = 3,
    /// The user was blocked.
    Blocked = 4,
    /// The grant or the token expired.
    Expired = 5,
    /// The node was killed, or cannot be reached.
    Node = 6,
    /// The server was started again, and the client did not return.
    Restart = 7,
}

impl Reason {
    /// Its name in notices.
    pub fn name(self) -> &'static str {
        self.into()
    }
}

/// A membership on this node, or a user's connection to it, begins or ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sighting {
    /// A member's or a user's; each begin and its end have the same.
    pub key: Key,
    /// `None`: it begins.
    pub ended: Option<Reason>,
}

/// The time of a call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Time {
    /// By a clock that never goes back, in nanoseconds.
    pub ns: u64,
    /// Milliseconds since 1970, for notices.
    pub unix_ms: u64,
}

pub(crate) const MILLISECOND: u64 = 1_000_000;
pub(crate) const SECOND: u64 = 1_000 * MILLISECOND;

impl Time {
    /// When something was that happened at `ns`, in milliseconds since 1970.
    pub(crate) fn unix_ms_of(self, ns: u64) -> u64 {
        self.unix_ms.saturating_sub(self.ns.saturating_sub(ns) / MILLISECOND)
    }
}
