//! The data of the observer, as JSON for the page and for `simurgh observe`.

mod cluster;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

pub use cluster::{
    ClusterOverview, HistoriesRow, InterestsRow, LinkRow, NamedCount, NodeFigures, NodeMembers,
    NodeRow, OutboxRow,
};

/// One second of the whole server.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Point {
    pub at_unix_s: f64,
    /// TCP connections, without those of HTTP.
    pub connections: u64,
    /// Open (upgraded) sockets.
    pub sockets: u64,
    pub channels: u64,
    /// Topics with members, summed over the shards.
    pub topics: u64,
    pub messages_in_per_s: f64,
    pub messages_out_per_s: f64,
    /// Broadcasts delivered a second, part of `messages_out_per_s`.
    pub deliveries_per_s: f64,
    pub bytes_in_per_s: f64,
    pub bytes_out_per_s: f64,
    pub accepted_per_s: f64,
    pub errors_per_s: f64,
    /// Errors because of a limit of rates, sizes or connections, part of `errors_per_s`.
    #[serde(default)]
    pub limited_per_s: f64,
    pub cpu_cores: f64,
    pub resident_bytes: u64,
    /// Bytes queued for slow clients.
    pub queued_bytes: u64,
    /// Bytes of undelivered broadcasts, summed over the shards' mailboxes.
    pub mailbox_bytes: u64,
    /// Median duration of a turn of any shard in this second, microseconds.
    pub turn_p50_us: f64,
    /// The 99th percentile of the same.
    pub turn_p99_us: f64,
}

/// Memory use by purpose, bytes.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Memory {
    /// Resident memory of the process.
    pub resident: u64,
    /// Records of connections, 64 bytes each.
    pub connection_records: u64,
    /// Memberships and subscriber tables, without the state of the application's channels.
    pub tables: u64,
    /// Bytes queued for slow clients.
    pub outbound_queues: u64,
    pub half_received: u64,
    /// Broadcasts kept for clients that come back, and their topics.
    #[serde(default)]
    pub kept: u64,
    /// The rest of the resident memory: the allocator's, the application's, code and stacks.
    pub rest: u64,
    /// The kernel's memory for the connections' sockets, estimated; not part of the process's
    /// memory.
    pub kernel_sockets: u64,
    /// Buffers of all TCP sockets of this host, as the kernel counts them.
    pub kernel_buffers: u64,
}

/// The state of one shard.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ShardRow {
    pub shard: u16,
    pub ended: bool,
    pub connections: u64,
    pub channels: u64,
    /// Topics with members here.
    pub topics: u64,
    pub mailbox_mails: u64,
    /// Bytes of undelivered broadcasts, its mailbox included.
    pub mailbox_bytes: u64,
    pub fanout_topics: u64,
    /// Bytes queued for slow clients.
    pub queued_bytes: u64,
    pub messages_in_per_s: f64,
    pub messages_out_per_s: f64,
    pub cpu_cores: f64,
    pub turns_per_s: f64,
    /// Median duration of a turn in the last second, microseconds.
    pub turn_p50_us: f64,
    /// The 99th percentile of the same.
    pub turn_p99_us: f64,
    /// The longest turn since the server started, microseconds.
    pub turn_max_us: f64,
    /// The longest turn by CPU time of the thread, microseconds.
    pub turn_cpu_max_us: f64,
}

/// A kind of error.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ErrorRow {
    /// Its name, as in `/metrics` without `simurgh_` and `_total`.
    pub kind: String,
    pub about: String,
    /// Cases since the server started.
    pub total: u64,
    /// Cases in the last 60 seconds.
    pub last_minute: u64,
}

/// A snapshot of the server.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Overview {
    /// Always `simurgh`; identifies the document.
    pub server: String,
    pub version: String,
    /// The commit that the program was built from; empty if unknown.
    #[serde(default)]
    pub commit: String,
    pub uptime_s: f64,
    /// Most sockets that it accepts, if there is a limit.
    pub max_connections: Option<u64>,
    /// Most bytes queued for one slow client.
    pub outbound_bytes_max: u64,
    /// Most bytes of undelivered broadcasts in a shard.
    pub mailbox_bytes_max: u64,
    /// Whether sockets can be disconnected here: an API token is set.
    pub can_disconnect: bool,
    /// State of the link to the other nodes: `up`, `catching-up` or `away`; none without a cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster: Option<String>,
    /// TLS of the server, if it has TLS.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tls: Option<TlsFigures>,
    pub now: Point,
    pub memory: Memory,
    pub shards: Vec<ShardRow>,
    /// Errors by kind; kinds without a case are included.
    pub errors: Vec<ErrorRow>,
    /// The applications that decide, if there are any.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hooks: Vec<HookRow>,
    /// The seconds before, the oldest first; only on request.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub history: Vec<Point>,
}

