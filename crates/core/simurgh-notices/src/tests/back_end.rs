//! A back end that keeps a table by id, and its rules.

use std::collections::{BTreeMap, BTreeSet};

use super::world::{GRACE_MS, World};
use super::*;

/// A report takes so long at most.
const SLACK_MS: u64 = 150;
/// The time from a decision to its delivery.
pub(super) const DECIDED_MS: u64 = 1_000;

/// The table of a back end, which it keeps by the ids of notices.
#[derive(Default)]
pub(super) struct BackEnd {
    pub(super) seen: BTreeMap<String, Arc<Notice>>,
    pub(super) open: BTreeMap<Key, (String, u64)>,
    /// Partitions whose stays it has to read again, as of their last notice or a later one.
    pub(super) resets: BTreeMap<u8, u64>,
    /// The log of each partition.
    pub(super) logs: BTreeMap<u8, Epoch>,
    /// Numbers that it knows from reading stays.
    pub(super) known: BTreeMap<u8, u64>,
    /// Percent of requests that it does not accept.
    pub(super) refuses: u64,
}

impl World {
    pub(super) fn apply(&mut self, hook: usize, partition: u8, batch: &Batch) {
        if batch.reset.is_some() {
            self.backs[hook].resets.insert(partition, 0);
            self.backs[hook].logs.insert(partition, batch.epoch);
            self.meet("reset");
        }
        if self.backs[hook].logs.get(&partition) != Some(&batch.epoch) {
            // A late request of a coordinator that was replaced, with a log that was lost.
            return self.meet("of another log");
        }
        if let Some(n) = self.backs[hook].resets.get_mut(&partition) {
            *n = batch.n.max(*n);
        }
        for notice in &batch.notices {
            self.apply_notice(hook, partition, notice);
        }
    }

    pub(super) fn apply_notice(&mut self, hook: usize, partition: u8, notice: &Arc<Notice>) {
        let (id, key) = (notice.to_string(), notice.stay.key.clone());
        if self.backs[hook].resets.contains_key(&partition) {
            return;
        }
        if let Some(seen) = self.backs[hook].seen.get(&id) {
            if seen.stay != notice.stay || seen.n != notice.n {
                self.fail(format!("{id} has two meanings: {seen:?}, {notice:?}"));
            }
            return;
        }
        if notice.n <= self.backs[hook].known.get(&partition).copied().unwrap_or_default() {
            return;
        }
        self.backs[hook].seen.insert(id, Arc::clone(notice));
        let stay = notice.stay.id.to_string();
        let open = self.backs[hook].open.get(&key).cloned();
        match (notice.end, open) {
            (None, None) => {
                self.backs[hook].open.insert(key, (stay, notice.n));
            }
            (Some((_, reason)), Some((open, n))) if open == stay && n < notice.n => {
                self.backs[hook].open.remove(&key);
                let absent_ms = self.absent.get(&key).map(|since_ms| self.ms - since_ms);
                // The key may have returned after the decision, and left again.
                let before = self.lasted.get(&key).filter(|it| it.0 + DECIDED_MS > self.ms);
                let lasted_ms = absent_ms.max(before.map(|it| it.1)).unwrap_or_default();
                let is_early = lasted_ms + SLACK_MS < GRACE_MS;
                if self.is_calm && reason == Reason::Left && is_early && key.kind() != Kind::Topic {
                    self.fail(format!("{key:?} ended after {lasted_ms} ms"));
                }
                self.meet("ended");
            }
            (_, open) => self.fail(format!("{notice:?} while {open:?} is open")),
        }
    }

    /// The back ends read the stays of partitions that were reset.
    pub(super) fn read_stays(&mut self) {
        (0..2).for_each(|hook| self.read_stays_of(hook));
    }

    fn read_stays_of(&mut self, hook: usize) {
        for (partition, last) in self.backs[hook].resets.clone() {
            let epoch = self.backs[hook].logs.get(&partition).copied();
            let leaders = self.nodes.values().filter(|node| node.frozen_until_ms < self.ms);
            let mut read = leaders.filter_map(|node| node.notices.coordinator(partition)?.stays());
            // A coordinator that was replaced without knowing may answer with an older list.
            let is_new = |(of, n, _): &(Epoch, u64, _)| Some(*of) == epoch && *n >= last;
            let Some((_, n, stays)) = read.find(is_new) else { continue };
            self.backs[hook].open.retain(|key, _| key.partition() != partition);
            let wanted = stays.filter(|open| hook == 0 || open.stay.key.kind() != Kind::Topic);
            let new = wanted.map(|open| (open.stay.key.clone(), (open.stay.id.to_string(), n)));
            self.backs[hook].open.extend(new);
            self.backs[hook].known.insert(partition, n);
            self.backs[hook].resets.remove(&partition);
        }
    }

    /// The back ends know exactly who is there.
    pub(super) fn check_at_rest(&mut self) {
        let mut here = BTreeSet::new();
        for key in self.nodes.values().flat_map(|node| &node.here) {
            if key.kind() == Kind::Member {
                here.insert(Key::topic_of(key.topic()));
            }
            if !key.is_hidden() {
                here.insert(key.clone());
            }
        }
        (0..2).for_each(|hook| self.check_knows(hook, &here));
    }

    fn check_knows(&mut self, hook: usize, here: &BTreeSet<Key>) {
        let wanted = here.iter().filter(|key| hook == 0 || key.kind() != Kind::Topic);
        let here: BTreeSet<Key> = wanted.cloned().collect();
        let open: BTreeSet<Key> = self.backs[hook].open.keys().cloned().collect();
        if here != open && self.failure.is_none() {
            let missing: Vec<_> = here.difference(&open).collect();
            let surplus: Vec<_> = open.difference(&here).collect();
            self.fail(format!("hook {hook}: missing {missing:?}, surplus {surplus:?}"));
        }
    }
}
