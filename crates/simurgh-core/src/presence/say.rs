//! What members of a topic are to hear of presences.

use std::sync::Arc;

use super::call::SharedEvent;
use crate::id::ChannelId;

/// What members are to hear.
#[derive(Debug)]
pub(super) enum Say {
    /// All of the topic.
    All(&'static str, String),
    /// Some of them, of whichever shards.
    Some(Arc<[SharedEvent]>, Vec<ChannelId>),
    /// The same as before, for some more.
    Again(Arc<[SharedEvent]>, Vec<ChannelId>),
}

impl Say {
    /// Bytes that leave for it, but for what the fan-out sends in its slices.
    pub(super) fn bytes(&self) -> usize {
        match self {
            Self::All(_, json) => json.len(),
            Self::Some(events, channels) | Self::Again(events, channels) => {
                events.iter().map(|(_, json)| json.len()).sum::<usize>() * channels.len()
            }
        }
    }

    /// Events that were made for it.
    pub(super) fn events(&self) -> usize {
        match self {
            Self::All(..) => 1,
            Self::Some(events, _) => events.len(),
            Self::Again(..) => 0,
        }
    }
}