/// TLS handshakes since the start, and the certificate that expires first.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct TlsFigures {
    pub under_way: u64,
    pub handshakes: u64,
    /// Of them with TLS 1.2; all others have TLS 1.3.
    pub handshakes_1_2: u64,
    pub resumed: u64,
    pub failed: u64,
    /// Given up because too many others waited.
    pub refused: u64,
    /// Its first name.
    pub certificate: String,
    /// Negative after its expiry.
    pub expires_in_s: f64,
}

/// An application that decides over HTTP.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct HookRow {
    pub name: String,
    /// State of the breaker: `closed`, `open` or `half_open`.
    pub breaker: String,
    /// As in the metrics.
    #[serde(flatten)]
    pub gauges: BTreeMap<String, i64>,
    pub questions: Vec<QuestionRow>,
    /// As in the API, and the open stays of this node; empty if it wants no notices.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub notices: BTreeMap<String, u64>,
}

/// Questions of one kind, since the start, by their outcome.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct QuestionRow {
    pub question: String,
    #[serde(flatten)]
    pub outcomes: BTreeMap<String, u64>,
    pub cache_hits: u64,
    /// Mean time from sending to the answer.
    pub mean_us: u64,
}

/// The sort key of topics, the greatest first.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TopicOrder {
    #[default]
    Members,
    Deliveries,
    /// Bytes of kept broadcasts: topics with a history, with or without members.
    Kept,
}

/// The sort key of connections, the greatest first.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ConnectionOrder {
    #[default]
    Queue,
    Rate,
    /// Time since it was accepted.
    Age,
    Channels,
}

/// A topic, summed over all shards.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct TopicRow {
    /// Its name, possibly cut.
    pub topic: String,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub cut: bool,
    pub members: u64,
    /// Broadcasts delivered a second; unknown at the first request.
    pub deliveries_per_s: Option<f64>,
    /// Its history, if it has one that is not empty.
    #[serde(default)]
    pub kept: Option<Kept>,
}

/// The history of a topic.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Kept {
    pub messages: u64,
    /// Bytes that they are charged with.
    pub bytes: u64,
    /// The epoch of its positions; it changes when the history begins anew.
    pub epoch: String,
    /// The last position that was assigned.
    pub head: String,
    /// The highest position that is not kept: a client that has received it, or a later one, gets
    /// all that it missed.
    pub floor: String,
    /// The reason for a loss that clients below `floor` receive; none without an earlier position.
    pub lost: Option<String>,
}

/// A connection of a shard.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ConnectionRow {
    /// Its id while it is open: shard, slot, generation.
    pub id: String,
    /// The remote address by the kernel, which may be a proxy's; none for a driven socket.
    pub peer: Option<String>,
    /// Path of its user socket; empty before its request has arrived.
    pub path: String,
    /// Its protocol: `v1`, `v2`, `plain`, or `values` for a driver in the server's own process.
    pub wire: String,
    /// `head`, `full`, `pending`, `open`, `closing` or `ending`.
    pub state: String,
    /// The socket id that the application's connect gave it.
    pub socket_id: Option<String>,
    pub channels: u64,
    pub topics: Vec<String>,
    /// Seconds since it was accepted, to 10.
    pub age_s: u64,
    /// Whether its age is more than can be counted.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub age_is_more: bool,
    /// Seconds since it last sent something.
    pub quiet_s: f64,
    pub queued_bytes: u64,
    /// Messages it sent a second; unknown at the first request.
    pub messages_per_s: Option<f64>,
    /// The last limit that it exceeded in the last ten seconds, such as `messages`.
    #[serde(default)]
    pub limit: Option<String>,
    /// How often it has exceeded a limit since its last ten seconds without.
    #[serde(default)]
    pub limited: u64,
}

/// The first rows in some order.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct List<T> {
    pub rows: Vec<T>,
    /// How many rows there were to choose from: of topics on several shards, above 4,096, about.
    pub total: u64,
    /// Time that the walk over the records took of all shards, milliseconds.
    pub cost_ms: f64,
    /// Seconds since 1970 at which it was made.
    pub at_unix_s: f64,
    /// Seconds until a request makes it anew: bounds the cost of requests.
    pub next_in_s: f64,
}

/// The members of a topic.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Members {
    pub topic: String,
    pub total: u64,
    /// Its history, if it has one that is not empty.
    #[serde(default)]
    pub kept: Option<Kept>,
    /// Some of them, on the server that answers.
    pub rows: Vec<ConnectionRow>,
    /// The number on each node; empty without a cluster.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub nodes: Vec<NodeMembers>,
}
