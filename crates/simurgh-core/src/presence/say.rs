//! What members of a topic are to hear of presences.

use std::sync::Arc;

use super::call::SharedEvent;
use crate::id::ChannelId;

/// What members are to hear.
#[derive(Debug)]
pub(super) enum Say {
    /// All of the topic.
    All(&'static str, String),
    /// Some of them, in the order of their shards.
    Some(Arc<[SharedEvent]>, Vec<ChannelId>),
    /// The same as before, for some more.
    Again(Arc<[SharedEvent]>, Vec<ChannelId>),
    /// What shards tell those who ask from now on; none: they are to ask the home again.
    Keep(Option<Arc<[SharedEvent]>>),
}

impl Say {
    /// Bytes that leave for it, but for what the fan-out sends in its slices.
    pub(super) fn bytes(&self) -> usize {
        match self {
            Self::All(_, json) => json.len(),
            Self::Some(events, channels) | Self::Again(events, channels) => {
                events.iter().map(|(_, json)| json.len()).sum::<usize>() * channels.len()
            }
            Self::Keep(_) => 0,
        }
    }

    /// Events that were made for it.
    pub(super) fn events(&self) -> usize {
        match self {
            Self::All(..) => 1,
            Self::Some(events, _) => events.len(),
            Self::Again(..) | Self::Keep(_) => 0,
        }
    }
}
