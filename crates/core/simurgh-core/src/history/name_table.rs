//! Places of topics by name: four bytes each, since the places have the names.

use std::hash::BuildHasher;

use hashbrown::HashTable;

use crate::seeded_state::SeededState;

pub(super) struct NameTable {
    places: HashTable<u32>,
    hasher: SeededState,
}

impl NameTable {
    pub(super) fn new(seed: u64) -> Self {
        Self { places: HashTable::new(), hasher: SeededState::new(seed) }
    }

    pub(super) fn len(&self) -> usize {
        self.places.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    pub(super) fn capacity(&self) -> usize {
        self.places.capacity()
    }

    /// The slot of a name; `name_at` returns a slot's name.
    pub(super) fn get<'a>(
        &self,
        name: &str,
        name_at: impl Fn(u32) -> Option<&'a str>,
    ) -> Option<u32> {
        let hash = self.hasher.hash_one(name);
        self.places.find(hash, |at| name_at(*at) == Some(name)).copied()
    }

    pub(super) fn insert<'a>(
        &mut self,
        name: &str,
        at: u32,
        name_at: impl Fn(u32) -> Option<&'a str>,
    ) {
        let Self { places, hasher } = self;
        let hash = |at: &u32| hasher.hash_one(name_at(*at).unwrap_or_default());
        places.insert_unique(hasher.hash_one(name), at, hash);
    }

    pub(super) fn remove(&mut self, name: &str, at: u32) {
        let hash = self.hasher.hash_one(name);
        if let Ok(found) = self.places.find_entry(hash, |it| *it == at) {
            found.remove();
        }
    }

    pub(super) fn clear(&mut self) {
        self.places = HashTable::new();
    }

    pub(super) fn give_room_back<'a>(&mut self, name_at: impl Fn(u32) -> Option<&'a str>) {
        let Self { places, hasher } = self;
        places.shrink_to_fit(|at| hasher.hash_one(name_at(*at).unwrap_or_default()));
    }
}
