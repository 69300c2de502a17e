//! The streams that a node creates, changes, or refuses.

use std::time::Duration;

use serde_json::{Value, json};
use simurgh_cluster::Adapter as _;
use simurgh_nats::{Storage, StreamCount, StreamsConfig};

use crate::support::{Engine, Node, STORE, operator, prefix};

fn info(engine: &Engine, stream: &str) -> Value {
    operator::must(engine.port(), &format!("STREAM.INFO.{stream}"), &Value::Null)
}

/// The configuration of a cluster's first stream.
fn config(engine: &Engine) -> Value {
    info(engine, "P_H0")["config"].clone()
}

#[test]
#[ignore = "needs nats-server"]
fn stream_is_created_with_its_settings() {
    let engine = Engine::start(STORE);
    let mut node = Node::keeping(1, &engine.address(), StreamsConfig::default());
    node.keeps();
    let found = config(&engine);
    for (key, expected) in [
        ("subjects", json!(["p.h.>"])),
        ("storage", json!("file")),
        ("num_replicas", json!(1)),
        ("max_msgs_per_subject", json!(100)),
        ("max_age", json!(300_000_000_000_u64)),
        ("duplicate_window", json!(120_000_000_000_u64)),
        ("allow_direct", json!(true)),
        ("allow_msg_ttl", json!(true)),
        ("max_bytes", json!(-1)),
        ("republish", json!({ "src": "p.h.>", "dest": "p.b.>" })),
    ] {
        assert_eq!(found[key], expected, "{key}");
    }
    assert_eq!(found["metadata"]["simurgh"], "1");
    let words = node.adapter.measures().keeping.unwrap();
    assert_eq!(words, StreamsConfig::default().durability());
    assert_eq!(node.downs, []);
}

#[test]
#[ignore = "needs nats-server"]
fn stream_that_retains_less_is_changed_and_its_messages_stay() {
    let engine = Engine::start(STORE);
    let few = StreamsConfig {
        count_max: 3,
        age_max: Duration::from_secs(200),
        ..StreamsConfig::default()
    };
    let mut one = Node::keeping(1, &engine.address(), few.clone());
    let epoch = one.keeps();
    one.stored("t", "kept");
    let many = StreamsConfig { engine_bytes: Some(50_000_000), ..StreamsConfig::default() };
    let mut other = Node::keeping(2, &engine.address(), many);
    assert_eq!(other.keeps(), epoch);
    let found = config(&engine);
    let limits = ["max_msgs_per_subject", "max_age", "max_bytes"].map(|it| found[it].clone());
    assert_eq!(limits, [json!(100), json!(300_000_000_000_u64), json!(50_000_000)]);
    assert_eq!(other.all("t", false).len(), 1);
    // A node with lower limits does not lower the stream's.
    let less = StreamsConfig { engine_bytes: Some(50_000_000), ..few };
    Node::keeping(3, &engine.address(), less).keeps();
    assert_eq!(config(&engine), found);
    assert_eq!(one.kept, Some(epoch));
}

#[test]
#[ignore = "needs nats-server"]
fn overlapping_subjects_are_reported() {
    let engine = Engine::start(STORE);
    let other = json!({ "name": "ALL", "subjects": ["p.>"], "storage": "memory" });
    operator::must(engine.port(), "STREAM.CREATE.ALL", &other);
    let mut node = Node::keeping(1, &engine.address(), StreamsConfig::default());
    let why = node.why_nothing_is_kept();
    assert!(why.contains("the stream P_H0 cannot be created: subjects overlap"), "{why}");
}

