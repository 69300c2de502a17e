//! The table: keys with their entries, their index, and their links.
//!
//! A quiet topic of a few members has only entries and keys; what more members, pending changes or
//! other nodes need is in [`Aside`].

mod aside;
mod local;
mod peers;
mod take;
#[cfg(test)]
mod tests;
mod view;

use alloc::boxed::Box;
use core::hash::{BuildHasher, Hash};
use core::mem;

use foldhash::fast::FixedState;
use hashbrown::HashTable;
use simurgh_data::{NIL, Slab};

use self::aside::{Aside, Index, Left, spread};
use crate::meta::Meta;
use crate::phx_ref::{Owner, PhxRef};

pub use self::local::{AlreadyTracked, NotTracked};
pub use self::peers::QUEUED_DELTAS_MAX;
pub use self::view::{Listed, Presence};

/// Up to as many keys and entries are scanned; more have an index.
const SCANNED_MAX: usize = 16;
/// The index is dropped when so few are left.
const INDEX_DROPPED_AT: usize = 8;
/// Fewer places are freed only when the last is unused.
const COMPACTED_FROM: usize = 64;

/// What one member, here or on another node, has tracked under one key.
#[derive(Debug)]
struct Entry<M> {
    phx_ref: PhxRef,
    /// [`PhxRef::NONE`] if it replaces none.
    prev: PhxRef,
    meta: Meta,
    key: u32,
    /// Neighbours of the same key.
    before: u32,
    after: u32,
    /// Not in a diff yet. All fresh ones of a key follow all others.
    fresh: bool,
    /// Own entries: in a delta.
    published: bool,
    whose: Whose<M>,
}

#[derive(Clone, Copy, Debug)]
enum Whose<M> {
    /// A local member's, with neighbours of the same member.
    Local {
        member: M,
        before: u32,
        after: u32,
    },
    Peer(Owner),
}

impl<M: PartialEq> Whose<M> {
    fn is(&self, local: M) -> bool {
        matches!(self, Self::Local { member, .. } if *member == local)
    }
}

#[derive(Debug)]
struct Key {
    text: Box<str>,
    first: u32,
    last: u32,
    hash: u32,
    /// In the list of changed keys; stays until the diff, with or without entries.
    changed: bool,
}

// Budgets: 150 bytes for an entry with its key, and 250 for a topic of one entry, table included.
const _: () = assert!(Slab::<Entry<u64>>::SLOT_BYTES == 80);
const _: () = assert!(Slab::<Key>::SLOT_BYTES == 32);
const _: () = assert!(size_of::<Table<u64>>() <= 104);

/// The presences of one topic, as one node has them. `M` identifies a member of this node: whatever
/// tells a channel apart from others.
///
/// The caller bounds what a peer or a user hands in (bytes of keys and metas, entries), and no
/// input makes an operation take longer than its own size.
#[derive(Debug)]
pub struct Table<M> {
    owner: Owner,
    /// Changes of own entries so far.
    version: u64,
    hasher: FixedState,
    entries: Slab<Entry<M>>,
    keys: Slab<Key>,
    aside: Option<Box<Aside>>,
    /// Whether there are no other nodes.
    alone: bool,
}

impl<M: Copy + Eq + Hash> Table<M> {
    /// An empty table, which allocates nothing. `seed` is that of its hashes: random in production,
    /// so that no user can choose keys that are slow to find.
    pub const fn new(owner: Owner, seed: u64) -> Self {
        Self::empty(owner, seed, false)
    }

    /// The table of a node without others: no changes are gathered for
    /// [`take_delta`](Self::take_delta), which always is `None`.
    pub const fn alone(owner: Owner, seed: u64) -> Self {
        Self::empty(owner, seed, true)
    }

    /// Continues the versions of an earlier table of this owner and topic, so that what other nodes
    /// have of that one is older than all that this one sends.
    pub const fn from_version(mut self, version: u64) -> Self {
        self.version = version;
        self
    }

