//! The log of notices (B47) of whole nodes, with the permissions that are printed for them.

use std::future::poll_fn;
use std::task::Poll;
use std::time::{Duration, Instant};

use bytes::Bytes;
use simurgh_cluster::{
    Cluster, ClusterConfig, HistoryEvent, Item, LocalNode, LogCommand, LogEvent, NodeId, NotKept,
    Shards, StoredAt, Time,
};
use simurgh_nats::{
    Config, Credentials, NatsAdapter, Permissions, Replicas, Secret, StreamCount, StreamsConfig,
};
use simurgh_presence::FromPeers;
use tokio::time::timeout;

use crate::support::proxy::Proxy;
use crate::support::{Engine, STORE, prefix, runtime};

const WITHIN: Duration = Duration::from_secs(60);

fn streams() -> StreamsConfig {
    StreamsConfig { streams: StreamCount::Zero, has_log: true, ..StreamsConfig::default() }
}

fn engine() -> Engine {
    let names = streams().stream_names(&prefix());
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let permissions = Permissions::of(&prefix(), &names);
    let user = format!("{{ user: \"a\", password: \"b\", {permissions} }}");
    Engine::start(&format!("{STORE}authorization {{ users = [{user}] }}"))
}

/// A partition as a node has read it.
#[derive(Debug, Default)]
struct Seen {
    begun: usize,
    epochs: Vec<String>,
    records: Vec<(u64, Bytes)>,
    again: Vec<(u64, Bytes)>,
    failed: usize,
}

impl LocalNode for Seen {
    fn broadcast(&mut self, _: &str, _: &Item<'_>, _: Shards<'_>) {}
    fn disconnect(&mut self, _: &str) {}
    fn order(&mut self, _: NodeId, _: u64, _: &[u8]) {}
    fn presence(&mut self, _: &str, _: FromPeers) {}
    fn gone(&mut self, _: NodeId) {}
    fn history(&mut self, _: &str, _: HistoryEvent<'_>) {}
    fn stored(&mut self, _: &str, _: u64, _: Result<StoredAt, NotKept>) {}

    fn log(&mut self, event: LogEvent) {
        match event {
            LogEvent::Begun { epoch, records, .. } => {
                self.begun += 1;
                self.epochs.push(epoch.to_string());
                self.records = records;
            }
            LogEvent::Next { place, record, .. } => self.records.push((place, record)),
            LogEvent::Again { records, .. } => self.again = records,
            LogEvent::AppendFailed(_) => self.failed += 1,
            LogEvent::Peers { .. } => {}
        }
    }
}

struct Node {
    cluster: Cluster<NatsAdapter>,
    seen: Seen,
    began: Instant,
}

impl Node {
    fn start(id: u64, address: &str) -> Self {
        let password = Secret::Text("b".to_owned());
        let credentials = Credentials::Password { user: "a".to_owned(), password };
        Self::with(id, address, credentials, Replicas::One)
    }

    /// Follows partition 5.
    fn with(id: u64, address: &str, credentials: Credentials, replicas: Replicas) -> Self {
        let mut nats = Config::new(vec![address.parse().unwrap()], prefix(), "test");
        nats.credentials = credentials;
        nats.streams = Some(StreamsConfig { replicas, ..streams() });
        let adapter = NatsAdapter::new(nats, runtime().handle().clone());
        let mut config = ClusterConfig::new(prefix(), format!("node-{id}"));
        config.has_log = true;
        let time = Time { ns: 0, unix_ms: 0 };
        let cluster = Cluster::new(config, Box::new(adapter), NodeId(id), id, time);
        let mut node = Self { cluster, seen: Seen::default(), began: Instant::now() };
        node.log(LogCommand::Follow(5));
        node
    }

    fn log(&mut self, command: LogCommand) {
        self.cluster.log(command, &mut self.seen);
    }

    fn append(&mut self, records: std::ops::Range<usize>) {
        let records = records.map(|n| n.to_string().into_bytes()).collect();
        self.log(LogCommand::Append(5, records));
    }

