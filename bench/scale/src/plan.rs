//! The formulas: what a load needs on each node and at the brokers.

use serde::Deserialize;

use crate::prices::Prices;

/// A row of a node's use: its name and amount.
pub(crate) type Part = (&'static str, f64);

/// The share of CPU and network, and of memory, that may be in use.
const FILL: f64 = 0.6;
const MEMORY_FILL: f64 = 0.8;
/// The most clients of a node unless `nodes` is given: a larger node is a larger loss.
const NODE_CLIENTS: f64 = 1e6;
/// The search for enough nodes, or brokers, ends here.
const NODES_MAX: f64 = 20_000.0;
const BROKERS_MAX: f64 = 100.0;
/// Bytes of a packet's heads (Ethernet, IPv4, TCP), and the most stream bytes that it has.
const PACKET: f64 = 90.0;
const SEGMENT: f64 = 1448.0;
/// Bytes of a broadcast beside its payload: on a client's line, and between nodes and brokers.
const FRAME: f64 = 47.0;
const ENVELOPE: f64 = 98.0;
/// A change of presence is sent again after 1, 5 and 25 s.
const REPEATS: f64 = 4.0;

/// The load of all clients, and the machines for it. `bench/scale/loads.toml` describes each field.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Load {
    pub(crate) name: String,
    pub(crate) clients: f64,
    rooms: f64,
    room_size: f64,
    rate: f64,
    payload: f64,
    hot_size: f64,
    hot_rate: f64,
    presence: f64,
    pub(crate) session: f64,
    kept: f64,
    kept_count: f64,
    kept_age: f64,
    backend: bool,
    nodes: f64,
    cores: f64,
    memory_gb: f64,
    network_gbit: f64,
}

impl Load {
    /// Topics, members of each and messages a second in each: of the rooms, of the hottest one.
    fn classes(&self) -> [(f64, f64, f64); 2] {
        let hot = f64::from(self.hot_size > 0.0);
        [(self.rooms, self.room_size, self.rate), (hot, self.hot_size, self.hot_rate)]
    }

    /// The sum over both kinds of topics.
    fn total(&self, of: impl Fn(f64, f64) -> f64) -> f64 {
        self.classes().iter().map(|(topics, size, rate)| topics * of(*size, *rate)).sum()
    }

    pub(crate) fn published(&self) -> f64 {
        self.total(|_, rate| rate)
    }

    pub(crate) fn delivered(&self) -> f64 {
        self.total(|size, rate| size * rate)
    }

    pub(crate) fn stored(&self) -> f64 {
        self.published() * self.kept
    }

    /// Members that join or leave rooms with presence in a second.
    fn presence_changes(&self) -> f64 {
        2.0 * self.presence / self.session * self.total(|size, _| size)
    }

    /// Changes of presence sent to clients in a second, each to all of its room.
    pub(crate) fn presence_delivered(&self) -> f64 {
        2.0 * self.presence / self.session * self.total(|size, _| size * size)
    }
}

/// The share of buckets of topics that a node with this many topics receives whole, which are the
/// fullest ones. It subscribes to at most `exact_max` topics one by one.
pub(crate) fn whole(topics: f64, presence: f64, prices: &Prices) -> f64 {
    let (exact_max, all) = (prices.get("exact_max"), topics * (1.0 + presence));
    match (all <= exact_max, presence > 0.0) {
        (true, _) => 0.0,
        // With presence a whole bucket is two subscriptions, which leave no room for others.
        (false, true) => 1.0,
        (false, false) => 1.0 - exact_max / all,
    }
}

/// The probability that a given one of `nodes` nodes has one of a topic's `size` members.
pub(crate) fn touches(nodes: f64, size: f64) -> f64 {
    if nodes <= 1.0 { 1.0 } else { 1.0 - (size * (-1.0 / nodes).ln_1p()).exp() }
}

/// Messages a second of one node to and from the others.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Flows {
    /// Broadcasts: its own, others' that it has members for, and all of others that it receives.
    pub(crate) said: f64,
    pub(crate) wanted: f64,
    pub(crate) heard: f64,
    /// All messages: out and in.
    sent: f64,
    received: f64,
    /// Received changes of presence.
    changes: f64,
    /// The probability that a broadcast of any node is received.
    hears: f64,
}

