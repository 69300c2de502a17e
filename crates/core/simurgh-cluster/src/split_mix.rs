//! SplitMix64 from a seed: the same calls give the same numbers.

use core::ops::RangeInclusive;

/// SplitMix64 (Steele, Lea, Flood 2014): spreads deadlines and drives simulations. From the
/// seed, all numbers can be predicted.
#[derive(Clone, Debug, Default)]
pub struct SplitMix64(u64);

impl SplitMix64 {
    /// The generator of this seed.
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next number.
    pub const fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut it = self.0;
        it = (it ^ (it >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        it = (it ^ (it >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        it ^ (it >> 31)
    }

    /// A number in a range; its start, if that is empty.
    pub fn within(&mut self, range: &RangeInclusive<u64>) -> u64 {
        let width = u128::from(range.end().saturating_sub(*range.start())) + 1;
        range.start() + ((u128::from(self.next()) * width) >> 64) as u64
    }

    /// Within so many percent of a value, both ends included.
    pub fn around(&mut self, value: u64, percent: u64) -> u64 {
        let width = (u128::from(value) * u128::from(percent) / 100) as u64;
        self.within(&(value - width..=value.saturating_add(width)))
    }

    /// Whether an event happens that happens so many times in a million. Takes a number only if it
    /// can happen at all.
    pub fn happens(&mut self, per_million: u32) -> bool {
        per_million > 0 && self.next() % 1_000_000 < u64::from(per_million)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn random_values_cover_the_whole_range_and_nothing_beyond() {
        let mut chance = SplitMix64::new(7);
        let all: Vec<u64> = (0..10_000).map(|_| chance.around(1000, 25)).collect();
        let (min, max) = (all.iter().min().unwrap(), all.iter().max().unwrap());
        assert_eq!((*min, *max), (750, 1250));
        let mean = all.iter().sum::<u64>() / 10_000;
        assert!((990..1010).contains(&mean), "{mean}");
        assert_eq!((chance.around(0, 25), chance.within(&(0..=0))), (0, 0));
    }
}
