//! What channels say of their presence, and what is asked about it.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use simurgh_presence::{Extra, Meta, MetaError};
use simurgh_proto::message::Payload;

use crate::id::ChannelId;
use simurgh_presence::FromPeers;

/// Limits and times of presence (PROTOCOL §10).
#[derive(Debug, Clone)]
pub struct PresenceConfig {
    /// A topic's changes are told once in so long; the first after a quiet while at once.
    pub interval: Duration,
    /// Members are told of a leave only after so long, unless the same key is here again before, on
    /// this node or on another: then of both at once, as of an update. For rolling restarts, in
    /// which clients come back on another node. Zero: at once.
    pub leave_delay: Duration,
    /// A topic with more entries tells its members their number and a sample in place of a list.
    pub list_max: usize,
    /// How often the number is told while it changes.
    pub summary_interval: Duration,
    /// Keys in a sample.
    pub sample: usize,
    /// The longest key.
    pub key_bytes_max: usize,
    /// The longest meta, as JSON text.
    pub meta_bytes_max: usize,
    /// Entries that one channel may have.
    pub channel_entries_max: usize,
    /// Bytes of lists that leave in one turn of the shard that keeps a topic; one list at least.
    pub turn_bytes: usize,
}

impl Default for PresenceConfig {
    fn default() -> Self {
        Self {
            interval: Duration::from_millis(50),
            leave_delay: Duration::ZERO,
            list_max: 1000,
            summary_interval: Duration::from_secs(5),
            sample: 20,
            key_bytes_max: 256,
            meta_bytes_max: 4096,
            channel_entries_max: 16,
            turn_bytes: 1 << 20,
        }
    }
}

impl PresenceConfig {
    /// Whether a key is short enough.
    pub(crate) fn check_key(&self, key: &str) -> Result<(), PresenceError> {
        let (bytes, bytes_max) = (key.len(), self.key_bytes_max);
        (bytes <= bytes_max).then_some(()).ok_or(PresenceError::KeyTooLong { bytes, bytes_max })
    }

    /// A meta, if it is one and short enough.
    pub(crate) fn meta(&self, payload: &Payload<'_>) -> Result<Meta, PresenceError> {
        Meta::parse(self.text(payload)?).map_err(PresenceError::Meta)
    }

    /// What stands beside metas, by the same rules.
    pub(crate) fn extra(&self, payload: &Payload<'_>) -> Result<Extra, PresenceError> {
        Extra::parse(self.text(payload)?).map_err(PresenceError::Meta)
    }

    fn text<'p>(&self, payload: &'p Payload<'_>) -> Result<&'p str, PresenceError> {
        let (bytes, bytes_max) = (payload.len(), self.meta_bytes_max);
        if bytes > bytes_max {
            return Err(PresenceError::MetaTooLong { bytes, bytes_max });
        }
        payload.json().ok_or(PresenceError::BinaryMeta)
    }
}

/// Why a presence is not tracked.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum PresenceError {
    /// The key is too long.
    KeyTooLong {
        /// Its size.
        bytes: usize,
        /// The largest there may be.
        bytes_max: usize,
    },
    /// The meta is too long.
    MetaTooLong {
        /// Its size as JSON text.
        bytes: usize,
        /// The largest there may be.
        bytes_max: usize,
    },
    /// The meta is binary.
    BinaryMeta,
    /// The meta is no JSON object.
    Meta(MetaError),
}

impl fmt::Display for PresenceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::KeyTooLong { bytes, bytes_max } => {
                write!(f, "a presence's key of {bytes} bytes is too long: {bytes_max} is the most")
            }
            Self::MetaTooLong { bytes, bytes_max } => {
                write!(f, "a presence's meta of {bytes} bytes is too long: {bytes_max} is the most")
            }
            Self::BinaryMeta => f.write_str("a presence's meta is a JSON object, not binary"),
            Self::Meta(error) => write!(f, "a presence's meta: {error}"),
        }
    }
}

impl std::error::Error for PresenceError {}

/// What a channel does with its own entries.
#[derive(Debug)]
pub enum PresenceCall {
    /// It has one more; and what is to stand beside the metas of its key.
    Track(Box<str>, Meta, Option<Extra>),
    /// One has another meta.
    Update(Box<str>, Meta),
    /// It has one less.
    Untrack(Box<str>),
    /// It has none any more: it has ended.
    End,
    /// It wants to be pushed the list of its topic.
    PushState,
}

