//! Conversions between durations and the clock's numbers.

use core::time::Duration;

use simurgh_data::Now;

/// One tick of the coarse clock.
pub const TICK: Duration = Duration::from_millis(100);

/// A time as nanoseconds of the clock.
#[inline]
pub fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// The time between, both in nanoseconds of the clock; zero if `then_ns` has passed.
#[inline]
pub fn until(then_ns: u64, now_ns: u64) -> Duration {
    Duration::from_nanos(then_ns.saturating_sub(now_ns))
}

/// How long a socket may stay open, to a tick of the coarse clock; at most 3.4 years.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lifetime {
    ticks: u32,
}

/// Ticks further ahead than half the range count as passed.
const TICKS_MAX: u32 = i32::MAX as u32;
/// Half of that: the end of the longest lifetime must still be after one that has passed and was
/// not looked at yet.
const LIFETIME_TICKS_MAX: u32 = TICKS_MAX / 2;

impl Lifetime {
    /// The tick of [`wall_tick`] in which it is over if it begins now; ticks wrap. One more makes
    /// up for the part of the first tick that has passed, unless the lifetime is zero.
    pub fn after(self, now: Now) -> u32 {
        let has_begun = !now.ns.is_multiple_of(nanoseconds(TICK));
        let ticks = match self.ticks {
            1.. if has_begun => self.ticks + 1,
            ticks => ticks,
        };
        wall_tick(now).wrapping_add(ticks)
    }
}

/// Ticks of the clock, with those in which this thread was stopped, which [`Now::tick`] leaves out:
/// a stopped server does not make a token valid for longer.
#[inline]
pub fn wall_tick(now: Now) -> u32 {
    (now.ns / nanoseconds(TICK)) as u32
}

impl From<Duration> for Lifetime {
    /// Rounded up: no lifetime ends too early.
    fn from(time: Duration) -> Self {
        let ticks = time.as_nanos().div_ceil(TICK.as_nanos());
        let most = LIFETIME_TICKS_MAX;
        Self { ticks: u32::try_from(ticks).map_or(most, |ticks| ticks.min(most)) }
    }
}

/// Whether `tick` is `now` or earlier; ticks wrap.
#[inline]
pub fn has_passed(tick: u32, now: u32) -> bool {
    now.wrapping_sub(tick) <= TICKS_MAX
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lifetime_is_rounded_up_and_capped() {
        let ticks = |ns| Lifetime::from(Duration::from_nanos(ns)).ticks;
        assert_eq!([ticks(0), ticks(1), ticks(100_000_000), ticks(100_000_001)], [0, 1, 1, 2]);
        assert_eq!(Lifetime::from(Duration::MAX).ticks, LIFETIME_TICKS_MAX);
    }

    #[test]
    fn lifetime_never_ends_early_whatever_its_start_within_a_tick() {
        let tick = nanoseconds(TICK);
        for (begins, time) in [(0, 1), (1, 1), (0, tick), (1, tick), (tick - 1, tick), (tick, 7)] {
            let now = Now::from_ns(begins);
            let over = Lifetime::from(Duration::from_nanos(time)).after(now);
            let over_ns = u64::from(over) * tick;
            assert!(
                (begins + time..begins + time + 2 * tick).contains(&over_ns),
                "{begins} {time}"
            );
        }
        let now = Now::from_ns(tick / 2);
        assert_eq!(Lifetime::from(Duration::ZERO).after(now), 0);
        assert!(!has_passed(Lifetime::from(Duration::MAX).after(now), now.tick));
    }

    #[test]
    fn lifetime_includes_time_in_which_no_request_is_served() {
        let now = Now { ns: 50 * nanoseconds(TICK), tick: 20 };
        assert_eq!(Lifetime::from(5 * TICK).after(now), 55);
        assert!(has_passed(55, wall_tick(Now { ns: 55 * nanoseconds(TICK), tick: 21 })));
    }
}
