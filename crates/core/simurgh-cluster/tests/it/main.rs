//! Several nodes over the loopback: what one publishes, the others receive, through all faults.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod calls;
mod fuzz_corpus;
mod kept;
mod late;
mod log;
mod thread;

use std::collections::BTreeMap;
use std::task::{Context, Waker};

use bytes::Bytes;
use simurgh_cluster::{
    Adapter, Answer, Beat, CallNumber, Cluster, ClusterConfig, DisconnectNumber, DisconnectOutcome,
    Draft, ENVELOPE_VERSION, HistoryConfig, HistoryEvent, HistoryItem, Item, ItemPayload, Kind,
    LinkState, LocalNode, LogEvent, NodeId, NotKept, Notice, OutboxConfig, PeerEvent, PeersConfig,
    Prefix, Shards, Space, StoredAt, Time,
};
use simurgh_loopback::{Direction, Loopback, Network, NetworkConfig, RestartData};
use simurgh_presence::{Delta, FromPeers, Owner, Snapshot, ToPeers};

const MILLISECOND: u64 = 1_000_000;
const SECOND: u64 = 1000 * MILLISECOND;

#[derive(Default)]
struct NodeRecord {
    broadcasts: Vec<(String, String, Vec<u16>)>,
    disconnects: Vec<String>,
    presence: Vec<(String, FromPeers)>,
    gone: Vec<NodeId>,
    outcomes: BTreeMap<DisconnectNumber, DisconnectOutcome>,
    calls: Vec<(NodeId, u64, u16, Vec<u8>)>,
    hung_up: Vec<(NodeId, u64)>,
    answers: Vec<(CallNumber, Option<Answer>)>,
    orders: Vec<(NodeId, u64, Vec<u8>)>,
    /// What it received of followed topics: payloads, and names of other events.
    kept: BTreeMap<String, Vec<String>>,
    stored: BTreeMap<u64, Result<StoredAt, NotKept>>,
    log: Vec<LogEvent>,
    time: Time,
}

impl LocalNode for NodeRecord {
    fn broadcast(&mut self, topic: &str, item: &Item<'_>, shards: Shards<'_>) {
        let ItemPayload::Json(text) = item.payload else { panic!("{item:?}") };
        self.broadcasts.push((topic.into(), text.into(), shards.collect()));
    }

    fn disconnect(&mut self, socket_id: &str) {
        self.disconnects.push(socket_id.into());
    }

    fn order(&mut self, by: NodeId, number: u64, order: &[u8]) {
        self.orders.push((by, number, order.to_vec()));
    }

    fn presence(&mut self, topic: &str, what: FromPeers) {
        self.presence.push((topic.into(), what));
    }

    fn gone(&mut self, node: NodeId) {
        self.gone.push(node);
    }

    fn called(&mut self, by: NodeId, number: u64, service: u16, body: Vec<u8>) {
        self.calls.push((by, number, service, body));
    }

    fn hung_up(&mut self, by: NodeId, number: u64) {
        self.hung_up.push((by, number));
    }

    fn answered(&mut self, number: CallNumber, answer: Option<Answer>) {
        self.answers.push((number, answer));
    }

    fn history(&mut self, topic: &str, what: HistoryEvent<'_>) {
        let seen = self.kept.entry(topic.into()).or_default();
        match what {
            HistoryEvent::Begun { messages, .. } => {
                seen.push("Begun".into());
                seen.extend(messages.iter().map(text));
            }
            HistoryEvent::Next(message) => seen.push(text(&message)),
            other => seen.push(format!("{other:?}")),
        }
    }

    fn stored(&mut self, _: &str, number: u64, outcome: Result<StoredAt, NotKept>) {
        assert!(self.stored.insert(number, outcome).is_none(), "{number} is answered once");
    }

    fn log(&mut self, event: LogEvent) {
        self.log.push(event);
    }
}

fn text(message: &HistoryItem<'_>) -> String {
    let ItemPayload::Json(text) = message.item.payload else { panic!("{message:?}") };
    text.into()
}

struct Node {
    cluster: Cluster<Loopback>,
    heard: NodeRecord,
}

/// Nodes on one broker; `None` for a node that has ended.
struct Simulation {
    network: Network,
    nodes: Vec<Option<Node>>,
    now_ns: u64,
    /// After so long without a beat nodes are gone.
    gone_ns: u64,
    /// The settings of nodes that start from now on.
    settings: Vec<(Box<str>, u64)>,
}

impl Simulation {
    fn new(nodes: usize, seed: u64) -> Self {
        Self::with_gone(nodes, seed, PeersConfig::default().gone_ns)
    }

