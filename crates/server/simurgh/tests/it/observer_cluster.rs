//! A node's observer: its view of the whole cluster, and which answers of other nodes it accepts.

use std::net::SocketAddr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::task::{Context as TaskContext, Waker};
use std::time::{Duration, Instant};

use crate::support::nodes::Engine;
use crate::support::raw::{ask, get, wait_for};
use crate::support::{Client, Ends, Handles, WAIT_MAX, metric, metrics, serving, start};
use serde_json::{Value, json};
use simurgh::{Builder, ChannelRoute, Endpoint, Join, Outcome, Payload, ShardContext};
use simurgh_cluster::{
    Answer, CallNumber, ClusterConfig, Item, LocalNode, NodeId, NotKept, Shards, StoredAt, Time,
};
use simurgh_loopback::Loopback;
use simurgh_presence::FromPeers;

fn room(ctx: &mut ShardContext<'_>, event: &str, payload: Payload<'_>) -> Outcome {
    if event == "all" {
        ctx.broadcast("news", &payload);
    }
    Outcome::NoReply
}

fn builder() -> Builder {
    serving(ChannelRoute::on_shard("*", |ctx, _| {
        if ctx.topic().starts_with("present:") {
            let _ = ctx.presence().track("somebody", json!({}));
        }
        Join::ok(Handles(room))
    }))
    .configure(|config| config.shards = 2)
}

fn request(address: SocketAddr, path: &str) -> (u16, String) {
    let answer = ask(address, &format!("GET {path}"), "", "");
    (answer.status, answer.text().to_owned())
}

/// The service of observers between nodes, as in other versions.
const OBSERVE_SERVICE: u16 = 2;
const CLUSTER: &str = "/observer/api/cluster";

fn names(cluster: &Value) -> Vec<&str> {
    let nodes = cluster["nodes"].as_array().unwrap();
    nodes.iter().map(|it| it["name"].as_str().unwrap()).collect()
}

#[test]
fn single_node_shows_no_cluster() {
    let endpoint = start(builder());
    let (status, body) = request(endpoint.addresses()[0], CLUSTER);
    assert_eq!(status, 404);
    assert!(body.contains("not in a cluster"), "{body}");
    let (status, _) = request(endpoint.addresses()[0], "/observer/api/feed?list=cluster");
    assert_eq!(status, 404);
    assert_eq!(get(&endpoint, "/observer/api/overview").get("cluster"), None);
    Client::v2(&endpoint).join("rooms:a");
    assert_eq!(get(&endpoint, "/observer/api/members?topic=rooms%3Aa").get("nodes"), None);
    let text = metrics(&endpoint);
    assert!(!text.contains("cluster") && !text.contains("presence_entries"), "{text}");
}

