//! Counts and gauges of a hook, for metrics and the observer.

use crate::breaker::BreakerState;

/// Upper bounds of the time buckets, in microseconds.
pub const BUCKETS_US: [u64; 10] =
    [5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000, 1_000_000, 2_500_000, 5_000_000];

/// Questions of one kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QuestionFigures {
    /// Allowed by an answer.
    pub allowed: u64,
    /// Refused by an answer.
    pub refused: u64,
    /// Failed otherwise than by the next three.
    pub failed: u64,
    /// No answer in time.
    pub timeout: u64,
    /// Too many questions waited.
    pub overloaded: u64,
    /// The breaker was open.
    pub open: u64,
    /// Failed, but an expired grant counted.
    pub stale: u64,
    /// Answers per bucket of [`BUCKETS_US`], the last one for all slower ones; not cumulative.
    pub buckets: [u64; BUCKETS_US.len() + 1],
    /// Sum of all times from sending to the answer, in microseconds.
    pub sum_us: u64,
    /// Cached answers that were used.
    pub cache_hits: u64,
    /// Questions that could be cached and were not.
    pub cache_misses: u64,
}

/// One hook, now and since the start.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct HookFigures {
    /// By kind, in the order of [`Kind::ALL`](crate::Kind::ALL).
    pub questions: [QuestionFigures; 4],
    /// Questions in flight.
    pub in_flight: usize,
    /// Questions that wait.
    pub waiting: usize,
    /// How many may be in flight.
    pub limit: usize,
    /// State of the breaker.
    pub breaker: BreakerState,
    /// Questions that took the answer of an equal one in flight.
    pub shared: u64,
    /// Memory of cached answers, of all hooks.
    pub cache_bytes: usize,
    /// Clock of the application less ours, in seconds, by the header `date` of its last answer.
    pub clock_difference_s: i64,
}