impl Flows {
    fn new(load: &Load, prices: &Prices, nodes: f64, whole: f64) -> Self {
        let others = (nodes - 1.0) / nodes;
        let wanted = load.total(|size, rate| rate * touches(nodes, size));
        let heard = wanted + (load.published() - wanted) * whole;
        let hears = if load.published() > 0.0 { heard / load.published() } else { 1.0 };
        let changes = REPEATS * load.presence_changes();
        let beat = 1.0 / prices.get("beat_s");
        let received = (heard + changes * hears) * others + beat * (nodes - 1.0);
        Self {
            said: load.published() / nodes,
            wanted: wanted * others,
            heard: heard * others,
            sent: (load.published() + changes) / nodes + beat,
            received,
            changes: changes * hears * others,
            hears,
        }
    }

    /// Cores of the cluster's one thread.
    fn thread(&self, load: &Load, prices: &Prices) -> f64 {
        let kept = prices.get("kept_receive_cpu") - prices.get("receive_thread_cpu");
        let receive =
            self.received * prices.get("receive_thread_cpu") + self.heard * load.kept * kept;
        (receive + self.sent * prices.get("publish_cpu")) / prices.get("cores_efficiency")
    }
}

/// The brokers: one NATS cluster.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Brokers {
    /// Infinite if no number is enough.
    pub(crate) servers: f64,
    /// Copies a second: to nodes, between servers.
    pub(crate) copies: (f64, f64),
    /// Cores of all servers; bits a second of one, both ways.
    pub(crate) cores: f64,
    pub(crate) bits: f64,
}

/// A load on this many nodes.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) load: Load,
    pub(crate) nodes: f64,
    /// Topics with members on a node.
    pub(crate) topics: f64,
    pub(crate) flows: Flows,
    /// Bytes and cores of a node, by purpose.
    pub(crate) memory: Vec<Part>,
    pub(crate) cpu: Vec<Part>,
    pub(crate) thread: f64,
    /// Bits a second of a node: to clients, and to and from brokers.
    pub(crate) bits: (f64, f64),
    /// Bytes of a node's rings, if none was evicted.
    pub(crate) rings: f64,
    pub(crate) brokers: Brokers,
}

/// The sum of parts.
pub(crate) fn sum(parts: &[Part]) -> f64 {
    parts.iter().map(|(_, value)| value).sum()
}

impl Plan {
    /// The load on the given nodes, or on the fewest that are enough.
    pub(crate) fn new(load: &Load, prices: &Prices) -> Self {
        if load.nodes >= 1.0 {
            return Self::on(load, prices, load.nodes.round());
        }
        let mut nodes = (load.clients / NODE_CLIENTS).ceil();
        loop {
            let plan = Self::on(load, prices, nodes);
            if nodes >= NODES_MAX || plan.use_of_bounds().iter().all(|it| it.1 <= 1.0) {
                return plan;
            }
            nodes = (nodes * 1.02).ceil().max(nodes + 1.0);
        }
    }

    fn on(load: &Load, prices: &Prices, nodes: f64) -> Self {
        let topics = load.total(|size, _| touches(nodes, size));
        let flows = Flows::new(load, prices, nodes, whole(topics, load.presence, prices));
        let kept_each = load.kept_count.min(load.rate * load.kept_age);
        let ring = prices.get("kept_message_bytes") + load.payload;
        let mut plan = Self {
            load: load.clone(),
            nodes,
            topics,
            flows,
            memory: Vec::new(),
            cpu: Vec::new(),
            thread: flows.thread(load, prices),
            bits: (0.0, 0.0),
            rings: topics * load.kept * kept_each * ring,
            brokers: brokers(load, prices, nodes, topics, &flows),
        };
        plan.memory = plan.memory_parts(prices);
        plan.cpu = plan.cpu_parts(prices);
        plan.bits = plan.network(prices);
        plan
    }

    pub(crate) fn clients(&self) -> f64 {
        self.load.clients / self.nodes
    }

