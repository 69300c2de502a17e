//! Presence messages to the members of a topic.

use simurgh_channel::{ChannelId, PresenceCallback, PresenceList, SharedEvent};

use simurgh_data::prelude::*;

#[derive(derive_more::Debug)]
pub(super) enum Output {
    All(&'static str, String),
    /// For these members, in the order of their shards.
    Some(Arc<[SharedEvent]>, Vec<ChannelId>),
    Again(Arc<[SharedEvent]>, Vec<ChannelId>),
    /// The answer that shards give from now on; `None`: requests are sent to the home.
    Keep(Option<Arc<[SharedEvent]>>),
    Answer(#[debug(skip)] PresenceCallback, PresenceList),
}

impl Output {
    /// Bytes that are sent for it at once.
    pub(super) fn bytes(&self) -> usize {
        match self {
            Self::All(_, json) => json.len(),
            Self::Some(events, channels) | Self::Again(events, channels) => {
                events.iter().map(|(_, json)| json.len()).sum::<usize>() * channels.len()
            }
            Self::Keep(_) | Self::Answer(..) => 0,
        }
    }

    pub(super) fn events(&self) -> usize {
        match self {
            Self::All(..) => 1,
            Self::Some(events, _) => events.len(),
            Self::Again(..) | Self::Keep(_) | Self::Answer(..) => 0,
        }
    }
}
