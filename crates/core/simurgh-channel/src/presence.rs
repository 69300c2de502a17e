//! Settings of presence, and mail about the presences of topics.

use core::time::Duration;

use simurgh_presence::{Extra, FromPeers, Meta, MetaError};
use simurgh_proto::message::Payload;
use thiserror::Error;

use crate::id::ChannelId;
use simurgh_data::prelude::*;

/// Limits and times of presence (PROTOCOL §10).
#[derive(Debug, Clone)]
pub struct PresenceConfig {
    /// The interval between a topic's changes; the first after a quiet period is sent at once.
    pub interval: Duration,
    /// Members receive a leave only after this time. If the same key is back before, on any node,
    /// they receive both at once, as an update. For rolling restarts, in which clients reconnect to
    /// another node. Zero: at once.
    pub leave_delay: Duration,
    /// A topic with more entries sends its members their number and a sample in place of a list.
    pub list_max: usize,
    /// The interval between numbers while they change.
    pub summary_interval: Duration,
    /// Keys in a sample.
    pub sample: usize,
    /// The longest key.
    pub key_bytes_max: usize,
    /// The longest meta, as JSON text.
    pub meta_bytes_max: usize,
    /// Entries that one channel may have.
    pub channel_entries_max: usize,
    /// Bytes of lists that are sent in one turn of the shard that keeps a topic; at least one list.
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
            // Half of what a turn writes: otherwise lists of a crowd that joins at once fill the
            // outbound budget, and members are cut.
            turn_bytes: 256 << 10,
        }
    }
}

impl PresenceConfig {
    /// Whether a key is short enough.
    pub fn check_key(&self, key: &str) -> Result<(), PresenceError> {
        let (bytes, bytes_max) = (key.len(), self.key_bytes_max);
        (bytes <= bytes_max).then_some(()).ok_or(PresenceError::KeyTooLong { bytes, bytes_max })
    }

    /// Reads a meta, if it is valid and short enough.
    pub fn meta(&self, payload: &Payload<'_>) -> Result<Meta, PresenceError> {
        Meta::parse(self.text(payload)?).map_err(PresenceError::Meta)
    }