    const fn empty(owner: Owner, seed: u64, alone: bool) -> Self {
        let hasher = FixedState::with_seed(seed);
        Table {
            owner,
            version: 0,
            hasher,
            entries: Slab::new(),
            keys: Slab::new(),
            aside: None,
            alone,
        }
    }

    fn aside(&mut self) -> &mut Aside {
        self.aside.get_or_insert_default()
    }

    fn index(&self) -> Option<&Index> {
        self.aside.as_ref()?.index.as_ref()
    }

    fn key_hash(&self, text: &str) -> u32 {
        self.hasher.hash_one(text) as u32
    }

    fn find_key(&self, text: &str) -> Option<u32> {
        let is_it = |key: &Key| *key.text == *text;
        let Some(index) = self.index() else {
            return self.keys.iter().find(|(_, key)| is_it(key)).map(|(at, _)| at);
        };
        let hash = spread(self.key_hash(text));
        index.keys.find(hash, |&at| self.keys.get(at).is_some_and(is_it)).copied()
    }

    /// The number of a key, which is added if it is new.
    fn key(&mut self, text: &str) -> u32 {
        if let Some(at) = self.find_key(text) {
            return at;
        }
        let hash = self.key_hash(text);
        let key = Key { text: text.into(), first: NIL, last: NIL, hash, changed: false };
        let at = self.keys.insert(key);
        self.index_key(at);
        at
    }

    fn find_local(&self, member: M, key: u32) -> Option<u32> {
        let is_it = |entry: &Entry<M>| match entry.whose {
            Whose::Local { member: it, .. } => it == member && entry.key == key,
            Whose::Peer(_) => false,
        };
        self.find_entry(|it| &it.entries, self.hasher.hash_one((member, key)), is_it)
    }

    fn find_peers(&self, phx_ref: PhxRef) -> Option<u32> {
        let is_it = |entry: &Entry<M>| match entry.whose {
            Whose::Local { .. } => false,
            Whose::Peer(_) => entry.phx_ref == phx_ref,
        };
        self.find_entry(|it| &it.entries, self.hasher.hash_one(phx_ref), is_it)
    }

    fn find_entry(
        &self,
        table: fn(&Index) -> &HashTable<u32>,
        hash: u64,
        is_it: impl Fn(&Entry<M>) -> bool,
    ) -> Option<u32> {
        let Some(index) = self.index() else {
            return self.entries.iter().find(|(_, entry)| is_it(entry)).map(|(at, _)| at);
        };
        table(index).find(hash, |&at| self.entries.get(at).is_some_and(&is_it)).copied()
    }

    fn find_member(&self, member: M) -> Option<u32> {
        let is_it = |entry: &Entry<M>| match entry.whose {
            Whose::Local { member: it, before, .. } => it == member && before == NIL,
            Whose::Peer(_) => false,
        };
        self.find_entry(|it| &it.members, self.hasher.hash_one(member), is_it)
    }

    fn add(&mut self, key: u32, phx_ref: PhxRef, prev: PhxRef, meta: Meta, whose: Whose<M>) -> u32 {
        if let Whose::Peer(_) = whose {
            self.aside().remote += 1;
        }
        let published = false;
        let (before, after) = (NIL, NIL);
        let entry =
            Entry { phx_ref, prev, meta, key, before, after, fresh: true, published, whose };
        let at = self.place(entry);
        self.note_changed(key);
        at
    }

    /// Gives an entry its place, its links and its index.
    fn place(&mut self, mut entry: Entry<M>) -> u32 {
        let key = entry.key;
        let mut second = NIL;
        if let Whose::Local { member, before, after } = &mut entry.whose {
            second = self.find_member(*member).unwrap_or(NIL);
            (*before, *after) = (NIL, second);
        }
        let at = self.entries.insert(entry);
        if second != NIL {
            // The newcomer becomes the first of the member's list.
            self.unindex_member(second);
            self.link_member(second, |before, _| *before = at);
        }
        self.append(at, key);
        self.index_entry(at);
        at
    }