    fn memory_parts(&self, prices: &Prices) -> Vec<Part> {
        let (load, clients) = (&self.load, self.clients());
        // A socket has bytes in flight for a round trip after each message; in the largest topic
        // those of all members are in flight at once.
        let sent = (load.delivered() + load.presence_delivered()) / load.clients;
        let largest = load.classes().into_iter().filter(|(topics, _, rate)| topics * rate > 0.0);
        let at_once = largest.map(|(_, size, _)| size / load.clients).fold(0.0, f64::max);
        let under_way = (sent * prices.get("round_trip_s")).max(at_once).min(1.0);
        // A node has all members of each topic that has a member there.
        let entries = load.presence * load.total(|size, _| size * touches(self.nodes, size));
        let entry = prices.get("presence_bytes") + prices.get("presence_meta_bytes");
        let kept = self.topics * load.kept * prices.get("kept_topic_bytes");
        let peers = (self.nodes - 1.0).min(prices.get("nodes_max"));
        vec![
            ("sockets, in the kernel", clients * prices.get("client_kernel_bytes")),
            ("under way to clients", clients * under_way * prices.get("send_page_bytes")),
            ("clients, in the server", clients * prices.get("client_user_bytes")),
            ("topics, for the cluster", self.topics * prices.get("topic_bytes")),
            ("presences of all nodes", entries * entry),
            ("histories", self.rings.min(prices.get("history_bytes")) + kept),
            ("other nodes", peers * prices.get("peer_bytes")),
            ("system and application", prices.get("node_system_bytes")),
        ]
    }

    fn cpu_parts(&self, prices: &Prices) -> Vec<Part> {
        let (load, clients, flows) = (&self.load, self.clients(), &self.flows);
        let core = 1.0 / prices.get("cores_efficiency");
        let delivery = prices.at("delivery_cpu", clients) * core;
        let message = prices.at("heartbeat_cpu", clients) * core;
        let connect = prices.at("connect_cpu", clients) * core;
        let said = if load.backend { prices.get("api_publish_cpu") * core } else { message };
        let shards = (prices.get("receive_whole_cpu") - prices.get("receive_thread_cpu")) * core;
        vec![
            ("heartbeats", clients / prices.get("heartbeat_s") * message),
            ("messages to clients", load.delivered() / self.nodes * delivery),
            ("presence to clients", self.load.presence_delivered() / self.nodes * delivery),
            ("messages from clients", flows.said * said),
            ("connects and joins", clients / load.session * connect),
            ("the cluster's thread", self.thread),
            ("what it hands to shards", (flows.wanted + flows.changes) * shards),
        ]
    }

    fn network(&self, prices: &Prices) -> (f64, f64) {
        let meta = prices.get("presence_meta_bytes");
        let delivered = |payload: f64| {
            let frame = FRAME + payload;
            // The acknowledgement, too.
            frame + (frame / SEGMENT).ceil() * PACKET + PACKET
        };
        // A heartbeat and its answer are about 60 bytes each.
        let heartbeats = self.clients() / prices.get("heartbeat_s") * (2.0 * 60.0 + 3.0 * PACKET);
        let messages = self.load.delivered() * delivered(self.load.payload)
            + self.load.presence_delivered() * delivered(meta + 100.0);
        let flows = &self.flows;
        let broadcasts = flows.said + flows.heard;
        let link = broadcasts * between(self.load.payload)
            + (flows.sent + flows.received - broadcasts) * between(meta + 67.0);
        ((heartbeats + messages / self.nodes) * 8.0, link * 8.0)
    }

    /// The share of each bound of a node that is in use.
    pub(crate) fn use_of_bounds(&self) -> [Part; 3] {
        let bits = self.load.network_gbit * 1e9 * FILL;
        [
            ("memory of a node", sum(&self.memory) / (self.load.memory_gb * 1e9 * MEMORY_FILL)),
            ("CPU of a node", sum(&self.cpu) / (self.load.cores * FILL)),
            ("network of a node", (self.bits.0 + self.bits.1) / bits),
        ]
    }

    /// The share of each limit that is in use, the tightest first; more than 1 does not work.
    pub(crate) fn limits(&self, prices: &Prices) -> Vec<Part> {
        let load = &self.load;
        let topics = self.topics;
        let vain = match self.flows.heard > 0.0 {
            true => 1.0 - self.flows.wanted / self.flows.heard,
            false => 0.0,
        };
        let again = topics * load.presence / prices.get("asks_again_per_s");
        let checked = prices.get("checks_per_s") * 30.0;
        let streams = prices.get("stream_rate") * prices.get("streams");
        let queues = prices.get("accept_queue") * load.cores;
        let mut all = self.use_of_bounds().to_vec();
        all.extend([
            ("clients that one server has had", self.clients() / prices.get("clients_measured")),
            ("nodes of a cluster", self.nodes / prices.get("nodes_max")),
            ("the cluster's one thread, 60 % of a core", self.thread / FILL),
            ("received for no member, half of all", vain / 0.5),
            ("16 brokers", self.brokers.servers / 16.0),
            ("a third of the clients at once, in accept queues", self.clients() / 3.0 / queues),
            ("kept messages in `history_bytes_max`", self.rings / prices.get("history_bytes")),
            ("kept topics that are checked in 30 s", topics * load.kept / checked),
            ("stored in the streams of a cluster", load.stored() / streams),
            ("presences asked for again within 60 s", again / 60.0),
        ]);
        all.sort_by(|one, other| other.1.total_cmp(&one.1));
        all
    }
}

