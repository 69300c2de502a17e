//! Records that are found by key, or by a number that does not change.

use core::hash::BuildHasher;

use foldhash::fast::FixedState;
use hashbrown::HashTable;
use simurgh_data::Slab;

use crate::key::Key;

pub(crate) trait HasKey {
    fn key(&self) -> &Key;
}

#[derive(Debug)]
pub(crate) struct Keyed<T> {
    by_key: HashTable<u32>,
    records: Slab<T>,
    hasher: FixedState,
}

impl<T: HasKey> Keyed<T> {
    /// `seed` must not be guessable: users choose keys.
    pub(crate) fn new(seed: u64) -> Self {
        let hasher = FixedState::with_seed(seed);
        Self { by_key: HashTable::new(), records: Slab::new(), hasher }
    }

    pub(crate) fn len(&self) -> usize {
        self.by_key.len()
    }

    pub(crate) fn find(&self, key: &Key) -> Option<u32> {
        let hash = self.hasher.hash_one(key);
        self.by_key.find(hash, |at| self.get(*at).is_some_and(|it| it.key() == key)).copied()
    }

    pub(crate) fn get(&self, at: u32) -> Option<&T> {
        self.records.get(at)
    }

    pub(crate) fn get_mut(&mut self, at: u32) -> Option<&mut T> {
        self.records.get_mut(at)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        self.records.iter()
    }

    /// Adds a record, whose key must be new.
    pub(crate) fn insert(&mut self, record: T) -> u32 {
        let hash = self.hasher.hash_one(record.key());
        let at = self.records.insert(record);
        let Self { by_key, records, hasher } = self;
        by_key.insert_unique(hash, at, |at| {
            records.get(*at).map_or(0, |it| hasher.hash_one(it.key()))
        });
        at
    }

    pub(crate) fn remove(&mut self, at: u32) -> Option<T> {
        let record = self.records.remove(at)?;
        let hash = self.hasher.hash_one(record.key());
        if let Ok(entry) = self.by_key.find_entry(hash, |it| *it == at) {
            entry.remove();
        }
        if self.by_key.is_empty() {
            (self.by_key, self.records) = (HashTable::new(), Slab::new());
        }
        Some(record)
    }
}
