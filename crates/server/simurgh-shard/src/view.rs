//! What the observer shows, as its JSON has it: read by the page and by `simurgh observe`.

mod cluster;

use serde::{Deserialize, Serialize};

pub use cluster::{
    ClusterOverview, HistoriesRow, InterestsRow, LinkRow, NamedCount, NodeFigures, NodeMembers,
    NodeRow, OutboxRow,
};

/// One second of the whole server.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Point {
    /// When, seconds since 1970.
    pub at_unix_s: f64,
    /// TCP connections, those of HTTP not among them.
    pub connections: u64,
    /// Sockets open, upgraded.
    pub sockets: u64,
    /// Channels joined.
    pub channels: u64,
    /// Topics with members, counted on each shard.
    pub topics: u64,
    /// Messages from clients a second.
    pub messages_in_per_s: f64,
    /// Messages to clients a second.
    pub messages_out_per_s: f64,
    /// Of those, broadcasts delivered, a second.
    pub deliveries_per_s: f64,
    /// Bytes read a second.
    pub bytes_in_per_s: f64,
    /// Bytes written a second.
    pub bytes_out_per_s: f64,
    /// Connections accepted a second.
    pub accepted_per_s: f64,
    /// Errors of all kinds a second.
    pub errors_per_s: f64,
    /// Of those, what was over a limit of rates, sizes or connections.
    #[serde(default)]
    pub limited_per_s: f64,
    /// CPU time of the process, in cores.
    pub cpu_cores: f64,
    /// Resident memory, bytes.
    pub resident_bytes: u64,
    /// Bytes that wait for slow peers.
    pub queued_bytes: u64,
    /// Bytes of broadcasts under way, summed over the shards' mailboxes.
    pub mailbox_bytes: u64,
    /// Of the turns of all shards in this second, in microseconds.
    pub turn_p50_us: f64,
    /// The same: 99 of 100 took no longer.
    pub turn_p99_us: f64,
}

/// Where the memory is, bytes.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Memory {
    /// All that the process has in memory.
    pub resident: u64,
    /// Records of connections, 64 bytes each.
    pub connection_records: u64,
    /// Memberships and subscriber tables, without what the application's channels hold.
    pub tables: u64,
    /// What slow peers have not taken yet.
    pub outbound_queues: u64,
    /// Messages that are half received.
    pub half_received: u64,
    /// Broadcasts that are kept for clients that come back, and their topics.
    #[serde(default)]
    pub kept: u64,
    /// Resident and none of the above: the allocator's, the application's, code and stacks.
    pub rest: u64,
    /// The kernel's part of the connections' sockets, estimated: it is not the process's own.
    pub kernel_sockets: u64,
    /// Buffers of all TCP sockets of this host, as the kernel counts them.
    pub kernel_buffers: u64,
}

/// One shard.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ShardRow {
    /// Its number.
    pub shard: u16,
    /// It has ended.
    pub ended: bool,
    /// TCP connections.
    pub connections: u64,
    /// Channels joined.
    pub channels: u64,
    /// Topics with members here.
    pub topics: u64,
    /// Mails that wait in its mailbox.
    pub mailbox_mails: u64,
    /// Bytes of broadcasts under way, its mailbox included.
    pub mailbox_bytes: u64,
    /// Topics with broadcasts under way.
    pub fanout_topics: u64,
    /// Bytes that wait for slow peers.
    pub queued_bytes: u64,
    /// Messages from clients a second.
    pub messages_in_per_s: f64,
    /// Messages to clients a second.
    pub messages_out_per_s: f64,
    /// CPU time of its thread, in cores.
    pub cpu_cores: f64,
    /// Turns a second.
    pub turns_per_s: f64,
    /// Half of the turns of the last second took no longer, microseconds.
    pub turn_p50_us: f64,
    /// 99 of 100 of them.
    pub turn_p99_us: f64,
    /// The longest since the server started, microseconds.
    pub turn_max_us: f64,
    /// The longest by the thread's CPU time, microseconds.
    pub turn_cpu_max_us: f64,
}

/// One kind of thing that goes wrong.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ErrorRow {
    /// Its name, as in `/metrics` without `simurgh_` and `_total`.
    pub kind: String,
    /// What it is.
    pub about: String,
    /// Since the server started.
    pub total: u64,
    /// In the last 60 seconds.
    pub last_minute: u64,
}

