//! When users arrive: the plan of the phases, and one worker's share of it.
//!
//! Time is divided into bins of 100 ms. The number of arrivals of the *whole* run in each bin
//! follows from the scenario and its seed alone. A worker computes all bins but takes only every
//! `of`-th arrival. So workers and hosts agree without communication, and their number does not
//! change a run. Even arrivals happen when the integral of the rate passes a whole number; a
//! Poisson process is a Poisson number in each bin at independent uniform times. This module reads
//! no clock.

use simurgh_load_scenario::{Arrivals, Load, Phase};

use crate::chance::mix;
use crate::time::nanos;

pub(crate) const BIN_NS: u64 = 100_000_000;

/// This worker's arrivals: those whose number modulo `of` is `index`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Share {
    pub(crate) index: u64,
    pub(crate) of: u64,
}

impl Share {
    /// How many of the numbers below `end` are this worker's.
    fn below(self, end: u64) -> u64 {
        (end + self.of - 1 - self.index.min(self.of - 1)) / self.of
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Arrival {
    /// Since the start of the phase.
    pub(crate) at_ns: u64,
    /// Number in the run, from 0.
    pub(crate) number: u64,
}

#[derive(Debug)]
pub(crate) struct PhaseSchedule {
    phase: Phase,
    share: Share,
    seed: u64,
    bin: u64,
    /// Integral of the rate over the bins so far, or arrivals of a Poisson process.
    so_far: f64,
    /// Arrivals of the run before this phase.
    before: u64,
    users_max: u64,
}

impl PhaseSchedule {
    /// Phase `index` of the run, in round `round` of its repetitions, after `before` arrivals.
    pub(crate) fn new(
        load: &Load,
        index: usize,
        round: u32,
        before: u64,
        share: Share,
        seed: u64,
    ) -> Option<Self> {
        let phase = load.phases.get(index)?.clone();
        let left = load.users_max.map_or(u64::MAX, |most| most.saturating_sub(before));
        let users_max = phase.users_max.unwrap_or(u64::MAX).min(left);
        let seed = mix(mix(seed, u64::from(round)), index as u64);
        Some(Self { phase, share, seed, bin: 0, so_far: 0.0, before, users_max })
    }

    pub(crate) fn phase(&self) -> &Phase {
        &self.phase
    }

    pub(crate) fn arrived(&self) -> u64 {
        self.before + self.count(self.so_far)
    }

    /// Start of the next bin, since the start of the phase; `None` when no more users will arrive.
    pub(crate) fn next_bin_ns(&self) -> Option<u64> {
        let start = self.bin * BIN_NS;
        let quiet = match self.phase.arrivals {
            Arrivals::Open { from, to, .. } => from.max(to) <= 0.0,
            Arrivals::Closed { .. } => false,
        };
        let full = self.count(self.so_far) >= self.users_max;
        (start < self.duration_ns() && !quiet && !full).then_some(start)
    }

    /// Computes the next bin at `factor` times the rate; appends this worker's arrivals in order.
    pub(crate) fn bin(&mut self, factor: f64, out: &mut Vec<Arrival>) {
        let start_ns = self.bin * BIN_NS;
        let end_ns = (start_ns + BIN_NS).min(self.duration_ns());
        self.bin += 1;
        let Arrivals::Open { poisson, .. } = self.phase.arrivals else { return };
        let expected = self.integral(start_ns, end_ns) * factor;
        let (first, first_new) = (self.so_far, out.len());
        let mut rng = fastrand::Rng::with_seed(mix(self.seed, self.bin));
        let come = if poisson { poisson_number(expected, &mut rng) } else { expected };
        self.so_far += come;
        let (from, to) = (self.count(first), self.count(self.so_far));
        let length = (end_ns - start_ns) as f64;
        let mut number = self.first_own(from);
        while number < to {
            let part = if poisson {
                fastrand::Rng::with_seed(mix(self.seed ^ 0x5eed, number)).f64()
            } else {
                ((number as f64 - first) / come).clamp(0.0, 1.0)
            };
            let at_ns = start_ns + (part * length) as u64;
            out.push(Arrival { at_ns, number: self.before + number });
            number += self.share.of;
        }
        if let Some(new) = out.get_mut(first_new..) {
            new.sort_by_key(|arrival| arrival.at_ns);
        }
    }

    /// Closed model: this worker's users at a time since the start of the phase.
    pub(crate) fn wanted(&self, at_ns: u64, factor: f64) -> Option<u64> {
        let Arrivals::Closed { from, to } = self.phase.arrivals else { return None };
        let part = (at_ns as f64 / self.duration_ns().max(1) as f64).min(1.0);
        let all = (from as f64 + (to as f64 - from as f64) * part) * factor;
        Some(self.share.below(all.round() as u64))
    }

    fn duration_ns(&self) -> u64 {
        nanos(self.phase.duration)
    }

    /// Users that the unscaled rate brings between two times of the phase.
    fn integral(&self, start_ns: u64, end_ns: u64) -> f64 {
        let Arrivals::Open { from, to, .. } = self.phase.arrivals else { return 0.0 };
        let whole = self.duration_ns().max(1) as f64;
        let middle = (start_ns as f64 + end_ns as f64) / 2.0 / whole;
        let rate = from + (to - from) * middle;
        rate * (end_ns - start_ns) as f64 / 1e9
    }

    /// Whole arrivals at an integral of `so_far`, up to the cap: the first comes at 0.
    fn count(&self, so_far: f64) -> u64 {
        // Sums of binary fractions may miss the whole number they mean by a little.
        const ROUNDING: f64 = 1e-6;
        ((so_far - ROUNDING).ceil().max(0.0) as u64).min(self.users_max)
    }

    /// This worker's first number at or after `from` in this phase.
    fn first_own(&self, from: u64) -> u64 {
        let behind = (self.before + from) % self.share.of;
        from + (self.share.index + self.share.of - behind) % self.share.of
    }
}

/// A Poisson-distributed number (Knuth), in portions that keep the product away from zero.
fn poisson_number(mean: f64, rng: &mut fastrand::Rng) -> f64 {
    const PORTION: f64 = 64.0;
    let (mut left, mut number) = (mean, 0_u64);
    while left > 0.0 {
        let limit = (-left.min(PORTION)).exp();
        left -= PORTION;
        let mut product = rng.f64();
        while product > limit {
            number += 1;
            product *= rng.f64();
        }
    }
    number as f64
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn load(from: f64, to: f64, poisson: bool, secs: u64) -> Load {
        let phase = Phase {
            name: "1".into(),
            duration: Duration::from_secs(secs),
            arrivals: Arrivals::Open { from, to, poisson },
            users_max: None,
            wait_for_users: false,
            hold: false,
            weights: Vec::new(),
        };
        Load { phases: vec![phase], ..Load::default() }
    }

    fn all(load: &Load, share: Share, factor: f64) -> Vec<Arrival> {
        let mut schedule = PhaseSchedule::new(load, 0, 0, 0, share, 7).unwrap();
        let mut out = Vec::new();
        while schedule.next_bin_ns().is_some() {
            schedule.bin(factor, &mut out);
        }
        out
    }

    const WHOLE: Share = Share { index: 0, of: 1 };

    #[test]
    fn evenly_spaced_arrivals_come_at_exact_times() {
        for rate in [0.3, 1.0, 7.0, 100.0, 333.0, 1000.0, 9_999.5] {
            let arrivals = all(&load(rate, rate, false, 10), WHOLE, 1.0);
            assert_eq!(arrivals.len() as f64, (rate * 10.0).ceil(), "{rate}");
            for arrival in &arrivals {
                let due = arrival.number as f64 / rate * 1e9;
                assert!((arrival.at_ns as f64 - due).abs() < 2_000.0, "{rate}: {arrival:?}");
            }
        }
    }

    #[test]
    fn ramp_starts_as_many_users_as_the_area_below_its_rate() {
        let arrivals = all(&load(0.0, 1000.0, false, 10), WHOLE, 1.0);
        assert_eq!(arrivals.len(), 5000);
        let half = arrivals.iter().filter(|arrival| arrival.at_ns < 5_000_000_000).count();
        assert!((1249..=1251).contains(&half), "{half}");
    }

    #[test]
    fn a_poisson_process_has_its_mean_and_its_variance() {
        let arrivals = all(&load(1000.0, 1000.0, true, 100), WHOLE, 1.0);
        let count = arrivals.len() as f64;
        assert!((count - 100_000.0).abs() < 3.0 * 100_000_f64.sqrt(), "{count}");
        let mut gaps: Vec<f64> =
            arrivals.windows(2).map(|two| (two[1].at_ns - two[0].at_ns) as f64).collect();
        let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
        let variance = gaps.iter().map(|gap| (gap - mean).powi(2)).sum::<f64>() / count;
        // Exponential gaps: the deviation is the mean, the median ln 2 of it.
        assert!((variance.sqrt() / mean - 1.0).abs() < 0.02, "{}", variance.sqrt() / mean);
        gaps.sort_by(f64::total_cmp);
        assert!((gaps[gaps.len() / 2] / mean - 2_f64.ln()).abs() < 0.02);
    }

    #[test]
    fn any_number_of_workers_shares_all_arrivals_without_loss() {
        for poisson in [false, true] {
            let load = load(50.0, 400.0, poisson, 20);
            let whole = all(&load, WHOLE, 1.5);
            let mut parts: Vec<Arrival> =
                (0..7).flat_map(|index| all(&load, Share { index, of: 7 }, 1.5)).collect();
            parts.sort_by_key(|arrival| (arrival.at_ns, arrival.number));
            let mut whole = whole;
            whole.sort_by_key(|arrival| (arrival.at_ns, arrival.number));
            assert_eq!(whole, parts);
        }
    }

    #[test]
    fn arrivals_stop_exactly_at_the_maximum_of_users() {
        for poisson in [false, true] {
            let mut load = load(100.0, 100.0, poisson, 10);
            load.phases[0].users_max = Some(137);
            assert_eq!(all(&load, WHOLE, 1.0).len(), 137);
            load.users_max = Some(20);
            assert_eq!(all(&load, WHOLE, 1.0).len(), 20);
        }
    }

    #[test]
    fn schedule_ends_after_the_last_arrival() {
        let mut capped = load(100.0, 100.0, false, 10);
        capped.phases[0].users_max = Some(137);
        for (load, bins) in [(capped, 14), (load(0.0, 0.0, true, 10), 0)] {
            let mut schedule = PhaseSchedule::new(&load, 0, 0, 0, WHOLE, 7).unwrap();
            let mut out = Vec::new();
            for _ in 0..bins {
                assert!(schedule.next_bin_ns().is_some());
                schedule.bin(1.0, &mut out);
            }
            assert_eq!(schedule.next_bin_ns(), None);
        }
    }

    #[test]
    fn closed_phase_changes_its_number_of_users_linearly() {
        let mut load = load(0.0, 0.0, false, 10);
        load.phases[0].arrivals = Arrivals::Closed { from: 10, to: 110 };
        let wanted = |at_s: u64, share| {
            let schedule = PhaseSchedule::new(&load, 0, 0, 0, share, 7).unwrap();
            schedule.wanted(at_s * 1_000_000_000, 1.0).unwrap()
        };
        assert_eq!(wanted(0, WHOLE), 10);
        assert_eq!(wanted(5, WHOLE), 60);
        assert_eq!(wanted(20, WHOLE), 110);
        assert_eq!((0..3).map(|index| wanted(5, Share { index, of: 3 })).sum::<u64>(), 60);
    }
}
