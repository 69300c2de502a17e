//! Queries of the table: states, lists, counts.
use alloc::vec::Vec;
use core::fmt;
use core::hash::Hash;

use hashbrown::HashSet;
use simurgh_data::NIL;

use super::{Entry, Key, Table, Whose};
use crate::encode;
use crate::meta::{Extra, Meta};
use crate::phx_ref::{Owner, PhxRef};

/// One key that has entries.
pub struct Presence<'a, M> {
    table: &'a Table<M>,
    at: u32,
    key: &'a Key,
}

/// One entry.
#[derive(Clone, Copy, Debug)]
pub struct Listed<'a, M> {
    /// The ref of its present state.
    pub phx_ref: PhxRef,
    /// The ref that it replaced, if members have received that.
    pub phx_ref_prev: Option<PhxRef>,
    /// Its data.
    pub meta: &'a Meta,
    /// The node that its member is on.
    pub owner: Owner,
    /// The member, if it is on this node.
    pub member: Option<M>,
}

impl<'a, M: Copy + Eq + Hash> Presence<'a, M> {
    /// Any string.
    pub fn key(&self) -> &'a str {
        &self.key.text
    }

    /// The members of the key besides its metas.
    pub fn extra(&self) -> Option<&'a Extra> {
        self.table.extra(self.at)
    }

    /// Its entries in order of arrival; an update counts as one. At least one.
    pub fn metas(&self) -> impl Iterator<Item = Listed<'a, M>> + use<'a, M> {
        let table = self.table;
        table.chain(self.key).map(|entry| {
            let &Entry { phx_ref, prev, ref meta, whose, .. } = entry;
            let (owner, member) = match whose {
                Whose::Local { member, .. } => (table.owner, Some(member)),
                Whose::Peer(owner) => (owner, None),
            };
            Listed { phx_ref, phx_ref_prev: prev.some(), meta, owner, member }
        })
    }
}

impl<M: Copy + Eq + Hash + fmt::Debug> fmt::Debug for Presence<'_, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entry(&self.key(), &self.metas().collect::<Vec<_>>()).finish()
    }
}

impl<M: Copy + Eq + Hash> Table<M> {
    /// Sets the members of a key besides its metas, in states and diffs, until its last entry has
    /// left. Returns whether the key exists: it has entries, or the next diff has it. Members that
    /// have the key receive the extra with its next join, as in Phoenix.
    pub fn enrich(&mut self, key: &str, extra: Extra) -> bool {
        let Some(at) = self.find_key(key) else { return false };
        self.aside().extras.insert(at, extra);
        true
    }

    /// Appends `{key:{"metas":[…],…extra}}` for all keys, without whitespace, as in
    /// `presence_state`. If there are changes since the last diff, it notes that they were seen: a
    /// diff will have the leave of such an entry, even if no diff had its join.
    pub fn encode_state(&mut self, out: &mut Vec<u8>) {
        if let Some(changes) = self.aside.as_mut().and_then(|aside| aside.changes.as_mut()) {
            changes.exposed = true;
        }
        out.reserve(self.state_bytes());
        encode::keys(out, self.iter(), |it, out| {
            let metas = it.table.chain(it.key).map(|e| (&e.meta, e.phx_ref, e.prev.some()));
            encode::key(it.key(), metas, it.extra(), out);
        });
    }

    /// As [`encode_state`](Self::encode_state) for some `n` keys, or all if there are no more;
    /// another seed chooses others. Of each key it appends the first `metas_max` metas: one key may
    /// have all entries of the topic.
    pub fn encode_sample(&self, n: usize, metas_max: usize, seed: u64, out: &mut Vec<u8>) {
        encode::keys(out, self.sample(n, seed), |key, out| {
            let entries = key.table.chain(key.key).take(metas_max);
            let metas = entries.map(|entry| (&entry.meta, entry.phx_ref, entry.prev.some()));
            encode::key(key.key(), metas, key.extra(), out);
        });
    }

    /// About as many bytes as [`encode_state`](Self::encode_state) appends: exact except for
    /// characters in keys that are written as escapes, and a byte an entry. Looks at all entries.
    pub fn state_bytes(&self) -> usize {
        let entries = self.entries.iter().map(|(_, it)| it.meta.encoded_bytes(it.prev.some()));
        let keys = self.iter().map(|it| encode::key_bytes(it.key(), it.extra()));
        2 + entries.sum::<usize>() + keys.sum::<usize>()
    }

    /// Whether [`take_diff`](Self::take_diff) may have something.
    pub fn has_changes(&self) -> bool {
        !self.changed().is_empty()
    }

    /// One key, if it has entries.
    pub fn get(&self, key: &str) -> Option<Presence<'_, M>> {
        let at = self.find_key(key)?;
        self.presence(at, self.keys.get(at)?)
    }

    /// All keys that have entries, in no order.
    pub fn iter(&self) -> impl Iterator<Item = Presence<'_, M>> {
        self.keys.iter().filter_map(|(at, key)| self.presence(at, key))
    }

    /// Some `n` keys, or all if there are no more; another seed chooses others.
    pub fn sample(&self, n: usize, seed: u64) -> Vec<Presence<'_, M>> {
        let slots = self.keys.slots() as u64;
        if n >= self.keys() {
            return self.iter().collect();
        }
        let (mut chosen, mut seen) =
            (Vec::with_capacity(n), HashSet::with_hasher(self.hasher.clone()));
        let mut state = seed;
        // Most places are taken (`settle`): a place in four is found within a few tries.
        for _ in 0..n * 16 + 64 {
            if chosen.len() == n {
                break;
            }
            let at = ((u128::from(next_random(&mut state)) * u128::from(slots)) >> 64) as u32;
            if let Some(it) = self.keys.get(at).and_then(|key| self.presence(at, key))
                && seen.insert(at)
            {
                chosen.push(it);
            }
        }
        let missing = n - chosen.len();
        chosen.extend(self.iter().filter(|it| !seen.contains(&it.at)).take(missing));
        chosen
    }

    /// Entries of all owners.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Entries of other nodes.
    pub fn remote(&self) -> usize {
        self.aside.as_ref().map_or(0, |aside| aside.remote)
    }

    /// Whether there are no entries.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Keys that have entries. Looks at those that have changed since the last diff.
    pub fn keys(&self) -> usize {
        let is_empty = |at: &&u32| self.keys.get(**at).is_some_and(|key| key.first == NIL);
        self.keys.len() - self.changed().iter().filter(is_empty).count()
    }

    /// The node that the table is on.
    pub fn owner(&self) -> Owner {
        self.owner
    }

    /// The version of its own entries.
    pub fn version(&self) -> u64 {
        self.version
    }

    pub(super) fn extra(&self, key: u32) -> Option<&Extra> {
        self.aside.as_ref()?.extras.get(&key)
    }

    fn presence<'a>(&'a self, at: u32, key: &'a Key) -> Option<Presence<'a, M>> {
        (key.first != NIL).then_some(Presence { table: self, at, key })
    }

    fn chain(&self, key: &Key) -> impl Iterator<Item = &Entry<M>> + use<'_, M> {
        let first = self.entries.get(key.first);
        core::iter::successors(first, |entry| self.entries.get(entry.after))
    }

    fn changed(&self) -> &[u32] {
        let changes = self.aside.as_ref().and_then(|aside| aside.changes.as_ref());
        changes.map_or(&[], |changes| &changes.keys)
    }
}

/// SplitMix64.
fn next_random(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (*state ^ (*state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
