//! The settings of a server: each with its unit, its default and its cost.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::time::Duration;

use ipnet::IpNet;
use simurgh_core::{HistoryConfig, PresenceConfig, SightingSink};
use simurgh_proto::origin::CheckOrigin;
use simurgh_proto::ws::FrameLimits;

mod api;
mod http;
mod tls;

pub use api::{ApiToken, Scope};
pub use http::HttpConfig;
pub use tls::{CertificateFiles, RecordLayer, TlsConfig, TlsVersion};

/// All settings of an `Endpoint` besides its user sockets.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Config {
    /// Where to listen, IPv4 and IPv6; port 0 takes a free one. `[::]` takes IPv6 alone: list
    /// `0.0.0.0` beside it for IPv4.
    pub listen: Vec<SocketAddr>,
    /// Addresses with TLS, and their certificates. Default: none.
    pub tls: Option<TlsConfig>,
    /// Address of `/metrics` and the observer when a listening address is public; on loopback alone
    /// they are served on the same port. Default: none.
    pub admin_listen: Option<SocketAddr>,
    /// Paths of Unix sockets to listen on, for a proxy on this machine: their clients count as
    /// 127.0.0.1, unless a PROXY header or a trusted proxy names them. Owner and group may connect.
    pub listen_unix: Vec<PathBuf>,
    /// The path of a Unix socket for `/metrics` and the observer, beside or in place of
    /// [`admin_listen`](Self::admin_listen). Default: none.
    pub admin_listen_unix: Option<PathBuf>,
    /// Shards, each one thread with its own descriptor table. Default: one per core.
    pub shards: usize,
    /// Most open sockets; an upgrade beyond them gets 503 with Retry-After. There are then as many
    /// shards as the descriptor limit requires, or [`shards`](Self::shards) if those are more.
    /// `None`, the default: as many as the shards have descriptors for.
    pub max_connections: Option<usize>,
    /// Most sockets, long-poll sessions included, from one address at once; an upgrade beyond them
    /// gets 429. Behind [`trusted_proxies`](Self::trusted_proxies) the address is the one that they
    /// report; of IPv6 its first 64 bits. `None`, the default: any number. Costs 16 bytes a socket,
    /// shared with the limit per user, and about 30 an address.
    pub max_connections_per_address: Option<u32>,
    /// The same for one user: sockets to which the application's connect gave the same id
    /// ([`Connect::id`](simurgh_socket::Connect::id)). Sockets without an id are not counted.
    /// Default: any number.
    pub max_connections_per_user: Option<u32>,
    /// Pins shard n to core `n % cores`. Default: off. Useful for measurements, rarely for serving.
    pub pin_shards: bool,
    /// The server closes a connection with 1002 if it sends nothing in this time; `None`: never.
    /// Default 60 s (PROTOCOL §7). There is no timer per connection: a sweep over the records
    /// checks it.
    pub idle_timeout: Option<Duration>,
    /// A channel without activity for one to two times this interval hibernates
    /// ([`ShardChannel::hibernate`](simurgh_core::ShardChannel::hibernate)); `None`: never. Default
    /// 15 s, as in Phoenix. Costs a check of each channel in that time while any is awake.
    pub hibernate_after: Option<Duration>,
    /// Time from accept to the end of the upgrade request. Default 10 s.
    pub handshake_timeout: Duration,
    /// How long a close frame may wait for its answer. Default 3 s.
    pub close_timeout: Duration,
    /// Time over which a drain spreads its closes (1012). Default 10 s.
    pub drain_time: Duration,
    /// Largest frame and message a peer may send, bytes; above: 1009. Default 10,000,000 each.
    /// Memory is allocated as data arrives, and only while a message is incomplete.
    pub limits: FrameLimits,
    /// Bytes of all half-received messages and heads of a shard; above, the connections that hold
    /// most for longest are closed with 1013. Default 256 MiB.
    pub inbound_budget_bytes: usize,
    /// From the first byte of a message to its last; a longer one continues while it receives 8 kB
    /// a second, else the connection is closed with 1013. Default 30 s.
    pub message_timeout: Duration,
    /// How long the application may take to decide a connect (then 503) or a join (then an error
    /// reply, `join timed out`). Its work is dropped some time after. Default 30 s.
    pub decision_timeout: Duration,
    /// Bytes queued for one reader; above, it is closed with 1013. A broadcast is stored once for
    /// all its readers, and half of this is the largest message and the largest broadcast. Once a
    /// quarter of this is queued for a reader, publishing on its topic is slowed to half of it in
    /// [`slow_after`](Self::slow_after). So a reader that keeps this pace is not closed because of
    /// fast publishers. Default 24 MiB.
    pub outbound_bytes_max: usize,
    /// Bytes queued for all readers of a shard, broadcasts counted once; above, the readers with
    /// most queued for longest are closed with 1013. Default 128 MiB.
    pub outbound_budget_bytes: usize,
    /// A reader that has taken less than 16 kB of its queue in this time is closed with 1013.
    /// Default 10 s. There is no timer: only readers with a queue are checked.
    pub slow_after: Duration,
    /// Bytes of undelivered broadcasts in a shard, its mailbox included; above, the server pauses
    /// publishers (it does not read their sockets; other threads get an error). Default 16 MiB.
    pub mailbox_bytes_max: usize,
    /// How presence is sent, and its limits ([`ShardContext::presence`]).
    ///
    /// [`ShardContext::presence`]: simurgh_core::ShardContext::presence
    pub presence: PresenceConfig,
    /// The maximum size of histories, for channels that declare a history
    /// ([`ChannelRoute::history`](simurgh_socket::ChannelRoute::history)).
    pub history: HistoryConfig,
    /// The file that saves histories over a planned restart: written at the end of a drain
    /// (`Endpoint::drain`, SIGTERM), read and removed at the next start, so that clients resume
    /// without a loss. After a crash there is none, and clients receive a notice of the loss.
    /// Default: none.
    pub history_save: Option<PathBuf>,
    /// The directory for what survives a restart: the list of blocks and revocations, and on a
    /// single node the cached answers of applications. Default: none.
    pub state_dir: Option<PathBuf>,
    /// Origins that may connect; `None`: `Conn` (the request's own scheme, host and port), or
    /// `Local` (pages of this machine and of the request's own host) while the server listens on
    /// loopback alone.
    pub check_origin: Option<CheckOrigin>,
    /// Names that a proxy on this machine forwards as `Host`, without a port. While the server
    /// listens on loopback alone, `/metrics`, the observer and the publish API answer only for
    /// these and the names of loopback, and sockets accept only pages of such a host. Default:
    /// none.
    pub trusted_hosts: Vec<String>,
    /// Proxies whose `x-forwarded-for` and `x-forwarded-proto` are trusted. Default: none.
    pub trusted_proxies: Vec<IpNet>,
    /// Connections from trusted proxies begin with a PROXY protocol header (v1 or v2). Default:
    /// off.
    pub proxy_protocol: bool,
    /// Bearer token of the paths below `/api/`, which do not exist without a token, and of the
    /// observer at `/observer/`. Default: none.
    pub api_token: Option<String>,
    /// Tokens that may do part of that, and never open the observer. Default: none.
    pub api_tokens: Vec<ApiToken>,
    /// Secret from which the signing keys of long-poll session tokens are derived. At least 64
    /// random characters; the same on all nodes that accept each other's tokens. Default: none, and
    /// each start of the server has its own key.
    pub secret_key_base: Option<String>,
    /// Opens the observer to clients beyond this machine that send the token. Default: off; clients
    /// on this machine need the token only if there is one.
    pub observer: bool,
    /// The HTTP side: every request that is not for a user socket.
    pub http: HttpConfig,
    /// A callback that holds its shard longer than this is logged. Default 10 ms.
    pub callback_warning: Duration,
    /// Name of this node (`PubSub::direct`). Default: `simurgh`.
    pub node_name: String,
    /// The commit that the program was built from, for `/metrics` and the observer; empty if
    /// unknown. Default: empty.
    pub commit: String,
    /// Where shards report memberships and users' connections to, from the start to the end.
    #[doc(hidden)]
    pub sighting_sink: Option<SightingSink>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            listen: Vec::new(),
            tls: None,
            admin_listen: None,
            listen_unix: Vec::new(),
            admin_listen_unix: None,
            shards: cores(),
            max_connections: None,
            max_connections_per_address: None,
            max_connections_per_user: None,
            pin_shards: false,
            idle_timeout: Some(Duration::from_secs(60)),
            hibernate_after: Some(Duration::from_secs(15)),
            handshake_timeout: Duration::from_secs(10),
            close_timeout: Duration::from_secs(3),
            drain_time: Duration::from_secs(10),
            limits: FrameLimits::default(),
            inbound_budget_bytes: 256 << 20,
            message_timeout: Duration::from_secs(30),
            decision_timeout: Duration::from_secs(30),
            outbound_bytes_max: 24 << 20,
            outbound_budget_bytes: 128 << 20,
            slow_after: Duration::from_secs(10),
            mailbox_bytes_max: 16 << 20,
            presence: PresenceConfig::default(),
            history: HistoryConfig::default(),
            history_save: None,
            state_dir: None,
            check_origin: None,
            trusted_hosts: Vec::new(),
            trusted_proxies: Vec::new(),
            proxy_protocol: false,
            api_token: None,
            api_tokens: Vec::new(),
            secret_key_base: None,
            observer: false,
            http: HttpConfig::default(),
            callback_warning: Duration::from_millis(10),
            node_name: "simurgh".to_owned(),
            commit: String::new(),
            sighting_sink: None,
        }
    }
}

