//! Random choices computed from numbers, so that a run can be repeated.

/// Hashes two numbers to one that looks random (the finalizer of splitmix64).
pub(crate) fn mix(a: u64, b: u64) -> u64 {
    let mut z = a.wrapping_add(b.wrapping_mul(0x9e37_79b9_7f4a_7c15)).wrapping_add(1);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

pub(crate) fn sums(weights: impl Iterator<Item = f64>) -> Vec<f64> {
    weights
        .scan(0.0, |sum, weight| {
            *sum += weight.max(0.0);
            Some(*sum)
        })
        .collect()
}

pub(crate) fn pick(sums: &[f64], random: u64) -> u16 {
    let all = sums.last().copied().unwrap_or(0.0);
    let point = fastrand::Rng::with_seed(random).f64() * all;
    let index = sums.partition_point(|sum| *sum <= point);
    u16::try_from(index.min(sums.len().saturating_sub(1))).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn choices_follow_the_weights_and_skip_weight_zero() {
        let sums = sums([1.0, 0.0, 3.0].into_iter());
        let mut counts = [0_u32; 3];
        for number in 0..40_000 {
            counts[usize::from(pick(&sums, mix(1, number)))] += 1;
        }
        assert_eq!(counts[1], 0);
        assert!((9_700..10_300).contains(&counts[0]), "{counts:?}");
    }
}
