//! Limits and times of a core.

use core::time::Duration;

use crate::history::HistoryConfig;
use crate::presence::PresenceConfig;

/// Largest payload, in bytes, that the server itself parses on a shard: tokens, the position of a
/// client that resumes, presences. Longer ones are refused, since parsing them delays all others.
pub const PARSED_BYTES_MAX: usize = 64 << 10;

/// Limits and times of a core; the settings of the server document each for the user.
#[derive(Debug, Clone)]
pub struct Config {
    /// A socket without a message in this time is closed with 1002, unless its user socket has
    /// another limit; `None`: never.
    pub idle_timeout: Option<Duration>,
    /// A channel without activity in this time hibernates.
    pub hibernate_after: Option<Duration>,
    /// From the beginning of a connection to that of its session.
    pub handshake_timeout: Duration,
    /// How long a close frame may wait for its answer.
    pub close_timeout: Duration,
    /// How long the application may take to decide about a join.
    pub decision_timeout: Duration,
    /// Bytes that may wait for one reader: half of it is the largest broadcast.
    pub outbound_bytes_max: usize,
    /// How long a reader may read nothing.
    pub slow_after: Duration,
    /// Bytes of broadcasts that may be in flight in a shard.
    pub mailbox_bytes_max: usize,
    /// Limits and times of presence.
    pub presence: PresenceConfig,
    /// Limits and times of history.
    pub history: HistoryConfig,
    /// A callback that holds its shard longer than this is named in the log.
    pub callback_warning: Duration,
}

impl Config {
    /// The largest payload that is broadcast: what waits for a reader can hold two of them.
    #[inline]
    pub fn broadcast_bytes_max(&self) -> usize {
        self.outbound_bytes_max / 2
    }

    /// Bytes that one topic's publishers on one shard may have in flight: a small part of the
    /// whole, so that one topic does not hold back the publishers of others.
    #[inline]
    pub fn flow_bytes_max(&self) -> usize {
        self.mailbox_bytes_max / 8
    }
}

impl Default for Config {
    fn default() -> Self {
        Self {
            idle_timeout: Some(Duration::from_secs(60)),
            hibernate_after: Some(Duration::from_secs(15)),
            handshake_timeout: Duration::from_secs(10),
            close_timeout: Duration::from_secs(3),
            decision_timeout: Duration::from_secs(30),
            outbound_bytes_max: 24 << 20,
            slow_after: Duration::from_secs(10),
            mailbox_bytes_max: 16 << 20,
            presence: PresenceConfig::default(),
            history: HistoryConfig::default(),
            callback_warning: Duration::from_millis(10),
        }
    }
}