impl Config {
    /// Whether there are paths below `/api/`.
    pub fn has_api(&self) -> bool {
        self.api_token.is_some() || !self.api_tokens.is_empty()
    }

    /// The addresses to listen on: those without TLS, then those with TLS.
    pub fn addresses(&self) -> impl Iterator<Item = SocketAddr> {
        self.listen.iter().chain(self.tls.iter().flat_map(|tls| &tls.listen)).copied()
    }

    /// Whether operators have an address or a Unix socket of their own.
    pub fn has_admin(&self) -> bool {
        self.admin_listen.is_some() || self.admin_listen_unix.is_some()
    }

    /// Whether the server listens on loopback alone, with and without TLS.
    pub fn is_loopback(&self) -> bool {
        self.addresses().all(|address| address.ip().is_loopback())
    }

    /// The part of this that the core of each shard uses.
    pub fn limits_of_core(&self) -> simurgh_core::Config {
        simurgh_core::Config {
            idle_timeout: self.idle_timeout,
            hibernate_after: self.hibernate_after,
            handshake_timeout: self.handshake_timeout,
            close_timeout: self.close_timeout,
            decision_timeout: self.decision_timeout,
            outbound_bytes_max: self.outbound_bytes_max,
            slow_after: self.slow_after,
            mailbox_bytes_max: self.mailbox_bytes_max,
            presence: self.presence.clone(),
            history: self.history.clone(),
            callback_warning: self.callback_warning,
        }
    }

    /// The origin policy of user sockets without one of their own.
    pub fn origin_policy(&self) -> CheckOrigin {
        match &self.check_origin {
            Some(policy) => policy.clone(),
            None if self.is_loopback() => CheckOrigin::Local,
            None => CheckOrigin::Conn,
        }
    }
}

/// Cores that the process may use. Cached, because the system reads files of control groups to
/// answer and a start asks several times.
pub fn cores() -> usize {
    static CORES: OnceLock<usize> = OnceLock::new();
    *CORES.get_or_init(|| std::thread::available_parallelism().map_or(1, usize::from))
}
