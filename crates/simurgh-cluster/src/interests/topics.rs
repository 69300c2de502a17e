//! The table of topics: records at numbers that stay theirs, found by name.

use std::hash::BuildHasher;
use std::mem;

use foldhash::fast::FixedState;
use hashbrown::HashTable;

use super::shards::Mask;
use crate::subject::Bucket;

/// No record.
pub(super) const NIL: u32 = u32::MAX;
/// Records of a page: growing copies none, and at most so many are not used.
const PAGE: usize = 64;

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
}

const _: () = assert!(size_of::<Slot>() <= 56);

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

#[derive(Debug)]
enum Slot {
    /// The next free one, or [`NIL`].
    Free(u32),
    Taken(Topic),
}

/// All topics. What a crowd took is kept for the next one until no topic is left.
#[derive(Debug)]
pub(super) struct Topics {
    by_name: HashTable<u32>,
    pages: Vec<Vec<Slot>>,
    free: u32,
    hasher: FixedState,
}

impl Topics {
    pub(super) fn new(seed: u64) -> Self {
        let hasher = FixedState::with_seed(seed);
        Self { by_name: HashTable::new(), pages: Vec::new(), free: NIL, hasher }
    }

    pub(super) fn len(&self) -> usize {
        self.by_name.len()
    }

    #[inline]
    pub(super) fn find(&self, name: &str) -> Option<u32> {
        let is_it = |at: &u32| self.get(*at).is_some_and(|it| *it.name == *name);
        self.by_name.find(self.hasher.hash_one(name), is_it).copied()
    }

    #[inline]
    pub(super) fn get(&self, at: u32) -> Option<&Topic> {
        match slot(&self.pages, at)? {
            Slot::Taken(topic) => Some(topic),
            Slot::Free(_) => None,
        }
    }

    pub(super) fn get_mut(&mut self, at: u32) -> Option<&mut Topic> {
        match self.slot_mut(at)? {
            Slot::Taken(topic) => Some(topic),
            Slot::Free(_) => None,
        }
    }

    /// A new one, in front of the others of its bucket, of which the first is named.
    pub(super) fn insert(&mut self, name: &str, bucket: Bucket, first: u32) -> u32 {
        let topic = Topic {
            name: name.into(),
            shards: Mask::EMPTY,
            due: [0; 2],
            next: first,
            prev: NIL,
            bucket: bucket.number() as u16,
            want: [Want::No; 2],
            is_told: [false; 2],
            is_dirty: false,
        };
        let at = self.place(topic);
        if let Some(first) = self.get_mut(first) {
            first.prev = at;
        }
        let Self { by_name, pages, hasher, .. } = self;
        let hash_of = |at: &u32| match slot(pages, *at) {
            Some(Slot::Taken(topic)) => hasher.hash_one(&*topic.name),
            _ => 0,
        };
        by_name.insert_unique(hasher.hash_one(name), at, hash_of);
        at
    }

    /// Takes one away. The first of its bucket is now another, if it was that.
    pub(super) fn remove(&mut self, at: u32, first: &mut u32) {
        let free = self.free;
        let Some(slot) = self.slot_mut(at) else { return };
        let topic = match mem::replace(slot, Slot::Free(free)) {
            Slot::Taken(topic) => topic,
            was @ Slot::Free(_) => return *slot = was,
        };
        self.free = at;
        if let Ok(entry) =
            self.by_name.find_entry(self.hasher.hash_one(&*topic.name), |it| *it == at)
        {
            entry.remove();
        }
        match self.get_mut(topic.prev) {
            Some(prev) => prev.next = topic.next,
            None => *first = topic.next,
        }
        if let Some(next) = self.get_mut(topic.next) {
            next.prev = topic.prev;
        }
        if self.by_name.is_empty() {
            self.by_name = HashTable::new();
            self.pages = Vec::new();
            self.free = NIL;
        }
    }

    /// Those of a bucket, of which the first is named.
    pub(super) fn of_bucket(&self, first: u32) -> impl Iterator<Item = &Topic> {
        let next = |it: &&Topic| self.get(it.next);
        std::iter::successors(self.get(first), next)
    }

    fn place(&mut self, topic: Topic) -> u32 {
        let free = self.free;
        if let Some(slot @ &mut Slot::Free(next)) = self.slot_mut(free) {
            *slot = Slot::Taken(topic);
            self.free = next;
            return free;
        }
        if self.pages.last().is_none_or(|page| page.len() == PAGE) {
            self.pages.push(Vec::with_capacity(PAGE));
        }
        let before = self.pages.len().saturating_sub(1) * PAGE;
        let page = self.pages.last_mut();
        page.map_or(NIL, |page| {
            page.push(Slot::Taken(topic));
            (before + page.len() - 1) as u32
        })
    }

    fn slot_mut(&mut self, at: u32) -> Option<&mut Slot> {
        self.pages.get_mut(at as usize / PAGE)?.get_mut(at as usize % PAGE)
    }
}

#[inline]
fn slot(pages: &[Vec<Slot>], at: u32) -> Option<&Slot> {
    pages.get(at as usize / PAGE)?.get(at as usize % PAGE)
}
