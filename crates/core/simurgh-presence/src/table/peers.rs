//! Entries of other nodes.
use alloc::vec::Vec;
use core::hash::Hash;

use foldhash::fast::FixedState;
use hashbrown::HashSet;

use super::{Entry, Table, Whose};
use crate::delta::{Applied, Delta, Shared, Snapshot};
use crate::phx_ref::{Owner, PhxRef};

/// Deltas of one owner that are kept while one before them is missing. Beyond that the newest are
/// dropped; a later snapshot has their changes.
pub const QUEUED_DELTAS_MAX: usize = 64;

#[derive(Debug)]
pub(super) struct Peer {
    owner: Owner,
    known: u64,
    queue: Vec<Delta>,
}

impl<M: Copy + Eq + Hash> Table<M> {
    /// Applies a delta of another node, or queues it. A repeated or own delta changes nothing.
    ///
    /// The caller must refuse deltas of a node after [`node_down`](Self::node_down) unless the node
    /// is back: the first would count as the first of a new node.
    pub fn learn(&mut self, delta: Delta) -> Applied {
        let owner = delta.owner;
        let known = self.known(owner);
        if owner == self.owner || delta.to <= known || delta.to < delta.from {
            return Applied::AlreadyKnown;
        }
        if delta.from == known {
            self.carry_out(delta);
            return self.drain(owner);
        }
        let queue = &mut self.peer(owner).queue;
        let is_new = queue.iter().all(|it| (it.from, it.to) != (delta.from, delta.to));
        if is_new && queue.len() < QUEUED_DELTAS_MAX {
            queue.push(delta);
        }
        Applied::Missing { owner, known }
    }

    /// Applies all entries of another node, which was asked for them, and then the deltas kept
    /// meanwhile. A snapshot older than the known version changes nothing.
    pub fn answer(&mut self, snapshot: Snapshot) -> Applied {
        let Snapshot { owner, version, entries } = snapshot;
        if owner == self.owner || version < self.known(owner) {
            return Applied::AlreadyKnown;
        }
        if version == self.known(owner) {
            return match self.drain(owner) {
                Applied::Applied => Applied::AlreadyKnown,
                other => other,
            };
        }
        let mut there = HashSet::with_capacity_and_hasher(entries.len(), self.hasher.clone());
        there.extend(entries.iter().map(|entry| entry.phx_ref));
        for entry in entries {
            self.join(owner, entry);
        }
        self.remove_of(owner, &there);
        self.peer(owner).known = version;
        self.drain(owner)
    }

    /// Removes and forgets a node that is gone; returns how many entries it had.
    pub fn node_down(&mut self, owner: Owner) -> usize {
        if let Some(aside) = &mut self.aside {
            aside.peers.retain(|peer| peer.owner != owner);
        }
        let count = self.remove_of(owner, &HashSet::default());
        self.settle();
        count
    }

    /// Removes and forgets all other nodes; returns how many entries they had.
    pub fn peers_down(&mut self) -> usize {
        if let Some(aside) = &mut self.aside {
            aside.peers.clear();
        }
        let count = self.remove_all(|it| matches!(it.whose, Whose::Peer(_)));
        self.settle();
        count
    }

    /// The version of this owner's entries that is known here.
    pub fn known(&self, owner: Owner) -> u64 {
        let peers = self.aside.as_ref().map_or(&[][..], |aside| &aside.peers);
        peers.iter().find(|peer| peer.owner == owner).map_or(0, |peer| peer.known)
    }

    fn peer(&mut self, owner: Owner) -> &mut Peer {
        let peers = &mut self.aside().peers;
        let at = peers.iter().position(|peer| peer.owner == owner).unwrap_or(peers.len());
        if at == peers.len() {
            peers.reserve_exact(1);
            peers.push(Peer { owner, known: 0, queue: Vec::new() });
        }
        &mut peers[at]
    }

    /// Applies queued deltas that can be applied now; returns whether one is missing.
    fn drain(&mut self, owner: Owner) -> Applied {
        loop {
            let peers = &mut self.aside().peers;
            let Some(at) = peers.iter().position(|peer| peer.owner == owner) else {
                return Applied::Applied;
            };
            let peer = &mut peers[at];
            let known = peer.known;
            peer.queue.retain(|delta| delta.to > known);
            if peer.queue.is_empty() {
                peer.queue = Vec::new();
                return Applied::Applied;
            }
            let Some(next) = peer.queue.iter().position(|delta| delta.from == known) else {
                return Applied::Missing { owner, known };
            };
            let delta = peer.queue.swap_remove(next);
            self.carry_out(delta);
        }
    }

    fn carry_out(&mut self, delta: Delta) {
        for entry in delta.joins {
            self.join(delta.owner, entry);
        }
        for phx_ref in delta.leaves {
            if let Some(at) = self.find_of(delta.owner, phx_ref) {
                self.remove(at);
            }
        }
        self.peer(delta.owner).known = delta.to;
    }

    fn join(&mut self, owner: Owner, entry: Shared) {
        let Shared { key, phx_ref, phx_ref_prev, meta, extra } = entry;
        if self.find_peers(phx_ref).is_some() {
            return;
        }
        let replaced = phx_ref_prev.and_then(|prev| self.find_of(owner, prev));
        let key = self.key(&key);
        if let Some(extra) = extra {
            self.aside().extras.insert(key, extra);
        }
        match replaced {
            Some(at) if self.entries.get(at).is_some_and(|entry| entry.key == key) => {
                self.replace(at, phx_ref, meta);
            }
            _ => {
                let prev = phx_ref_prev.unwrap_or(PhxRef::NONE);
                self.add(key, phx_ref, prev, meta, Whose::Peer(owner));
            }
        }
    }

    fn find_of(&self, owner: Owner, phx_ref: PhxRef) -> Option<u32> {
        let at = self.find_peers(phx_ref)?;
        let whose = self.entries.get(at)?.whose;
        matches!(whose, Whose::Peer(it) if it == owner).then_some(at)
    }

    fn remove_of(&mut self, owner: Owner, but: &HashSet<PhxRef, FixedState>) -> usize {
        self.remove_all(|entry| {
            matches!(entry.whose, Whose::Peer(it) if it == owner) && !but.contains(&entry.phx_ref)
        })
    }

    fn remove_all(&mut self, is_gone: impl Fn(&Entry<M>) -> bool) -> usize {
        let gone = self.entries.iter().filter(|(_, entry)| is_gone(entry));
        let gone: Vec<u32> = gone.map(|(at, _)| at).collect();
        gone.iter().for_each(|at| self.remove(*at));
        gone.len()
    }
}
