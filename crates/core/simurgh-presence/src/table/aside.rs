//! State that a small, quiet topic does not need: index, pending changes, other nodes, extras.
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::hash::Hash;
use core::mem;

use foldhash::fast::FixedState;
use hashbrown::{HashMap, HashTable};
use simurgh_data::{NIL, Slab};

use super::peers::Peer;
use super::{
    COMPACTED_FROM, Entry, INDEX_DROPPED_AT, Key, SCANNED_MAX, Table, Whose, entry_hash,
    member_hash,
};
use crate::meta::{Extra, Meta};
use crate::phx_ref::PhxRef;

#[derive(Debug, Default)]
pub(super) struct Aside {
    pub(super) index: Option<Index>,
    pub(super) extras: HashMap<u32, Extra, FixedState>,
    pub(super) changes: Option<Changes>,
    pub(super) journal: Option<Journal>,
    pub(super) peers: Vec<Peer>,
    pub(super) remote: usize,
}

#[derive(Debug, Default)]
pub(super) struct Index {
    pub(super) keys: HashTable<u32>,
    pub(super) entries: HashTable<u32>,
    pub(super) members: HashTable<u32>,
}

#[derive(Debug, Default)]
pub(super) struct Changes {
    pub(super) keys: Vec<u32>,
    pub(super) left: Vec<Left>,
    /// Whether a newcomer was shown entries before a diff: then a diff must have their leaves.
    pub(super) exposed: bool,
}

#[derive(Debug)]
pub(super) struct Left {
    pub(super) key: u32,
    pub(super) phx_ref: PhxRef,
    pub(super) prev: PhxRef,
    pub(super) meta: Meta,
    /// Whether a diff had it, so that all members have received it.
    pub(super) told: bool,
}

#[derive(Debug)]
pub(super) struct Journal {
    pub(super) from: u64,
    /// Entries that were added or changed, with the ref that others have. Some may have been
    /// removed since, and their places reused: the last of a place counts.
    pub(super) joined: Vec<(u32, PhxRef)>,
    pub(super) left: Vec<PhxRef>,
}

impl Aside {
    pub(super) fn changes(&mut self) -> &mut Changes {
        self.changes.get_or_insert_default()
    }

    fn is_empty(&self) -> bool {
        let Aside { index, extras, changes, journal, peers, remote } = self;
        index.is_none()
            && extras.is_empty()
            && changes.is_none()
            && journal.is_none()
            && peers.is_empty()
            && *remote == 0
    }
}

