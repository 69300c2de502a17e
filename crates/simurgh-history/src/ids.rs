//! Ids that publishers give to their messages, so that repeating one stores it once.
use alloc::boxed::Box;
use alloc::collections::VecDeque;
use core::hash::BuildHasher;

use foldhash::fast::FixedState;
use hashbrown::HashTable;

use crate::position::Place;

/// The ids of one topic: each is remembered for [`AGE_MS`](Self::AGE_MS), of more than
/// [`COUNT_MAX`](Self::COUNT_MAX) the newest.
///
/// Without ids it has no memory of its own.
#[derive(Debug)]
pub struct Ids {
    hasher: FixedState,
    memory: Option<Box<Memory>>,
}

#[derive(Debug, Default)]
struct Memory {
    /// Oldest first.
    remembered: VecDeque<Remembered>,
    /// Numbers of ids, by their text.
    numbers: HashTable<u32>,
    /// The number of the first; they wrap around.
    first: u32,
}

#[derive(Debug)]
struct Remembered {
    id: Box<str>,
    place: Place,
    at_ms: u64,
}

impl Ids {
    /// Milliseconds for which an id is remembered.
    pub const AGE_MS: u64 = 120_000;
    /// Ids that are remembered.
    pub const COUNT_MAX: usize = 10_000;
    /// Bytes that an id may have.
    pub const BYTES_MAX: usize = 128;

    /// Without ids. `seed` is of its hashes: random in life, so that nobody can choose ids that are
    /// slow to find.
    pub fn new(seed: u64) -> Self {
        Ids { hasher: FixedState::with_seed(seed), memory: None }
    }

    /// Whether a text may be an id: 1 to [`BYTES_MAX`](Self::BYTES_MAX) bytes.
    pub fn is_id(text: &str) -> bool {
        (1..=Self::BYTES_MAX).contains(&text.len())
    }

    /// Where the message with this id stands, if it is remembered.
    pub fn check(&mut self, id: &str, now_ms: u64) -> Option<Place> {
        self.expire(now_ms);
        let hash = self.hasher.hash_one(id);
        let memory = self.memory.as_deref()?;
        let is_it = |&number: &u32| memory.get(number).is_some_and(|it| *it.id == *id);
        let number = memory.numbers.find(hash, is_it)?;
        memory.get(*number).map(|it| it.place)
    }

    /// Remembers where the message with this id stands. One that is remembered already stays as it
    /// is; what [is no id](Self::is_id) is not remembered.
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

    /// Forgets what is too old. Each is looked at once, and one more.
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

    /// All that are remembered, oldest first: id, place, and when that was.
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

    /// Bytes of its own memory. Costs a look at each id.
    pub fn heap_bytes(&self) -> usize {
        let Some(memory) = self.memory.as_deref() else { return 0 };
        let texts: usize = memory.remembered.iter().map(|it| it.id.len()).sum();
        size_of::<Memory>()
            + memory.remembered.capacity() * size_of::<Remembered>()
            + memory.numbers.allocation_size()
            + texts
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

    /// Returns memory once most of it is not used.
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

/// Room for fewer is not worth being returned before the last is gone.
const SLOTS_MIN: usize = 16;
