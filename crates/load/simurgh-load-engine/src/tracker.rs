//! Which messages of one stream (one sender to one topic, numbered from 1) a user got.
//!
//! A number and a few ranges: all from `start` to before `next` have come, except the holes.

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Range {
    pub(crate) first: u32,
    pub(crate) end: u32,
}

impl Range {
    pub(crate) fn len(self) -> u64 {
        u64::from(self.end.saturating_sub(self.first))
    }

    fn before(self, end: u32) -> Self {
        Self { first: self.first, end: self.end.min(end) }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Came {
    /// For the first time, and no later one came before it.
    InOrder,
    Late,
    Twice,
    /// From before the first that is followed.
    Unexpected,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StreamTracker {
    start: u32,
    /// One more than the highest that has come.
    next: u32,
    /// The missing ones, in order.
    holes: Vec<Range>,
}

/// Holes kept of one stream, 8 KB; each absence makes one.
const HOLES_MAX: usize = 1024;

impl StreamTracker {
    pub(crate) const fn from(start: u32) -> Self {
        Self { start, next: start, holes: Vec::new() }
    }

    pub(crate) const fn next(&self) -> u32 {
        self.next
    }

    pub(crate) fn came(&mut self, n: u32) -> Came {
        if n < self.start {
            return Came::Unexpected;
        }
        if n >= self.next {
            if n > self.next {
                self.holes.push(Range { first: self.next, end: n });
            }
            self.next = n.saturating_add(1);
            return Came::InOrder;
        }
        let at = self.holes.partition_point(|hole| hole.end <= n);
        let Some(hole) = self.holes.get_mut(at).filter(|hole| hole.first <= n) else {
            return Came::Twice;
        };
        let (before, after) =
            (Range { first: hole.first, end: n }, Range { first: n + 1, end: hole.end });
        match (before.len(), after.len()) {
            (0, 0) => {
                self.holes.remove(at);
            }
            (0, _) => *hole = after,
            (_, 0) => *hole = before,
            _ => {
                *hole = before;
                self.holes.insert(at + 1, after);
            }
        }
        Came::Late
    }

    /// How many are expected of those before `due`, with later ones that came; and the missing.
    pub(crate) fn settle(&self, due: u32) -> (u64, impl Iterator<Item = Range>) {
        let all = Range { first: self.start, end: due.max(self.start) };
        let early = Range { first: due.max(self.start), end: self.next };
        let early_holes = self
            .holes
            .iter()
            .map(|hole| Range { first: hole.first.max(early.first), end: hole.end }.len());
        let expected = all.len() + early.len() - early_holes.sum::<u64>();
        let tail = Range { first: self.next, end: due };
        let missing = self.holes.iter().copied().chain([tail]);
        (expected, missing.map(move |hole| hole.before(due)).filter(|hole| hole.len() > 0))
    }

    /// If there are more holes than are kept: the number of messages up to the end of the first
    /// hole, and the hole. They are no longer followed.
    pub(crate) fn give_up(&mut self) -> Option<(u64, Range)> {
        if self.holes.len() <= HOLES_MAX {
            return None;
        }
        let hole = self.holes.remove(0);
        let whole = Range { first: self.start, end: hole.end };
        self.start = hole.end;
        Some((whole.len(), hole))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn lost(tracker: &StreamTracker, due: u32) -> Vec<u32> {
        tracker.settle(due).1.flat_map(|hole| hole.first..hole.end).collect()
    }

    #[test]
    fn gaps_in_memory_are_bounded_and_the_sums_stay_exact() {
        let mut tracker = StreamTracker::from(1);
        let (mut expected, mut missing, mut came) = (0, 0, 0);
        for n in (2..=6000).step_by(2) {
            came += u64::from(tracker.came(n) == Came::InOrder);
            if let Some((whole, hole)) = tracker.give_up() {
                expected += whole;
                missing += hole.len();
            }
            assert!(tracker.holes.len() <= HOLES_MAX);
        }
        let (rest, holes) = tracker.settle(6001);
        assert_eq!((expected + rest, missing + holes.map(Range::len).sum::<u64>()), (6000, 3000));
        assert_eq!(came, 3000);
        assert_eq!(tracker.came(1), Came::Unexpected);
    }

    proptest! {
        /// Losses, repeats and swaps, against a plain set of numbers.
        #[test]
        fn tracker_counts_the_same_as_a_set_of_numbers(
            start in 1_u32..20,
            came in proptest::collection::vec(1_u32..80, 0..200),
            due in 0_u32..90,
        ) {
            let mut tracker = StreamTracker::from(start);
            let mut set = BTreeSet::new();
            for n in came {
                let highest = set.last().copied().unwrap_or(0);
                let expected = match n {
                    n if n < start => Came::Unexpected,
                    n if set.contains(&n) => Came::Twice,
                    n if n < highest => Came::Late,
                    _ => Came::InOrder,
                };
                prop_assert_eq!(tracker.came(n), expected);
                if n >= start {
                    set.insert(n);
                }
            }
            let missing: Vec<u32> = (start..due).filter(|n| !set.contains(n)).collect();
            prop_assert_eq!(lost(&tracker, due), &missing[..]);
            let (expected, _) = tracker.settle(due);
            prop_assert_eq!(expected, (set.len() + missing.len()) as u64);
        }

        /// Mostly in order, as on a real network: few holes, so little memory.
        #[test]
        fn tracker_stores_at_most_one_gap_for_each_absence(
            absences in proptest::collection::vec((1_u32..50, 1_u32..50), 0..40),
        ) {
            let mut tracker = StreamTracker::from(1);
            let (mut n, mut lost) = (1, 0);
            for (there, away) in &absences {
                for _ in 0..*there {
                    prop_assert_eq!(tracker.came(n), Came::InOrder);
                    n += 1;
                }
                n += away;
                lost += u64::from(*away);
            }
            prop_assert!(tracker.holes.len() <= absences.len());
            let (expected, missing) = tracker.settle(n);
            prop_assert_eq!(missing.map(Range::len).sum::<u64>(), lost);
            prop_assert_eq!(expected, u64::from(n) - 1);
        }
    }
}
