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

/// The unit of timers. 32 bits of it are 12 days.
pub(crate) const TICK_US: u32 = 250;
const TICK_NS: u64 = TICK_US as u64 * 1000;
/// Later times are this one.
const LAST_TICK: u32 = u32::MAX - 2;

/// The first tick that is not before a time.
pub(crate) fn tick_after(ns: u64) -> u32 {
    u32::try_from(ns.div_ceil(TICK_NS)).unwrap_or(LAST_TICK)
}

/// The tick that is nearest to a time.
pub(crate) fn tick_nearest(ns: u64) -> u32 {
    u32::try_from(ns.saturating_add(TICK_NS / 2) / TICK_NS).unwrap_or(LAST_TICK)
}

/// The last tick that is not after a time.
pub(crate) fn tick(ns: u64) -> u32 {
    u32::try_from(ns / TICK_NS).unwrap_or(LAST_TICK)
}

/// When a tick is.
pub(crate) fn tick_ns(tick: u32) -> u64 {
    u64::from(tick) * TICK_NS
}

/// When something was or will be due, by its `since_us`.
pub(crate) fn due_ns(since_us: u32, now_ns: u64) -> u64 {
    let ahead_us = since_us.wrapping_sub(us(now_ns)) as i32;
    now_ns.saturating_add_signed(i64::from(ahead_us) * 1000)
}
