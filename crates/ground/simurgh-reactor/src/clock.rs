//! The loop's time: one reading per turn, so all handlers of a turn use the same time without
//! another reading. All code above the reactor gets its time from here.

use rustix::time::{ClockId, Timespec, clock_gettime};

/// The source of [`Now`](simurgh_data::Now): the monotonic clock of the system, which the kernel's
/// timers use, too.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    start_ns: u64,
}

impl Clock {
    pub(crate) fn new() -> Self {
        Self { start_ns: nanoseconds(clock_gettime(ClockId::Monotonic)) }
    }

    pub(crate) fn ns(&self) -> u64 {
        nanoseconds(clock_gettime(ClockId::Monotonic)).saturating_sub(self.start_ns)
    }

    /// The time of CLOCK_MONOTONIC at `ns` of this clock.
    #[cfg(target_os = "linux")]
    pub(crate) fn monotonic_ns(&self, ns: u64) -> u64 {
        self.start_ns.saturating_add(ns)
    }
}

pub(crate) fn nanoseconds(time: Timespec) -> u64 {
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
