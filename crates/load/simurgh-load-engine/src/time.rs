//! Conversions of times of workers and users.

use std::time::Duration;

pub(crate) fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// A time in microseconds, as users store it: it wraps after 71 minutes.
pub(crate) fn us(ns: u64) -> u32 {
    (ns / 1000) as u32
}

/// Microseconds since a user's `since_us`.
pub(crate) fn elapsed_us(since_us: u32, now_ns: u64) -> u64 {
    let elapsed = us(now_ns).wrapping_sub(since_us);
    // A time that is a little in the future counts as 0.
    if elapsed > u32::MAX / 2 { 0 } else { u64::from(elapsed) }
}

/// The first whole millisecond that is not before a time.
pub(crate) fn ms_after(ns: u64) -> u32 {
    u32::try_from(ns.div_ceil(1_000_000)).unwrap_or(u32::MAX - 2)
}

/// The millisecond that contains a time.
pub(crate) fn ms(ns: u64) -> u32 {
    (ns / 1_000_000) as u32
}