#[test]
fn presences_are_counted_by_the_node_of_their_members() {
    let engine = Engine::start();
    let (a, b) = (start(engine.node(builder(), "a")), start(engine.node(builder(), "b")));
    let mut clients = [Client::v2(&a), Client::v2(&a), Client::v2(&b)];
    clients.iter_mut().for_each(|it| drop(it.join("present:x")));
    let counted = |endpoint: &Endpoint, place: &str| -> f64 {
        let label = format!("where=\"{place}\"}}");
        let text = metrics(endpoint);
        let lines = text.lines().filter(|it| it.starts_with("simurgh_presence_entries{"));
        lines.filter_map(|it| it.split_once(&label)?.1.trim().parse::<f64>().ok()).sum()
    };
    let until = Instant::now() + WAIT_MAX;
    let both = |it: &Endpoint| (counted(it, "local"), counted(it, "remote"));
    while (both(&a), both(&b)) != ((2.0, 1.0), (1.0, 2.0)) {
        assert!(Instant::now() < until, "{:?} {:?}", both(&a), both(&b));
        std::thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(metric(&a, "simurgh_presences"), 3);
    let it = wait_for(&b, CLUSTER, |it| it["nodes"][1]["figures"]["presences_local"] == 2);
    assert_eq!(it["nodes"][1]["figures"]["presences_remote"], 1);
    // When the members of the topics leave, nothing remains.
    drop(clients);
    while (both(&a), both(&b)) != ((0.0, 0.0), (0.0, 0.0)) {
        assert!(Instant::now() < until, "{:?} {:?}", both(&a), both(&b));
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn nodes_that_differ_or_share_a_name_are_marked() {
    let engine = Engine::start();
    let with = |secret: &str, name: &str| {
        let secret = secret.repeat(32);
        let builder = builder().configure(move |config| config.secret_key_base = Some(secret));
        start(engine.node(builder, name))
    };
    let (a, _b) = (with("x", "a"), with("y", "b"));
    let it = wait_for(&a, CLUSTER, |it| it["nodes"][1]["differing"] == json!(["secret_key_base"]));
    assert_eq!(
        (&it["nodes"][0]["differing"], &it["nodes"][1]["has_namesake"]),
        (&json!([]), &json!(false))
    );
    let body = it.to_string();
    assert!(!body.contains("xxxx") && !body.contains("yyyy"), "{body}");
    let _third = with("x", "a");
    let it = wait_for(&a, CLUSTER, |it| it["nodes"][0]["has_namesake"] == true);
    assert_eq!(names(&it), ["a", "a", "b"]);
    assert_eq!(it["nodes"][1]["has_namesake"], true);
}

#[test]
fn draining_node_is_shown_as_draining() {
    let engine = Engine::start();
    let builder = builder().configure(|config| config.drain_time = Duration::from_secs(5));
    let (a, b) = (start(engine.node(builder, "a")), start(engine.node(self::builder(), "b")));
    let _clients: Vec<Client> = (0..20).map(|_| Client::v2(&a)).collect();
    wait_for(&b, CLUSTER, |it| it["nodes"][1]["figures"]["sockets"] == 20);
    let drained = std::thread::spawn(move || a.drain().unwrap());
    let it = wait_for(&b, CLUSTER, |it| it["nodes"][1]["is_draining"] == true);
    assert_eq!(it["nodes"][1]["state"], "draining");
    drained.join().unwrap();
    wait_for(&b, CLUSTER, |it| it["nodes"].as_array().unwrap().len() == 1);
}

/// A client that may publish at the broker and speaks the nodes' protocol.
struct Stranger {
    node: simurgh_cluster::Cluster<Loopback>,
    heard: Received,
    began: Instant,
}

#[derive(Default)]
struct Received {
    calls: Vec<(NodeId, u64)>,
    answers: Vec<Option<Answer>>,
}

impl LocalNode for Received {
    fn broadcast(&mut self, _: &str, _: &Item<'_>, _: Shards<'_>) {}
    fn disconnect(&mut self, _: &str) {}
    fn order(&mut self, _: NodeId, _: u64, _: &[u8]) {}
    fn presence(&mut self, _: &str, _: FromPeers) {}
    fn gone(&mut self, _: NodeId) {}

    fn called(&mut self, by: NodeId, number: u64, service: u16, _: Vec<u8>) {
        // A node also asks each other for its list of blocks.
        if service == OBSERVE_SERVICE {
            self.calls.push((by, number));
        }
    }

    fn hung_up(&mut self, _: NodeId, _: u64) {}

    fn answered(&mut self, _: CallNumber, answer: Option<Answer>) {
        self.answers.push(answer);
    }

    fn history(&mut self, _: &str, _: simurgh_cluster::HistoryEvent<'_>) {}

    fn stored(&mut self, _: &str, _: u64, _: Result<StoredAt, NotKept>) {}
}

impl Stranger {
    fn joins(engine: &Engine, name: &str) -> Self {
        let mut config = ClusterConfig::new(engine.prefix.clone(), name);
        config.version = "9<b>".into();
        let adapter = Box::new(engine.network.adapter(&engine.prefix));
        let node = simurgh_cluster::Cluster::new(config, adapter, NodeId(5), 5, Time::default());
        let mut stranger = Self { node, heard: Received::default(), began: Instant::now() };
        stranger.node.set_sockets(u64::MAX);
        stranger
    }

    fn time(&self) -> Time {
        Time { ns: self.began.elapsed().as_nanos() as u64, unix_ms: 1 }
    }

    fn turns(&mut self) {
        let time = self.time();
        let mut context = TaskContext::from_waker(Waker::noop());
        self.node.poll(&mut context, time, &mut self.heard);
        self.node.tick(time, &mut self.heard);
        self.node.settle(time);
    }
}

/// The false answer to all questions, and how often it was sent.
#[derive(Default)]
struct Lie {
    text: Mutex<String>,
    asked: AtomicU64,
    is_over: AtomicBool,
}

impl Lie {
    /// Answers each question until the test ends, including unasked and already answered ones.
    fn is_told_by(&self, liar: &mut Stranger) {
        while !self.is_over.load(Relaxed) {
            liar.turns();
            for (asker, number) in std::mem::take(&mut liar.heard.calls) {
                let (time, lie) = (liar.time(), self.text.lock().unwrap().clone());
                for of in [number.wrapping_add(1), 0, number, number] {
                    // Fails if the answer is too long to send.
                    let _ = liar.node.answer(asker, of, (200, lie.as_bytes()), time);
                }
                self.asked.fetch_add(1, Relaxed);
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn is(&self, text: &str) -> u64 {
        *self.text.lock().unwrap() = text.to_owned();
        self.asked.load(Relaxed)
    }
}

#[test]
fn false_answers_of_a_node_are_numbers_or_absent() {
    let engine = Engine::start();
    let endpoint = start(engine.node(builder(), "a"));
    let hostile = "<img src=x onerror=\"broken=1\">\u{1b}[2J\u{202e}";
    let mut liar = Stranger::joins(&engine, hostile);
    let lie = Lie::default();
    let long = format!("{{\"channels\":5,\"hair\":\"{}\"}}", "x".repeat(5000));
    let huge = "x".repeat(3 << 20);
    std::thread::scope(|scope| {
        scope.spawn(|| lie.is_told_by(&mut liar));
        let _over = Ends(&lie.is_over);
        for (text, believed) in [
            ("{\"channels\":18446744073709551615,\"cpu_cores\":-3}", Some((u64::MAX, 0.0))),
            ("{\"channels\":\"<b>\"}", None),
            ("{\"channels\":1,\"cpu_cores\":2.5,\"hair\":\"<b>\"}", Some((1, 2.5))),
            ("[[[[[[[[[[", None),
            (&long, None),
            ("{}", Some((0, 0.0))),
            (&huge, None),
        ] {
            let before = lie.is(text);
            let it = wait_for(&endpoint, CLUSTER, |it| {
                let figures = &it["nodes"][1]["figures"];
                let seen = figures["channels"].as_u64().zip(figures["cpu_cores"].as_f64());
                // The request in progress may have been answered before.
                lie.asked.load(Relaxed) >= before + 2 && seen == believed
            });
            let row = &it["nodes"][1];
            assert_eq!((&row["name"], &row["sockets"]), (&json!(hostile), &json!(u64::MAX)));
            assert_eq!(row["rtt_ms"].is_number(), believed.is_some());
        }
        lie.is("{\"members\":-1}");
        let members = get(&endpoint, "/observer/api/members?topic=t");
        assert_eq!(members["nodes"][1]["members"], Value::Null);
        lie.is("{\"members\":18446744073709551615}");
        let members = get(&endpoint, "/observer/api/members?topic=t");
        assert_eq!(members["nodes"][1]["members"], u64::MAX);
    });
}

#[test]
fn flood_of_queries_is_limited_and_the_server_continues() {
    let engine = Engine::start();
    let endpoint = start(engine.node(builder(), "a"));
    let mut stranger = Stranger::joins(&engine, "b");
    let until = Instant::now() + WAIT_MAX;
    let turns = |stranger: &mut Stranger| {
        stranger.turns();
        assert!(Instant::now() < until, "{} answers", stranger.heard.answers.len());
        std::thread::sleep(Duration::from_micros(200));
    };
    while stranger.node.peers().iter().next().is_none() {
        turns(&mut stranger);
    }
    let asked = stranger.node.peers().iter().next().unwrap().id();
    let count = 5_000;
    for number in 1..=count {
        let question: &[u8] = match number % 3 {
            0 => b"\"figures\"",
            1 => b"\"secrets\"",
            _ => b"{\"members\":{\"topic\":\"t\"}}",
        };
        let time = stranger.time();
        stranger.node.call(asked, CallNumber(number), (OBSERVE_SERVICE, question), time).unwrap();
    }
    while stranger.heard.answers.len() < count as usize {
        turns(&mut stranger);
    }
    let status = |it: &Option<Answer>| it.as_ref().map_or(0, |it| it.status);
    let with =
        |wanted: u16| stranger.heard.answers.iter().filter(|it| status(it) == wanted).count();
    let (answered, refused, busy) = (with(200), with(400), with(503));
    assert_eq!(answered + refused + busy, count as usize, "each is told");
    // At most 200 a second, for up to ten seconds.
    assert!((1..=2000).contains(&answered), "{answered}");
    assert!(busy > 0 && refused > 0, "{refused} {busy}");
    Client::v2(&endpoint).join("rooms:a");
}
