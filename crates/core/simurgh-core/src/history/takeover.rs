//! Histories while another process takes over from this one (`docs/HISTORY.md`).
//!
//! The later process gets a copy of everything, and keeps and numbers the broadcasts of both from
//! then on. To the earlier one it is a broker that is always there: a broadcast goes to it as a
//! [`StoreRequest`](simurgh_channel::StoreRequest), comes back with its position, enters the copy
//! here, and goes on to the members here. So positions are the same in both processes, and clients
//! resume in the later one.

use simurgh_channel::{Broadcast, KeptAt, KeptFor, Node, NotKept, ToCluster};
use simurgh_history::{Epoch, Place, Position};

use super::followed::FollowedTopics;
use super::{Histories, SavedHistory};
use simurgh_data::prelude::*;

/// The histories and numbers of a shard, for the process that takes over.
#[derive(Debug, Default)]
pub struct HandedOver {
    /// The topics.
    pub history: SavedHistory,
    /// The numbers of topics that are not among them.
    pub numbers: HandedOverNumbers,
}

/// Where a shard's numbers continue.
#[derive(Debug, Default, Clone, Copy)]
pub struct HandedOverNumbers {
    /// The epoch of topics that begin.
    pub epoch: u32,
    /// The last number of any topic.
    pub last: u64,
    /// Up to this number topics may have had messages that are forgotten.
    pub forgotten: u64,
}

impl HandedOverNumbers {
    /// The numbers of two shards of one process.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        let last = self.last.max(other.last);
        Self { epoch: other.epoch, last, forgotten: self.forgotten.max(other.forgotten) }
    }
}

impl<N: Node> Histories<N> {
    /// Whether another process takes over, and numbers the broadcasts of this one.
    pub(super) fn has_successor(&self) -> bool {
        self.followed.as_ref().is_some_and(|followed| followed.is_successor)
    }

    pub(crate) fn hand_over(&mut self) -> HandedOver {
        if self.kept.has_rules() && !self.uses_engine() {
            let mut followed = FollowedTopics::new(self.shard, self.node.id(), self.kept.seed);
            followed.is_successor = true;
            self.followed = Some(Box::new(followed));
        }
        let topics = self.kept.slots.iter().flatten();
        let topics = topics.map(|slot| (Box::from(&*slot.name), slot.topic.clone())).collect();
        HandedOver { history: SavedHistory { topics }, numbers: self.kept.numbers() }
    }

    pub(crate) fn restore_numbers(&mut self, numbers: &HandedOverNumbers) {
        let Some(epoch) = Epoch::new(numbers.epoch) else { return };
        self.kept.clock = self.kept.clock.max(Place::new(numbers.last));
        self.kept.forgotten.restore(epoch, Place::new(numbers.forgotten));
    }

    /// The other process has ended, with what it has not confirmed.
    pub(crate) fn take_back(&mut self) {
        if !self.has_successor() {
            return;
        }
        let mut followed = self.followed.take();
        while let Some(old) = followed.as_mut().and_then(|it| it.stores.take_old(u64::MAX)) {
            self.end_store(old, Err(NotKept::Unconfirmed));
        }
    }

    /// A topic that had no message here: with a broker it would have begun first.
    pub(super) fn open_topic(&mut self, topic: &str) {
        if self.has_successor() && self.kept.head(topic).is_none() {
            self.kept.open(topic, 0);
        }
    }

    pub(super) fn send_to_engine(&self, what: ToCluster) {
        if let Some(other) = self.node.other_process() {
            other.send(what);
        } else if let Some(cluster) = self.node.cluster() {
            cluster.send(what);
        }
    }

    /// Sends a stored broadcast to the process from which this one takes over. Members there, and
    /// its publisher, get it from that process.
    pub(super) fn tell_predecessor(
        &self,
        position: Position,
        broadcast: Option<&Arc<Broadcast>>,
        kept_for: &KeptFor,
    ) {
        let Some(other) = self.node.other_process() else { return };
        match (broadcast, kept_for) {
            (Some(broadcast), KeptFor::Predecessor(number)) => other.kept(broadcast, Some(*number)),
            (Some(broadcast), _) => other.kept(broadcast, None),
            (None, KeptFor::Predecessor(number)) => {
                other.answer(*number, Ok(KeptAt { position, is_duplicate: true }));
            }
            (None, _) => {}
        }
    }
}
