//! The observer's data about a cluster.

use serde::{Deserialize, Serialize};

/// The state of a cluster, as one of its nodes sees it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ClusterOverview {
    pub link: LinkRow,
    /// The nodes: first the one that answers, then the others by name.
    pub nodes: Vec<NodeRow>,
    /// Known nodes that are not in `nodes`.
    pub more_nodes: u64,
    pub interests: InterestsRow,
    /// Envelopes that wait to be sent to other nodes.
    pub outbox: OutboxRow,
    /// Broadcasts not sent, or not given to a shard, by reason; as in `/metrics`.
    pub dropped: Vec<NamedCount>,
    /// The buckets of topics with most unwanted envelopes.
    pub worst_buckets: Vec<NamedCount>,
    /// Envelopes of other nodes for topics without a member on this node.
    pub unwanted: u64,
    /// Received data that was refused, by reason.
    pub refused: Vec<NamedCount>,
    /// Topics whose presences were requested again because something may have been lost.
    pub resyncs: u64,
    /// The histories of the broker; none if no channel has a history.
    pub histories: Option<HistoriesRow>,
    pub at_unix_s: f64,
}

/// The histories of the broker, as this node sees them.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct HistoriesRow {
    /// Which failures it survives, or why nothing is stored, in words; none while unknown.
    pub kept: Option<String>,
    pub topics: u64,
    /// Bytes that are not stored yet.
    pub waiting_bytes: u64,
    /// Stored broadcasts of this node.
    pub stored: u64,
    /// Broadcasts that are not known to be stored.
    pub not_stored: u64,
    /// Holes in other nodes' stored broadcasts that were filled.
    pub holes_filled: u64,
    /// Holes that could not be filled and were reported to clients.
    pub gaps: u64,
}

/// The link to the broker.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct LinkRow {
    /// `up`, `catching-up` or `away`.
    pub state: String,
    /// Seconds in this state.
    pub for_s: f64,
    /// The reason for a missing link, in the broker's or the system's words.
    pub why: Option<String>,
    /// Address and version of the broker; none without a link, or if unknown.
    pub engine: Option<String>,
    /// Time from the last query of the broker to its answer, milliseconds.
    pub rtt_ms: Option<f64>,
    /// Links after the first.
    pub reconnects: u64,
    /// How often messages of other nodes may have been lost, broken links included.
    pub lost: u64,
}

/// A node of the cluster.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct NodeRow {
    /// Id of this start of the node: 11 characters.
    pub id: String,
    /// Name that outlives restarts.
    pub name: String,
    pub version: String,
    /// Whether it is the one that answers.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub is_here: bool,
    /// `alive`, `silent`, `draining` or `incompatible`.
    pub state: String,
    /// It closes its sockets and is about to end.
    pub is_draining: bool,
    pub has_namesake: bool,
    /// Open sockets, by its last beat.
    pub sockets: u64,
    /// Time since its last beat, milliseconds.
    pub heard_ms: Option<u64>,
    /// Time from a query of that node to its answer, through the broker, milliseconds.
    pub rtt_ms: Option<f64>,
    /// How much longer its last beat took to arrive than the fastest of its last eight,
    /// milliseconds; an estimate.
    pub delay_ms: Option<u64>,
    /// By how much its clock is ahead of this node's, milliseconds; an estimate, too small by the
    /// delay of its fastest beat.
    pub clock_offset_ms: Option<i64>,
    /// The first twenty topic patterns with different settings.
    pub differing: Vec<String>,
    /// Its own figures; none if it has not answered in half a second.
    pub figures: Option<NodeFigures>,
}

/// The figures of a node's last second.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct NodeFigures {
    pub uptime_s: f64,
    pub sockets: u64,
    pub channels: u64,
    /// Topics with members, counted on each shard.
    pub topics: u64,
    pub messages_in_per_s: f64,
    pub messages_out_per_s: f64,
    pub presences_local: u64,
    /// Presences of other nodes' members, as far as it has them.
    pub presences_remote: u64,
    /// Broadcasts kept for clients that come back.
    pub kept_messages: u64,
    pub cpu_cores: f64,
    pub resident_bytes: u64,
    pub errors_per_s: f64,
}

/// The subscriptions of a node.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct InterestsRow {
    /// Topics with members here, now or a moment ago.
    pub topics: u64,
    /// Subscriptions to single topics.
    pub exact: u64,
    /// Most exact subscriptions; beyond them whole buckets of topics are subscribed to.
    pub exact_max: u64,
    /// Subscriptions to whole buckets.
    pub whole: u64,
    /// Buckets of topics, of 4,096, that are subscribed to as a whole.
    pub whole_buckets: u64,
}

/// Envelopes that wait to be sent to other nodes.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct OutboxRow {
    /// Bytes queued for the broker.
    pub bytes: u64,
    /// Most bytes of queued broadcasts; beyond them the oldest are dropped.
    pub bytes_max: u64,
    /// Envelopes that were sent but may not have reached the broker.
    pub under_way: u64,
}

/// A named counter.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NamedCount {
    pub name: String,
    /// Cases since the server started.
    pub total: u64,
}

/// The members of a topic on a node.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeMembers {
    pub id: String,
    pub name: String,
    /// Whether it is the one that answers.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_here: bool,
    /// None if it has not answered in half a second.
    pub members: Option<u64>,
}
