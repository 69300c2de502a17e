//! The delay before the next attempt to connect.

use std::time::Duration;

const FIRST: Duration = Duration::from_millis(100);
const LONGEST: Duration = Duration::from_secs(5);

/// The delay before attempt number `attempt`, from 0. It is 100 ms, doubles each time up to 5 s,
/// and is multiplied by a random factor of 0.5 to 1.5, so that nodes do not return all at once.
pub(crate) fn delay(attempt: u32, random: &mut fastrand::Rng) -> Duration {
    let longer = FIRST.saturating_mul(1 << attempt.min(10));
    longer.min(LONGEST).mul_f64(0.5 + random.f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_grow_to_a_bound_with_jitter() {
        let mut random = fastrand::Rng::with_seed(7);
        for attempt in 0..100 {
            let middle = (100 << attempt.min(10)).min(5_000);
            let found = delay(attempt, &mut random).as_millis();
            assert!((middle / 2..=middle * 3 / 2).contains(&found), "{attempt}: {found}");
        }
        let many: Vec<_> = (0..50).map(|_| delay(0, &mut random)).collect();
        let (least, most) = (many.iter().min().unwrap(), many.iter().max().unwrap());
        assert!(*most - *least > Duration::from_millis(50));
    }
}
