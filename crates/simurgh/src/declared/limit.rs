//! A member's allowance of events: a token bucket in one number.

use std::time::Duration;

/// How far ahead a bucket may be taken from: one second's worth of events at once.
const BURST: Duration = Duration::from_secs(1);

/// A bucket that holds one second's worth of tokens and fills at the same rate.
#[derive(Debug, Default)]
pub(crate) struct Bucket {
    /// Nanoseconds since the origin at which it is, or was, full again. Every token taken moves
    /// this on by the time one token needs to come back, so nothing has to be refilled.
    full_at_ns: u64,
}

impl Bucket {
    /// Takes one token at `now` (since any fixed origin), of `per_second` that come back in a
    /// second.
    pub(crate) fn take(&mut self, now: Duration, per_second: u32) -> bool {
        let (now, burst) = (now.as_nanos() as u64, BURST.as_nanos() as u64);
        let token = burst / u64::from(per_second.max(1));
        let full_at = self.full_at_ns.max(now).saturating_add(token);
        if full_at - now > burst {
            return false;
        }
        self.full_at_ns = full_at;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(bucket: &mut Bucket, at_ms: u64, per_second: u32, tries: u32) -> u32 {
        let at = Duration::from_millis(at_ms);
        (0..tries).filter(|_| bucket.take(at, per_second)).count() as u32
    }

    #[test]
    fn a_burst_is_one_seconds_worth() {
        for rate in [1, 3, 7, 10, 999] {
            assert_eq!(taken(&mut Bucket::default(), 5_000, rate, 2 * rate + 2), rate, "{rate}/s");
        }
    }

    #[test]
    fn tokens_come_back_at_the_rate() {
        let mut bucket = Bucket::default();
        assert_eq!(taken(&mut bucket, 1_000, 10, 99), 10);
        assert_eq!(taken(&mut bucket, 1_099, 10, 99), 0);
        assert_eq!(taken(&mut bucket, 1_100, 10, 99), 1);
        assert_eq!(taken(&mut bucket, 1_350, 10, 99), 2);
        assert_eq!(taken(&mut bucket, 60_000, 10, 99), 10, "never more than a second's worth");
    }

    #[test]
    fn refused_tries_cost_nothing() {
        let mut bucket = Bucket::default();
        for ms in 0..10_000 {
            bucket.take(Duration::from_millis(ms), 2);
        }
        assert_eq!(taken(&mut bucket, 11_000, 2, 9), 2);
    }
}
