//! A table of records that are found by name or by a number that does not change.

use core::hash::BuildHasher;

use foldhash::fast::FixedState;
use hashbrown::HashTable;
use simurgh_data::Slab;

/// A record with a name, which does not change.
pub(crate) trait Named {
    fn name(&self) -> &str;
}

/// It keeps its memory until the last record is removed.
#[derive(Debug)]
pub(crate) struct Table<T> {
    by_name: HashTable<u32>,
    records: Slab<T>,
    hasher: FixedState,
}

impl<T: Named> Table<T> {
    pub(crate) fn new(seed: u64) -> Self {
        let hasher = FixedState::with_seed(seed);
        Self { by_name: HashTable::new(), records: Slab::new(), hasher }
    }

    pub(crate) fn len(&self) -> usize {
        self.by_name.len()
    }

    /// All records' numbers are below this.
    pub(crate) fn end(&self) -> u32 {
        self.records.slots() as u32
    }

    #[inline]
    pub(crate) fn find(&self, name: &str) -> Option<u32> {
        let is_it = |at: &u32| self.get(*at).is_some_and(|it| it.name() == name);
        self.by_name.find(self.hasher.hash_one(name), is_it).copied()
    }

    #[inline]
    pub(crate) fn get(&self, at: u32) -> Option<&T> {
        self.records.get(at)
    }

    pub(crate) fn get_mut(&mut self, at: u32) -> Option<&mut T> {
        self.records.get_mut(at)
    }

    /// Adds a record, whose name must be new.
    pub(crate) fn insert(&mut self, record: T) -> u32 {
        let hash = self.hasher.hash_one(record.name());
        let at = self.records.insert(record);
        let Self { by_name, records, hasher } = self;
        let hash_of = |at: &u32| records.get(*at).map_or(0, |it| hasher.hash_one(it.name()));
        by_name.insert_unique(hash, at, hash_of);
        at
    }

    pub(crate) fn remove(&mut self, at: u32) -> Option<T> {
        let record = self.records.remove(at)?;
        let hash = self.hasher.hash_one(record.name());
        if let Ok(entry) = self.by_name.find_entry(hash, |it| *it == at) {
            entry.remove();
        }
        if self.by_name.is_empty() {
            (self.by_name, self.records) = (HashTable::new(), Slab::new());
        }
        Some(record)
    }
}