/// The server at one moment.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Overview {
    /// Says what this is: always `simurgh`.
    pub server: String,
    /// Its version.
    pub version: String,
    /// The commit that the program was built from; empty where it is not known.
    #[serde(default)]
    pub commit: String,
    /// Since it was started, seconds.
    pub uptime_s: f64,
    /// Sockets that it takes at most, if there is a limit.
    pub max_connections: Option<u64>,
    /// Bytes that may wait for one slow peer.
    pub outbound_bytes_max: u64,
    /// Bytes that may be under way in a shard.
    pub mailbox_bytes_max: u64,
    /// Whether sockets can be disconnected from here: there is a token.
    pub can_disconnect: bool,
    /// How it stands with the link to the other nodes: `up`, `catching-up` or `away`; none of a
    /// server that is no part of a cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster: Option<String>,
    /// The last second.
    pub now: Point,
    /// Where the memory is.
    pub memory: Memory,
    /// The shards.
    pub shards: Vec<ShardRow>,
    /// What went wrong, by kind; kinds without a case are there too.
    pub errors: Vec<ErrorRow>,
    /// The seconds before, the oldest first; only where it was asked for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub history: Vec<Point>,
}

/// By what topics are sorted, the greatest first.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TopicOrder {
    /// Members.
    #[default]
    Members,
    /// Broadcasts delivered a second.
    Deliveries,
    /// Bytes of broadcasts that are kept: of topics with a history, whether or not they have
    /// members.
    Kept,
}

/// By what connections are sorted, the greatest first.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ConnectionOrder {
    /// Bytes that wait for it to read.
    #[default]
    Queue,
    /// Messages that it sends a second.
    Rate,
    /// How long it has been there.
    Age,
    /// Channels it has joined.
    Channels,
}

/// A topic, over all shards.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct TopicRow {
    /// Its name, or as much of it as is shown.
    pub topic: String,
    /// The name goes on.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub cut: bool,
    /// Members, on all shards.
    pub members: u64,
    /// Broadcasts delivered a second; not known at the first look.
    pub deliveries_per_s: Option<f64>,
    /// What is kept of it, if it has a history and something was said.
    #[serde(default)]
    pub kept: Option<Kept>,
}

/// What is kept of a topic for clients that come back.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Kept {
    /// Broadcasts.
    pub messages: u64,
    /// Bytes that they are counted with.
    pub bytes: u64,
    /// Of all its positions; another one when its history has begun anew.
    pub epoch: String,
    /// The last position that was given.
    pub head: String,
    /// The highest position that is no longer kept, or has never been: who has received this one,
    /// or a later one, is given all that it has missed.
    pub floor: String,
    /// What somebody is told who has received less; none if there is nothing before.
    pub lost: Option<String>,
}

/// A connection.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ConnectionRow {
    /// Names it for as long as it lives: shard, slot, generation.
    pub id: String,
    /// The other end, as the kernel says: a proxy's, where there is one; none of a driven socket.
    pub peer: Option<String>,
    /// Path of its user socket; empty before its request has come.
    pub path: String,
    /// What is spoken: `v1`, `v2`, `plain`, or `values` with a driver in the server's own process.
    pub wire: String,
    /// `head`, `full`, `pending`, `open`, `closing` or `ending`.
    pub state: String,
    /// Its id, where the application's connect gave it one.
    pub socket_id: Option<String>,
    /// Channels joined.
    pub channels: u64,
    /// Some of their topics.
    pub topics: Vec<String>,
    /// How long it has been there, seconds, to 10.
    pub age_s: u64,
    /// It has been there for longer than is counted.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub age_is_more: bool,
    /// Since it last said something, seconds.
    pub quiet_s: f64,
    /// Bytes that wait for it to read.
    pub queued_bytes: u64,
    /// Messages it sent a second; not known at the first look.
    pub messages_per_s: Option<f64>,
    /// The limit that it has met last, such as `messages`, if it has met one in the last ten
    /// seconds.
    #[serde(default)]
    pub limit: Option<String>,
    /// How often it has met one, since it was last without for so long.
    #[serde(default)]
    pub limited: u64,
}

/// The first rows in some order.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct List<T> {
    /// The rows.
    pub rows: Vec<T>,
    /// How many there were to choose from; topics are counted on each shard.
    pub total: u64,
    /// What the walk over the records took of all shards' time, milliseconds.
    pub cost_ms: f64,
    /// When it was made, seconds since 1970.
    pub at_unix_s: f64,
    /// After so many seconds it is made anew, if somebody looks: so that looking stays cheap.
    pub next_in_s: f64,
}

/// Who is in a topic.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Members {
    /// The topic.
    pub topic: String,
    /// How many there are.
    pub total: u64,
    /// What is kept of it, if it has a history and something was said.
    #[serde(default)]
    pub kept: Option<Kept>,
    /// Some of them, on the server that was asked.
    pub rows: Vec<ConnectionRow>,
    /// How many there are on each node; empty where the server is no part of a cluster.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub nodes: Vec<NodeMembers>,
}
