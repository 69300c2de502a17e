//! What members of a topic are to hear of presences.

use std::fmt;
use std::sync::Arc;

use super::call::{PresenceCallback, PresenceList, SharedEvent};
use crate::id::ChannelId;

/// What members are to hear.
pub(super) enum Say {
    /// All of the topic.
    All(&'static str, String),
    /// Some of them, in the order of their shards.
    Some(Arc<[SharedEvent]>, Vec<ChannelId>),
    /// The same as before, for some more.
    Again(Arc<[SharedEvent]>, Vec<ChannelId>),
    /// What shards tell those who ask from now on; none: they are to ask the home again.
    Keep(Option<Arc<[SharedEvent]>>),
    /// Who asked from outside of the topic, and what is answered.
    Answer(PresenceCallback, PresenceList),
}

impl fmt::Debug for Say {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::All(event, json) => f.debug_tuple("All").field(event).field(json).finish(),
            Self::Some(events, channels) => {
                f.debug_tuple("Some").field(events).field(channels).finish()
            }
            Self::Again(events, channels) => {
                f.debug_tuple("Again").field(events).field(channels).finish()
            }
            Self::Keep(events) => f.debug_tuple("Keep").field(events).finish(),
            Self::Answer(_, list) => f.debug_tuple("Answer").field(list).finish(),
        }
    }
}

impl Say {
    /// Bytes that leave for it, but for what the fan-out sends in its slices.
    pub(super) fn bytes(&self) -> usize {
        match self {
            Self::All(_, json) => json.len(),
            Self::Some(events, channels) | Self::Again(events, channels) => {
                events.iter().map(|(_, json)| json.len()).sum::<usize>() * channels.len()
            }
            Self::Keep(_) | Self::Answer(..) => 0,
        }
    }

    /// Events that were made for it.
    pub(super) fn events(&self) -> usize {
        match self {
            Self::All(..) => 1,
            Self::Some(events, _) => events.len(),
            Self::Again(..) | Self::Keep(_) | Self::Answer(..) => 0,
        }
    }
}