/// Bytes of an envelope with a broker's line and full packets.
fn between(payload: f64) -> f64 {
    (ENVELOPE + payload) * (1.0 + PACKET / SEGMENT)
}

fn brokers(load: &Load, prices: &Prices, nodes: f64, topics: f64, flows: &Flows) -> Brokers {
    let core = 1.0 / prices.get("cores_efficiency");
    let checked = (topics * load.kept / 30.0).min(prices.get("checks_per_s")) * nodes;
    let kept = load.stored() * prices.get("stored_cpu") * 3.0 + checked * prices.get("last_of_cpu");
    let (incoming, to_nodes) = (nodes * flows.sent, nodes * flows.received);
    let mut servers = 3.0;
    loop {
        // A message goes once to each other server with a node that receives it.
        let any = 1.0 - (1.0 - flows.hears.min(1.0)).powf((nodes / servers).max(1.0));
        let routed = incoming * (servers - 1.0) * any;
        let cores = ((to_nodes + routed) * prices.get("broker_copy_cpu") + kept) * core;
        let bits = (to_nodes + routed + incoming) * between(load.payload) * 8.0 / servers;
        let is_enough =
            cores <= load.cores * FILL * servers && bits <= load.network_gbit * 1e9 * FILL * 2.0;
        if is_enough || servers >= BROKERS_MAX {
            let servers = if is_enough { servers } else { f64::INFINITY };
            return Brokers { servers, copies: (to_nodes, routed), cores, bits };
        }
        servers += 1.0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load;

    fn plan(words: &str) -> (Plan, Prices) {
        let prices = Prices::read().unwrap();
        let words: Vec<String> = words.split(' ').map(str::to_owned).collect();
        (Plan::new(&load(&words).unwrap(), &prices), prices)
    }

    #[test]
    fn million_idle_clients_on_one_node_cost_the_measured_memory() {
        let (plan, prices) = plan("chat clients=1e6 rooms=20_000 nodes=1 rate=0 presence=0");
        let clients: f64 = plan.memory.iter().take(3).map(|part| part.1).sum();
        assert!((clients - 1e6 * 4323.0).abs() < 1.0, "{clients}");
        // 33,333 heartbeats a second at 15.75 to 22.7 µs each.
        let heartbeats = plan.cpu[0].1 * prices.get("cores_efficiency");
        assert!((0.52..0.77).contains(&heartbeats), "{heartbeats}");
        assert!(plan.thread < 1e-5, "{:?}", plan.flows);
    }

    #[test]
    fn hundred_thousand_topics_need_the_measured_number_of_whole_buckets() {
        // Measured by the row `topics` of `cluster`: 3,914 of 4,096 buckets.
        let share = whole(100_000.0, 0.0, &Prices::read().unwrap());
        assert!((share * 4096.0 / 3914.0 - 1.0).abs() < 0.01, "{share}");
        assert!((touches(100.0, 50.0) - 0.395).abs() < 0.001);
    }

    #[test]
    fn plan_without_node_count_stays_within_its_bounds() {
        for name in ["lobby", "chat", "notifications", "pages"] {
            let (plan, prices) = plan(name);
            assert!((sum(&plan.cpu) + sum(&plan.memory)).is_finite(), "a price is missing");
            assert!(plan.use_of_bounds().iter().all(|part| part.1 <= 1.0), "{name}");
            assert!(plan.limits(&prices).is_sorted_by(|one, other| one.1 >= other.1), "{name}");
            assert!(plan.nodes >= 100.0 && plan.brokers.servers >= 3.0, "{name}");
        }
        assert!(plan("chat rate=100").0.brokers.servers.is_infinite());
    }
}
