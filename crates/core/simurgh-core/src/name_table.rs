//! Tables of topics by name.
//!
//! A table that grows hashes all its names again, so there are many small ones: none of them takes
//! long, however many topics clients make.

use std::hash::BuildHasher;
use std::rc::Rc;

use hashbrown::HashTable;

use crate::seeded_state::{Seed, SeededState};

/// With four million names, a part has 16,000: growing takes a millisecond.
const PARTS: usize = 256;
/// Parts that give room back in one call.
const PARTS_PER_CALL: usize = 8;

/// Places of topics in the registry and the histories: four bytes each, since the places have the
/// names.
pub(crate) struct NameTable {
    /// By the highest bits of the hash; empty until the first name.
    parts: Vec<HashTable<u32>>,
    len: usize,
    hasher: SeededState,
}

impl NameTable {
    pub(crate) fn new(seed: u64) -> Self {
        Self { parts: Vec::new(), len: 0, hasher: SeededState::new(seed) }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    #[cfg(test)]
    pub(crate) fn hash(&self, name: &str) -> u64 {
        self.hasher.hash_one(name)
    }

    #[cfg(test)]
    pub(crate) fn capacity(&self) -> usize {
        self.parts.iter().map(HashTable::capacity).sum()
    }

    #[cfg(test)]
    pub(crate) fn largest_part(&self) -> usize {
        self.parts.iter().map(HashTable::len).max().unwrap_or_default()
    }

    /// The slot of a name; `name_at` returns a slot's name.
    pub(crate) fn get<'a>(
        &self,
        name: &str,
        name_at: impl Fn(u32) -> Option<&'a str>,
    ) -> Option<u32> {
        // Hashing costs most of it.
        if self.is_empty() {
            return None;
        }
        let hash = self.hasher.hash_one(name);
        self.parts.get(part_of(hash))?.find(hash, |at| name_at(*at) == Some(name)).copied()
    }

    pub(crate) fn insert<'a>(
        &mut self,
        name: &str,
        at: u32,
        name_at: impl Fn(u32) -> Option<&'a str>,
    ) {
        let Self { parts, hasher, .. } = self;
        if parts.is_empty() {
            parts.resize_with(PARTS, HashTable::new);
        }
        let name_hash = hasher.hash_one(name);
        let hash = |at: &u32| hasher.hash_one(name_at(*at).unwrap_or_default());
        if let Some(part) = parts.get_mut(part_of(name_hash)) {
            part.insert_unique(name_hash, at, hash);
            self.len += 1;
        }
    }

    /// Takes a name out. The last one frees all room.
    pub(crate) fn remove(&mut self, name: &str, at: u32) {
        let hash = self.hasher.hash_one(name);
        let Some(part) = self.parts.get_mut(part_of(hash)) else { return };
        if let Ok(found) = part.find_entry(hash, |it| *it == at) {
            found.remove();
            self.len -= 1;
        }
        if self.is_empty() {
            self.clear();
        }
    }

    pub(crate) fn clear(&mut self) {
        (self.parts, self.len) = (Vec::new(), 0);
    }

    /// Some parts give back room that they do not need.
    pub(crate) fn give_room_back<'a>(&mut self, name_at: impl Fn(u32) -> Option<&'a str>) {
        let Self { parts, hasher, .. } = self;
        for part in parts.iter_mut().filter(|part| part.is_empty()) {
            *part = HashTable::new();
        }
        let too_large = parts.iter_mut().filter(|part| part.len() < part.capacity() / 4);
        for part in too_large.take(PARTS_PER_CALL) {
            part.shrink_to_fit(|at| hasher.hash_one(name_at(*at).unwrap_or_default()));
        }
    }
}

/// Maps the names of topics to values.
pub(crate) struct NameMap<V> {
    /// Empty until the first name.
    parts: Vec<HashTable<(Rc<str>, V)>>,
    len: usize,
    hasher: Seed,
}

impl<V> NameMap<V> {
    pub(crate) fn new(seed: u64) -> Self {
        Self { parts: Vec::new(), len: 0, hasher: Seed(seed) }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &(Rc<str>, V)> {
        self.parts.iter().flatten()
    }

    pub(crate) fn entry(&self, name: &str) -> Option<&(Rc<str>, V)> {
        if self.is_empty() {
            return None;
        }
        let hash = self.hasher.hash_one(name);
        self.parts.get(part_of(hash))?.find(hash, |(it, _)| **it == *name)
    }

    pub(crate) fn get(&self, name: &str) -> Option<&V> {
        self.entry(name).map(|(_, value)| value)
    }

    pub(crate) fn get_mut(&mut self, name: &str) -> Option<&mut V> {
        if self.is_empty() {
            return None;
        }
        let hash = self.hasher.hash_one(name);
        let part = self.parts.get_mut(part_of(hash))?;
        part.find_mut(hash, |(it, _)| **it == *name).map(|(_, value)| value)
    }

    /// The value of a name, which is new if the name is.
    pub(crate) fn get_or_insert_with(&mut self, name: &str, new: impl FnOnce() -> V) -> &mut V {
        let Self { parts, len, hasher } = self;
        if parts.is_empty() {
            parts.resize_with(PARTS, HashTable::new);
        }
        let hash = hasher.hash_one(name);
        let hash_of = |(name, _): &(Rc<str>, V)| hasher.hash_one(&**name);
        let entry = parts[part_of(hash)].entry(hash, |(it, _)| **it == *name, hash_of);
        let entry = entry.or_insert_with(|| {
            *len += 1;
            (name.into(), new())
        });
        &mut entry.into_mut().1
    }

    /// Takes a name out. The last one frees all room.
    pub(crate) fn remove(&mut self, name: &str) -> Option<V> {
        let hash = self.hasher.hash_one(name);
        let part = self.parts.get_mut(part_of(hash))?;
        let found = part.find_entry(hash, |(it, _)| **it == *name).ok()?;
        let ((_, value), _) = found.remove();
        if part.is_empty() {
            *part = HashTable::new();
        }
        self.len -= 1;
        if self.is_empty() {
            self.parts = Vec::new();
        }
        Some(value)
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
