//! The CPU, memory and traffic of one node, by purpose.

use super::cell::Cell;
use crate::load::{Load, Publisher};
use crate::prices::Prices;

/// A row of a node's use: its name and amount.
pub type Part = (&'static str, f64);

/// The topic's and the event's name that the plan assumes.
pub const TOPIC: &str = "rooms:12345678";
/// The event.
pub const EVENT: &str = "new:msg";
/// The cluster's prefix.
pub const PREFIX: &str = "simurgh";
/// Heads of Ethernet, IPv4 and TCP with time stamps, preamble, checksum and gap: 38, 20, 32.
const PACKET: f64 = 90.0;
/// The most stream bytes that an ethernet packet has.
const SEGMENT: f64 = 1448.0;
/// A node gathers its requests for presences and sends them this often.
const GATHERED_PER_S: f64 = 100.0;
/// Bytes of an entry of a delta or state in an envelope, beside key and meta, with its heads.
const ENTRY: f64 = 33.0;
const DELTA: f64 = 34.0;

/// Bytes of an envelope with one broadcast of this payload, as in `simurgh_cluster::Draft`.
pub fn envelope(payload: f64) -> f64 {
    // Header; length of topic; items; flags, length of event; length of payload.
    20.0 + 2.0 + TOPIC.len() as f64 + 2.0 + 2.0 + EVENT.len() as f64 + 4.0 + payload
}

/// Bytes that a broker adds to an envelope that it forwards: MSG, subject, a number, lengths.
pub fn line(envelope: f64) -> f64 {
    let subject = PREFIX.len() + ".b.4.2f.".len() + TOPIC.len();
    // "MSG ", the subject, a space, five digits, a space, the length, and two line ends.
    let digits = envelope.max(1.0).log10().floor() + 1.0;
    4.0 + subject as f64 + 1.0 + 5.0 + 1.0 + digits + 4.0
}

/// Bytes of a broadcast on a client's line, packets included.
pub fn delivered(payload: f64) -> f64 {
    let frame = 22.0 + (TOPIC.len() + EVENT.len()) as f64 + payload;
    let frame = frame + if frame < 126.0 { 2.0 } else { 4.0 };
    frame + (frame / SEGMENT).ceil() * PACKET
}

/// Messages a second of one node to and from other nodes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Flows {
    /// Broadcasts that it publishes.
    pub said: f64,
    /// Broadcasts of others that it has members for.
    pub wanted: f64,
    /// All broadcasts of others that it receives.
    pub heard: f64,
    /// Of these, kept ones; its own come back as well.
    pub kept: f64,
    /// Presence changes, repeats included: sent and received.
    pub deltas: (f64, f64),
    /// Topics with presence that begin on it.
    pub begins: f64,
    /// Envelopes that ask for presences: sent and received.
    pub asks: (f64, f64),
    /// States: answers it sends, and as many that it receives.
    pub states: f64,
    /// Beats: received and sent.
    pub beats: (f64, f64),
}

impl Flows {
    /// The share of the received broadcasts that it has members for.
    pub fn wanted_share(&self) -> f64 {
        if self.heard > 0.0 { self.wanted / self.heard } else { 1.0 }
    }

    /// The flows of one node of the cell.
    pub fn new(load: &Load, prices: &Prices, cell: &Cell) -> Self {
        let others = (cell.nodes - 1.0).max(0.0) / cell.nodes;
        let (wanted, heard) = cell.heard();
        let published = cell.published();
        let changes = cell.changes(load) * cell.repeats(load);
        let begins = cell.begins(load);
        let asks = begins.min(GATHERED_PER_S);
        let beat_s = prices.get("beat_s");
        Self {
            said: published / cell.nodes,
            wanted: wanted * others,
            heard: heard * others,
            kept: heard * load.kept,
            deltas: (changes / cell.nodes, changes * cell.hears() * others),
            begins,
            asks: (asks, asks * (cell.nodes - 1.0)),
            states: begins * (cell.nodes - 1.0),
            beats: ((cell.nodes - 1.0) / beat_s, 1.0 / beat_s),
        }
    }

    /// All messages in and out.
    pub fn all(&self) -> (f64, f64) {
        let heard = self.heard + self.deltas.1 + self.asks.1 + self.states + self.beats.0;
        (heard, self.said + self.deltas.0 + self.asks.0 + self.states + self.beats.1)
    }
}

