//! The table of topics, and which of them are in one bucket.

use super::shards::Mask;
use crate::subject::Bucket;
use crate::table::{Named, Slot, Table};

pub(super) use crate::table::NIL;

/// Whether a topic is to be heard in a space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Want {
    No,
    Yes,
    /// Nobody is there any more, but somebody may come back.
    Lingers,
}

/// What is known of a topic. Arrays of two are by space: broadcasts, presence.
#[derive(Debug)]
pub(super) struct Topic {
    pub(super) name: Box<str>,
    pub(super) shards: Mask,
    /// When it ends to linger, in [`TICK_NS`](super::TICK_NS), if it does.
    pub(super) due: [u32; 2],
    /// The others of its bucket.
    pub(super) next: u32,
    pub(super) prev: u32,
    pub(super) bucket: u16,
    pub(super) want: [Want; 2],
    /// Whether the adapter has been told to subscribe to it alone.
    pub(super) is_told: [bool; 2],
    /// It is in the list of those that may differ from what the adapter has been told.
    pub(super) is_dirty: bool,
    /// Somebody is to be told when its broadcasts are not heard any more.
    pub(super) is_kept: bool,
}

const _: () = assert!(size_of::<Slot<Topic>>() <= 56);

impl Named for Topic {
    fn name(&self) -> &str {
        &self.name
    }
}

impl Topic {
    pub(super) fn bucket(&self) -> Bucket {
        Bucket::new(self.bucket)
    }

    /// When it ends in a space, if it lingers there.
    pub(super) fn due(&self, space: usize) -> Option<u32> {
        (self.want[space] == Want::Lingers).then_some(self.due[space])
    }

    /// When it ends in the first space that it lingers in.
    pub(super) fn first_due(&self) -> Option<u32> {
        self.due(0).into_iter().chain(self.due(1)).min()
    }

    /// Nothing needs it any more.
    pub(super) fn is_over(&self) -> bool {
        self.want == [Want::No; 2]
            && self.is_told == [false; 2]
            && !self.is_dirty
            && self.shards.is_empty()
    }
}

/// All topics.
#[derive(Debug)]
pub(super) struct Topics {
    table: Table<Topic>,
}

impl Topics {
    pub(super) fn new(seed: u64) -> Self {
        Self { table: Table::new(seed) }
    }

    pub(super) fn len(&self) -> usize {
        self.table.len()
    }

    #[inline]
    pub(super) fn find(&self, name: &str) -> Option<u32> {
        self.table.find(name)
    }

    #[inline]
    pub(super) fn get(&self, at: u32) -> Option<&Topic> {
        self.table.get(at)
    }

    pub(super) fn get_mut(&mut self, at: u32) -> Option<&mut Topic> {
        self.table.get_mut(at)
    }

    /// A new one, in front of the others of its bucket, of which the first is named.
    pub(super) fn insert(&mut self, name: &str, bucket: Bucket, first: u32) -> u32 {
        let at = self.table.insert(Topic {
            name: name.into(),
            shards: Mask::EMPTY,
            due: [0; 2],
            next: first,
            prev: NIL,
            bucket: bucket.number() as u16,
            want: [Want::No; 2],
            is_told: [false; 2],
            is_dirty: false,
            is_kept: false,
        });
        if let Some(first) = self.get_mut(first) {
            first.prev = at;
        }
        at
    }

    /// Takes one away. The first of its bucket is now another, if it was that.
    pub(super) fn remove(&mut self, at: u32, first: &mut u32) {
        let Some(topic) = self.table.remove(at) else { return };
        match self.get_mut(topic.prev) {
            Some(prev) => prev.next = topic.next,
            None => *first = topic.next,
        }
        if let Some(next) = self.get_mut(topic.next) {
            next.prev = topic.prev;
        }
    }

    /// Those of a bucket, of which the first is named.
    pub(super) fn of_bucket(&self, first: u32) -> impl Iterator<Item = &Topic> {
        let next = |it: &&Topic| self.get(it.next);
        std::iter::successors(self.get(first), next)
    }
}
