//! The cost of a kept message and of an empty topic, and that memory of many messages is freed.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::sync::Arc;

use libtest_mimic::{Arguments, Trial};
use simurgh_history::{Epoch, Ids, KeptTopic, Limits, Ring};

#[global_allocator]
static ALLOCATOR: dhat::Alloc = dhat::Alloc;

const EVERYTHING: Limits = Limits { count: usize::MAX, bytes: u64::MAX, age_ms: u64::MAX };

fn heap() -> usize {
    dhat::HeapStats::get().curr_bytes
}

/// A message as a server shares it with its live members: an `Arc`, whose bytes are not the ring's.
fn topic_of(messages: usize, shared: &Arc<str>) -> KeptTopic<Arc<str>> {
    let mut topic = KeptTopic::new(Epoch::from_seed(7), 7);
    for n in 0..messages as u64 {
        topic.store(shared.clone(), shared.len(), None, n, &EVERYTHING);
    }
    topic
}

/// Bytes per message of a topic that keeps this many, without its value.
fn bytes_an_entry(messages: usize, shared: &Arc<str>) -> usize {
    let before = heap();
    let topic = topic_of(messages, shared);
    let bytes = heap() - before;
    drop(topic);
    bytes.div_ceil(messages) - size_of::<Arc<str>>()
}

fn a_message_costs_what_is_promised_and_nothing_stays() {
    let _profiler = dhat::Profiler::builder().testing().build();
    let shared: Arc<str> = "x".repeat(64).into();

    let before = heap();
    let empty: KeptTopic<Arc<str>> = KeptTopic::new(Epoch::from_seed(7), 7);
    assert_eq!(heap() - before, 0);
    drop(empty);
    let (topic_bytes, ring_bytes) = (size_of::<KeptTopic<Arc<str>>>(), size_of::<Ring<Arc<str>>>());
    println!("{topic_bytes} B an empty topic, of which {ring_bytes} are its ring");
    assert!(topic_bytes <= 96 && ring_bytes <= 80);

    for (messages, bytes_max) in
        [(1, 24), (2, 24), (3, 38), (5, 32), (100, 34), (1_000, 34), (10_000, 34)]
    {
        let bytes = bytes_an_entry(messages, &shared);
        println!("{messages}: {bytes} B an entry beside its value");
        assert!(bytes <= bytes_max, "{bytes} B an entry of {messages}");
    }

    let before = heap();
    let mut topic = topic_of(10_000, &shared);
    let full = heap() - before;
    let few = Limits { count: 100, ..EVERYTHING };
    topic.enforce(&few, 0);
    let left = heap() - before;
    assert!(left <= 100 * 5 / 4 * (24 + 16), "{left} B for a hundred");
    topic.evict_half();
    topic.purge();
    assert_eq!((heap() - before, Arc::strong_count(&shared)), (0, 1));

    let count = Ids::COUNT_MAX;
    for n in 0..count as u64 {
        let id = format!("{n:08}");
        topic.store(shared.clone(), 1, Some(&id), n, &Limits { count: 0, ..EVERYTHING });
    }
    let ids = heap() - before;
    let id_bytes = ids.div_ceil(count);
    assert!(id_bytes <= 8 + 90, "{id_bytes} B an id of eight");
    topic.enforce(&EVERYTHING, count as u64 + Ids::AGE_MS);
    assert_eq!(heap() - before, 0);
    println!("{full} B with 10,000, {left} B with 100 of them left; {id_bytes} B an id of eight");
}

/// One test, on the main thread: the allocator counts for all threads, the harness's included.
fn main() {
    let arguments = Arguments { test_threads: Some(1), ..Arguments::from_args() };
    let test = Trial::test("a_message_costs_what_is_promised_and_nothing_stays", || {
        a_message_costs_what_is_promised_and_nothing_stays();
        Ok(())
    });
    libtest_mimic::run(&arguments, vec![test]).exit()
}
