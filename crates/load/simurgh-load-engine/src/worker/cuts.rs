//! When connections are cut on purpose: each user's at times of its own, which follow from the
//! seed, and then again and again.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use simurgh_load_scenario::Drop;

use crate::time::nanos;
use crate::user::cut_seed;

/// A user who is in the middle of something is looked at again after this time.
const AGAIN_NS: u64 = 50_000_000;

/// When users are to be cut off next: time, place, number.
#[derive(Default)]
pub(super) struct Cuts(BinaryHeap<Reverse<(u64, u32, u32)>>);

/// A user's time to be cut off has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DueCut {
    pub(super) due_ns: u64,
    pub(super) place: u32,
    pub(super) id: u32,
}

/// What the times of cuts follow from.
#[derive(Clone, Copy, Debug)]
pub(super) struct Origin {
    pub(super) seed: u64,
    /// When the run began.
    pub(super) started_ns: u64,
}

impl Cuts {
    /// When the next one is due.
    pub(super) fn next_ns(&self) -> Option<u64> {
        self.0.peek().map(|first| first.0.0)
    }

    /// The next one whose time has come.
    pub(super) fn pop_due(&mut self, now_ns: u64) -> Option<DueCut> {
        self.next_ns().filter(|due_ns| *due_ns <= now_ns)?;
        self.0.pop().map(|Reverse((due_ns, place, id))| DueCut { due_ns, place, id })
    }

    /// A user has come whose connection may be cut, or has just been looked at.
    pub(super) fn expect(
        &mut self,
        (place, id): (u32, u32),
        drop: &Drop,
        origin: Origin,
        now_ns: u64,
    ) {
        let every_ns = nanos(drop.every).max(1);
        let phase_ns = cut_seed(origin.seed, id) % every_ns;
        let first_ns = origin.started_ns.saturating_add(phase_ns);
        let passes = (now_ns + 1).saturating_sub(first_ns).div_ceil(every_ns);
        let next_ns = first_ns.saturating_add(passes.saturating_mul(every_ns));
        self.0.push(Reverse((next_ns, place, id)));
    }

    /// Looks at a user again soon.
    pub(super) fn again(&mut self, cut: DueCut, now_ns: u64) {
        self.0.push(Reverse((now_ns + AGAIN_NS, cut.place, cut.id)));
    }
}