    /// Nodes of which one has a member of a topic.
    fn with_member(nodes: usize, seed: u64, at: usize) -> Self {
        let mut it = Self::new(nodes, seed);
        it.begin(at, "t", 0);
        it.advance(10 * MILLISECOND);
        it
    }

    fn with_gone(nodes: usize, seed: u64, gone_ns: u64) -> Self {
        Self::on(Network::new(seed, NetworkConfig::default()), nodes, gone_ns)
    }

    fn on(network: Network, nodes: usize, gone_ns: u64) -> Self {
        let mut world =
            Self { network, nodes: Vec::new(), now_ns: 0, gone_ns, settings: Vec::new() };
        for _ in 0..nodes {
            world.starts("a");
        }
        world.advance(2 * SECOND);
        world
    }

    fn time(&self) -> Time {
        Time { ns: self.now_ns, unix_ms: 1_000_000 + self.now_ns / MILLISECOND }
    }

    fn starts(&mut self, prefix: &str) -> usize {
        let (at, prefix) = (self.nodes.len(), Prefix::new(prefix).unwrap());
        let mut config = ClusterConfig::new(prefix, format!("node-{at}"));
        config.history = Some(HistoryConfig::default());
        config.has_log = true;
        config.peers.gone_ns = self.gone_ns;
        config.peers.settings = self.settings.clone();
        config.peers.silent_ns = config.peers.silent_ns.min(self.gone_ns);
        self.starts_with(config, NodeId(1000 + at as u64));
        at
    }

    fn starts_with(&mut self, config: ClusterConfig, me: NodeId) {
        let adapter = Box::new(self.network.adapter(&config.prefix));
        let cluster = Cluster::new(config, adapter, me, self.nodes.len() as u64, self.time());
        self.nodes.push(Some(Node { cluster, heard: NodeRecord::default() }));
    }

    fn node(&mut self, at: usize) -> &mut Node {
        self.nodes[at].as_mut().expect("it lives")
    }

    fn stop(&mut self, at: usize) {
        self.nodes[at] = None;
    }

    fn advance(&mut self, ns: u64) -> &mut Self {
        let end_ns = self.now_ns + ns;
        while self.now_ns < end_ns {
            self.now_ns = (self.now_ns + MILLISECOND).min(end_ns);
            self.network.advance(self.now_ns);
            self.run();
        }
        self
    }

    fn run(&mut self) {
        let time = self.time();
        let mut context = Context::from_waker(Waker::noop());
        for Node { cluster, heard } in self.nodes.iter_mut().flatten() {
            while cluster.poll(&mut context, time, heard) {}
            cluster.tick(time, heard);
            while let Some((number, outcome)) = cluster.poll_outcome() {
                assert!(heard.outcomes.insert(number, outcome).is_none(), "each outcome once");
            }
            cluster.settle(time);
        }
    }

    fn begin(&mut self, at: usize, topic: &str, shard: u16) {
        let time = self.time();
        self.node(at).cluster.topic_begins(topic, shard, None, time);
    }

    fn end(&mut self, at: usize, topic: &str) {
        let time = self.time();
        self.node(at).cluster.topic_ends(topic, 0, time);
    }

    fn bye(&mut self, at: usize) {
        let time = self.time();
        self.node(at).cluster.bye(time);
    }

    fn disconnect(&mut self, at: usize, socket_id: &str) -> DisconnectNumber {
        let time = self.time();
        self.node(at).cluster.disconnect(socket_id, time).unwrap()
    }

    /// The nodes that have confirmed a disconnect, and those that have not.
    fn outcome(&mut self, at: usize, number: DisconnectNumber) -> (Vec<NodeId>, Vec<NodeId>) {
        let mut outcome = self.node(at).heard.outcomes[&number].clone();
        outcome.confirmed.sort_unstable();
        (outcome.confirmed, outcome.missing)
    }

    fn await_topic(&mut self, at: usize, topic: &str, waiter: u64) {
        let time = self.time();
        let cluster = &mut self.node(at).cluster;
        cluster.await_topic(topic, waiter, time);
        cluster.settle(time);
    }

    /// A connection to the broker that is no node of the tests.
    fn stranger(&mut self, id: NodeId) -> (Prefix, Loopback) {
        let prefix = Prefix::new("a").unwrap();
        let mut adapter = self.network.adapter(&prefix);
        adapter.start(id);
        (prefix, adapter)
    }

    fn broadcast(&mut self, at: usize, topic: &str, json: &str) {
        let time = self.time();
        let item = Item::new("e", ItemPayload::Json(json));
        self.node(at).cluster.broadcast(topic, &item, time).unwrap();
    }

