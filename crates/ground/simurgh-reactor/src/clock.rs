//! The loop's time: one reading per turn, so all handlers of a turn use the same time without
//! another reading. All code above the reactor gets its time from here.

use rustix::time::{ClockId, Timespec, clock_gettime};

/// Nanoseconds in one coarse tick.
const TICK_NS: u64 = 100_000_000;

/// One reading of the loop's clock; all shards of a set count from the same start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Now {
    /// Monotonic nanoseconds since the shard set was prepared.
    pub ns: u64,
    /// Steps of 100 ms, without time in which this thread could not serve (a suspended machine, a
    /// stopped process, a turn longer than a second): for a connection's record (4 bytes last 13
    /// years), and for timeouts.
    pub tick: u32,
}

impl Now {
    /// A reading of `ns` nanoseconds: for tests and simulations.
    pub const fn from_ns(ns: u64) -> Self {
        Self::at(ns, 0)
    }

    /// A reading of `ns` nanoseconds, of which `lost_ns` do not count.
    pub(crate) const fn at(ns: u64, lost_ns: u64) -> Self {
        Self { ns, tick: (ns.saturating_sub(lost_ns) / TICK_NS) as u32 }
    }
}

/// The source of [`Now`]: the monotonic clock of the system, which the kernel's timers use, too.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tick_is_a_tenth_of_a_second() {
        assert_eq!(Now::from_ns(99_999_999).tick, 0);
        assert_eq!(Now::from_ns(100_000_000).tick, 1);
        assert_eq!(Now::from_ns(3_600_000_000_000).tick, 36_000);
    }
}
