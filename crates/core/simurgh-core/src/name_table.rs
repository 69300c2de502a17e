//! Tables of topics by name.
//!
//! A table that grows hashes all its names again, so there are many small ones: none of them takes
//! long, however many topics clients make.

use core::hash::BuildHasher;

use hashbrown::HashTable;

use crate::seeded_state::SeededState;
use simurgh_data::prelude::*;

/// With four million names, a part has 16,000: growing takes a millisecond.
const PARTS: usize = 256;
/// Parts that give room back in one call.
const PARTS_PER_CALL: usize = 8;

/// What stands for the names of topics: in the registry and the histories the topics' places, of
/// four bytes each, since the places have the names.
pub(crate) struct NameTable<E> {
    /// By the highest bits of the hash; empty until the first name.
    parts: Vec<HashTable<E>>,
    len: usize,
    hasher: SeededState,
}

impl<E> NameTable<E> {
    pub(crate) fn new(seed: u64) -> Self {
        Self { parts: Vec::new(), len: 0, hasher: SeededState::new(seed) }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &E> {
        self.parts.iter().flatten()
    }

    #[cfg(test)]
    pub(crate) fn hash(&self, name: &str) -> u64 {
        self.hasher.hash_one(name)
    }

    #[cfg(test)]
    pub(crate) fn capacity(&self) -> usize {
        self.parts.iter().map(HashTable::capacity).sum()
    }

    /// What stands for a name, as `is_it` knows.
    pub(crate) fn find(&self, name: &str, is_it: impl Fn(&E) -> bool) -> Option<&E> {
        // Hashing costs most of it.
        if self.is_empty() {
            return None;
        }
        let hash = self.hasher.hash_one(name);
        self.parts.get(part_of(hash))?.find(hash, is_it)
    }

    fn find_mut(&mut self, name: &str, is_it: impl Fn(&E) -> bool) -> Option<&mut E> {
        if self.is_empty() {
            return None;
        }
        let hash = self.hasher.hash_one(name);
        self.parts.get_mut(part_of(hash))?.find_mut(hash, is_it)
    }

    /// What stands for a name, which is new if the name is; `hash` returns the hash of its name.
    pub(crate) fn find_or_insert_with(
        &mut self,
        name: &str,
        is_it: impl Fn(&E) -> bool,
        hash: impl Fn(&SeededState, &E) -> u64,
        new: impl FnOnce() -> E,
    ) -> &mut E {
        let Self { parts, len, hasher } = self;
        if parts.is_empty() {
            parts.resize_with(PARTS, HashTable::new);
        }
        let name_hash = hasher.hash_one(name);
        let entry = parts[part_of(name_hash)].entry(name_hash, is_it, |it| hash(hasher, it));
        let insert = || {
            *len += 1;
            new()
        };
        entry.or_insert_with(insert).into_mut()
    }

    /// Takes a name out. The last one frees all room.
    pub(crate) fn take(&mut self, name: &str, is_it: impl Fn(&E) -> bool) -> Option<E> {
        let hash = self.hasher.hash_one(name);
        let part = self.parts.get_mut(part_of(hash))?;
        let (taken, _) = part.find_entry(hash, is_it).ok()?.remove();
        if part.is_empty() {
            *part = HashTable::new();
        }
        self.len -= 1;
        if self.is_empty() {
            self.parts = Vec::new();
        }
        Some(taken)
    }

    /// Some parts give back room that they do not need.
    pub(crate) fn give_room_back(&mut self, hash: impl Fn(&SeededState, &E) -> u64) {
        let Self { parts, hasher, .. } = self;
        let too_large = parts.iter_mut().filter(|part| part.len() < part.capacity() / 4);
        for part in too_large.take(PARTS_PER_CALL) {
            part.shrink_to_fit(|it| hash(hasher, it));
        }
    }
}

/// Maps the names of topics to values.
pub(crate) type NameMap<V> = NameTable<(Rc<str>, V)>;

impl<V> NameMap<V> {
    pub(crate) fn entry(&self, name: &str) -> Option<&(Rc<str>, V)> {
        self.find(name, |(it, _)| **it == *name)
    }

    pub(crate) fn get(&self, name: &str) -> Option<&V> {
        self.entry(name).map(|(_, value)| value)
    }

    pub(crate) fn get_mut(&mut self, name: &str) -> Option<&mut V> {
        self.find_mut(name, |(it, _)| **it == *name).map(|(_, value)| value)
    }

    /// The value of a name, which is new if the name is.
    pub(crate) fn get_or_insert_with(&mut self, name: &str, new: impl FnOnce() -> V) -> &mut V {
        let is_it = |(it, _): &(Rc<str>, V)| **it == *name;
        let hash = |by: &SeededState, (it, _): &(Rc<str>, V)| by.hash_one(&**it);
        &mut self.find_or_insert_with(name, is_it, hash, || (name.into(), new())).1
    }

    pub(crate) fn remove(&mut self, name: &str) -> Option<V> {
        self.take(name, |(it, _)| **it == *name).map(|(_, value)| value)
    }
}

fn part_of(hash: u64) -> usize {
    // The highest seven bits are the table's own.
    (hash >> 48) as usize % PARTS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_map_finds_what_it_has_and_frees_its_room() {
        let mut map = NameMap::new(7);
        let names: Vec<String> = (0..10_000).map(|n| format!("t{n}")).collect();
        for (n, name) in names.iter().enumerate() {
            assert_eq!(map.remove(name), None);
            *map.get_or_insert_with(name, || 0) = n;
            assert_eq!(*map.get_or_insert_with(name, || 0), n);
        }
        let largest = map.parts.iter().map(HashTable::len).max();
        assert!(largest < Some(names.len() / 100), "{largest:?}: a part grows in little time");
        assert_eq!(map.iter().count(), names.len());
        for (n, name) in names.iter().enumerate() {
            assert_eq!(map.entry(name).map(|(name, n)| (&**name, *n)), Some((name.as_str(), n)));
            assert_eq!(map.get_mut(name).copied(), Some(n));
            assert_eq!((map.remove(name), map.get(name)), (Some(n), None));
        }
        assert!(map.is_empty() && map.parts.capacity() == 0);
    }
}
