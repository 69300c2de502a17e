//! Who is told what it has missed part by part, and how far that is.

use std::collections::{HashMap, VecDeque};

use simurgh_channel::ChannelId;
use simurgh_history::Position;
use simurgh_reactor::Key;

/// A member that is told what it has missed.
#[derive(Debug)]
pub(super) struct Replay {
    pub(super) channel: ChannelId,
    pub(super) conn: Key,
    /// Up to where it is told.
    pub(super) through: Position,
    /// Whether it wants what is still there if something is not.
    pub(super) partial: bool,
    /// The word that its channel waits for.
    pub(super) ticket: u32,
    pub(super) is_asked: bool,
}

/// The members of a shard that are told what they have missed, part by part.
#[derive(Debug, Default)]
pub(crate) struct Replays {
    pub(super) by_membership: HashMap<u32, Replay>,
    /// Those of which the next part is still to be asked for; some may be gone.
    pub(super) queue: VecDeque<ChannelId>,
}

impl Replays {
    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.by_membership.len()
    }

    /// The word that a channel waits for until it is told all it has missed.
    pub(crate) fn ticket(&self, channel: ChannelId) -> Option<u32> {
        self.get(channel).map(|it| it.ticket)
    }

    /// Up to where a channel is told what it has missed.
    pub(crate) fn told(&self, channel: ChannelId) -> Option<Position> {
        self.get(channel).map(|it| it.through)
    }

    /// A member has left.
    pub(crate) fn leaves(&mut self, membership: u32) {
        self.by_membership.remove(&membership);
        if self.by_membership.is_empty() {
            *self = Self::default();
        }
    }

    pub(super) fn get(&self, channel: ChannelId) -> Option<&Replay> {
        self.by_membership.get(&channel.membership).filter(|it| it.channel == channel)
    }

    pub(super) fn get_mut(&mut self, channel: ChannelId) -> Option<&mut Replay> {
        self.by_membership.get_mut(&channel.membership).filter(|it| it.channel == channel)
    }
}
