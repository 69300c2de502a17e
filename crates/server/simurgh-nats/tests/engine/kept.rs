//! Fetches of stored envelopes by an adapter. The faults of brokers that nodes survive are in
//! `simurgh-cli/tests/it/cluster_history`.

use std::time::Duration;

use simurgh_cluster::Event;
use simurgh_nats::StreamsConfig;

use crate::support::{Engine, Node, STORE, prefix};

fn engine() -> Engine {
    Engine::start(STORE)
}

#[test]
#[ignore = "needs nats-server"]
fn response_of_many_pages_is_combined() {
    let engine = engine();
    let mut node = Node::keeping(1, &engine.address(), StreamsConfig::default());
    node.keeps();
    let topics: Vec<String> = (0..100).map(|n| format!("t:{n}")).collect();
    // More than fits into a page.
    let large = "x".repeat(60_000);
    let tickets: Vec<_> = topics
        .iter()
        .map(|topic| node.store_envelope(topic, topic, &format!("{topic} {large}")))
        .collect();
    let mut seqs = Vec::new();
    for ticket in tickets {
        let Event::Stored { seq, .. } = node.answer(ticket) else { panic!("not stored") };
        seqs.push(seq);
    }
    let subjects =
        topics.iter().map(|it| prefix().topic(simurgh_cluster::Space::Store, it)).collect();
    let ticket = node.ask(simurgh_cluster::adapter::Fetch::LastOf { subjects });
    let Event::Fetched { kept: Some(kept), .. } = node.answer(ticket) else { panic!("none") };
    let found: Vec<u64> = kept.messages.iter().map(|it| it.stored.unwrap().seq).collect();
    assert_eq!((found, kept.is_all, kept.head), (seqs, true, 100));
}

/// By the clock of the broker, at the time of the request.
#[test]
#[ignore = "needs nats-server"]
fn stream_without_a_size_limit_gives_an_age_bound() {
    let engine = engine();
    let young = |node: &mut Node, seconds| {
        let subject = prefix().topic(simurgh_cluster::Space::Store, "any");
        let age = Duration::from_secs(seconds);
        let ticket = node.ask(simurgh_cluster::adapter::Fetch::Since { subject, age });
        match node.answer(ticket) {
            Event::Since { behind, .. } => behind,
            other => panic!("{other:?}"),
        }
    };
    let keeping = StreamsConfig { count_max: 3, ..StreamsConfig::default() };
    let mut node = Node::keeping(1, &engine.address(), keeping.clone());
    node.keeps();
    assert_eq!(young(&mut node, 60), Some(0));
    for n in 0..5 {
        node.stored("t", &format!("{n}"));
    }
    assert_eq!(young(&mut node, 60), Some(2), "two were too many");
    assert!(matches!(node.purge("t", 5), Event::Purged { why: None, .. }));
    assert_eq!(young(&mut node, 300), Some(4));
    assert_eq!(young(&mut node, 301), None, "nothing is kept for so long");
    let bounded = StreamsConfig { engine_bytes: Some(1 << 20), ..keeping };
    Node::keeping(2, &engine.address(), bounded).keeps();
    assert_eq!(young(&mut node, 60), None);
}
