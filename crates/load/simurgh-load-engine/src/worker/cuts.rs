//! Cuts connections on purpose: for each user again and again, at times that the seed determines.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use simurgh_load_scenario::Drop;

use crate::time::nanos;
use crate::user::cut_seed;

/// A user in the middle of a step is checked again after this time.
const AGAIN_NS: u64 = 50_000_000;

/// The next cuts: time, place, number of the user.
pub(super) struct Cuts {
    seed: u64,
    next: BinaryHeap<Reverse<(u64, u32, u32)>>,
}

impl Cuts {
    pub(super) fn new(seed: u64) -> Self {
        Self { seed, next: BinaryHeap::new() }
    }

    pub(super) fn next_ns(&self) -> Option<u64> {
        self.next.peek().map(|first| first.0.0)
    }

    pub(super) fn pop_due(&mut self, now_ns: u64) -> Option<(u64, u32, u32)> {
        self.next_ns().filter(|due_ns| *due_ns <= now_ns)?;
        self.next.pop().map(|first| first.0)
    }

    /// Schedules a user's cut (its place, its number) in a run that began at `started_ns`, on its
    /// arrival or after a check.
    pub(super) fn expect(
        &mut self,
        (u, id): (u32, u32),
        drop: &Drop,
        started_ns: u64,
        now_ns: u64,
    ) {
        let every_ns = nanos(drop.every).max(1);
        let first_ns = started_ns.saturating_add(cut_seed(self.seed, id) % every_ns);
        let passes = (now_ns + 1).saturating_sub(first_ns).div_ceil(every_ns);
        let next_ns = first_ns.saturating_add(passes.saturating_mul(every_ns));
        self.next.push(Reverse((next_ns, u, id)));
    }

    pub(super) fn again(&mut self, (u, id): (u32, u32), now_ns: u64) {
        self.next.push(Reverse((now_ns + AGAIN_NS, u, id)));
    }
}