/// Hears who is present.
pub type PresenceCallback = Box<dyn FnOnce(PresenceList) + Send>;

/// Who is present in a topic, at one moment.
#[derive(Debug, Clone, Default)]
pub struct PresenceList {
    /// How many entries there are.
    pub entries: usize,
    /// How many keys.
    pub keys: usize,
    /// `{key: {"metas": […]}}`: all of them, or a sample where the topic has more than
    /// [`PresenceConfig::list_max`].
    pub json: String,
}

/// What the shard that keeps a topic's presences is told, or asked, and what it tells all shards.
pub enum PresenceMail {
    /// What a member of the topic does; its weight was charged to the shard.
    Call(ChannelId, PresenceCall),
    /// Who is present?
    List(PresenceCallback),
    /// The topic has too many for a list: what members are told who ask, until there is something
    /// else; none if they are to ask its home again. Its weight was charged to the shard.
    Answers(Option<Arc<[SharedEvent]>>),
    /// A member begins to use the presences of the topic; only where there are other nodes.
    Begin,
    /// Something of other nodes.
    Peers(FromPeers),
}

impl PresenceMail {
    /// Bytes that are charged to the shard while it is on its way.
    pub(crate) fn weight(&self) -> usize {
        let own = match self {
            Self::Call(_, PresenceCall::Track(key, meta, extra)) => {
                let extra = extra.as_ref().map_or(0, |extra| extra.as_str().len());
                key.len() + meta.as_str().len() + extra
            }
            Self::Call(_, PresenceCall::Update(key, meta)) => key.len() + meta.as_str().len(),
            Self::Call(_, PresenceCall::Untrack(key)) => key.len(),
            Self::Answers(Some(events)) => events.iter().map(|(_, json)| json.len()).sum(),
            Self::Peers(what) => what.bytes(),
            Self::Call(..) | Self::List(_) | Self::Answers(None) | Self::Begin => 0,
        };
        own + 128
    }
}

impl fmt::Debug for PresenceMail {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Call(channel, call) => f.debug_tuple("Call").field(channel).field(call).finish(),
            Self::List(_) => f.write_str("List"),
            Self::Answers(events) => f.debug_tuple("Answers").field(events).finish(),
            Self::Begin => f.write_str("Begin"),
            Self::Peers(what) => f.debug_tuple("Peers").field(what).finish(),
        }
    }
}

/// An event, and its payload.
pub(crate) type SharedEvent = (&'static str, Arc<str>);

/// Events for several channels of one shard, whose payloads they share; its weight was charged to
/// the shard. A channel gets all of them before the next gets the first: they leave in one write.
#[derive(Debug)]
pub struct SharedPush {
    pub(crate) channels: Vec<ChannelId>,
    pub(crate) events: Arc<[SharedEvent]>,
}

impl SharedPush {
    /// For whom.
    pub fn channels(&self) -> &[ChannelId] {
        &self.channels
    }

    /// What each of them gets, in this order: an event, and what it says.
    pub fn events(&self) -> impl Iterator<Item = (&'static str, &str)> {
        self.events.iter().map(|(event, json)| (*event, &**json))
    }

    /// Bytes that are charged while it is on its way.
    pub(crate) fn weight(&self) -> usize {
        let payloads = self.events.iter().map(|(_, json)| json.len() + 64).sum::<usize>();
        payloads + self.channels.len() * size_of::<ChannelId>()
    }
}

/// The shard, of so many, that keeps a topic's presences: FNV-1a of its name, mixed.
pub(crate) fn home(topic: &str, shards: usize) -> usize {
    let hash = topic.bytes().fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    // By itself, names that differ in their last character alone have few homes.
    let mixed = (hash ^ (hash >> 32)).wrapping_mul(0xd6e8_feb8_6659_fd93);
    (mixed >> 32) as usize % shards.max(1)
}

#[cfg(test)]
mod tests {
    use super::home;

    #[test]
    fn numbered_topics_are_spread_over_all_shards() {
        for (shards, topics) in [(2, 16), (4, 64), (7, 200), (64, 6_400)] {
            let mut kept = vec![0; shards];
            (0..topics).for_each(|n| kept[home(&format!("room:{n}"), shards)] += 1);
            let even = topics / shards;
            let is_even = |count: &usize| (even / 2..=even * 2).contains(count);
            assert!(kept.iter().all(is_even), "{topics} topics on {shards} shards: {kept:?}");
        }
    }
}
