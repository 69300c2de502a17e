//! Leaves that members have not received yet, since the same key may soon be back on this node or
//! another.

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;
use core::time::Duration;

use crate::diff::{Change, ChangedMeta, Diff};

/// Bytes of a leave, and of each of its metas, in addition to their texts.
const LEAVE_BYTES: usize = 96;
const META_BYTES: usize = 64;

/// Leaves of a topic that wait, in the order in which they are due.
#[derive(Debug, Default)]
pub struct HeldLeaves {
    /// With the time at which each is due; 0 for those that were released.
    leaves: VecDeque<(u64, Change)>,
    /// Of leaves that were not released.
    bytes: usize,
}

impl HeldLeaves {
    /// Holds the leaves of a diff back, and gives it those that are due: leaves that have waited
    /// long enough, and those whose key is here again. A meta that left and returned is in neither
    /// list, since members still have it.
    ///
    /// Of more than `leaves_max` the oldest are due, so that clients that leave under ever new keys
    /// do not fill memory.
    pub fn hold(
        &mut self,
        diff: Diff,
        delay: Duration,
        leaves_max: usize,
        now_ns: u64,
    ) -> Option<Diff> {
        let Diff { mut joins, leaves } = diff;
        let until_ns = now_ns.saturating_add(u64::try_from(delay.as_nanos()).unwrap_or(u64::MAX));
        self.leaves.extend(leaves.into_iter().map(|change| (until_ns, change)));
        let excess = self.leaves.len().saturating_sub(leaves_max);
        let here: BTreeMap<Box<str>, usize> =
            joins.iter().enumerate().map(|(at, it)| (it.key.clone(), at)).collect();
        let mut told: BTreeMap<Box<str>, Change> = BTreeMap::new();
        let mut order = Vec::new();
        let leaves = core::mem::take(&mut self.leaves).into_iter().enumerate();
        for (at, (until_ns, mut change)) in leaves {
            let join = here.get(&change.key).and_then(|at| joins.get_mut(*at));
            let is_here = join.is_some();
            if let Some(join) = join {
                take_back(join, &mut change);
            }
            if change.metas.is_empty() {
                continue;
            }
            if until_ns > now_ns && !is_here && at >= excess {
                self.leaves.push_back((until_ns, change));
                continue;
            }
            match told.get_mut(&change.key) {
                Some(before) => before.metas.extend(change.metas),
                None => {
                    order.push(change.key.clone());
                    told.insert(change.key.clone(), change);
                }
            }
        }
        let is_waiting = self.leaves.iter().filter(|(until_ns, _)| *until_ns > 0);
        self.bytes = is_waiting.map(|(_, change)| weight(change)).sum();
        joins.retain(|join| !join.metas.is_empty());
        let leaves = order.into_iter().filter_map(|key| told.remove(&key)).collect();
        let diff = Diff { joins, leaves };
        (!diff.joins.is_empty() || !diff.leaves.is_empty()).then_some(diff)
    }

    /// When the first leave is due.
    pub fn next_ns(&self) -> Option<u64> {
        self.leaves.front().map(|(until_ns, _)| *until_ns)
    }

    /// Bytes of leaves that wait, and when the last of them is due.
    pub fn waiting(&self) -> (usize, u64) {
        (self.bytes, self.leaves.back().map_or(0, |(until_ns, _)| *until_ns))
    }

    /// Makes the leaves due that would be by then.
    pub fn release(&mut self, due_ns: u64) {
        for (until_ns, change) in &mut self.leaves {
            if *until_ns > due_ns {
                return;
            }
            if core::mem::take(until_ns) > 0 {
                self.bytes = self.bytes.saturating_sub(weight(change));
            }
        }
    }

    /// Whether no leave waits.
    pub fn is_empty(&self) -> bool {
        self.leaves.is_empty()
    }
}

fn weight(change: &Change) -> usize {
    let metas = change.metas.iter().map(|it| it.meta.as_str().len() + META_BYTES);
    let extra = change.extra.as_ref().map_or(0, |extra| extra.as_str().len());
    LEAVE_BYTES + change.key.len() + extra + metas.sum::<usize>()
}

