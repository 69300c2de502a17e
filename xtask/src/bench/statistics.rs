//! How much two samples of a few runs differ, and with which confidence.
//!
//! The interval is that of the rank test (Mann and Whitney's U): all ratios of a new run to an old
//! one are sorted, as many are left out at each end as the exact distribution of U allows, and
//! their median (Hodges and Lehmann) is the estimate. With three to ten runs a bootstrap resamples
//! the same few values and its intervals are too narrow; a t interval assumes a normal
//! distribution, which times on a shared machine do not follow. The rank test assumes neither, one
//! outlier moves it little, and it yields no interval if there are too few runs.

use simurgh_bench_kit::stats::median;

/// The least confidence of an interval.
pub(crate) const CONFIDENCE: f64 = 0.95;

/// The most runs of one sample; the count of arrangements is exact in `f64` up to this.
pub(crate) const RUNS_MAX: usize = 25;

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Change {
    /// New ÷ old.
    pub(crate) factor: f64,
    /// The factor is between these with [`CONFIDENCE`].
    pub(crate) low: f64,
    /// See `low`.
    pub(crate) high: f64,
}

/// The factor between two samples; `None` if they are too small, or a value is not above 0.
pub(crate) fn change(old: &[f64], new: &[f64]) -> Option<Change> {
    let (old, new) = (head(old), head(new));
    let is_usable = |value: &f64| value.is_finite() && *value > 0.0;
    if !old.iter().chain(new).all(is_usable) {
        return None;
    }
    let left_out = left_out(old.len(), new.len())?;
    let mut logs: Vec<f64> =
        new.iter().flat_map(|new| old.iter().map(move |old| (new / old).ln())).collect();
    logs.sort_by(f64::total_cmp);
    let low = logs.get(left_out)?;
    let high = logs.get(logs.len().checked_sub(left_out + 1)?)?;
    Some(Change { factor: median(&logs)?.exp(), low: low.exp(), high: high.exp() })
}

fn head(values: &[f64]) -> &[f64] {
    values.get(..RUNS_MAX).unwrap_or(values)
}

/// How many ratios are outside the interval at each end; `None` if none is sure enough.
fn left_out(old: usize, new: usize) -> Option<usize> {
    let ways = arrangements(old, new);
    let all: f64 = ways.iter().sum();
    let mut tail = 0.0;
    let mut left_out = None;
    for (at, ways) in ways.iter().enumerate() {
        tail += ways / all;
        if tail > (1.0 - CONFIDENCE) / 2.0 {
            break;
        }
        left_out = Some(at);
    }
    left_out
}