    /// A broadcast of one node arrives alone at another in this time.
    #[track_caller]
    fn delivers(&mut self, from: usize, to: usize, json: &str, ns: u64) {
        self.broadcast(from, "t", json);
        self.advance(ns);
        assert_eq!(self.take_broadcasts(to, "t"), [json]);
    }

    fn presence(&mut self, at: usize, topic: &str, what: ToPeers) {
        let time = self.time();
        let Node { cluster, heard } = self.node(at);
        cluster.presence(topic, what, time, heard);
    }

    fn take_broadcasts(&mut self, at: usize, topic: &str) -> Vec<String> {
        let all = &mut self.node(at).heard.broadcasts;
        let own = all.extract_if(.., |(it, ..)| it == topic);
        own.map(|(_, json, _)| json).collect()
    }
}

fn ids(nodes: &[usize]) -> Vec<NodeId> {
    nodes.iter().map(|it| NodeId(1000 + *it as u64)).collect()
}

#[test]
fn broadcast_arrives_once_on_other_nodes_with_members() {
    let mut it = Simulation::new(3, 1);
    it.begin(0, "t", 0);
    it.begin(1, "t", 3);
    it.begin(1, "t", 70);
    it.advance(10 * MILLISECOND);
    it.broadcast(0, "t", "1");
    it.broadcast(2, "t", "2");
    it.advance(10 * MILLISECOND);
    let heard = |it: &mut Simulation, at: usize| std::mem::take(&mut it.node(at).heard.broadcasts);
    assert_eq!(heard(&mut it, 0), [("t".into(), "2".into(), vec![0])]);
    let mut one = heard(&mut it, 1);
    one.sort_unstable();
    let of = |json: &str| ("t".to_owned(), json.to_owned(), vec![3, 70]);
    assert_eq!(one, [of("1"), of("2")]);
    assert_eq!(heard(&mut it, 2), []);
    let counts = it.node(1).cluster.counts();
    assert_eq!((counts.unwanted, counts.own, counts.broken), (0, 0, 0));
}

#[test]
fn clusters_with_different_prefixes_are_isolated() {
    let mut it = Simulation::new(1, 3);
    let other = it.starts("ab");
    it.begin(0, "t", 0);
    it.begin(other, "t", 0);
    it.advance(2 * SECOND);
    it.broadcast(0, "t", "1");
    it.broadcast(other, "t", "2");
    it.advance(10 * MILLISECOND);
    assert_eq!((it.take_broadcasts(0, "t"), it.take_broadcasts(other, "t")), (vec![], vec![]));
    assert_eq!(it.node(0).cluster.peers().iter().count(), 0);
}

#[test]
fn presence_start_names_the_asked_nodes_and_gets_their_states() {
    let mut it = Simulation::new(3, 4);
    it.presence(0, "t", ToPeers::Begin);
    it.advance(50 * MILLISECOND);
    let owners: Vec<Owner> = vec![Owner(1001), Owner(1002)];
    let heard = it.node(0).heard.presence.as_slice();
    let [(topic, FromPeers::Requested(asked)), (_, FromPeers::RequestedAgain(again))] = heard
    else {
        panic!("{heard:?}")
    };
    assert_eq!((&**topic, &**asked, &**again), ("t", owners.as_slice(), owners.as_slice()));
    for at in [1, 2] {
        let [(_, FromPeers::StateWanted(Owner(1000)))] = it.node(at).heard.presence.as_slice()
        else {
            panic!("{:?}", it.node(at).heard.presence)
        };
        let (owner, version) = (Owner(1000 + at as u64), at as u64);
        let state = Snapshot { owner, version, entries: Vec::new() };
        it.presence(at, "t", ToPeers::State(Owner(1000), state));
    }
    it.advance(50 * MILLISECOND);
    let versions = it.node(0).heard.presence.drain(2..).map(|(_, it)| match it {
        FromPeers::State(state) => (state.owner.0, state.version),
        other => panic!("{other:?}"),
    });
    let mut versions: Vec<_> = versions.collect();
    versions.sort_unstable();
    assert_eq!(versions, [(1001, 1), (1002, 2)]);
    let delta = Delta { owner: Owner(1001), from: 1, to: 2, joins: vec![], leaves: vec![] };
    it.presence(1, "t", ToPeers::Delta(delta));
    it.advance(50 * MILLISECOND);
    assert!(matches!(it.node(0).heard.presence.last(), Some((_, FromPeers::Delta(_)))));
    assert_eq!(it.node(2).heard.presence.len(), 1);
}

