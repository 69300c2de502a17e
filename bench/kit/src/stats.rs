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

#[cfg(test)]
mod tests {
    use super::*;

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