/// One node.
#[derive(Clone, Debug)]
pub struct Node {
    /// Clients on it.
    pub clients: f64,
    /// Its memory, in bytes.
    pub memory: Vec<Part>,
    /// Its CPU, in cores.
    pub cpu: Vec<Part>,
    /// The cores of the cluster's one thread, which are part of `cpu`.
    pub thread: f64,
    /// Bits a second to its clients, and over its link, both ways together.
    pub bits: (f64, f64),
    /// Its messages.
    pub flows: Flows,
    /// Entries of presence.
    pub entries: f64,
    /// Bytes of the rings of its kept topics, if none was evicted.
    pub rings: f64,
}

/// The sum of parts.
pub fn sum(parts: &[Part]) -> f64 {
    parts.iter().map(|(_, value)| value).sum()
}

impl Node {
    /// One of the cell's nodes.
    pub fn new(load: &Load, prices: &Prices, cell: &Cell) -> Self {
        let nodes = cell.nodes * cell.cells;
        let clients = load.clients / nodes;
        let flows = Flows::new(load, prices, cell);
        let kept_topics = cell.wants.topics * load.kept;
        let ring = prices.get("kept_message_bytes") + load.payload;
        let rings = kept_topics * load.kept_each() * ring;
        let entries = cell.entries(load.presence);
        let thread = thread(prices, &flows);
        Self {
            clients,
            memory: memory(load, prices, cell, clients, entries, rings),
            cpu: cpu(load, prices, nodes, &flows),
            thread,
            bits: bits(load, prices, nodes, &flows, cell),
            flows,
            entries,
            rings,
        }
    }
}

fn memory(
    load: &Load,
    prices: &Prices,
    cell: &Cell,
    clients: f64,
    entries: f64,
    rings: f64,
) -> Vec<Part> {
    let more = (load.topics_each() - 1.0).max(0.0) * prices.get("membership_bytes");
    // A client has bytes in flight for a round trip after each message; in the hottest topic all
    // members have at once.
    let sent = (load.delivered() + load.presence_delivered()) / load.clients;
    let (size, rate) = load.hottest();
    let at_once = if rate > 0.0 { size / load.clients } else { 0.0 };
    let under_way = (sent * prices.get("round_trip_s")).max(at_once).min(1.0);
    let presence = prices.get("presence_bytes") + prices.get("presence_meta_bytes");
    let kept = cell.wants.topics * load.kept * prices.get("kept_topic_bytes");
    let peers = (cell.nodes - 1.0).clamp(0.0, prices.get("nodes_max"));
    vec![
        ("sockets, in the kernel", clients * prices.get("client_kernel_bytes")),
        ("under way to clients", clients * under_way * prices.get("send_page_bytes")),
        ("clients, in the server", clients * (prices.get("client_user_bytes") + more)),
        ("topics, for the cluster", cell.wants.topics * prices.get("topic_bytes")),
        ("presences of all nodes", entries * presence),
        ("rings and kept topics", rings.min(prices.get("history_bytes")) + kept),
        ("other nodes", peers * prices.get("peer_bytes")),
        ("system and application", prices.get("node_system_bytes")),
    ]
}

fn cpu(load: &Load, prices: &Prices, nodes: f64, flows: &Flows) -> Vec<Part> {
    let clients = load.clients / nodes;
    let core = 1.0 / prices.get("cores_efficiency");
    let card = prices.get("card_cpu") * core;
    let delivery = prices.at("delivery_cpu", clients) * card;
    let message = prices.at("heartbeat_cpu", clients) * card;
    let join = if load.kept > 0.0 { prices.get("resume_cpu") } else { prices.get("join_cpu") };
    let connect = prices.at("connect_cpu", clients) * card
        + (join - prices.get("join_cpu")) * card
        + (load.topics_each() - 1.0).max(0.0) * join * card;
    let said = match load.from {
        Publisher::Clients => message,
        Publisher::Backend => prices.get("api_publish_cpu") * core,
    };
    let shards = (prices.get("receive_whole_cpu") - prices.get("receive_thread_cpu")) * core;
    vec![
        ("heartbeats", clients / prices.get("heartbeat_s") * message),
        ("messages to clients", load.delivered() / nodes * delivery),
        ("presence to clients", load.presence_delivered() / nodes * delivery),
        ("messages from clients", load.published() / nodes * said),
        ("connects and joins", clients / load.session * connect),
        ("the cluster's thread", thread(prices, flows)),
        ("what it hands to shards", (flows.wanted + flows.deltas.1 + flows.states) * shards),
    ]
}

