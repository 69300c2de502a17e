//! The little arithmetic between counters and figures.

use anyhow::{Context, Result};

/// `amount ÷ by`, for counters far below 2⁵³.
pub fn per<T: TryInto<u64>>(amount: T, by: u32) -> f64 {
    // All counters here are non-negative and small enough to be exact in f64.
    #[allow(clippy::cast_precision_loss)]
    let amount = amount.try_into().map_or(f64::NAN, |amount| amount as f64);
    amount / f64::from(by)
}

/// One counter ÷ another.
pub fn ratio<T: TryInto<u64>, U: TryInto<u64>>(amount: T, by: U) -> f64 {
    per(amount, 1) / per(by, 1)
}

/// One counter − another, which may be the larger one.
pub fn difference(one: u64, other: u64) -> f64 {
    per(one, 1) - per(other, 1)
}

/// The median of the values; an error if there are none.
pub fn middle(values: &[f64]) -> Result<f64> {
    median(values).context("nothing measured")
}

/// The value below which a share `q` of the values lie (nearest rank); `None` without values.
pub fn quantile(values: &[f64], q: f64) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let count = sorted.len();
    let rank = (1..=count).find(|rank| per(*rank, 1) >= q * per(count, 1))?;
    sorted.get(rank - 1).copied()
}

/// The middle value, or the mean of the two middle ones.
pub fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let upper = *sorted.get(sorted.len() / 2)?;
    if sorted.len() % 2 == 1 {
        return Some(upper);
    }
    sorted.get(sorted.len() / 2 - 1).map(|lower| f64::midpoint(*lower, upper))
}

/// The lowest and the highest value.
pub fn range(values: &[f64]) -> Option<(f64, f64)> {
    let low = values.iter().copied().min_by(f64::total_cmp)?;
    let high = values.iter().copied().max_by(f64::total_cmp)?;
    Some((low, high))
}

/// Counts of values by size: quantiles of any number of them in fixed memory, 1.6 % low at most.
#[derive(Clone, Debug)]
pub struct Histogram {
    counts: Vec<u64>,
    total: u64,
}

/// Half as many buckets in each power of two have equal width.
const WIDTH_BITS: u32 = 7;
const WIDTH: u32 = 1 << WIDTH_BITS;

impl Default for Histogram {
    fn default() -> Self {
        let buckets = bucket(u32::MAX) + 1;
        Self { counts: vec![0; buckets], total: 0 }
    }
}

/// Small values have a bucket each.
fn bucket(value: u32) -> usize {
    let shift = (value | (WIDTH - 1)).ilog2() + 1 - WIDTH_BITS;
    (shift * WIDTH / 2 + (value >> shift)) as usize
}

impl Histogram {
    /// Counts a value.
    pub fn add(&mut self, value: u32) {
        if let Some(count) = self.counts.get_mut(bucket(value)) {
            *count += 1;
            self.total += 1;
        }
    }

    /// How many values were counted.
    pub fn total(&self) -> u64 {
        self.total
    }

    /// The lower end of the bucket with the value of a quantile (nearest rank); NaN without values.
    pub fn quantile(&self, share: f64) -> f64 {
        let rank = (share * per(self.total, 1)).max(1.0);
        let mut seen = 0;
        let found = self.counts.iter().position(|count| {
            seen += count;
            per(seen, 1) >= rank
        });
        let value = |at: usize| {
            let (at, half) = (at as u64, u64::from(WIDTH / 2));
            let shift = (at / half).saturating_sub(1);
            (at - shift * half) << shift
        };
        found.map_or(f64::NAN, |at| per(value(at), 1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_of_a_histogram_are_at_most_2_percent_low() {
        let mut histogram = Histogram::default();
        assert!(histogram.quantile(0.5).is_nan());
        let values = [0, 1, 63, 64, 65, 127, 128, 1_000, 12_345, 5_000_000, u32::MAX];
        for value in values {
            histogram.add(value);
        }
        for (nth, value) in values.iter().enumerate() {
            let found = histogram.quantile(per(nth + 1, 1) / per(values.len(), 1));
            let (low, high) = (f64::from(*value) * 0.984, f64::from(*value));
            assert!((low..=high).contains(&found), "{found} for {value}");
        }
        assert_eq!(histogram.total(), 11);
    }

    #[test]
    fn medians_and_quantiles_are_computed() {
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), Some(2.5));
        assert_eq!(range(&[4.0, 1.0, 2.0]), Some((1.0, 4.0)));
        assert_eq!(range(&[]), None);
        let hundred: Vec<f64> = (1..=200).map(f64::from).collect();
        assert_eq!(quantile(&hundred, 0.99), Some(198.0));
        assert_eq!(quantile(&hundred, 1.0), Some(200.0));
        assert_eq!(quantile(&[7.0], 0.99), Some(7.0));
        assert_eq!(quantile(&[], 0.99), None);
    }
}
