//! Members that get what they have missed in parts, and their progress.

use crate::seeded_state::HashMap;
use alloc::collections::VecDeque;

use simurgh_channel::ChannelId;
use simurgh_data::Key;
use simurgh_history::Position;

#[derive(Debug)]
pub(super) struct Replay {
    pub(super) channel: ChannelId,
    pub(super) conn: Key,
    /// The position up to which it has all.
    pub(super) through: Position,
    pub(super) partial: bool,
    /// The ticket that its channel waits for.
    pub(super) ticket: u32,
    pub(super) is_asked: bool,
}

#[derive(Debug, Default)]
pub(crate) struct Replays {
    pub(super) by_membership: HashMap<u32, Replay>,
    /// Those whose next part is still to be requested; some may be gone.
    pub(super) queue: VecDeque<ChannelId>,
}

impl Replays {
    pub(crate) fn len(&self) -> usize {
        self.by_membership.len()
    }

    pub(crate) fn ticket(&self, channel: ChannelId) -> Option<u32> {
        self.get(channel).map(|it| it.ticket)
    }

    pub(crate) fn told(&self, channel: ChannelId) -> Option<Position> {
        self.get(channel).map(|it| it.through)
    }

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