    /// Reads the data beside metas, by the same rules.
    pub fn extra(&self, payload: &Payload<'_>) -> Result<Extra, PresenceError> {
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
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum PresenceError {
    /// The key is too long.
    #[error("a presence's key of {bytes} bytes is too long: the maximum is {bytes_max}")]
    KeyTooLong {
        /// Its size.
        bytes: usize,
        /// The largest allowed.
        bytes_max: usize,
    },
    /// The meta is too long.
    #[error("a presence's meta of {bytes} bytes is too long: the maximum is {bytes_max}")]
    MetaTooLong {
        /// Its size as JSON text.
        bytes: usize,
        /// The largest allowed.
        bytes_max: usize,
    },
    /// The meta is binary.
    #[error("a presence's meta must be a JSON object, not binary")]
    BinaryMeta,
    /// The meta is not a JSON object.
    #[error("a presence's meta: {0}")]
    Meta(MetaError),
}

/// A change of a channel's own entries.
#[derive(Debug)]
pub enum PresenceCall {
    /// Adds one; with data to put beside the metas of its key.
    Track(Box<str>, Meta, Option<Extra>),
    /// Replaces the meta of one.
    Update(Box<str>, Meta),
    /// Removes one.
    Untrack(Box<str>),
    /// Removes all: the channel has ended.
    End,
    /// Requests a push of the topic's list.
    PushState,
}

/// Receives the list of presences.
pub type PresenceCallback = Box<dyn FnOnce(PresenceList) + Send>;

/// The presences of a topic, at one moment.
#[derive(Debug, Clone, Default)]
pub struct PresenceList {
    /// How many entries there are.
    pub entries: usize,
    /// How many keys.
    pub keys: usize,
    /// `{key: {"metas": […]}}`: all of them, or a sample if the topic has more than
    /// [`PresenceConfig::list_max`].
    pub json: String,
}

/// Bytes of a mail in addition to its texts.
const MAIL_BYTES: usize = 128;
/// Bytes of a call and its two states in a diff in addition to their texts.
const CALL_BYTES: usize = 512;

/// Mail to and from the shard that keeps a topic's presences.
#[derive(derive_more::Debug)]
pub enum PresenceMail {
    /// A member's call; its weight was charged to the shard.
    Call(ChannelId, PresenceCall),
    /// A request for the list.
    List(#[debug(skip)] PresenceCallback),
    /// The topic has too many for a list: the answer to members that request it, until the next
    /// one; `None`: requests are sent to the home again. Its weight was charged to the shard.
    ListAnswer(Option<Arc<[SharedEvent]>>),
    /// A member begins to use the presences of the topic; only if there are other nodes.
    Begin,
    /// From other nodes.
    Peers(FromPeers),
}

impl PresenceMail {
    /// The bytes charged to the shard while it is on its way. A call counts for what follows from
    /// it, too: the entry, its old and its new state in the next diff.
    pub fn weight(&self) -> usize {
        let text = match self {
            Self::Call(_, PresenceCall::Track(key, meta, extra)) => {
                let extra = extra.as_ref().map_or(0, |extra| extra.as_str().len());
                key.len() + meta.as_str().len() + extra
            }
            Self::Call(_, PresenceCall::Update(key, meta)) => key.len() + meta.as_str().len(),
            Self::Call(_, PresenceCall::Untrack(key)) => key.len(),
            Self::ListAnswer(Some(events)) => events.iter().map(|(_, json)| json.len()).sum(),
            Self::Peers(what) => what.bytes(),
            Self::Call(..) | Self::List(_) | Self::ListAnswer(None) | Self::Begin => 0,
        };
        match self {
            Self::Call(..) => 2 * text + CALL_BYTES,
            _ => text + MAIL_BYTES,
        }
    }
}

/// An event, and its payload.
pub type SharedEvent = (&'static str, Arc<str>);

/// Events for several channels of one shard, which share the payloads; its weight was charged to
/// the shard. A channel gets all of them before the next gets the first, so they are sent in one
/// write.
#[derive(Debug)]
pub struct SharedPush {
    #[doc(hidden)]
    pub channels: Vec<ChannelId>,
    #[doc(hidden)]
    pub events: Arc<[SharedEvent]>,
}

impl SharedPush {
    /// The channels that get them.
    pub fn channels(&self) -> &[ChannelId] {
        &self.channels
    }

    /// The events and payloads for each of them, in this order.
    pub fn events(&self) -> impl Iterator<Item = (&'static str, &str)> {
        self.events.iter().map(|(event, json)| (*event, &**json))
    }

    /// The bytes charged while it is on its way.
    pub fn weight(&self) -> usize {
        let payloads = self.events.iter().map(|(_, json)| json.len() + 64).sum::<usize>();
        payloads + self.channels.len() * size_of::<ChannelId>()
    }
}

/// The shard, of so many, that keeps a topic's presences and history: FNV-1a of its name, mixed.
pub fn home_shard(topic: &str, shards: usize) -> usize {
    let hash = topic.bytes().fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    // Unmixed, names that differ only in their last character share few homes.
    let mixed = (hash ^ (hash >> 32)).wrapping_mul(0xd6e8_feb8_6659_fd93);
    (mixed >> 32) as usize % shards.max(1)
}

#[cfg(test)]
mod tests {
    use super::home_shard;

    #[test]
    fn numbered_topics_are_distributed_over_all_shards() {
        for (shards, topics) in [(2, 16), (4, 64), (7, 200), (64, 6_400)] {
            let mut kept = vec![0; shards];
            (0..topics).for_each(|n| kept[home_shard(&format!("room:{n}"), shards)] += 1);
            let even = topics / shards;
            let is_even = |count: &usize| (even / 2..=even * 2).contains(count);
            assert!(kept.iter().all(is_even), "{topics} topics on {shards} shards: {kept:?}");
        }
    }
}
