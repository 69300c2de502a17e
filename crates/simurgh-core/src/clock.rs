//! Times as the clock counts them.

use std::time::Duration;

/// One tick of the coarse clock.
pub const TICK: Duration = Duration::from_millis(100);

/// A time as nanoseconds of the clock.
pub fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// From now until then, both in nanoseconds of the clock; no time if then has been.
pub fn until(then_ns: u64, now_ns: u64) -> Duration {
    Duration::from_nanos(then_ns.saturating_sub(now_ns))
}

/// How long a socket may stay, to a tick of the coarse clock; at most 6.8 years.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lifetime {
    ticks: u32,
}

/// Beyond half of its range a tick could not be told from one that has passed.
const TICKS_MAX: u32 = i32::MAX as u32;

impl Lifetime {
    /// The tick in which it is over if it begins now; ticks wrap.
    pub(crate) fn after(self, now: u32) -> u32 {
        now.wrapping_add(self.ticks)
    }
}

impl From<Duration> for Lifetime {
    /// Rounded up: nobody's time is over too early.
    fn from(time: Duration) -> Self {
        let ticks = time.as_nanos().div_ceil(TICK.as_nanos());
        Self { ticks: u32::try_from(ticks).map_or(TICKS_MAX, |ticks| ticks.min(TICKS_MAX)) }
    }
}

/// Whether `tick` is not behind `now`; ticks wrap.
pub(crate) fn has_passed(tick: u32, now: u32) -> bool {
    now.wrapping_sub(tick) <= TICKS_MAX
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lifetime_is_rounded_up_and_has_a_limit() {
        let ticks = |ns| Lifetime::from(Duration::from_nanos(ns)).ticks;
        assert_eq!([ticks(0), ticks(1), ticks(100_000_000), ticks(100_000_001)], [0, 1, 1, 2]);
        assert_eq!(Lifetime::from(Duration::MAX).ticks, TICKS_MAX);
    }
}