#[test]
fn presence_start_without_a_link_waits_for_no_node() {
    let mut it = Simulation::new(2, 5);
    it.network.kill();
    assert_eq!(it.advance(SECOND).node(0).cluster.state().0, LinkState::Away);
    it.presence(0, "t", ToPeers::Begin);
    let [(_, FromPeers::Requested(nobody))] = it.node(0).heard.presence.as_slice() else {
        panic!("{:?}", it.node(0).heard.presence)
    };
    assert!(nobody.is_empty());
    it.network.restart(RestartData::Stays);
    assert_eq!(it.advance(10 * SECOND).node(0).cluster.state().0, LinkState::Up);
    let wants = |at: &mut Node| {
        let wants = |it: &&(String, FromPeers)| matches!(it.1, FromPeers::StateWanted(_));
        at.heard.presence.iter().filter(wants).count()
    };
    assert!(wants(it.node(1)) >= 1);
}

#[test]
fn node_with_a_new_link_does_not_assume_it_is_alone() {
    let mut it = Simulation::new(1, 6);
    let late = it.starts("a");
    it.advance(3 * MILLISECOND);
    assert_ne!(it.node(late).cluster.state().0, LinkState::Away);
    it.presence(late, "t", ToPeers::Begin);
    assert!(it.node(late).heard.presence.is_empty(), "it is not known yet who is there");
    it.advance(SECOND);
    let wants = |it: &(String, FromPeers)| matches!(it.1, FromPeers::StateWanted(Owner(1001)));
    assert!(it.node(0).heard.presence.iter().any(wants));
}

#[test]
fn disconnect_runs_once_on_each_node_and_every_node_confirms() {
    let mut it = Simulation::new(4, 7);
    let number = it.disconnect(0, "user:1");
    it.advance(50 * MILLISECOND);
    assert_eq!(it.outcome(0, number), (ids(&[1, 2, 3]), vec![]));
    it.network.cut(2, Direction::Both);
    let number = it.disconnect(0, "user:2");
    it.advance(2 * SECOND);
    assert!(!it.node(0).heard.outcomes.contains_key(&number));
    it.network.mend(2);
    it.advance(20 * SECOND);
    assert_eq!(it.outcome(0, number), (ids(&[1, 2, 3]), vec![]));
    for at in [1, 2, 3] {
        assert_eq!(it.node(at).heard.disconnects, ["user:1", "user:2"], "node {at}");
    }
}

#[test]
fn order_runs_once_on_each_node_and_its_counts_are_added() {
    let mut it = Simulation::new(3, 7);
    let time = it.time();
    let number = it.node(0).cluster.order(b"push", time).unwrap();
    it.advance(5 * SECOND);
    assert!(!it.node(0).heard.outcomes.contains_key(&number), "both nodes still work on it");
    for (at, count) in [(1, 3), (2, 4)] {
        let time = it.time();
        let orders = it.node(at).heard.orders.clone();
        assert_eq!(orders.len(), 1, "node {at}: it was sent again, and carried out once");
        let (by, number, order) = orders[0].clone();
        assert_eq!(order, b"push");
        it.node(at).cluster.order_done(by, number, count, time);
    }
    it.advance(50 * MILLISECOND);
    assert_eq!(it.outcome(0, number), (ids(&[1, 2]), vec![]));
    assert_eq!(it.node(0).heard.outcomes[&number].count, 7);
}

#[test]
fn node_with_a_frozen_link_declares_no_node_gone() {
    for (seed, frozen_s) in (13..).zip([4, 5, 6, 7, 8, 20]) {
        let mut it = Simulation::with_gone(3, seed, 6 * SECOND);
        it.advance(20 * SECOND);
        it.network.set_frozen(true);
        it.advance(frozen_s * SECOND);
        it.network.set_frozen(false);
        it.advance(30 * SECOND);
        for at in 0..3 {
            assert_eq!(it.node(at).heard.gone, [], "node {at}, {frozen_s} s");
        }
        it.stop(2);
        assert_eq!(it.advance(9 * SECOND).node(0).heard.gone, ids(&[2]), "{frozen_s} s");
    }
}

