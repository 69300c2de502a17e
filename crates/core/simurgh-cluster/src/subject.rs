//! The subjects that envelopes are published to.
//!
//! A topic's *bucket* is the upper twelve bits of its CRC-32. The bucket is part of the topic's
//! subject, so that a node can subscribe to one topic, or with one wildcard to all of a bucket:
//! `<prefix>.<space>.<a>.<bc>.<token>`, where `abc` are the bucket's hexadecimal digits.

use core::fmt;

use twox_hash::XxHash3_128;

use crate::node_id::NodeId;
use simurgh_data::prelude::*;

/// The longest token of a name that is written out; a longer one is replaced by a hash. A subject
/// then has at most 192 bytes: brokers close the link over one that is longer than 4 kB.
pub const TOKEN_BYTES_MAX: usize = 160;
/// The longest topic that nodes can share: an envelope has two bytes for its length.
pub const TOPIC_BYTES_MAX: usize = u16::MAX as usize;
/// The longest prefix.
pub const PREFIX_BYTES_MAX: usize = 24;
/// How many buckets there are.
pub const BUCKETS: usize = 1 << 12;

const HEX: &[u8; 16] = b"0123456789ABCDEF";

/// One of [`BUCKETS`] groups of topics, by a hash of their names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Bucket(u16);

impl Bucket {
    /// The bucket of a topic.
    pub fn of(topic: &str) -> Self {
        Self((crc32fast::hash(topic.as_bytes()) >> 20) as u16)
    }

    /// The bucket with this number, of which the lower twelve bits count.
    pub const fn new(number: u16) -> Self {
        Self(number % BUCKETS as u16)
    }

    /// Its number, below [`BUCKETS`].
    pub const fn number(self) -> usize {
        self.0 as usize
    }
}

/// Three hexadecimal digits, lower case.
impl fmt::Display for Bucket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:03x}", self.0)
    }
}

/// The purpose of a topic's subject.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Space {
    /// `b`: broadcasts, for all nodes with members.
    Broadcast,
    /// `h`: broadcasts that the broker stores before it delivers them.
    Store,
    /// `p`: changes of presences.
    Presence,
}

impl Space {
    const fn letter(self) -> char {
        match self {
            Self::Broadcast => 'b',
            Self::Store => 'h',
            Self::Presence => 'p',
        }
    }
}

/// A subscription of a node.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Interest {
    /// One topic.
    Exact(Space, Box<str>),
    /// All topics of a bucket, in one space.
    Whole(Space, Bucket),
    /// Messages for all nodes.
    Nodes,
    /// Messages for one node.
    Node(NodeId),
}

impl Interest {
    /// The space that it is in, if it is about topics.
    pub(crate) const fn space(&self) -> Option<Space> {
        match self {
            Self::Exact(space, _) | Self::Whole(space, _) => Some(*space),
            Self::Nodes | Self::Node(_) => None,
        }
    }
}

/// The subject of an envelope, as a broker takes it: tokens with dots between them, no wildcard.
/// Cloning shares the text.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Subject(Arc<str>);

impl Subject {
    /// Its text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The first token of a cluster's subjects, so that several clusters can share a broker.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Prefix(Box<str>);

/// Why a prefix is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PrefixError {
    /// It is empty.
    #[error("a prefix must have at least one character")]
    Empty,
    /// It has more than [`PREFIX_BYTES_MAX`].
    #[error("a prefix of {0} characters is too long: the maximum is {PREFIX_BYTES_MAX}")]
    TooLong(usize),
    /// It has a character other than `a-z`, `0-9`, `_` and `-`.
    #[error("a prefix must contain only a-z, 0-9, _ and -, not {0:?}")]
    Character(char),
}

impl Prefix {
    /// A prefix of the form `[a-z0-9_-]{1,24}`.
    ///
    /// # Errors
    /// It is empty, too long, or has another character.
    pub fn new(text: &str) -> Result<Self, PrefixError> {
        let is_taken = |it: &char| matches!(it, 'a'..='z' | '0'..='9' | '_' | '-');
        if let Some(wrong) = text.chars().find(|it| !is_taken(it)) {
            return Err(PrefixError::Character(wrong));
        }
        match text.len() {
            0 => Err(PrefixError::Empty),
            bytes if bytes > PREFIX_BYTES_MAX => Err(PrefixError::TooLong(bytes)),
            _ => Ok(Self(text.into())),
        }
    }

    /// Its text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The subject of a topic's envelopes.
    pub fn topic(&self, space: Space, topic: &str) -> Subject {
        let mut text = self.bucket(space, Bucket::of(topic), topic.len().min(TOKEN_BYTES_MAX));
        push_token(&mut text, topic);
        Subject(text.into())
    }

    /// The subject of a partition of the log of notices.
    pub fn log(&self, partition: u8) -> Subject {
        Subject(format!("{}.l.{partition}", self.0).into())
    }

    /// The subject of messages for all nodes.
    pub fn nodes(&self) -> Subject {
        Subject(format!("{}.n", self.0).into())
    }

    /// The subject of messages for one node.
    pub fn node(&self, id: NodeId) -> Subject {
        Subject(format!("{}.n.{id}", self.0).into())
    }

    /// The subject to subscribe to for an interest; with a wildcard for a whole bucket.
    pub fn filter(&self, interest: &Interest) -> Subject {
        match interest {
            Interest::Exact(space, topic) => self.topic(*space, topic),
            Interest::Whole(space, bucket) => {
                let mut text = self.bucket(*space, *bucket, 1);
                text.push('*');
                Subject(text.into())
            }
            Interest::Nodes => self.nodes(),
            Interest::Node(id) => self.node(*id),
        }
    }

    fn bucket(&self, space: Space, bucket: Bucket, more: usize) -> String {
        let digit = |shift: u16| char::from(HEX[usize::from(bucket.0 >> shift & 15)]);
        let mut text = String::with_capacity(self.0.len() + 8 + more);
        text.push_str(&self.0);
        for it in ['.', space.letter(), '.', digit(8), '.', digit(4), digit(0), '.'] {
            text.push(it.to_ascii_lowercase());
        }
        text
    }
}

/// The token of a topic: bytes that brokers take are written unchanged, others as `=HH`, an empty
/// topic as `=0`; a token that is too long is `=~` and a hash. No two short topics have the same
/// token.
pub(crate) fn push_token(text: &mut String, topic: &str) {
    if topic.is_empty() {
        return text.push_str("=0");
    }
    let start = text.len();
    for byte in topic.bytes() {
        match byte {
            b'0'..=b'9' | b'A'..=b'Z' | b'a'..=b'z' | b'_' | b':' | b'-' | b'/' | b'@' => {
                text.push(char::from(byte));
            }
            _ => {
                text.push('=');
                text.push(char::from(HEX[usize::from(byte >> 4)]));
                text.push(char::from(HEX[usize::from(byte & 15)]));
            }
        }
        if text.len() - start > TOKEN_BYTES_MAX {
            text.truncate(start);
            let hash = XxHash3_128::oneshot(topic.as_bytes());
            text.push_str(&format!("=~{hash:032x}"));
            return;
        }
    }
}
