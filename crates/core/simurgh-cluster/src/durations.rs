//! A histogram of durations.

use core::time::Duration;

use simurgh_channel::metrics::HISTOGRAM_BOUNDS_NS;

/// A histogram of durations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Durations {
    /// How many durations were at most each of [`HISTOGRAM_BOUNDS_NS`] and above the one before it;
    /// the last bucket is unbounded.
    pub buckets: [u64; HISTOGRAM_BOUNDS_NS.len() + 1],
    /// The sum of all durations, in nanoseconds.
    pub sum_ns: u64,
}

impl Durations {
    /// Counts a duration.
    pub fn add(&mut self, took: Duration) {
        let ns = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        let bucket = HISTOGRAM_BOUNDS_NS.iter().take_while(|bound| ns > **bound).count();
        if let Some(count) = self.buckets.get_mut(bucket) {
            *count += 1;
        }
        self.sum_ns = self.sum_ns.saturating_add(ns);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn duration_is_counted_in_first_bucket_whose_bound_it_does_not_exceed() {
        let mut all = Durations::default();
        for ns in [0, 50_000, 50_001, 10_000_000_000, 10_000_000_001] {
            all.add(Duration::from_nanos(ns));
        }
        assert_eq!(all.buckets, [2, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1]);
        assert_eq!(all.sum_ns, 20_000_100_002);
        all.add(Duration::MAX);
        assert_eq!((all.buckets[12], all.sum_ns), (2, u64::MAX));
    }
}
