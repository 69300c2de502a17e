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
