//! The results of a capacity test, as `road.json` has them. Bytes are per connection and of one
//! end, and times are microseconds, unless a field says otherwise.

use serde::Serialize;
use simurgh_load::record::Stats;

/// Everything found so far.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct Results {
    /// Of this program.
    pub(super) version: String,
    pub(super) machine: Host,
    pub(super) server: String,
    pub(super) nodes: u32,
    /// The broker between them.
    pub(super) engine: Option<String>,
    /// Arrivals per second that were asked for.
    pub(super) rate: u32,
    /// Bytes of text in each broadcast.
    pub(super) text: usize,
    /// Shards of the server, each a thread.
    pub(super) shards: u64,
    pub(super) milestones: Vec<Milestone>,
    /// All broadcasts at the last milestone.
    #[serde(rename = "told")]
    pub(super) broadcasts: Vec<BroadcastResult>,
    /// Connections over time: seconds, number.
    pub(super) users: Vec<(f64, u64)>,
    pub(super) heartbeats: Option<HeartbeatResult>,
    #[serde(rename = "storm")]
    pub(super) reconnect: Option<ReconnectResult>,
    #[serde(rename = "compared")]
    pub(super) comparison: Option<Comparison>,
    /// Why it ended where it did.
    pub(super) ending: String,
    /// Settings of the system that were raised for the time of the test.
    #[serde(rename = "tuned")]
    pub(super) tuning: Vec<String>,
}

impl Results {
    /// Adds to the ending what broke off, and why.
    pub(super) fn breaks_off(&mut self, what: &str, why: &str) {
        self.ending = format!("{} {what} broke off: {why}.", self.ending);
    }
}

/// The machine.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct Host {
    /// Cores that may be used.
    pub(super) cores: usize,
    pub(super) processor: String,
    /// Bytes of memory.
    pub(super) memory: u64,
    pub(super) kernel: String,
}

/// The measurements when a number of members was reached.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct Milestone {
    /// Members of the one channel, each on a connection of its own.
    pub(super) members: u64,
    /// How many of them joined since the milestone before.
    pub(super) came: u64,
    /// Seconds from the first of these to the last, as seen each 0.1 s.
    pub(super) climb_s: f64,
    pub(super) joins_per_s: f64,
    /// CPU time of the server for each.
    pub(super) server_us_per_join: f64,
    pub(super) client_us_per_join: f64,
    /// From a join to its reply.
    pub(super) join: Stats,
    /// Resident memory of the server, less what it had without clients.
    pub(super) server_bytes: f64,
    pub(super) client_bytes: f64,
    /// The kernel's records (slab) for each socket; there are two to a connection.
    pub(super) kernel_bytes: f64,
    /// The rest of the machine's memory.
    pub(super) memory_available: u64,
    /// One broadcast to all.
    pub(super) broadcast: BroadcastResult,
    /// Each server, where there are several.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) nodes: Vec<NodeMemory>,
    /// Resident memory of the broker between them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) engine_memory: Option<u64>,
}

/// One server of several at a milestone.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(super) struct NodeMemory {
    pub(super) sockets: u64,
    /// Resident memory for each, less what it had without clients.
    pub(super) bytes: f64,
}

/// One broadcast to all members.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct BroadcastResult {
    /// Members that received it.
    pub(super) receivers: u64,
    /// Deliveries, by the server's count.
    pub(super) delivered: u64,
    /// From the sender's stamp to the first receiver.
    pub(super) first_us: u64,
    pub(super) last_us: u64,
    /// To all: the median and the rest.
    pub(super) delivery: Stats,
    /// CPU time of the server for each delivery.
    pub(super) server_us: f64,
    pub(super) client_us: f64,
    /// Heartbeats of the probes in the same seconds.
    pub(super) heartbeats: Stats,
    pub(super) in_flight: InFlight,
    /// Each server, where there are several.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) nodes: Vec<NodeDeliveries>,
    /// CPU time of the broker between them meanwhile.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) engine_us: Option<f64>,
}

/// One server of several during a broadcast.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(super) struct NodeDeliveries {
    /// By its count, with the message that asked the speaker to broadcast.
    pub(super) delivered: u64,
    /// Its CPU time for each.
    pub(super) server_us: f64,
}

/// The most memory in use during a broadcast beyond that before it, bytes.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(super) struct InFlight {
    pub(super) server: u64,
    /// Of TCP's buffers, on both ends.
    pub(super) buffers: u64,
}

/// Heartbeats of all members, over twice the time between two of the same member.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct HeartbeatResult {
    /// Seconds between two heartbeats of the same member.
    pub(super) every_s: f64,
    pub(super) senders: u64,
    pub(super) answered: u64,
    pub(super) per_s: f64,
    /// CPU time of the server for each.
    pub(super) server_us: f64,
    pub(super) client_us: f64,
    /// Errors of members meanwhile.
    pub(super) failed: u64,
    /// From the time a heartbeat was meant to be sent to its reply.
    pub(super) times: Stats,
}

/// All clients vanish at once, then all return at once.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct ReconnectResult {
    pub(super) vanished: u64,
    /// Seconds until the server had noticed the last of them.
    pub(super) noticed_s: f64,
    /// Of what the server's memory had grown by, the part that was still there 10 s later.
    pub(super) memory_left: f64,
    /// The same of the kernel's records.
    pub(super) slab_left: f64,
    /// Sockets of the machine that were still there then, less those from before the test: below
    /// zero if others, such as those of a test just before, were still closing at its start.
    pub(super) sockets_left: i64,
    /// The slowest heartbeat of the probes.
    pub(super) heartbeat_max_us: u64,
    /// How late the probes themselves began one at most, which is part of its time: the cores are
    /// short of that, and the server is not at fault.
    pub(super) heartbeat_lag_max_us: u64,
    pub(super) heartbeats_failed: u64,
    /// Seconds until all had joined again.
    pub(super) back_s: f64,
    /// Connections that were tried in vain meanwhile, each tried again.
    pub(super) tries_in_vain: u64,
    /// The slowest heartbeat of the probes while members returned.
    pub(super) back_heartbeat_max_us: u64,
    /// How late one began at most.
    pub(super) back_heartbeat_lag_max_us: u64,
    /// Members that had joined when a broadcast was sent in the middle of it.
    pub(super) members_then: u64,
    /// How many received it: all of those, and some that joined meanwhile.
    pub(super) receivers: u64,
}

/// Several nodes and one server, each by the medians of its broadcasts at the last milestone.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct Comparison {
    pub(super) nodes: Medians,
    pub(super) one: Medians,
    /// CPU of all servers for each delivery: that of the nodes divided by that of the one.
    pub(super) server_us_ratio: f64,
    /// The test of the one.
    pub(super) road: Box<Results>,
}

/// Medians of broadcasts, and memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(super) struct Medians {
    pub(super) broadcasts: usize,
    /// CPU of all servers for each delivery.
    pub(super) server_us: f64,
    /// Until the last member had it.
    pub(super) last_us: f64,
    /// Bytes of all servers for each client.
    pub(super) server_bytes: f64,
}
