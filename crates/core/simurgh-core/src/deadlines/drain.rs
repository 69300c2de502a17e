//! A drain: how many sockets are to be closed by now, so that all are closed evenly in its time.

use core::time::Duration;

use simurgh_channel::{nanoseconds, until};

/// A drain ends this long after its last close at the latest.
pub const DRAIN_GRACE: Duration = Duration::from_secs(5);
const TURN: usize = 128;
const EVERY: Duration = Duration::from_millis(5);

pub(super) struct Drain {
    began_ns: u64,
    over: Duration,
    total: usize,
    closed: usize,
    next_ns: u64,
    pub(super) cursor: u32,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Step {
    Wait(Duration),
    Close(usize),
    /// The shard ends now, even with sockets left.
    End,
}

impl Drain {
    pub(super) fn new(over: Duration, total: usize, now_ns: u64) -> Self {
        Self { began_ns: now_ns, over, total, closed: 0, next_ns: now_ns, cursor: 0 }
    }

    pub(super) fn step(&mut self, left: usize, may_end: bool, now_ns: u64) -> Step {
        let end_ns = self.began_ns.saturating_add(nanoseconds(self.over + DRAIN_GRACE));
        if may_end || now_ns > end_ns {
            return Step::End;
        }
        if now_ns < self.next_ns {
            return Step::Wait(until(self.next_ns, now_ns));
        }
        self.next_ns = now_ns + nanoseconds(EVERY);
        let passed = until(now_ns, self.began_ns) + EVERY;
        let share = passed.as_secs_f64() / self.over.as_secs_f64().max(1e-3);
        let exact = self.total as f64 * share.min(1.0);
        let due = exact as usize + usize::from(exact % 1.0 > 0.0);
        // More than there were at the beginning arrive from the backlog and from the HTTP side.
        let now_due = if share < 1.0 { due.saturating_sub(self.closed) } else { TURN };
        match now_due.min(TURN).min(left) {
            0 => Step::Wait(EVERY),
            count => Step::Close(count),
        }
    }

    /// Whether all should have been closed by now.
    pub(super) fn is_over(&self, now_ns: u64) -> bool {
        until(now_ns, self.began_ns) >= self.over
    }

    /// So many were closed. Returns in how long to continue.
    pub(super) fn note_closed(&mut self, count: usize) -> Duration {
        self.closed += count;
        EVERY
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sockets_are_closed_evenly_over_the_time() {
        let mut drain = Drain::new(Duration::from_secs(1), 1000, 0);
        let (mut left, mut at) = (1000, Vec::new());
        for ms in 0..2000 {
            if let Step::Close(count) = drain.step(left, left == 0, ms * 1_000_000) {
                let count = count.min(left);
                drain.note_closed(count);
                left -= count;
                at.push((ms, 1000 - left));
            }
        }
        assert_eq!(left, 0);
        for (ms, closed) in at {
            assert!(closed.abs_diff(ms as usize + 5) <= 5, "{closed} closed after {ms} ms");
        }
        assert_eq!(drain.step(0, true, 3_000_000_000), Step::End);
    }
}
