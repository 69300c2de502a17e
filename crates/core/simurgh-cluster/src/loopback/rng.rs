//! Numbers that look random, from a seed: SplitMix64.

use std::ops::RangeInclusive;

#[derive(Debug)]
pub(super) struct Rng(u64);

impl Rng {
    pub(super) const fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(super) const fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// One of a range; its start, if that is empty.
    pub(super) fn within(&mut self, range: &RangeInclusive<u64>) -> u64 {
        let (start, end) = (*range.start(), *range.end());
        let width = u128::from(end.saturating_sub(start)) + 1;
        start + ((u128::from(self.next()) * width) >> 64) as u64
    }

    /// Whether something happens that does so many times in a million. Asks for a number only if
    /// it can be.
    pub(super) fn happens(&mut self, per_million: u32) -> bool {
        per_million > 0 && self.next() % 1_000_000 < u64::from(per_million)
    }
}
