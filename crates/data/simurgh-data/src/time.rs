//! Readings of a clock: all handlers of a turn use the same time without another reading.

use core::time::Duration;

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

    /// A reading of `ns` nanoseconds, of which `lost_ns` do not count for the tick.
    pub const fn at(ns: u64, lost_ns: u64) -> Self {
        Self { ns, tick: (ns.saturating_sub(lost_ns) / TICK_NS) as u32 }
    }
}

/// When the end of a turn has to run again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// At once: events are only fetched without waiting.
    Now,
    /// When something happens, at the latest after this time (rounded up to milliseconds).
    After(Duration),
    /// When something happens, at the latest at this time of the shard's clock ([`Now::ns`]; past:
    /// at once). A wake for this time is never early, and commonly less than 100 µs late; to the
    /// millisecond on systems other than Linux, or when no descriptor is left for a timer. Costs
    /// two system calls for each wait with another time.
    At(u64),
    /// When something happens.
    Idle,
}

impl Next {
    /// The sooner of the two.
    pub fn sooner(self, other: Self, now: Now) -> Self {
        // As most are.
        if other == Self::Idle {
            return self;
        }
        let at = |next| match next {
            Self::Now => Some(0),
            Self::After(time) => {
                Some(now.ns.saturating_add(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)))
            }
            Self::At(ns) => Some(ns),
            Self::Idle => None,
        };
        match (at(self), at(other)) {
            (Some(one), Some(two)) if two < one => other,
            (None, Some(_)) => other,
            _ => self,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sooner_of_two_requested_times_wins() {
        let now = Now::from_ns(1_000_000);
        let after = |ns| Next::After(Duration::from_nanos(ns));
        let rising = [Next::Now, Next::At(999_999), after(5), Next::At(1_000_006), after(7)];
        let rising = [&rising[..], &[after(u64::MAX), Next::Idle]].concat();
        for (index, sooner) in rising.iter().enumerate() {
            for later in &rising[index..] {
                assert_eq!(sooner.sooner(*later, now), *sooner);
                assert_eq!(later.sooner(*sooner, now), *sooner);
            }
        }
    }

    #[test]
    fn tick_is_a_tenth_of_a_second() {
        assert_eq!(Now::from_ns(99_999_999).tick, 0);
        assert_eq!(Now::from_ns(100_000_000).tick, 1);
        assert_eq!(Now::from_ns(3_600_000_000_000).tick, 36_000);
    }
}