#[test]
#[ignore = "needs nats-server"]
fn a_node_that_creates_no_streams_names_the_missing_one_and_uses_it_later() {
    let engine = Engine::start(STORE);
    let keeping = StreamsConfig { create_streams: false, ..StreamsConfig::default() };
    let mut node = Node::keeping(1, &engine.address(), keeping);
    let why = node.why_nothing_is_kept();
    let (words, expected) = why.split_once("does not exist: create it with ").expect(&why);
    assert!(words.ends_with("the stream P_H0 "), "{why}");
    let expected: Value = serde_json::from_str(expected).expect(&why);
    // A stream that keeps too little is refused, and not changed.
    let mut less = expected.clone();
    less["max_msgs_per_subject"] = 2.into();
    operator::must(engine.port(), "STREAM.CREATE.P_H0", &less);
    node.wait("the difference", |it| {
        let words = it.adapter.measures().keeping.unwrap();
        words.contains("P_H0 has the wrong settings: max_msgs_per_subject is 2, not 100")
    });
    operator::must(engine.port(), "STREAM.UPDATE.P_H0", &expected);
    node.keeps();
    node.stored("t", "id");
}

#[test]
#[ignore = "needs nats-server"]
fn missing_server_for_a_replica_is_reported() {
    let engine = Engine::start(STORE);
    let replicas = simurgh_nats::Replicas::Three;
    let keeping = StreamsConfig { replicas, ..StreamsConfig::default() };
    let mut node = Node::keeping(1, &engine.address(), keeping);
    let why = node.why_nothing_is_kept();
    assert!(why.contains("P_H0 cannot be created: replicas > 1 not supported"), "{why}");
}

#[test]
#[ignore = "needs nats-server"]
fn sixteen_streams_share_the_topics() {
    let engine = Engine::start(STORE);
    let keeping = StreamsConfig { streams: StreamCount::Sixteen, ..StreamsConfig::default() };
    let (mut one, mut other) = (
        Node::keeping(1, &engine.address(), keeping.clone()),
        Node::keeping(2, &engine.address(), keeping),
    );
    assert_eq!(one.keeps(), other.keeps());
    let topics: Vec<String> = (0..60).map(|n| format!("t:{n}")).collect();
    topics.iter().for_each(|topic| other.want(topic));
    let mut last = Vec::new();
    for topic in &topics {
        let first = one.stored(topic, &format!("{topic} first"));
        let text = format!("{topic} last");
        let seq = one.stored(topic, &text);
        assert_eq!(one.all(topic, true), [(first, format!("{topic} first")), (seq, text.clone())]);
        last.push((seq, text));
    }
    other.wait("all", |it| it.stored.len() == 120);
    let digits: Vec<String> = (0..16).map(|it| format!("P_H{it:x}")).collect();
    let counts =
        digits.iter().map(|name| info(&engine, name)["state"]["messages"].as_u64().unwrap());
    let counts: Vec<u64> = counts.collect();
    assert_eq!(counts.iter().sum::<u64>(), 120);
    assert!(counts.iter().filter(|it| **it > 0).count() > 10, "{counts:?}");
    // The last message of all of them, in any stream.
    let store = simurgh_cluster::Space::Store;
    let subjects = topics.iter().map(|it| prefix().topic(store, it)).collect();
    let ticket = other.ask(simurgh_cluster::adapter::Fetch::LastOf { subjects });
    let simurgh_cluster::Event::Fetched { kept: Some(kept), .. } = other.answer(ticket) else {
        panic!("no answer");
    };
    let mut found: Vec<_> = kept.messages.iter().map(crate::support::numbered).collect();
    assert!(found.is_sorted_by_key(|it| it.0));
    found.sort();
    last.sort();
    assert_eq!((found, kept.head, kept.is_all), (last, 0, true));
}

#[test]
#[ignore = "needs nats-server"]
fn memory_streams_are_lost_as_announced() {
    let mut engine = Engine::start(STORE);
    let keeping = StreamsConfig { storage: Storage::Memory, ..StreamsConfig::default() };
    let mut node = Node::keeping(1, &engine.address(), keeping);
    let epoch = node.keeps();
    let words = node.adapter.measures().keeping.unwrap();
    assert!(words.contains("in memory on one server: they are lost"), "{words}");
    node.stored("t", "id");
    engine.kill();
    node.wait("down", |it| !it.is_up);
    engine.restart();
    assert_ne!(node.keeps(), epoch);
    assert_eq!(node.all("t", false), []);
}