fn thread(prices: &Prices, flows: &Flows) -> f64 {
    let core = 1.0 / prices.get("cores_efficiency");
    let (heard, said) = flows.all();
    let kept = prices.get("kept_receive_cpu") - prices.get("receive_thread_cpu");
    let receive = heard * prices.get("receive_thread_cpu") + flows.kept * kept;
    (receive + said * prices.get("publish_cpu")) * core
}

fn bits(load: &Load, prices: &Prices, nodes: f64, flows: &Flows, cell: &Cell) -> (f64, f64) {
    let meta = prices.get("presence_meta_bytes");
    let clients = load.clients / nodes;
    // A heartbeat and its answer are some 60 bytes each, and are acknowledged.
    let heartbeats = clients / prices.get("heartbeat_s") * (2.0 * 60.0 + 3.0 * PACKET);
    let acknowledged = PACKET;
    let sent = load.delivered() * (delivered(load.payload) + acknowledged)
        + load.presence_delivered() * (delivered(meta + 100.0) + acknowledged);
    let of_clients = heartbeats + sent / nodes;
    let (heard, said) = flows.all();
    let broadcasts = (flows.heard + flows.said) * between(load.payload);
    // A state has the entries of one node in a topic.
    let entries = cell.entries(load.presence) / cell.wants.topics.max(1.0) / cell.nodes;
    let others = heard + said - flows.heard - flows.said;
    let presence = others * between(DELTA + (ENTRY + meta) * entries.max(1.0));
    (of_clients * 8.0, (broadcasts + presence) * 8.0)
}

/// Bytes of an envelope on a link between nodes and brokers; packets are full if there are many.
pub fn between(payload: f64) -> f64 {
    let envelope = envelope(payload);
    let bytes = envelope + line(envelope);
    bytes * (1.0 + PACKET / SEGMENT)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::Machines;

    fn chat() -> (Load, Machines, Prices) {
        let load = Load::all(None).unwrap().remove(1);
        (load, Machines::default(), Prices::read(None).unwrap())
    }

    #[test]
    fn an_idle_million_is_what_was_measured() {
        let (mut load, machines, prices) = chat();
        (load.rate, load.presence, load.kept, load.clients) = (0.0, 0.0, 0.0, 1e6);
        (load.rooms, load.room_size) = (20_000.0, 50.0);
        let cell = Cell::new(&load, &machines, &prices, 1.0);
        let node = Node::new(&load, &prices, &cell);
        let clients: f64 = node.memory.iter().take(3).map(|it| it.1).sum();
        assert!((clients - 1e6 * 4323.0).abs() < 1.0, "{clients}");
        // A third of a core in 33,333 heartbeats a second, at a price between 15.75 and 22.7 µs.
        let heartbeats = node.cpu[0].1 * prices.get("cores_efficiency");
        assert!((0.52..0.77).contains(&heartbeats), "{heartbeats}");
    }

    #[test]
    fn whoever_says_nothing_and_is_alone_costs_the_link_its_beats() {
        let (mut load, machines, prices) = chat();
        (load.rate, load.presence) = (0.0, 0.0);
        let cell = Cell::new(&load, &machines, &prices, 1.0);
        let node = Node::new(&load, &prices, &cell);
        assert!(node.thread < 1e-5 && node.flows.all().0.abs() < 1e-9, "{:?}", node.flows);
    }

    #[test]
    fn more_nodes_make_a_node_hear_no_less() {
        let (load, machines, prices) = chat();
        let heard = |nodes| {
            let cell = Cell::new(&load, &machines, &prices, nodes);
            Node::new(&load, &prices, &cell).flows
        };
        let (few, many) = (heard(50.0), heard(500.0));
        // All buckets are whole: each message goes to each node, with or without members.
        assert!(many.heard > 0.97 * 200_000.0 && few.heard > 0.95 * 200_000.0, "{few:?} {many:?}");
        assert!(many.wanted < few.wanted / 4.0);
    }
}
