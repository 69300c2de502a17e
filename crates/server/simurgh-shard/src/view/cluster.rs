//! What the observer shows of a cluster.

use serde::{Deserialize, Serialize};

/// A cluster, as one of its nodes knows it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ClusterOverview {
    /// How it stands with the link to the engine.
    pub link: LinkRow,
    /// The nodes: first the one that was asked, then the others by name.
    pub nodes: Vec<NodeRow>,
    /// Nodes that are known and not among them.
    pub more_nodes: u64,
    /// What this node is subscribed to.
    pub interests: InterestsRow,
    /// What waits to be told others.
    pub outbox: OutboxRow,
    /// What was not sent, or not given to a shard, by why; as under `/metrics`.
    pub dropped: Vec<NamedCount>,
    /// The buckets of topics that bring most of what nobody on this node wants.
    pub worst_buckets: Vec<NamedCount>,
    /// Envelopes of other nodes that nobody on this node wants.
    pub unwanted: u64,
    /// What came and is no envelope that is understood here, by why.
    pub refused: Vec<NamedCount>,
    /// Topics whose presences were asked for again, as something may have been lost.
    pub resyncs: u64,
    /// What the engine keeps; none, if no channel has a history.
    pub histories: Option<HistoriesRow>,
    /// When it was made, seconds since 1970.
    pub at_unix_s: f64,
}

/// What the engine keeps of topics with a history, as this node sees it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct HistoriesRow {
    /// What it survives, or why nothing is kept, in words; none, if that is not known yet.
    pub kept: Option<String>,
    /// Topics that this node follows.
    pub topics: u64,
    /// Bytes that wait until they are stored.
    pub waiting_bytes: u64,
    /// Broadcasts of this node that are stored.
    pub stored: u64,
    /// Those that are not known to be.
    pub not_stored: u64,
    /// Holes among what others stored: those that were filled,
    pub holes_filled: u64,
    /// and those that could not be, which clients were told.
    pub gaps: u64,
}

/// The link to the engine.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct LinkRow {
    /// `up`, `catching-up` or `away`.
    pub state: String,
    /// For how long, seconds.
    pub for_s: f64,
    /// Why there is none, in the engine's or the system's words.
    pub why: Option<String>,
    /// Where the engine is and of which version; none without a link, or where it is not known.
    pub engine: Option<String>,
    /// From the last question to the engine to its answer, milliseconds.
    pub rtt_ms: Option<f64>,
    /// Links after the first.
    pub reconnects: u64,
    /// How often something of others may have been lost, links that broke included.
    pub lost: u64,
}

/// A node.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct NodeRow {
    /// Of this start of it: 11 characters.
    pub id: String,
    /// What outlives it.
    pub name: String,
    /// Of its program.
    pub version: String,
    /// It is the one that was asked.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub is_here: bool,
    /// `alive`, `silent`, `draining` or `incompatible`.
    pub state: String,
    /// It closes its sockets and is about to end.
    pub is_draining: bool,
    /// Another node has its name.
    pub has_namesake: bool,
    /// Open sockets, as its last beat said.
    pub sockets: u64,
    /// Since its last beat, milliseconds.
    pub heard_ms: Option<u64>,
    /// From a question to that node to its answer, through the engine, milliseconds.
    pub rtt_ms: Option<f64>,
    /// How much longer its last beat was under way than the fastest of its last eight,
    /// milliseconds; an estimate.
    pub delay_ms: Option<u64>,
    /// By how much its clock is ahead of this node's, milliseconds; an estimate, too small by the
    /// time that its fastest beat was under way.
    pub clock_offset_ms: Option<i64>,
    /// Patterns of topics that it has other settings for; the first twenty.
    pub differing: Vec<String>,
    /// What it says of itself; none if it has not answered in half a second.
    pub figures: Option<NodeFigures>,
}

/// The figures of a node's last second.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct NodeFigures {
    /// Since it was started, seconds.
    pub uptime_s: f64,
    /// Open sockets.
    pub sockets: u64,
    /// Memberships: channels joined.
    pub channels: u64,
    /// Topics with members, counted on each shard.
    pub topics: u64,
    /// Messages from clients a second.
    pub messages_in_per_s: f64,
    /// Messages to clients a second.
    pub messages_out_per_s: f64,
    /// Presences of its own members.
    pub presences_local: u64,
    /// Presences of other nodes' members that it knows.
    pub presences_remote: u64,
    /// Broadcasts that are kept for clients that come back.
    pub kept_messages: u64,
    /// CPU time of the process, in cores.
    pub cpu_cores: f64,
    /// Resident memory, bytes.
    pub resident_bytes: u64,
    /// Errors of all kinds a second.
    pub errors_per_s: f64,
}

/// What a node is subscribed to.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct InterestsRow {
    /// Topics with members here, or that had some a moment ago.
    pub topics: u64,
    /// Subscriptions to single topics.
    pub exact: u64,
    /// Of these there may be so many; then whole buckets of topics are subscribed to.
    pub exact_max: u64,
    /// Subscriptions to whole buckets.
    pub whole: u64,
    /// Buckets of topics, of 4,096, that are subscribed to as a whole.
    pub whole_buckets: u64,
}

/// What waits to be told other nodes.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct OutboxRow {
    /// Bytes that wait for the engine.
    pub bytes: u64,
    /// Bytes of broadcasts that may wait; of more the oldest are dropped.
    pub bytes_max: u64,
    /// Envelopes that were handed over and that the engine may not have yet.
    pub under_way: u64,
}

/// Something counted.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NamedCount {
    /// What.
    pub name: String,
    /// How often, since the server started.
    pub total: u64,
}

/// How many members of a topic are on a node.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeMembers {
    /// The node's id.
    pub id: String,
    /// The node's name.
    pub name: String,
    /// It is the one that was asked.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_here: bool,
    /// None if it has not answered in half a second.
    pub members: Option<u64>,
}
