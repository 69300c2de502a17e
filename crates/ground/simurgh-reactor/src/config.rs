//! Settings of a shard.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use simurgh_tls::rustls::ServerConfig;

/// Settings of one shard.
#[derive(Clone, Debug)]
pub struct Config {
    /// The most bytes that may wait for one peer before [`crate::Handler::slow`] is called. Default
    /// 16 MiB; costs nothing until a peer is slow. Frames sent to many are stored once for all of
    /// them.
    pub outbound_bytes_max: usize,
    /// The most bytes that may wait for all peers of the shard, with frames sent to many counted
    /// once; above that, the peers with most bytes waiting for longest are cut. Default: no limit.
    pub outbound_budget_bytes: usize,
    /// How long a peer's output may not move before [`crate::Handler::slow`] is called; less than
    /// 16 kB taken in that time counts as not moving. Default `None`: for ever.
    pub slow_after: Option<Duration>,
    /// Whether a peer that has closed its sending half is still sent its output, within
    /// [`Config::linger`]. Default off: it is one more attempt.
    pub half_close: bool,
    /// How long a closing connection may take to read its output before a reset. Default 5 s.
    pub linger: Duration,
    /// Size of the read buffer that all connections share; a connection gets at most this much per
    /// turn. With TLS, at least 48 KiB. Default 64 KiB; memory is touched only as far as reads
    /// fill it.
    pub read_buffer_bytes: usize,
    /// The number of connections from which on new ones count as over capacity. If `None`, the
    /// default, or higher than the descriptor limit allows, that limit sets it.
    pub connections_max: Option<usize>,
    /// Core to pin the shard's thread to. Default none.
    pub core: Option<usize>,
    /// Stack of the shard's thread. Default 256 KiB (1 MiB with debug assertions).
    pub stack_bytes: usize,
    /// Backlog of each listening socket. Default 4096; the system may allow less.
    pub backlog: i32,
    /// Whether [`crate::Io::received_at`] returns when the kernel received what is read. Default
    /// off; when on, a received message costs about 0.3 µs more (kernel and read together), and an
    /// outgoing connection one system call.
    pub receive_stamps: bool,
    /// TLS by listener, in the order of the addresses; those without an entry have none.
    pub tls: Vec<Option<Arc<ServerConfig>>>,
    /// Whether [`crate::Handler::header`] looks for a header in front of a handshake. Default off;
    /// when on, each handshake has one system call more.
    pub has_header: bool,
    /// A TUN device, whose packets come to [`crate::Handler::packet`]. Default none.
    pub tun: Option<TunConfig>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            outbound_bytes_max: 16 << 20,
            outbound_budget_bytes: usize::MAX,
            slow_after: None,
            half_close: false,
            linger: Duration::from_secs(5),
            read_buffer_bytes: 64 << 10,
            connections_max: None,
            core: None,
            stack_bytes: if cfg!(debug_assertions) { 1 << 20 } else { 256 << 10 },
            backlog: 4096,
            receive_stamps: false,
            tls: Vec::new(),
            has_header: false,
            tun: None,
        }
    }
}

/// The largest packet of the device, bytes.
pub const TUN_PACKET_BYTES_MAX: u16 = 16 << 10;

/// A TUN device of a shard. Needs Linux and the capability `CAP_NET_ADMIN`.
#[derive(Clone, Debug)]
pub struct TunConfig {
    /// The interface's name, at most 15 bytes. The interface goes when the shard ends.
    pub name: String,
    /// This machine's address on it.
    pub address: Ipv4Addr,
    /// The length of its network's prefix, bits: the kernel sends packets for its other addresses
    /// to the handler.
    pub prefix: u8,
}
