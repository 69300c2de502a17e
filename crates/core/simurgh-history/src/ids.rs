//! Ids that publishers give to their messages, so that repeating one stores it once.
use alloc::boxed::Box;
use alloc::collections::VecDeque;
use core::hash::BuildHasher;

use foldhash::fast::FixedState;
use hashbrown::HashTable;

use crate::position::Place;

/// The ids of one topic: each is remembered for [`AGE_MS`](Self::AGE_MS), and beyond
/// [`COUNT_MAX`](Self::COUNT_MAX) only the newest are.
///
/// Without ids it allocates nothing.
#[derive(Clone, Debug)]
pub struct Ids {
    hasher: FixedState,
    memory: Option<Box<Memory>>,
}

#[derive(Clone, Debug, Default)]
struct Memory {
    remembered: VecDeque<Remembered>,
    numbers: HashTable<u32>,
    /// The number of the first id; numbers wrap.
    first: u32,
}

#[derive(Clone, Debug)]
struct Remembered {
    id: Box<str>,
    place: Place,
    at_ms: u64,
}

impl Ids {
    /// Milliseconds for which an id is remembered.
    pub const AGE_MS: u64 = 120_000;
    /// The most ids that are remembered.
    pub const COUNT_MAX: usize = 10_000;
    /// The most bytes that an id may have.
    pub const BYTES_MAX: usize = 128;

    /// Without ids. `seed` keys the hashes: random, so that users cannot choose slow ids.
    pub fn new(seed: u64) -> Self {
        Ids { hasher: FixedState::with_seed(seed), memory: None }
    }

    /// Whether a text may be an id: 1 to [`BYTES_MAX`](Self::BYTES_MAX) bytes.
    pub fn is_id(text: &str) -> bool {
        (1..=Self::BYTES_MAX).contains(&text.len())
    }

    /// The place of the message with this id, if it is remembered.
    pub fn check(&mut self, id: &str, now_ms: u64) -> Option<Place> {
        self.expire(now_ms);
        let hash = self.hasher.hash_one(id);
        let memory = self.memory.as_deref()?;
        let is_it = |&number: &u32| memory.get(number).is_some_and(|it| *it.id == *id);
        let number = memory.numbers.find(hash, is_it)?;
        memory.get(*number).map(|it| it.place)
    }

    /// Remembers the position of the message with this id. An id that is already remembered keeps
    /// its position; a text that [is not an id](Self::is_id) is ignored.
    pub fn remember(&mut self, id: &str, place: Place, now_ms: u64) {
        if !Self::is_id(id) || self.check(id, now_ms).is_some() {
            return;
        }
        let hasher = &self.hasher;
        let memory = self.memory.get_or_insert_default();
        if memory.remembered.len() >= Self::COUNT_MAX {
            memory.forget_first(hasher);
        }
        let number = memory.first.wrapping_add(memory.remembered.len() as u32);
        memory.remembered.push_back(Remembered { id: id.into(), place, at_ms: now_ms });
        let Memory { remembered, numbers, first } = &mut **memory;
        let hash = |&number: &u32| {
            let it = remembered.get(number.wrapping_sub(*first) as usize);
            hasher.hash_one(it.map_or("", |it| &*it.id))
        };
        numbers.insert_unique(hasher.hash_one(id), number, hash);
    }

    /// Forgets what is too old. Visits each of those, and one more.
    pub fn expire(&mut self, now_ms: u64) {
        let Some(memory) = self.memory.as_deref_mut() else { return };
        let is_old = |it: &Remembered| now_ms.saturating_sub(it.at_ms) >= Self::AGE_MS;
        while memory.remembered.front().is_some_and(is_old) {
            memory.forget_first(&self.hasher);
        }
        if memory.remembered.is_empty() {
            self.memory = None;
        } else {
            memory.give_back(&self.hasher);
        }
    }

    /// All remembered ids, oldest first: id, place, and the time of storing.
    pub fn iter(&self) -> impl Iterator<Item = (&str, Place, u64)> {
        let remembered = self.memory.iter().flat_map(|memory| &memory.remembered);
        remembered.map(|it| (&*it.id, it.place, it.at_ms))
    }

    /// How many are remembered.
    pub fn len(&self) -> usize {
        self.memory.as_ref().map_or(0, |memory| memory.remembered.len())
    }

    /// Whether none is remembered.
    pub fn is_empty(&self) -> bool {
        self.memory.is_none()
    }
}

impl Memory {
    fn get(&self, number: u32) -> Option<&Remembered> {
        self.remembered.get(number.wrapping_sub(self.first) as usize)
    }

    fn forget_first(&mut self, hasher: &FixedState) {
        let Some(it) = self.remembered.front() else { return };
        let first = self.first;
        if let Ok(found) = self.numbers.find_entry(hasher.hash_one(&*it.id), |it| *it == first) {
            found.remove();
        }
        self.remembered.pop_front();
        self.first = first.wrapping_add(1);
    }

    fn give_back(&mut self, hasher: &FixedState) {
        let Memory { remembered, numbers, first } = self;
        let len = remembered.len();
        if len >= remembered.capacity() / 4 || remembered.capacity() <= SLOTS_MIN {
            return;
        }
        remembered.shrink_to((2 * len).max(SLOTS_MIN));
        numbers.shrink_to(2 * len, |&number| {
            let it = remembered.get(number.wrapping_sub(*first) as usize);
            hasher.hash_one(it.map_or("", |it| &*it.id))
        });
    }
}

/// Fewer slots are not freed before the last id is gone.
const SLOTS_MIN: usize = 16;

