//! How much of a topic's broadcasts is kept, and what is sent between shards about it.

pub mod engine;
mod mail;

use core::time::Duration;

use simurgh_history::{ReplayLimits, Retention};

pub use self::mail::*;

/// How much of a topic's broadcasts is kept, for clients that return to get what they missed. The
/// oldest are dropped as soon as one of the limits is exceeded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HistoryRule {
    /// Broadcasts.
    pub count: usize,
    /// Their bytes, with the overhead of keeping them.
    pub bytes: usize,
    /// How long.
    pub age: Duration,
    /// Whether a client is given only what is later than its first join.
    pub only_own: bool,
    /// How many of the newest broadcasts a client is given that joins for the first time, and says
    /// by the param `simurgh` that it takes positions.
    pub on_join: u32,
}

impl HistoryRule {
    /// The retention that a broker is asked for.
    pub fn retention(&self) -> Retention {
        let count = self.count.try_into().unwrap_or(u32::MAX);
        let age_ms = self.age.as_millis().try_into().unwrap_or(u64::MAX);
        Retention { count, bytes: self.bytes, age_ms }
    }
}

impl Default for HistoryRule {
    fn default() -> Self {
        Self {
            count: 100,
            bytes: 1 << 20,
            age: Duration::from_secs(300),
            only_own: false,
            on_join: 0,
        }
    }
}

/// Limits and times of history, for the whole node.
#[derive(Debug, Clone)]
pub struct HistoryConfig {
    /// Bytes that the histories of all topics may take together.
    pub bytes_max: usize,
    /// The most broadcasts that a returning client is given.
    pub replay_count: usize,
    /// The most bytes of them.
    pub replay_bytes: usize,
    /// How much of that is sent at once; the rest follows when the socket has taken most of it.
    pub portion: ReplayLimits,
    /// How long a client's message waits until what its channel broadcast is kept.
    pub confirm_timeout: Duration,
}

impl Default for HistoryConfig {
    fn default() -> Self {
        Self {
            bytes_max: 256 << 20,
            replay_count: 1000,
            replay_bytes: 1 << 20,
            portion: ReplayLimits::PORTION,
            // phoenix.js gives up a push after 10 s.
            confirm_timeout: Duration::from_secs(9),
        }
    }
}
