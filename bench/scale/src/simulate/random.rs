//! Random numbers for the simulations, from a seeded generator.

use simurgh_cluster::SplitMix64;

/// Draws of the simulations.
pub trait Random {
    /// A number below a bound, which is not 0.
    fn below(&mut self, bound: u64) -> u64;

    /// A number from 0 up to, and without, 1.
    fn share(&mut self) -> f64;
}

impl Random for SplitMix64 {
    fn below(&mut self, bound: u64) -> u64 {
        self.within(&(0..=bound.saturating_sub(1)))
    }

    fn share(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_spread_evenly_and_come_again_from_their_seed() {
        let draw = || {
            let mut random = SplitMix64::new(3);
            (0..10_000).map(|_| random.share()).collect::<Vec<f64>>()
        };
        let all = draw();
        assert!(all.iter().all(|it| (0.0..1.0).contains(it)));
        let mean = all.iter().sum::<f64>() / 10_000.0;
        assert!((0.49..0.51).contains(&mean), "{mean}");
        assert_eq!(all, draw());
    }
}