#[cfg(test)]
mod tests {
    use alloc::format;
    use alloc::vec::Vec;

    use super::*;

    fn heap_bytes(ids: &Ids) -> usize {
        let Some(memory) = ids.memory.as_deref() else { return 0 };
        let texts: usize = memory.remembered.iter().map(|it| it.id.len()).sum();
        size_of::<Memory>()
            + memory.remembered.capacity() * size_of::<Remembered>()
            + memory.numbers.allocation_size()
            + texts
    }

    #[test]
    fn id_is_remembered_for_its_lifetime() {
        let mut ids = Ids::new(7);
        assert_eq!((ids.check("a", 0), ids.is_empty(), heap_bytes(&ids)), (None, true, 0));
        ids.remember("a", Place::new(1), 1_000);
        ids.remember("b", Place::new(2), 1_001);
        assert_eq!(ids.check("a", 1_000 + Ids::AGE_MS - 1), Some(Place::new(1)));
        assert_eq!(ids.check("a", 0), Some(Place::new(1)), "a clock that goes back");
        assert_eq!(ids.check("c", 1_000), None);
        assert_eq!(ids.check("a", 1_000 + Ids::AGE_MS), None);
        assert_eq!((ids.len(), ids.is_empty()), (1, false));
        assert_eq!(ids.check("b", 1_000 + Ids::AGE_MS), Some(Place::new(2)));
        ids.expire(1_001 + Ids::AGE_MS);
        assert_eq!((ids.len(), ids.is_empty(), heap_bytes(&ids)), (0, true, 0));
        ids.remember("a", Place::new(3), 300_000);
        assert_eq!(ids.check("a", 300_000), Some(Place::new(3)));
    }

    #[test]
    fn remembered_id_keeps_its_place_until_it_expires() {
        let mut ids = Ids::new(7);
        ids.remember("a", Place::new(1), 0);
        ids.remember("a", Place::new(2), Ids::AGE_MS - 1);
        assert_eq!((ids.check("a", 0), ids.len()), (Some(Place::new(1)), 1));
        ids.remember("a", Place::new(3), Ids::AGE_MS);
        assert_eq!((ids.check("a", 0), ids.len()), (Some(Place::new(3)), 1));
        assert_eq!(ids.iter().collect::<Vec<_>>(), [("a", Place::new(3), Ids::AGE_MS)]);
    }

    #[test]
    fn id_length_is_1_to_128_bytes() {
        let mut ids = Ids::new(7);
        for (count, is_id) in [(0, false), (1, true), (128, true), (129, false)] {
            let id = "x".repeat(count);
            assert_eq!(Ids::is_id(&id), is_id, "{count}");
            ids.remember(&id, Place::new(count as u64), 0);
            assert_eq!(ids.check(&id, 0).is_some(), is_id, "{count}");
        }
        assert!(!Ids::is_id(&"é".repeat(65)), "bytes, not characters");
    }

    #[test]
    fn oldest_ids_are_dropped_beyond_the_maximum() {
        let mut ids = Ids::new(7);
        let count = Ids::COUNT_MAX as u64;
        let id = |n: u64| format!("id {n}");
        for n in 0..count {
            ids.remember(&id(n), Place::new(n), n);
        }
        assert_eq!((ids.check(&id(0), 0), ids.len()), (Some(Place::ZERO), Ids::COUNT_MAX));
        for n in count..3 * count {
            ids.remember(&id(n), Place::new(n), n);
            assert_eq!(ids.len(), Ids::COUNT_MAX);
        }
        assert_eq!(ids.check(&id(2 * count - 1), 0), None);
        for n in 2 * count..3 * count {
            assert_eq!(ids.check(&id(n), 0), Some(Place::new(n)));
        }
        // Most ids expire, and their memory is freed.
        let full = heap_bytes(&ids);
        ids.expire(3 * count - 101 + Ids::AGE_MS);
        assert_eq!(ids.len(), 100);
        assert!(heap_bytes(&ids) < full / 40, "{} of {full} B", heap_bytes(&ids));
        for n in 3 * count - 100..3 * count {
            assert_eq!(ids.check(&id(n), 0), Some(Place::new(n)));
        }
    }

    #[test]
    fn id_memory_is_released_once_most_of_it_is_unused() {
        let mut ids = Ids::new(7);
        let id = |n: u64| format!("{n:04}");
        for n in 0..1_000 {
            ids.remember(&id(n), Place::new(n), n);
        }
        let full = heap_bytes(&ids);
        ids.expire(399 + Ids::AGE_MS);
        assert_eq!((ids.len(), full - heap_bytes(&ids)), (600, 4 * 400), "their texts only");
        ids.expire(899 + Ids::AGE_MS);
        let few = heap_bytes(&ids);
        assert!(few < full / 4, "{few} of {full} B for 100");
        for n in 1_000..1_100 {
            ids.remember(&id(n), Place::new(n), 999);
        }
        assert_eq!(heap_bytes(&ids) - few, 4 * 100, "room for as many is left");
    }

    #[test]
    fn id_numbers_wrap_around() {
        let mut ids = Ids::new(7);
        let memory = Memory { first: u32::MAX - 1, ..Memory::default() };
        ids.memory = Some(Box::new(memory));
        for n in 0..5 {
            ids.remember(&format!("{n}"), Place::new(n), n);
        }
        ids.expire(2 + Ids::AGE_MS);
        let left: Vec<_> = (0..5).map(|n| ids.check(&format!("{n}"), 0).is_some()).collect();
        assert_eq!(left, [false, false, false, true, true]);
    }
}
