//! A table of records that are found by name or by a number that does not change.

use core::hash::BuildHasher;
use core::mem;

use foldhash::fast::FixedState;
use hashbrown::HashTable;

use simurgh_data::prelude::*;

/// In place of a number: no record.
pub(crate) const NIL: u32 = u32::MAX;
/// Records of a page. The table grows by pages, so no record is copied.
const PAGE: usize = 64;

/// A record with a name, which does not change.
pub(crate) trait Named {
    fn name(&self) -> &str;
}

#[derive(Debug)]
pub(crate) enum Slot<T> {
    Free(u32),
    Taken(T),
}

/// It keeps its memory until the last record is removed.
#[derive(Debug)]
pub(crate) struct Table<T> {
    by_name: HashTable<u32>,
    pages: Vec<Vec<Slot<T>>>,
    free: u32,
    hasher: FixedState,
}

impl<T: Named> Table<T> {
    pub(crate) fn new(seed: u64) -> Self {
        let hasher = FixedState::with_seed(seed);
        Self { by_name: HashTable::new(), pages: Vec::new(), free: NIL, hasher }
    }

    pub(crate) fn len(&self) -> usize {
        self.by_name.len()
    }

    /// All records' numbers are below this.
    pub(crate) fn end(&self) -> u32 {
        let before = self.pages.len().saturating_sub(1) * PAGE;
        self.pages.last().map_or(0, |page| (before + page.len()) as u32)
    }

    #[inline]
    pub(crate) fn find(&self, name: &str) -> Option<u32> {
        let is_it = |at: &u32| self.get(*at).is_some_and(|it| it.name() == name);
        self.by_name.find(self.hasher.hash_one(name), is_it).copied()
    }

    #[inline]
    pub(crate) fn get(&self, at: u32) -> Option<&T> {
        match slot(&self.pages, at)? {
            Slot::Taken(record) => Some(record),
            Slot::Free(_) => None,
        }
    }

    pub(crate) fn get_mut(&mut self, at: u32) -> Option<&mut T> {
        match self.slot_mut(at)? {
            Slot::Taken(record) => Some(record),
            Slot::Free(_) => None,
        }
    }

    /// Adds a record, whose name must be new.
    pub(crate) fn insert(&mut self, record: T) -> u32 {
        let hash = self.hasher.hash_one(record.name());
        let at = self.place(record);
        let Self { by_name, pages, hasher, .. } = self;
        let hash_of = |at: &u32| match slot(pages, *at) {
            Some(Slot::Taken(record)) => hasher.hash_one(record.name()),
            _ => 0,
        };
        by_name.insert_unique(hash, at, hash_of);
        at
    }

    pub(crate) fn remove(&mut self, at: u32) -> Option<T> {
        let free = self.free;
        let slot = self.slot_mut(at)?;
        let record = match mem::replace(slot, Slot::Free(free)) {
            Slot::Taken(record) => record,
            was @ Slot::Free(_) => {
                *slot = was;
                return None;
            }
        };
        self.free = at;
        let hash = self.hasher.hash_one(record.name());
        if let Ok(entry) = self.by_name.find_entry(hash, |it| *it == at) {
            entry.remove();
        }
        if self.by_name.is_empty() {
            self.by_name = HashTable::new();
            self.pages = Vec::new();
            self.free = NIL;
        }
        Some(record)
    }

    fn place(&mut self, record: T) -> u32 {
        let free = self.free;
        if let Some(slot @ &mut Slot::Free(next)) = self.slot_mut(free) {
            *slot = Slot::Taken(record);
            self.free = next;
            return free;
        }
        if self.pages.last().is_none_or(|page| page.len() == PAGE) {
            self.pages.push(Vec::with_capacity(PAGE));
        }
        let before = self.pages.len().saturating_sub(1) * PAGE;
        let page = self.pages.last_mut();
        page.map_or(NIL, |page| {
            page.push(Slot::Taken(record));
            (before + page.len() - 1) as u32
        })
    }

    fn slot_mut(&mut self, at: u32) -> Option<&mut Slot<T>> {
        self.pages.get_mut(at as usize / PAGE)?.get_mut(at as usize % PAGE)
    }
}

#[inline]
fn slot<T>(pages: &[Vec<Slot<T>>], at: u32) -> Option<&Slot<T>> {
    pages.get(at as usize / PAGE)?.get(at as usize % PAGE)
}
