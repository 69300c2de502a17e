//! Chance from a seed: the same calls give the same numbers.

/// SplitMix64 (Steele, Lea, Flood 2014): good enough to spread deadlines, no secret.
#[derive(Clone, Debug)]
pub(crate) struct Chance(u64);

impl Chance {
    pub(crate) const fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) const fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut it = self.0;
        it = (it ^ (it >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        it = (it ^ (it >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        it ^ (it >> 31)
    }

    /// Below a bound; 0, if that is 0.
    pub(crate) const fn below(&mut self, bound: u64) -> u64 {
        ((self.next() as u128 * bound as u128) >> 64) as u64
    }

    /// Within so many percent of a value, both ends included.
    pub(crate) const fn around(&mut self, value: u64, percent: u64) -> u64 {
        let width = (value as u128 * percent as u128 / 100) as u64;
        let offset = self.below(width.saturating_mul(2).saturating_add(1));
        (value - width).saturating_add(offset)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_spread_over_the_whole_width_and_not_beyond() {
        let mut chance = Chance::new(7);
        let all: Vec<u64> = (0..10_000).map(|_| chance.around(1000, 25)).collect();
        let (min, max) = (all.iter().min().unwrap(), all.iter().max().unwrap());
        assert_eq!((*min, *max), (750, 1250));
        let mean = all.iter().sum::<u64>() / 10_000;
        assert!((990..1010).contains(&mean), "{mean}");
        assert_eq!((chance.around(0, 25), chance.below(0)), (0, 0));
    }
}