    /// Works until something has arrived, 5 ms at most.
    fn turn(&mut self) {
        let Self { cluster, seen, began } = self;
        let work = poll_fn(|context| {
            let ns = u64::try_from(began.elapsed().as_nanos()).unwrap();
            let time = Time { ns, unix_ms: ns / 1_000_000 };
            let mut has_more = cluster.receive(context);
            cluster.handle_events(time, seen);
            cluster.tick(time, seen);
            has_more |= cluster.settle(time);
            if has_more { Poll::Ready(()) } else { Poll::Pending }
        });
        let _ = runtime().block_on(async { timeout(Duration::from_millis(5), work).await });
    }

    fn numbers(&self) -> Vec<usize> {
        let texts = self.seen.records.iter().map(|(_, it)| str::from_utf8(it).unwrap());
        texts.map(|it| it.parse().unwrap()).collect()
    }
}

#[track_caller]
fn wait(nodes: &mut [&mut Node], what: &str, is_so: impl Fn(&[&mut Node]) -> bool) {
    let start = Instant::now();
    while !is_so(nodes) {
        let seen: Vec<_> =
            nodes.iter().map(|it| (it.seen.begun, it.seen.records.len(), it.seen.failed)).collect();
        assert!(start.elapsed() < WITHIN, "waited in vain for {what}: {seen:?}");
        nodes.iter_mut().for_each(|node| node.turn());
    }
}

fn up_to(count: usize) -> impl Fn(&[&mut Node]) -> bool {
    move |nodes| {
        let has_all = |it: &&mut Node| {
            it.seen.records.len() >= count && it.numbers().into_iter().eq(0..count)
        };
        nodes.iter().all(has_all)
    }
}

/// As a coordinator and its successor do.
#[test]
#[ignore = "needs nats-server"]
fn b47_nodes_append_follow_purge_and_read_again() {
    let engine = engine();
    let (mut one, mut two) = (Node::start(1, &engine.address()), Node::start(2, &engine.address()));
    wait(&mut [&mut one, &mut two], "an empty log", |it| it.iter().all(|it| it.seen.begun == 1));
    one.append(0..3_000);
    wait(&mut [&mut one, &mut two], "all", up_to(3_000));
    two.append(3_000..3_010);
    wait(&mut [&mut one, &mut two], "those of the other", up_to(3_010));
    assert_eq!(one.seen.records, two.seen.records);
    assert_eq!(one.seen.epochs, two.seen.epochs);

    one.log(LogCommand::Read(5, one.seen.records[2_900].0));
    wait(&mut [&mut one], "records again", |it| !it[0].seen.again.is_empty());
    assert_eq!(one.seen.again, one.seen.records[2_901..]);

    // The last append begins an envelope.
    one.log(LogCommand::Purge(5, one.seen.records[3_000].0));
    let rest: Vec<usize> = (3_000..3_010).collect();
    let mut three = Node::start(3, &engine.address());
    let start = Instant::now();
    // The purge has no answer.
    while three.numbers() != rest {
        assert!(start.elapsed() < WITHIN, "nothing is purged");
        three.seen.begun = 0;
        three.log(LogCommand::Follow(5));
        wait(&mut [&mut one, &mut three], "the log", |it| it[1].seen.begun == 1);
    }
    one.append(3_010..3_011);
    wait(&mut [&mut one, &mut two], "the last", up_to(3_011));
    assert_eq!([one.seen.begun, two.seen.begun], [2, 2], "both have read what was purged");
}

/// B50: nothing that was confirmed is lost, and what was not is there or reported.
#[test]
#[ignore = "needs nats-server"]
fn b50_log_survives_a_killed_broker_and_a_broken_link_in_mid_append() {
    const COUNT: usize = 5_000;
    let mut engine = engine();
    let proxy = Proxy::to(engine.port());
    let mut one = Node::start(1, &format!("127.0.0.1:{}", proxy.port));
    wait(&mut [&mut one], "an empty log", |it| it[0].seen.begun == 1);
    one.append(0..1);
    wait(&mut [&mut one], "the first", up_to(1));
    for round in 0..6 {
        let (failed, before) = (one.seen.failed, one.seen.records.len());
        one.append(1 + round * COUNT..1 + (round + 1) * COUNT);
        // What is read follows what is confirmed, so the rest is being appended now.
        wait(&mut [&mut one], "some", |it| it[0].seen.records.len() > before + 1_000);
        match round % 3 {
            0 => proxy.reset(),
            1 => {
                engine.kill();
                engine.restart();
            }
            _ => {
                proxy.cut();
                let start = Instant::now();
                wait(&mut [&mut one], "a pause", |_| start.elapsed() > Duration::from_secs(3));
                proxy.mend();
            }
        }
        wait(&mut [&mut one], "the rest, or a failure", |it| {
            it[0].seen.records.len() == before + COUNT || it[0].seen.failed > failed
        });
    }
    let numbers = one.numbers();
    assert!(numbers.is_sorted_by(|a, b| a < b), "each once, in order");
    assert!(one.seen.failed > 0 || numbers.len() == 1 + 6 * COUNT, "all, or a failure");
    let mut two = Node::start(2, &engine.address());
    wait(&mut [&mut one, &mut two], "one log", |it| it[0].seen.records == it[1].seen.records);
    assert_eq!((one.seen.begun, two.seen.begun, &two.seen.epochs[0]), (2, 1, &one.seen.epochs[0]));
}

/// B47, on a stream whose copies may lag behind, also while its leader changes.
#[test]
#[ignore = "needs nats-server"]
fn b47_followers_of_a_replicated_log_read_all_in_order() {
    let mut engines = Engine::three();
    let mut nodes: Vec<Node> = (1..=3)
        .zip(&engines)
        .map(|(id, engine)| Node::with(id, &engine.address(), Credentials::None, Replicas::Three))
        .collect();
    let [one, two, three] = &mut nodes[..] else { unreachable!() };
    wait(&mut [one, two, three], "an empty log", |it| it.iter().all(|it| it.seen.begun > 0));
    one.append(0..1_000);
    wait(&mut [one, two, three], "all", up_to(1_000));
    two.append(1_000..1_010);
    wait(&mut [one, two, three], "those of another node", up_to(1_010));
    engines[2].kill();
    let failed = one.seen.failed;
    one.append(1_010..2_000);
    wait(&mut [one, two], "the rest, or a failure", |it| {
        it.iter().all(|it| it.seen.records.len() == 2_000) || it[0].seen.failed > failed
    });
    engines[2].restart();
    one.append(2_000..2_001);
    let has_last = |node: &Node| node.numbers().last() == Some(&2_000);
    wait(&mut [one, two, three], "the last", |it| it.iter().all(|it| has_last(it)));
    assert_eq!(one.seen.records, two.seen.records);
    assert_eq!(one.seen.records, three.seen.records);
    assert!(one.numbers().is_sorted_by(|a, b| a < b), "each once, in order");
}

#[test]
#[ignore = "needs nats-server"]
fn b51_broker_without_its_data_begins_a_log_of_another_epoch() {
    let mut engine = engine();
    let mut one = Node::start(1, &engine.address());
    one.append(0..100);
    wait(&mut [&mut one], "all", |it| it[0].numbers().len() == 100);
    let begun = one.seen.begun;
    engine.kill();
    engine.lose_store();
    engine.restart();
    wait(&mut [&mut one], "an empty log", |it| it[0].seen.begun > begun);
    assert!(one.numbers().is_empty());
    assert_ne!(one.seen.epochs[begun - 1], one.seen.epochs[begun]);
    one.append(0..7);
    wait(&mut [&mut one], "records of the new log", up_to(7));
}

/// B57: also if the broker has no leader for the log.
#[test]
#[ignore = "needs nats-server"]
fn b57_appends_to_a_frozen_broker_fail_or_arrive_once() {
    let engine = engine();
    let mut one = Node::start(1, &engine.address());
    one.append(0..1);
    wait(&mut [&mut one], "the first", up_to(1));
    engine.freeze();
    one.append(1..200);
    let start = Instant::now();
    wait(&mut [&mut one], "time", |_| start.elapsed() > Duration::from_secs(12));
    engine.thaw();
    one.append(200..201);
    wait(&mut [&mut one], "the last", |it| it[0].numbers().last() == Some(&200));
    let numbers = one.numbers();
    assert!(numbers.is_sorted_by(|a, b| a < b), "{numbers:?}");
    assert!(one.seen.failed == 1 || numbers.len() == 201, "{}: {numbers:?}", one.seen.failed);
}
