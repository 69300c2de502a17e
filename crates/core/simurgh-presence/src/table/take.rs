//! Output of the table: diffs for own members, deltas and snapshots for other nodes.
use alloc::vec::Vec;
use core::hash::Hash;
use core::mem;

use foldhash::fast::FixedState;
use hashbrown::HashMap;
use simurgh_data::NIL;

use super::aside::{Changes, Left};
use super::{Entry, Table, Whose};
use crate::delta::{Delta, Shared, Snapshot};
use crate::diff::{Change, ChangedMeta, Diff};
use crate::phx_ref::PhxRef;

/// The states that a diff may end, with their fates and the refs they replaced.
type Leaving = HashMap<PhxRef, (Fate, PhxRef), FixedState>;

#[derive(Clone, Copy)]
enum Fate {
    /// All members have received it, and its leave must be sent.
    Announced,
    /// Only newcomers may have received it.
    Unannounced,
    /// It has come back.
    Back,
}

impl<M: Copy + Eq + Hash> Table<M> {
    /// The net changes of all owners since the last call, for the members of this node. What came
    /// and left in between is not in it. Of several updates it has one leave of the state that
    /// members have and one join of the last, whose `phx_ref_prev` is the ref that they have.
    ///
    /// A ref that left and came back (a node that was taken for gone) is in neither list; if a
    /// newcomer was shown the state in between, it is among the joins, which changes nothing for
    /// members that have it. The time taken depends on the changes, not on the entries.
    pub fn take_diff(&mut self) -> Option<Diff> {
        let changes = self.aside.as_mut()?.changes.take()?;
        let mut going = HashMap::with_capacity_and_hasher(changes.left.len(), self.hasher.clone());
        for left in &changes.left {
            let fate = if left.told { Fate::Announced } else { Fate::Unannounced };
            going.insert(left.phx_ref, (fate, left.prev));
        }
        let mut joins = Vec::new();
        for &key in &changes.keys {
            let metas = self.take_joined(key, &mut going, changes.exposed);
            if !metas.is_empty() {
                joins.extend(self.change(key, metas));
            }
        }
        let Changes { keys, left, .. } = changes;
        let leaves = self.leaves(left, &going);
        for key in keys {
            self.forget_if_empty(key);
        }
        self.settle();
        let diff = Diff { joins, leaves };
        (!diff.joins.is_empty() || !diff.leaves.is_empty()).then_some(diff)
    }

    /// The net changes of own entries since the last call, for other nodes; may be empty.
    pub fn take_delta(&mut self) -> Option<Delta> {
        let aside = self.aside.as_mut()?;
        let journal = aside.journal.take()?;
        let mut joins = Vec::with_capacity(journal.joined.len());
        // The last of a place counts: it comes first here, and `published` then skips the others.
        for &(at, prev) in journal.joined.iter().rev() {
            if let Some(entry) = self.entries.get_mut(at)
                && matches!(entry.whose, Whose::Local { .. })
                && !mem::replace(&mut entry.published, true)
                && let Some(key) = self.keys.get(entry.key)
            {
                let at_key = entry.key;
                let (key, meta) = (key.text.clone(), entry.meta.clone());
                let phx_ref = entry.phx_ref;
                let extra = aside.extras.get(&at_key).cloned();
                joins.push(Shared { key, phx_ref, phx_ref_prev: prev.some(), meta, extra });
            }
        }
        joins.reverse();
        let leaves = journal.left;
        self.settle();
        Some(Delta { owner: self.owner, from: journal.from, to: self.version, joins, leaves })
    }

    /// Whether [`take_delta`](Self::take_delta) has something to return.
    pub fn has_delta(&self) -> bool {
        self.aside.as_ref().is_some_and(|aside| aside.journal.is_some())
    }

    /// The last delta's version without changes: a node that missed that delta finds out.
    pub fn repeat_delta(&self) -> Delta {
        let journal = self.aside.as_ref().and_then(|aside| aside.journal.as_ref());
        let at = journal.map_or(self.version, |journal| journal.from);
        Delta { owner: self.owner, from: at, to: at, joins: Vec::new(), leaves: Vec::new() }
    }

    /// All own entries as they are now, for a node that asks. It is best called after
    /// [`take_delta`](Self::take_delta) was sent: a node with a snapshot from between two deltas
    /// has to ask again at the second.
    pub fn snapshot(&self) -> Snapshot {
        let mut entries = Vec::new();
        for (of, key) in self.keys.iter() {
            let mut at = key.first;
            while let Some(entry) = self.entries.get(at) {
                at = entry.after;
                if matches!(entry.whose, Whose::Local { .. }) {
                    let &Entry { phx_ref, prev, ref meta, .. } = entry;
                    let (key, meta) = (key.text.clone(), meta.clone());
                    let extra = self.extra(of).cloned();
                    entries.push(Shared { key, phx_ref, phx_ref_prev: prev.some(), meta, extra });
                }
            }
        }
        Snapshot { owner: self.owner, version: self.version, entries }
    }

    /// The unsent states of a key, in order of arrival; they count as sent from now on.
    fn take_joined(&mut self, key: u32, going: &mut Leaving, exposed: bool) -> Vec<ChangedMeta> {
        let mut metas = Vec::new();
        let mut at = self.keys.get(key).map_or(NIL, |key| key.last);
        while let Some(entry) = self.entries.get_mut(at) {
            if !mem::take(&mut entry.fresh) {
                break;
            }
            at = entry.before;
            let replaces_told = matches!(going.get(&entry.prev), Some((Fate::Announced, _)));
            let was = going.get_mut(&entry.phx_ref);
            let was = was.map(|(fate, prev)| (mem::replace(fate, Fate::Back), *prev));
            let is_known = if let Some((Fate::Announced, prev)) = was {
                entry.prev = prev;
                !exposed
            } else {
                if !replaces_told {
                    entry.prev = PhxRef::NONE;
                }
                false
            };
            if !is_known {
                let (phx_ref_prev, meta) = (entry.prev.some(), entry.meta.clone());
                metas.push(ChangedMeta { phx_ref: entry.phx_ref, phx_ref_prev, meta });
            }
        }
        metas.reverse();
        metas
    }

    fn leaves(&self, mut left: Vec<Left>, going: &Leaving) -> Vec<Change> {
        left.retain(|left| !matches!(going.get(&left.phx_ref), Some((Fate::Back, _))));
        left.sort_by_key(|left| left.key);
        let mut leaves: Vec<Change> = Vec::new();
        let mut last = NIL;
        for Left { key, phx_ref, prev, meta, .. } in left {
            if key != last {
                leaves.extend(self.change(key, Vec::new()));
                last = key;
            }
            if let Some(change) = leaves.last_mut() {
                change.metas.push(ChangedMeta { phx_ref, phx_ref_prev: prev.some(), meta });
            }
        }
        leaves
    }

    fn change(&self, key: u32, metas: Vec<ChangedMeta>) -> Option<Change> {
        let extra = self.extra(key).cloned();
        self.keys.get(key).map(|key| Change { key: key.text.clone(), extra, metas })
    }

    /// Removes a key from the changed ones, and drops it if it has no entries.
    fn forget_if_empty(&mut self, at: u32) {
        let Some(key) = self.keys.get_mut(at) else { return };
        key.changed = false;
        if key.first != NIL {
            return;
        }
        self.unindex_key(at);
        self.keys.remove(at);
        if let Some(aside) = &mut self.aside {
            aside.extras.remove(&at);
        }
    }
}