/// In how many orders of two samples U is 0, 1, 2 …: Gaussian binomial coefficients.
fn arrangements(old: usize, new: usize) -> Vec<f64> {
    let mut rows = vec![vec![1.0]; new + 1];
    for size in 1..=old {
        let mut next = vec![vec![1.0]];
        for other in 1..=new {
            // The greatest value is one of the old, above all `other` new ones, or a new one.
            let mut ways = vec![0.0; size * other + 1];
            let above = rows.get(other).into_iter().flatten().zip(ways.iter_mut().skip(other));
            above.for_each(|(from, to)| *to += from);
            let below = next.get(other - 1).into_iter().flatten().zip(ways.iter_mut());
            below.for_each(|(from, to)| *to += from);
            next.push(ways);
        }
        rows = next;
    }
    rows.pop().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_distribution_of_u_is_that_of_the_tables() {
        assert_eq!(arrangements(2, 2), [1.0, 1.0, 2.0, 1.0, 1.0]);
        assert_eq!(arrangements(3, 2), [1.0, 1.0, 2.0, 2.0, 2.0, 1.0, 1.0]);
        // Critical values at 5 %, two-sided, of the usual tables (Siegel): U for 5 and 5 is 2, for
        // 4 and 4 it is 0, for 7 and 7 it is 8, for 10 and 10 it is 23. None for 3 and 3.
        assert_eq!(left_out(5, 5), Some(2));
        assert_eq!(left_out(4, 4), Some(0));
        assert_eq!(left_out(7, 7), Some(8));
        assert_eq!(left_out(10, 10), Some(23));
        assert_eq!(left_out(3, 3), None);
        assert_eq!(left_out(1, 5), None);
        assert_eq!(left_out(0, 5), None);
        // Wilcoxon's own interval ends at the same places with other sizes too.
        assert_eq!(left_out(3, 5), Some(0));
    }

    #[test]
    fn a_doubling_is_found_and_three_runs_are_too_few() {
        let (old, new) = ([10.0, 11.0, 12.0, 9.0], [20.0, 22.0, 18.0, 24.0]);
        let found = change(&old, &new).unwrap();
        assert!((found.factor - 2.0).abs() < 0.05, "{found:?}");
        assert!(found.low > 1.4 && found.high < 2.8, "{found:?}");
        assert_eq!(change(&old[..3], &new[..3]), None);
        assert_eq!(change(&[0.0; 5], &new), None);
        assert_eq!(change(&[f64::NAN; 5], &new), None);
    }

    /// Of many pairs of samples of the same distribution, with outliers among them, the interval
    /// may exclude 1 in one of twenty.
    #[test]
    fn it_is_as_sure_as_it_says() {
        let mut seed = 0x5eed_u64;
        let mut uniform = || {
            // Steele's splitmix64, which is repeatable; more is not needed.
            seed = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut word = seed;
            word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            f64::from((word >> 40) as u32) / f64::from(1 << 24)
        };
        for runs in [4, 5, 7] {
            let mut sample = || -> Vec<f64> {
                let run = |_| match uniform() {
                    wild if wild < 0.1 => 5.0 + wild,
                    tame => 1.0 + tame,
                };
                (0..runs).map(run).collect()
            };
            let trials = 4_000;
            let missed = (0..trials)
                .filter(|_| {
                    let found = change(&sample(), &sample()).unwrap();
                    found.low > 1.0 || found.high < 1.0
                })
                .count();
            // Three standard deviations above 5 %.
            assert!(missed < 242, "{missed} of {trials} intervals of {runs} runs miss");
            assert!(missed > 40, "{missed} of {trials}: {runs} runs make intervals far too wide");
        }
    }

    proptest! {
        #[test]
        fn arrangements_are_counted_once_each(old in 0_usize..9, new in 0_usize..9) {
            let ways = arrangements(old, new);
            let choose = (1..=new).fold(1.0, |all, k| all * (old + k) as f64 / k as f64);
            prop_assert!((ways.iter().sum::<f64>() - choose).abs() < 1e-6);
            prop_assert_eq!(ways.len(), old * new + 1);
            let backwards: Vec<f64> = ways.iter().rev().copied().collect();
            prop_assert_eq!(&ways, &backwards);
            prop_assert_eq!(ways, arrangements(new, old));
        }

        #[test]
        fn exchanging_old_and_new_turns_the_factor_over(
            old in vec(0.1_f64..100.0, 4..9),
            new in vec(0.1_f64..100.0, 4..9),
        ) {
            let (there, back) = (change(&old, &new).unwrap(), change(&new, &old).unwrap());
            prop_assert!((there.factor * back.factor - 1.0).abs() < 1e-9);
            prop_assert!((there.low * back.high - 1.0).abs() < 1e-9);
            prop_assert!((there.high * back.low - 1.0).abs() < 1e-9);
            prop_assert!(there.low <= there.factor && there.factor <= there.high);
        }

        #[test]
        fn a_common_factor_moves_the_interval_by_it(
            old in vec(0.1_f64..100.0, 4..9),
            by in 0.01_f64..100.0,
        ) {
            let new: Vec<f64> = old.iter().map(|value| value * by).collect();
            let found = change(&old, &new).unwrap();
            prop_assert!((found.factor / by - 1.0).abs() < 1e-9);
            prop_assert!(found.low <= by * (1.0 + 1e-9) && by <= found.high * (1.0 + 1e-9));
        }

        #[test]
        fn the_order_of_runs_does_not_matter(
            old in vec(0.1_f64..100.0, 0..9),
            new in vec(0.1_f64..100.0, 0..9),
        ) {
            let turned: Vec<f64> = old.iter().rev().copied().collect();
            prop_assert_eq!(change(&old, &new), change(&turned, &new));
        }

        #[test]
        fn samples_without_overlap_are_told_apart(
            old in vec(1.0_f64..2.0, 4..9),
            new in vec(2.1_f64..3.0, 4..9),
        ) {
            prop_assert!(change(&old, &new).unwrap().low > 1.0);
        }
    }
}
