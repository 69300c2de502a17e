//! The table of topics, with a list of the topics of each bucket.

use super::shards::Mask;
use crate::subject::Bucket;
use crate::table::{Named, Table};
use simurgh_data::Slab;
use simurgh_data::prelude::*;

pub(super) use simurgh_data::NIL;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Want {
    No,
    Yes,
    /// There are no members any more, but one may return.
    Lingers,
}

/// A topic. Arrays of two are by space: broadcasts, presences.
#[derive(Debug)]
pub(super) struct Topic {
    pub(super) name: Box<str>,
    pub(super) shards: Mask,
    /// When it stops lingering, in [`TICK_NS`](super::TICK_NS), if it lingers.
    pub(super) due: [u32; 2],
    /// The list of its bucket.
    pub(super) next: u32,
    pub(super) prev: u32,
    pub(super) bucket: u16,
    pub(super) want: [Want; 2],
    /// Whether the adapter subscribes to it alone.
    pub(super) is_subscribed: [bool; 2],
    /// It is in the list of topics that may differ from the adapter's subscriptions.
    pub(super) is_dirty: bool,
    /// To be reported when its broadcasts are not subscribed to any more.
    pub(super) is_kept: bool,
}

const _: () = assert!(Slab::<Topic>::SLOT_BYTES <= 56);

impl Named for Topic {
    fn name(&self) -> &str {
        &self.name
    }
}

impl Topic {
    pub(super) fn bucket(&self) -> Bucket {
        Bucket::new(self.bucket)
    }

    pub(super) fn due(&self, space: usize) -> Option<u32> {
        (self.want[space] == Want::Lingers).then_some(self.due[space])
    }

    /// When it stops lingering in the first of its spaces.
    pub(super) fn first_due(&self) -> Option<u32> {
        self.due(0).into_iter().chain(self.due(1)).min()
    }

    pub(super) fn is_over(&self) -> bool {
        self.want == [Want::No; 2]
            && self.is_subscribed == [false; 2]
            && !self.is_dirty
            && self.shards.is_empty()
    }
}

/// The table of topics. Those of a bucket form a list, whose first the bucket has.
pub(super) type Topics = Table<Topic>;

impl Topics {
    /// Adds a topic in front of the others of its bucket, the first of which is given.
    pub(super) fn add(&mut self, name: &str, bucket: Bucket, first: u32) -> u32 {
        let at = self.insert(Topic {
            name: name.into(),
            shards: Mask::EMPTY,
            due: [0; 2],
            next: first,
            prev: NIL,
            bucket: bucket.number() as u16,
            want: [Want::No; 2],
            is_subscribed: [false; 2],
            is_dirty: false,
            is_kept: false,
        });
        if let Some(first) = self.get_mut(first) {
            first.prev = at;
        }
        at
    }

    /// Removes a topic, and updates the first of its bucket.
    pub(super) fn take(&mut self, at: u32, first: &mut u32) {
        let Some(topic) = self.remove(at) else { return };
        match self.get_mut(topic.prev) {
            Some(prev) => prev.next = topic.next,
            None => *first = topic.next,
        }
        if let Some(next) = self.get_mut(topic.next) {
            next.prev = topic.prev;
        }
    }

    pub(super) fn of_bucket(&self, first: u32) -> impl Iterator<Item = &Topic> {
        let next = |it: &&Topic| self.get(it.next);
        core::iter::successors(self.get(first), next)
    }
}
