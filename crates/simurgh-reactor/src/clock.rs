//! Time as the loop sees it: one reading a turn, so a thousand handlers of one turn agree on the
//! hour and nobody pays for asking. Everything above the reactor gets its time from here.

use std::time::Instant;

/// Nanoseconds in one coarse tick.
const TICK_NS: u64 = 100_000_000;

/// One reading of the loop's clock; all shards of a set count from the same start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Now {
    /// Monotonic nanoseconds since the shard set was prepared.
    pub ns: u64,
    /// The same in steps of 100 ms: what a connection's record keeps (4 bytes last 13 years).
    pub tick: u32,
}

impl Now {
    /// A reading of `ns` nanoseconds: for tests and simulations.
    pub const fn from_ns(ns: u64) -> Self {
        Self { ns, tick: (ns / TICK_NS) as u32 }
    }
}

/// The source of [`Now`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    start: Instant,
}

impl Clock {
    pub(crate) fn new() -> Self {
        Self { start: Instant::now() }
    }

    pub(crate) fn ns(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tick_is_a_tenth_of_a_second() {
        assert_eq!(Now::from_ns(99_999_999).tick, 0);
        assert_eq!(Now::from_ns(100_000_000).tick, 1);
        assert_eq!(Now::from_ns(3_600_000_000_000).tick, 36_000);
    }
}
