//! A token bucket in one number.

use core::time::Duration;

use thiserror::Error;

use crate::clock::nanoseconds;

/// The most tokens of a rate or a burst: a TiB, if they are bytes.
const COUNT_MAX: u64 = 1 << 40;
/// The longest time over which a rate counts, and in which an empty bucket fills.
const PERIOD_MAX: Duration = Duration::from_secs(3600);
const PERIOD_LEAST: Duration = Duration::from_millis(1);

/// So many in so much time, and how many at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rate {
    count: u64,
    period_ns: u64,
    burst: u64,
}

impl Rate {
    /// `count` in a second, all of them at once if need be.
    ///
    /// # Errors
    /// As [`every`](Self::every).
    pub fn per_second(count: u64) -> Result<Self, RateError> {
        Self::every(count, Duration::from_secs(1))
    }

    /// `count` in `period`, all of them at once if need be.
    ///
    /// # Errors
    /// `count` is not 1 to 2^40, or `period` not a millisecond to an hour.
    pub fn every(count: u64, period: Duration) -> Result<Self, RateError> {
        if !(1..=COUNT_MAX).contains(&count) {
            return Err(RateError::Count);
        }
        if !(PERIOD_LEAST..=PERIOD_MAX).contains(&period) {
            return Err(RateError::Period);
        }
        Ok(Self { count, period_ns: nanoseconds(period), burst: count })
    }

    /// The same rate with so many at once, which are restored at the rate.
    ///
    /// # Errors
    /// `burst` is not 1 to 2^40, or takes more than an hour to be restored.
    pub fn with_burst(self, burst: u64) -> Result<Self, RateError> {
        if !(1..=COUNT_MAX).contains(&burst) {
            return Err(RateError::Count);
        }
        let rate = Self { burst, ..self };
        match rate.fill_time() <= PERIOD_MAX {
            true => Ok(rate),
            false => Err(RateError::Fill),
        }
    }

    /// How many at once.
    pub fn burst(&self) -> u64 {
        self.burst
    }

    /// How long an empty bucket takes to fill.
    pub fn fill_time(&self) -> Duration {
        let ns = self.capacity().div_ceil(u128::from(self.count));
        Duration::from_nanos(u64::try_from(ns).unwrap_or(u64::MAX))
    }

    /// A full bucket, in the units of a [`Bucket`].
    fn capacity(&self) -> u128 {
        u128::from(self.burst) * u128::from(self.period_ns)
    }
}

/// Why something is not a [`Rate`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum RateError {
    /// A number of tokens is out of range.
    #[error("a rate and its burst must be from 1 to 1099511627776")]
    Count,
    /// The time over which it counts is out of range.
    #[error("the interval of a rate must be from a millisecond to an hour")]
    Period,
    /// The bucket takes too long to fill.
    #[error("a burst must refill within an hour at its rate")]
    Fill,
}

/// A bucket of tokens that are restored at a [`Rate`]; a default one is full.
///
/// It is the time at which it is, or was, full again, in units of a nanosecond divided by the
/// rate's count: then a token is a whole number of units, the rate's period, and nothing is ever
/// rounded. With times of 64 bits, and counts and periods of about 40, none of it overflows.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Bucket {
    full_at: u128,
}

/// The bucket has too few tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TooFewTokens {
    /// The time until it has enough; `None`: more than the bucket can hold.
    pub wait: Option<Duration>,
}

impl Bucket {
    /// The bucket after `cost` tokens were taken, `now_ns` nanoseconds after any fixed origin.
    ///
    /// # Errors
    /// It has too few tokens.
    #[inline]
    pub fn less(self, rate: &Rate, cost: u64, now_ns: u64) -> Result<Self, TooFewTokens> {
        let now = u128::from(now_ns) * u128::from(rate.count);
        let full_at = self.full_at.max(now) + u128::from(cost) * u128::from(rate.period_ns);
        let missing = (full_at - now).saturating_sub(rate.capacity());
        if missing == 0 {
            return Ok(Self { full_at });
        }
        let wait_ns = missing.div_ceil(u128::from(rate.count));
        let wait = u64::try_from(wait_ns).map(Duration::from_nanos);
        Err(TooFewTokens { wait: wait.ok().filter(|_| cost <= rate.burst) })
    }
}

#[cfg(test)]
mod tests;
