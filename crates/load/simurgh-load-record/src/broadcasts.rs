//! Single broadcasts: when the first and the last receiver got it, and how many did not.

use std::collections::HashMap;

use foldhash::fast::FixedState;
use serde::{Deserialize, Serialize};

use super::{BroadcastPart, Count, Delta, Metric};

/// A broadcast is complete when no receiver has got it for this time, milliseconds.
const QUIET_MS: u64 = 2_000;
/// The same while expected receivers are missing.
const QUIET_MISSING_MS: u64 = 10_000;
/// The same while there is no receiver yet.
const QUIET_NOBODY_MS: u64 = 60_000;
/// How long a complete one is remembered, so that late receivers are recognised.
const REMEMBERED_MS: u64 = 10_000;
/// Broadcasts followed at a time, 56 bytes each.
const OPEN_MAX: usize = 500_000;
/// Marks the current, still open second.
const NOW: u64 = u64::MAX;
const SLOWEST_OF_TICK: usize = 5;

/// A broadcast that is complete, or was given up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Broadcast {
    /// Number of the user that sent it.
    pub publisher: u32,
    /// The sender's running number.
    pub seq: u32,
    /// When it was taken as complete, milliseconds since the start of the run.
    pub at_ms: u64,
    /// How many got it.
    pub receivers: u32,
    /// How many should have got it; 0: not known.
    pub expected: u32,
    /// From its stamp to its first receiver, µs.
    pub first_us: u64,
    /// From its stamp to its last receiver, µs.
    pub last_us: u64,
}

#[derive(Clone, Copy, Debug)]
struct Open {
    part: BroadcastPart,
    last_ms: u64,
    complete: bool,
}

impl Open {
    fn is_over(&self, now_ms: u64) -> bool {
        let part = &self.part;
        let wait_ms = match (self.complete, part.receivers) {
            (true, _) => REMEMBERED_MS,
            (false, 0) => QUIET_NOBODY_MS,
            (false, receivers) if receivers >= part.expected => QUIET_MS,
            (false, _) => QUIET_MISSING_MS,
        };
        now_ms >= self.last_ms.saturating_add(wait_ms)
    }

    fn finish(&self, now_ms: u64) -> Broadcast {
        let part = &self.part;
        let since_stamp = |ns: u64| ns.saturating_sub(part.sent_ns) / 1000;
        let none = part.receivers == 0;
        Broadcast {
            publisher: part.publisher,
            seq: part.seq,
            at_ms: now_ms,
            receivers: part.receivers,
            expected: part.expected,
            first_us: if none { 0 } else { since_stamp(part.first_ns) },
            last_us: if none { 0 } else { since_stamp(part.last_ns) },
        }
    }
}

#[derive(Clone, Debug, Default)]
pub(super) struct Broadcasts {
    open: HashMap<(u32, u32), Open, FixedState>,
}

impl Broadcasts {
    /// Adds a worker's part; broadcasts beyond the bound are counted in `all`.
    pub(super) fn add(&mut self, part: BroadcastPart, all: &mut Delta) {
        let key = (part.publisher, part.seq);
        if self.open.len() >= OPEN_MAX && !self.open.contains_key(&key) {
            all.counts[Count::BroadcastsUntracked] += u64::from(part.receivers.max(1));
            return;
        }
        let fresh = BroadcastPart { first_ns: u64::MAX, last_ns: 0, receivers: 0, ..part };
        let fresh = Open { part: fresh, last_ms: NOW, complete: false };
        let open = self.open.entry(key).or_insert(fresh);
        open.last_ms = NOW;
        if open.complete {
            all.counts[Count::DeliveriesAfterwards] += u64::from(part.receivers);
            return;
        }
        let known = &mut open.part;
        // The smaller stamp, so that the order of workers does not matter.
        known.sent_ns = known.sent_ns.min(part.sent_ns);
        known.first_ns = known.first_ns.min(part.first_ns);
        known.last_ns = known.last_ns.max(part.last_ns);
        known.receivers = known.receivers.saturating_add(part.receivers);
        known.expected = known.expected.max(part.expected);
    }

    /// Adds complete broadcasts, or `everything`, to `all`, and returns the slowest of them.
    pub(super) fn close(
        &mut self,
        now_ms: u64,
        everything: bool,
        all: &mut Delta,
    ) -> Vec<Broadcast> {
        let mut over = Vec::new();
        self.open.retain(|_, open| {
            if open.last_ms == NOW {
                open.last_ms = now_ms;
            }
            if !everything && !open.is_over(now_ms) {
                return true;
            }
            if open.complete {
                return false;
            }
            over.push(open.finish(now_ms));
            (open.complete, open.last_ms) = (true, now_ms);
            !everything
        });
        for broadcast in &over {
            if broadcast.receivers > 0 {
                all.times
                    .entry(Metric::FirstReceiver.into())
                    .or_default()
                    .record(broadcast.first_us);
                all.times.entry(Metric::LastReceiver.into()).or_default().record(broadcast.last_us);
            }
            let missing = broadcast.expected.saturating_sub(broadcast.receivers);
            all.counts[Count::DeliveriesMissing] += u64::from(missing);
            all.counts[Count::BroadcastsComplete] += 1;
        }
        slowest(&mut over, SLOWEST_OF_TICK);
        over
    }
}

pub(super) fn slowest(broadcasts: &mut Vec<Broadcast>, n: usize) {
    broadcasts.sort_unstable_by_key(|one| {
        (std::cmp::Reverse(one.last_us), one.publisher, one.seq, one.at_ms)
    });
    broadcasts.truncate(n);
    broadcasts.shrink_to_fit();
}
