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

/// The whole millisecond that is nearest to a time.
pub(crate) fn ms_nearest(ns: u64) -> u32 {
    u32::try_from(ns.saturating_add(500_000) / 1_000_000).unwrap_or(u32::MAX - 2)
}

/// When something was or will be due, by its `since_us`.
pub(crate) fn due_ns(since_us: u32, now_ns: u64) -> u64 {
    let ahead_us = since_us.wrapping_sub(us(now_ns)) as i32;
    now_ns.saturating_add_signed(i64::from(ahead_us) * 1000)
}

/// The millisecond that contains a time.
pub(crate) fn ms(ns: u64) -> u32 {
    (ns / 1_000_000) as u32
}