#[test]
fn invalid_envelopes_are_counted_and_ignored() {
    let mut it = Simulation::with_member(2, 11, 0);
    let to = Prefix::new("a").unwrap().topic(Space::Broadcast, "t");
    let item = Item::new("e", ItemPayload::Json("{}"));
    let right = Draft::broadcast(NodeId(9), "t", &item).unwrap().numbered(1);
    let own = Draft::broadcast(NodeId(1000), "t", &item).unwrap().numbered(1);
    let mut newer = right.to_vec();
    newer[0] = 2;
    let stranger = it.node(1).cluster.adapter_mut();
    for bytes in [Bytes::new(), right.slice(1..), right.slice(..20), newer.into(), own] {
        stranger.publish(&to, bytes).unwrap();
    }
    it.advance(10 * MILLISECOND);
    let counts = it.node(0).cluster.counts().clone();
    assert_eq!((counts.broken, counts.other_versions, counts.own), (2, 2, 1));
    assert_eq!(it.take_broadcasts(0, "t"), [""; 0]);
    it.node(1).cluster.adapter_mut().publish(&to, right).unwrap();
    assert_eq!(it.advance(10 * MILLISECOND).take_broadcasts(0, "t"), ["{}"]);
}

/// Its hello was lost: it may have missed the disconnect.
#[test]
fn node_known_only_by_its_heartbeat_gets_pending_disconnects() {
    let mut it = Simulation::new(1, 15);
    let number = it.disconnect(0, "user:1");
    it.advance(100 * MILLISECOND);
    let (prefix, mut stranger) = it.stranger(NodeId(77));
    it.advance(100 * MILLISECOND);
    let beat = Beat {
        id: NodeId(77),
        name: "late".into(),
        version: "1".into(),
        envelopes: (ENVELOPE_VERSION, ENVELOPE_VERSION),
        sockets: 0,
        is_draining: false,
        unix_ms: 0,
    };
    let before = it.node(0).cluster.counts().published;
    stranger.publish(&prefix.nodes(), beat.draft().unwrap().numbered(1)).unwrap();
    it.advance(10 * MILLISECOND);
    let Node { cluster, heard } = it.node(0);
    let at = Kind::Disconnect as usize - 1;
    assert_eq!(cluster.counts().published[at], before[at] + 1);
    assert!(heard.outcomes.contains_key(&number), "which nobody waits for");
}

#[test]
fn topic_waiter_is_notified_once_the_topic_is_subscribed() {
    let mut it = Simulation::new(2, 16);
    it.await_topic(0, "t", 7);
    assert_eq!(it.node(0).cluster.poll_awaited(), None, "the engine has not said so yet");
    assert_eq!(it.advance(100 * MILLISECOND).node(0).cluster.poll_awaited(), Some(7));
    it.begin(0, "t", 1);
    it.delivers(1, 0, "1", 100 * MILLISECOND);
    it.await_topic(0, "t", 8);
    assert_eq!(it.node(0).cluster.poll_awaited(), Some(8));
}

#[test]
fn topic_waiters_do_not_wait_for_an_unreachable_broker() {
    let mut it = Simulation::new(1, 17);
    it.await_topic(0, "a", 1);
    it.network.kill();
    assert_eq!(it.advance(10 * SECOND).node(0).cluster.poll_awaited(), Some(1));
    it.await_topic(0, "b", 2);
    assert_eq!(it.node(0).cluster.poll_awaited(), Some(2));
}

#[test]
fn awaited_topic_without_members_is_unsubscribed() {
    let mut it = Simulation::new(1, 18);
    it.await_topic(0, "t", 1);
    assert_eq!(it.advance(15 * SECOND).node(0).cluster.interests().counts().exact, 1);
    it.await_topic(0, "t", 2);
    it.advance(14 * SECOND);
    assert_eq!(it.node(0).cluster.interests().counts().exact, 1, "its time begins anew");
    assert_eq!(it.advance(15 * SECOND).node(0).cluster.interests().counts().topics, 0);
}

#[test]
fn frozen_broker_costs_at_most_the_outbox_and_two_seconds_of_messages() {
    let mut it = Simulation::with_member(2, 1, 1);
    it.network.set_frozen(true);
    let payload = format!("\"{}\"", "x".repeat(200));
    let bound = OutboxConfig::default();
    let most = bound.control_bytes + bound.presence_bytes + bound.plain_bytes;
    for _ in 0..1000 {
        for _ in 0..100 {
            it.broadcast(0, "t", &payload);
        }
        assert!(it.advance(10 * MILLISECOND).node(0).cluster.outbox().bytes() <= most);
    }
    let counts = it.node(0).cluster.counts().clone();
    assert!(counts.dropped.by_age + counts.dropped.by_bytes > 70_000, "{counts:?}");
    it.network.set_frozen(false);
    it.advance(20 * SECOND);
    it.node(1).heard.broadcasts.clear();
    it.delivers(0, 1, "1", 20 * MILLISECOND);
}