    /// Removes an entry. If members have received it, it is noted as leaving.
    fn remove(&mut self, at: u32) {
        self.unindex_entry(at);
        self.detach(at);
        let Some(entry) = self.entries.remove(at) else { return };
        if let Whose::Local { before, after, .. } = entry.whose {
            self.link_member(before, |_, its_after| *its_after = after);
            self.link_member(after, |its_before, _| *its_before = before);
            if before == NIL && after != NIL {
                self.index_member(after);
            }
        } else {
            let aside = self.aside();
            aside.remote = aside.remote.saturating_sub(1);
        }
        self.note_left(entry.key, entry.phx_ref, entry.prev, entry.meta, !entry.fresh);
    }

    /// Replaces the state of an entry, and moves it to the end of its key.
    fn replace(&mut self, at: u32, phx_ref: PhxRef, meta: Meta) {
        // An entry of a peer is found by its ref.
        self.unindex_entry(at);
        self.detach(at);
        let Some(entry) = self.entries.get_mut(at) else { return };
        let key = entry.key;
        let (was, old) = (entry.phx_ref, mem::replace(&mut entry.meta, meta));
        let told = !mem::replace(&mut entry.fresh, true);
        // A state that replaces one that members have not received replaces the one they have.
        let prev = if told { was } else { entry.prev };
        let old_prev = mem::replace(&mut entry.prev, prev);
        entry.phx_ref = phx_ref;
        self.append(at, key);
        self.index_entry(at);
        self.note_left(key, was, old_prev, old, told);
    }

    fn note_left(&mut self, key: u32, phx_ref: PhxRef, prev: PhxRef, meta: Meta, told: bool) {
        self.note_changed(key);
        let changes = self.aside().changes();
        if told || changes.exposed {
            changes.left.push(Left { key, phx_ref, prev, meta, told });
        }
    }

    fn note_changed(&mut self, key: u32) {
        if let Some(it) = self.keys.get_mut(key)
            && !mem::replace(&mut it.changed, true)
        {
            self.aside().changes().keys.push(key);
        }
    }

    fn append(&mut self, at: u32, key: u32) {
        let Some(it) = self.keys.get_mut(key) else { return };
        let last = mem::replace(&mut it.last, at);
        if last == NIL {
            it.first = at;
        }
        if let Some(entry) = self.entries.get_mut(last) {
            entry.after = at;
        }
        if let Some(entry) = self.entries.get_mut(at) {
            (entry.before, entry.after) = (last, NIL);
        }
    }

    fn detach(&mut self, at: u32) {
        let Some(&Entry { key, before, after, .. }) = self.entries.get(at) else { return };
        match self.entries.get_mut(before) {
            Some(entry) => entry.after = after,
            None => {
                if let Some(it) = self.keys.get_mut(key) {
                    it.first = after;
                }
            }
        }
        match self.entries.get_mut(after) {
            Some(entry) => entry.before = before,
            None => {
                if let Some(it) = self.keys.get_mut(key) {
                    it.last = before;
                }
            }
        }
    }

    fn link_member(&mut self, at: u32, change: impl FnOnce(&mut u32, &mut u32)) {
        if let Some(Entry { whose: Whose::Local { before, after, .. }, .. }) =
            self.entries.get_mut(at)
        {
            change(before, after);
        }
    }
}

/// A number that is unique among the entries of one topic.
fn entry_hash<M: Hash>(hasher: &FixedState, entry: &Entry<M>) -> u64 {
    match entry.whose {
        Whose::Local { ref member, .. } => hasher.hash_one((member, entry.key)),
        Whose::Peer(_) => hasher.hash_one(entry.phx_ref),
    }
}

fn member_hash<M: Hash>(hasher: &FixedState, entry: &Entry<M>) -> u64 {
    match entry.whose {
        Whose::Local { ref member, .. } => hasher.hash_one(member),
        Whose::Peer(_) => 0,
    }
}
