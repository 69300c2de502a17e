//! Limits on requests of the HTTP side, in size and time.

use std::time::Duration;

use simurgh_proto::ws::handshake::HeadLimits;

use super::cores;

/// The settings of the HTTP side: every request that is not for a user socket. Part of
/// [`Config`](super::Config).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct HttpConfig {
    /// Threads, each with its own event loop and connections. Default: one per core.
    pub threads: usize,
    /// Longest head of a request, upgrades included, bytes; above: 431. Default 16 KiB, at most 64
    /// KiB.
    pub head_bytes_max: usize,
    /// Most headers of a request; above: 431. Default 100, and never more.
    pub headers_max: usize,
    /// Longest target of a request (path and query), bytes; above: 414. Default 8 KiB.
    pub target_bytes_max: usize,
    /// Longest body of a request, bytes; above: 413. Default 8,000,000. axum's extractors have
    /// their own limit of 2 MB (`DefaultBodyLimit`).
    pub body_bytes_max: u64,
    /// From the first byte of a head to its end; above: 408. Default 10 s. The first head of a
    /// connection has [`handshake_timeout`](super::Config::handshake_timeout).
    pub head_timeout: Duration,
    /// Longest time for a body, plus a second for each [`body_rate_min`](Self::body_rate_min) bytes
    /// received; above: 408. Default 10 s. Time in which the application does not read does not
    /// count.
    pub body_timeout: Duration,
    /// Least rate of a body in the long run, bytes a second. Default 1,000.
    pub body_rate_min: u64,
    /// How long a client may read nothing of its answer; above, the connection is closed. Default
    /// 30 s.
    pub write_timeout: Duration,
    /// How long a connection may wait for its next request; above, it is closed. Default 75 s:
    /// longer than proxies keep theirs (nginx: 60 s), so that the proxy closes first, which knows
    /// what it is about to send.
    pub idle_timeout: Duration,
    /// Most requests of a connection; the answer to the last closes it. Default 100,000.
    pub requests_max: u64,
    /// Maximum concurrent connections; above: 503 with Retry-After. Default 10,000. They have their
    /// own descriptor table, so they take none from sockets. From half of them on an idle one may
    /// stay for less than [`idle_timeout`](Self::idle_timeout), and within the last sixteenth the
    /// longest idle are closed in favour of new ones.
    pub connections_max: usize,
    /// Connections beyond [`connections_max`](Self::connections_max) for the server's own paths,
    /// one request each; and as many on the admin address. The paths are `/healthz`, `/metrics`,
    /// the observer, `/api/broadcast`, `/api/disconnect`, `/api/presence`, `/api/history` and
    /// Supabase's `/realtime/v1/api/broadcast`. Default 100.
    pub connections_reserved: usize,
}

impl Default for HttpConfig {
    fn default() -> Self {
        Self {
            threads: cores(),
            head_bytes_max: 16 << 10,
            headers_max: 100,
            target_bytes_max: 8 << 10,
            body_bytes_max: 8_000_000,
            head_timeout: Duration::from_secs(10),
            body_timeout: Duration::from_secs(10),
            body_rate_min: 1_000,
            write_timeout: Duration::from_secs(30),
            idle_timeout: Duration::from_secs(75),
            requests_max: 100_000,
            connections_max: 10_000,
            connections_reserved: 100,
        }
    }
}

impl HttpConfig {
    /// Limits for heads, used by the shards and by the gate.
    pub fn head_limits(&self) -> HeadLimits {
        HeadLimits {
            bytes_max: self.head_bytes_max.min(HEAD_BYTES_MOST),
            headers_max: self.headers_max,
            target_bytes_max: self.target_bytes_max,
        }
    }

    /// Reduces both kinds of places, and those of the admin address, to this many descriptors.
    pub fn fit(&mut self, most: usize, has_admin: bool) {
        let reserved = self.connections_reserved.min(most / RESERVED_PART).max(1);
        let admin = if has_admin { reserved } else { 0 };
        self.connections_reserved = reserved;
        let left = most.saturating_sub(reserved + admin);
        self.connections_max = self.connections_max.min(left).max(1);
    }

    pub fn shortest_timeout(&self) -> Duration {
        self.head_timeout.min(self.body_timeout).min(self.write_timeout).min(self.idle_timeout)
    }
}

/// Upper bound of `head_bytes_max`: with the bytes read after it, a head crosses from a shard to
/// the HTTP side in one piece.
const HEAD_BYTES_MOST: usize = 64 << 10;
/// With few descriptors one of this many is reserved for the server's own paths.
const RESERVED_PART: usize = 8;