/// Takes out of both the metas that have not left after all.
fn take_back(join: &mut Change, held: &mut Change) {
    let is_in =
        |of: &[ChangedMeta], it: &ChangedMeta| of.iter().any(|one| one.phx_ref == it.phx_ref);
    let back: Vec<_> = held.metas.iter().filter(|it| is_in(&join.metas, it)).cloned().collect();
    held.metas.retain(|it| !is_in(&back, it));
    join.metas.retain(|it| !is_in(&back, it));
}

#[cfg(test)]
mod tests {
    use crate::meta::Meta;
    use crate::phx_ref::PhxRef;

    use super::*;

    const DELAY: Duration = Duration::from_nanos(100);

    fn change(key: &str, refs: &[u8]) -> Change {
        let meta = |number: &u8| {
            let (phx_ref, meta) = (PhxRef::from_bytes([*number; 12]), Meta::parse("{}").unwrap());
            ChangedMeta { phx_ref, phx_ref_prev: None, meta }
        };
        Change { key: key.into(), extra: None, metas: refs.iter().map(meta).collect() }
    }

    fn diff(joins: &[(&str, &[u8])], leaves: &[(&str, &[u8])]) -> Diff {
        let all = |of: &[(&str, &[u8])]| of.iter().map(|it| change(it.0, it.1)).collect();
        Diff { joins: all(joins), leaves: all(leaves) }
    }

    #[test]
    fn leave_is_sent_after_its_delay() {
        let mut held = HeldLeaves::default();
        assert_eq!(held.hold(diff(&[], &[("a", &[1])]), DELAY, 100, 0), None);
        assert_eq!(held.hold(Diff::default(), DELAY, 100, 99), None);
        assert_eq!(held.next_ns(), Some(100));
        assert_eq!(held.hold(Diff::default(), DELAY, 100, 100), Some(diff(&[], &[("a", &[1])])));
        assert!(held.is_empty() && held.next_ns().is_none());
    }

    #[test]
    fn leave_is_sent_with_the_following_join() {
        let mut held = HeldLeaves::default();
        assert_eq!(held.hold(diff(&[], &[("a", &[1]), ("b", &[2])]), DELAY, 100, 0), None);
        let update = held.hold(diff(&[("a", &[3])], &[]), DELAY, 100, 50);
        assert_eq!(update, Some(diff(&[("a", &[3])], &[("a", &[1])])));
        let in_one = held.hold(diff(&[("c", &[5])], &[("c", &[4])]), DELAY, 100, 60);
        assert_eq!(in_one, Some(diff(&[("c", &[5])], &[("c", &[4])])));
        assert_eq!(held.next_ns(), Some(100), "the other is still held");
    }

    #[test]
    fn leave_followed_by_the_same_join_is_not_sent() {
        let mut held = HeldLeaves::default();
        assert_eq!(held.hold(diff(&[], &[("a", &[1, 2])]), DELAY, 100, 0), None);
        // The other has left for good, which does not matter while the key is here.
        let rest = held.hold(diff(&[("a", &[1])], &[]), DELAY, 100, 10);
        assert_eq!(rest, Some(diff(&[], &[("a", &[2])])));
        assert_eq!(held.hold(diff(&[], &[("b", &[3])]), DELAY, 100, 20), None);
        assert_eq!(held.hold(diff(&[("b", &[3])], &[]), DELAY, 100, 30), None);
        assert!(held.is_empty());
    }

    #[test]
    fn oldest_leaves_above_the_limit_are_sent_early() {
        let mut held = HeldLeaves::default();
        let three = diff(&[], &[("a", &[1]), ("b", &[2]), ("c", &[3])]);
        assert_eq!(held.hold(three, DELAY, 2, 0), Some(diff(&[], &[("a", &[1])])));
        assert_eq!(held.hold(Diff::default(), DELAY, 2, 99), None);
    }
}
