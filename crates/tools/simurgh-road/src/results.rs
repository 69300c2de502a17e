//! The results of a capacity test, as in `road.json`. Bytes are per connection and of one end, and
//! times are microseconds, unless a field says otherwise.

use serde::Serialize;
use simurgh_load::record::Stats;

#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct Results {
    /// Of this program.
    pub(super) version: String,
    pub(super) machine: Host,
    pub(super) server: String,
    pub(super) nodes: u32,
    /// Whether clients connect with TLS.
    pub(super) tls: bool,
    /// Clients had no sockets.
    pub(super) tun: bool,
    /// The broker between several nodes.
    pub(super) engine: Option<String>,
    /// Requested arrivals per second.
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
    pub(super) ending: String,
    /// Settings of the system that were raised for the test.
    #[serde(rename = "tuned")]
    pub(super) tuning: Vec<String>,
}

impl Results {
    pub(super) fn breaks_off(&mut self, what: &str, why: &str) {
        self.ending = format!("{} {what} broke off: {why}.", self.ending);
    }
}

#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct Host {
    /// Cores that may be used.
    pub(super) cores: usize,
    pub(super) processor: String,
    pub(super) memory: u64,
    pub(super) kernel: String,
}

#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct Milestone {
    /// Members of the one channel, each on its own connection.
    pub(super) members: u64,
    /// Joined since the previous milestone.
    pub(super) came: u64,
    /// Seconds from the first of these to the last, sampled each 0.1 s.
    pub(super) climb_s: f64,
    pub(super) joins_per_s: f64,
    /// CPU time of the server for each.
    pub(super) server_us_per_join: f64,
    pub(super) client_us_per_join: f64,
    /// From a join to its reply.
    pub(super) join: Stats,
    /// Resident memory of the server, minus that without clients.
    pub(super) server_bytes: f64,
    pub(super) client_bytes: f64,
    /// The kernel's records (slab) for each socket; a connection has two, or one if its client has
    /// none.
    pub(super) kernel_bytes: f64,
    pub(super) memory_available: u64,
    pub(super) broadcast: BroadcastResult,
    /// Each server, where there are several.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) nodes: Vec<NodeMemory>,
    /// Resident memory of the broker between them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) engine_memory: Option<u64>,
}

#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(super) struct NodeMemory {
    pub(super) sockets: u64,
    /// Resident memory for each client, minus that without clients.
    pub(super) bytes: f64,
}

#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct BroadcastResult {
    pub(super) receivers: u64,
    /// Deliveries, by the server's count.
    pub(super) delivered: u64,
    /// From the sender's stamp to the first receiver.
    pub(super) first_us: u64,
    pub(super) last_us: u64,
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

#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(super) struct NodeDeliveries {
    /// By its count, including the message that asked the speaker to broadcast.
    pub(super) delivered: u64,
    /// Per delivery.
    pub(super) server_us: f64,
}

/// The most bytes of memory in use during a broadcast, minus those before it.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(super) struct InFlight {
    pub(super) server: u64,
    /// TCP's buffers, on both ends.
    pub(super) buffers: u64,
}

/// Heartbeats of all members, measured for twice the interval.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct HeartbeatResult {
    pub(super) every_s: f64,
    pub(super) senders: u64,
    pub(super) answered: u64,
    pub(super) per_s: f64,
    /// CPU time of the server for each.
    pub(super) server_us: f64,
    pub(super) client_us: f64,
    pub(super) failed: u64,
    /// From the time a heartbeat was due to its reply.
    pub(super) times: Stats,
}

#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct ReconnectResult {
    pub(super) vanished: u64,
    /// Seconds until the server had noticed that all were gone.
    pub(super) noticed_s: f64,
    /// The share of the server's memory growth that was still in use 10 s later.
    pub(super) memory_left: f64,
    /// The same for the kernel's records (slab).
    pub(super) slab_left: f64,
    /// Sockets of the machine at that time, minus those from before the test: negative if sockets
    /// of a previous test were still closing at its start.
    pub(super) sockets_left: i64,
    /// The slowest heartbeat of the probes.
    pub(super) heartbeat_max_us: u64,
    /// The greatest delay before the probes began one. It is part of the heartbeat's time, and
    /// caused by a lack of cores, not by the server.
    pub(super) heartbeat_lag_max_us: u64,
    pub(super) heartbeats_failed: u64,
    /// Seconds until all had joined again.
    pub(super) back_s: f64,
    /// Failed connection attempts meanwhile, each retried.
    pub(super) tries_in_vain: u64,
    /// The slowest heartbeat of the probes while members returned.
    pub(super) back_heartbeat_max_us: u64,
    pub(super) back_heartbeat_lag_max_us: u64,
    /// Members that had joined when a broadcast was sent in the middle.
    pub(super) members_then: u64,
    /// How many received it: all of those, and some that joined during it.
    pub(super) receivers: u64,
}

/// Several nodes and one server, by the medians of their broadcasts at the last milestone.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct Comparison {
    pub(super) nodes: Medians,
    pub(super) one: Medians,
    /// CPU of all servers for each delivery: several nodes divided by one server.
    pub(super) server_us_ratio: f64,
    /// The test of one server.
    pub(super) road: Box<Results>,
}

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
