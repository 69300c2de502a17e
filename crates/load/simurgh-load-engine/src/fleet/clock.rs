//! The difference between another host's clock and ours, measured by pings.
//!
//! An answer has the other clock's time at some moment between its question and its arrival here.
//! So the difference is known to half the round trip, either way, and the fastest of several rounds
//! is the most accurate. Old rounds are dropped, because clocks drift.

use std::collections::VecDeque;

/// Rounds that are kept: one each second.
const ROUNDS: usize = 16;
/// A bound or a drift from this on is reported to the operator.
const WARNED_NS: u64 = 1_000_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Reading {
    /// Added to the other clock to get ours.
    pub(crate) offset_ns: i64,
    /// The error that may remain, either way: half the round trip.
    pub(crate) bound_ns: u64,
}

/// A problem of a clock that is reported to the operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Skew {
    /// By how much the other clock has gained since the first reading.
    pub(crate) ahead_us: i64,
    pub(crate) bound_us: u64,
}

#[derive(Debug, Default)]
pub(crate) struct Readings {
    last: VecDeque<Reading>,
    first: Option<Reading>,
    in_use: Option<Reading>,
    /// The operator was warned of a bound, and of a drift, up to these.
    warned_bound_ns: u64,
    warned_drift_ns: u64,
}

impl Readings {
    /// Adds a ping that left at `sent_ns` and was back at `received_ns` with the other's time.
    pub(crate) fn add(&mut self, sent_ns: u64, received_ns: u64, other_ns: u64) {
        let round_ns = received_ns.saturating_sub(sent_ns);
        let middle_ns = sent_ns.saturating_add(round_ns / 2);
        let offset_ns = difference(middle_ns, other_ns);
        if self.last.len() == ROUNDS {
            self.last.pop_front();
        }
        self.last.push_back(Reading { offset_ns, bound_ns: round_ns.div_ceil(2) });
    }

    /// The best of the last rounds; the newest of equals.
    pub(crate) fn best(&self) -> Option<Reading> {
        self.last.iter().rev().min_by_key(|reading| reading.bound_ns).copied()
    }

    /// A new reading for the other side: the first, or when the one in use must be wrong.
    pub(crate) fn correct(&mut self) -> Option<Reading> {
        let best = self.best()?;
        if self.in_use.is_some_and(|used| used.offset_ns.abs_diff(best.offset_ns) <= best.bound_ns)
        {
            return None;
        }
        self.first = self.first.or(Some(best));
        self.in_use = Some(best);
        Some(best)
    }

    pub(crate) fn is_in_use(&self) -> bool {
        self.in_use.is_some()
    }

    /// A new warning: a bound or a drift of more than a millisecond, again when it has doubled.
    pub(crate) fn skew(&mut self) -> Option<Skew> {
        let (first, best) = (self.first?, self.best()?);
        let ahead_ns = first.offset_ns.saturating_sub(best.offset_ns);
        // The part that the bounds do not explain.
        let drift_ns =
            ahead_ns.unsigned_abs().saturating_sub(first.bound_ns.saturating_add(best.bound_ns));
        let mut is_new = false;
        for (now_ns, warned_ns) in
            [(best.bound_ns, &mut self.warned_bound_ns), (drift_ns, &mut self.warned_drift_ns)]
        {
            if now_ns > WARNED_NS && now_ns >= warned_ns.saturating_mul(2) {
                *warned_ns = now_ns;
                is_new = true;
            }
        }
        is_new.then_some(Skew { ahead_us: ahead_ns / 1000, bound_us: best.bound_ns.div_ceil(1000) })
    }
}

pub(crate) fn difference(a: u64, b: u64) -> i64 {
    i64::try_from(i128::from(a) - i128::from(b)).unwrap_or(if a > b { i64::MAX } else { i64::MIN })
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn fastest_round_trip_determines_the_clock_offset_and_its_bound() {
        let mut readings = Readings::default();
        // The other clock is 7 s behind. Asymmetric ways err by no more than the bound.
        for (there, back) in [(5 * MS, 90 * MS), (MS / 10, MS / 5), (40 * MS, MS)] {
            let sent = 20_000 * MS;
            readings.add(sent, sent + there + back, sent + there - 7_000 * MS);
        }
        let best = readings.best().unwrap();
        assert_eq!(best.bound_ns, 3 * MS / 20);
        assert!(best.offset_ns.abs_diff(7_000_000_000) <= best.bound_ns, "{best:?}");
    }

    #[test]
    fn constant_clock_offset_is_corrected_once_without_a_report() {
        let mut readings = Readings::default();
        for second in 1..100_u64 {
            let sent = second * 1000 * MS;
            let jitter = second % 7 * MS / 100;
            readings.add(sent, sent + MS / 5 + jitter, sent + MS / 10 + 5);
            assert_eq!(readings.correct().is_some(), second == 1, "{second}");
            assert_eq!(readings.skew(), None);
        }
    }

    #[test]
    fn clock_drift_is_corrected_and_reported_each_time_it_doubles() {
        let mut readings = Readings::default();
        let (mut told, mut worst) = (Vec::new(), 0);
        let mut used = 0_i64;
        // 100 µs a second: more than any crystal.
        for second in 0..60_u64 {
            let sent = second * 1000 * MS;
            let other = sent + MS / 20 + second * MS / 10;
            readings.add(sent, sent + MS / 10, other);
            used = readings.correct().map_or(used, |reading| reading.offset_ns);
            let truth = difference(sent + MS / 20, other);
            worst = worst.max(used.abs_diff(truth));
            told.extend(readings.skew());
        }
        assert!(told.len() >= 2 && told.len() <= 3, "{told:?}");
        assert!(told.iter().all(|skew| skew.ahead_us > 1000 && skew.bound_us == 50), "{told:?}");
        // Without correction it would be 5.9 ms.
        assert!(worst <= MS / 5, "{worst}");
    }

    #[test]
    fn slow_network_between_hosts_is_reported_once() {
        let mut readings = Readings::default();
        let mut told = Vec::new();
        for second in 0..40_u64 {
            let sent = second * 1000 * MS;
            readings.add(sent, sent + 60 * MS, sent);
            readings.correct();
            told.extend(readings.skew());
        }
        assert_eq!(told, [Skew { ahead_us: 0, bound_us: 30_000 }]);
    }
}