/// Spreads 32 bits of a hash over 64.
pub(super) fn spread(hash: u32) -> u64 {
    u64::from(hash).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

impl<M: Copy + Eq + Hash> Table<M> {
    pub(super) fn index_key(&mut self, at: u32) {
        if self.keys.len() > SCANNED_MAX && self.index().is_none() {
            return self.build_index();
        }
        let Self { keys, aside, .. } = self;
        if let Some(index) = index_of(aside) {
            index.add_key(at, keys);
        }
    }

    pub(super) fn index_entry(&mut self, at: u32) {
        if self.entries.len() > SCANNED_MAX && self.index().is_none() {
            return self.build_index();
        }
        let Self { entries, aside, hasher, .. } = self;
        if let Some(index) = index_of(aside) {
            index.add_entry(at, entries, hasher);
        }
    }

    /// Makes `at` the first entry of its member.
    pub(super) fn index_member(&mut self, at: u32) {
        let Self { entries, aside, hasher, .. } = self;
        if let Some(index) = index_of(aside) {
            index.add_member(at, entries, hasher);
        }
    }

    pub(super) fn unindex_key(&mut self, at: u32) {
        let Self { keys, aside, .. } = self;
        if let (Some(index), Some(key)) = (index_of(aside), keys.get(at))
            && let Ok(found) = index.keys.find_entry(spread(key.hash), |&it| it == at)
        {
            found.remove();
        }
    }

    /// Takes an entry out of the index, and out of the members' if it was its member's first.
    pub(super) fn unindex_entry(&mut self, at: u32) {
        self.unindex_member(at);
        let Self { entries, aside, hasher, .. } = self;
        if let (Some(index), Some(entry)) = (index_of(aside), entries.get(at))
            && let Ok(found) = index.entries.find_entry(entry_hash(hasher, entry), |&it| it == at)
        {
            found.remove();
        }
    }

    pub(super) fn unindex_member(&mut self, at: u32) {
        let Self { entries, aside, hasher, .. } = self;
        if let (Some(index), Some(entry)) = (index_of(aside), entries.get(at))
            && let Ok(found) = index.members.find_entry(member_hash(hasher, entry), |&it| it == at)
        {
            found.remove();
        }
    }

    fn build_index(&mut self) {
        let mut index = Index::default();
        for (at, _) in self.keys.iter() {
            index.add_key(at, &self.keys);
        }
        for (at, _) in self.entries.iter() {
            index.add_entry(at, &self.entries, &self.hasher);
        }
        self.aside().index = Some(index);
    }

    /// Frees unused memory. Call it after taking changes out: places of keys and entries change.
    pub(super) fn settle(&mut self) {
        let Some(aside) = &mut self.aside else { return };
        if aside.changes.is_some() || aside.journal.is_some() {
            return;
        }
        let few = self.entries.len().max(self.keys.len());
        if few <= INDEX_DROPPED_AT {
            aside.index = None;
        }
        if aside.extras.is_empty() {
            aside.extras = HashMap::default();
        }
        if aside.is_empty() {
            self.aside = None;
        }
        if self.entries.is_empty() && self.keys.is_empty() {
            (self.entries, self.keys) = (Slab::new(), Slab::new());
            return;
        }
        let slots = self.entries.slots().max(self.keys.slots());
        if slots >= COMPACTED_FROM && few * 4 <= slots {
            self.compact();
        }
    }

    fn compact(&mut self) {
        let keys = mem::replace(&mut self.keys, Slab::new());
        let mut entries = mem::replace(&mut self.entries, Slab::new());
        let mut extras = HashMap::default();
        if let Some(aside) = &mut self.aside {
            aside.index = None;
            extras = mem::take(&mut aside.extras);
        }
        for (old, key) in keys.into_records() {
            let mut at = key.first;
            let key = self.keys.insert(Key { first: NIL, last: NIL, ..key });
            self.index_key(key);
            if let Some(extra) = extras.remove(&old) {
                self.aside().extras.insert(key, extra);
            }
            while let Some(entry) = entries.remove(at) {
                at = entry.after;
                self.place(Entry { key, ..entry });
            }
        }
    }
}

fn index_of(aside: &mut Option<Box<Aside>>) -> Option<&mut Index> {
    aside.as_mut()?.index.as_mut()
}

impl Index {
    fn add_key(&mut self, at: u32, keys: &Slab<Key>) {
        let hash = |&at: &u32| keys.get(at).map_or(0, |key| spread(key.hash));
        self.keys.insert_unique(hash(&at), at, hash);
    }

    fn add_entry<M: Hash>(&mut self, at: u32, entries: &Slab<Entry<M>>, hasher: &FixedState) {
        let hash = |&at: &u32| entries.get(at).map_or(0, |entry| entry_hash(hasher, entry));
        self.entries.insert_unique(hash(&at), at, hash);
        if let Some(Entry { whose: Whose::Local { before: NIL, .. }, .. }) = entries.get(at) {
            self.add_member(at, entries, hasher);
        }
    }

    fn add_member<M: Hash>(&mut self, at: u32, entries: &Slab<Entry<M>>, hasher: &FixedState) {
        let hash = |&at: &u32| entries.get(at).map_or(0, |entry| member_hash(hasher, entry));
        self.members.insert_unique(hash(&at), at, hash);
    }
}
