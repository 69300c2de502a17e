//! What a topic costs, that an outbox has no more than it says, and that nothing stays.
#![allow(clippy::unwrap_used, reason = "tests")]

use bytes::Bytes;
use simurgh_cluster::{Class, Interests, InterestsConfig, Outbox, OutboxConfig, Prefix, Space};

#[global_allocator]
static ALLOCATOR: dhat::Alloc = dhat::Alloc;

/// A topic may cost so much, its name of about 20 bytes and the table's overhead included.
const TOPIC_BYTES_MAX: usize = 120;

fn heap() -> usize {
    dhat::HeapStats::get().curr_bytes
}

fn name(number: usize) -> String {
    format!("room:lobby:{number:09}")
}

/// Bytes for each of so many topics: with members, with presence too, and while all linger.
fn bytes_a_topic(topics: usize) -> [usize; 3] {
    let before = heap();
    let mut interests = Interests::new(&InterestsConfig::default(), 1);
    (0..topics).for_each(|at| interests.begin(&name(at), (at % 64) as u16, 0));
    drop(interests.take_changes());
    let members = heap() - before;
    (0..topics).for_each(|at| interests.begin_presence(&name(at), 0));
    drop(interests.take_changes());
    let presence = heap() - before;
    for at in 0..topics {
        interests.end(&name(at), (at % 64) as u16, 0);
        interests.end_presence(&name(at), 0);
    }
    let lingering = heap() - before;
    assert_eq!(interests.counts().topics, topics);

    // All end, and only what all buckets have is left.
    while let Some(at) = interests.next_ns() {
        interests.tick(at);
        drop(interests.take_changes());
    }
    assert_eq!(interests.counts().topics, 0);
    let left = heap() - before;
    assert!(left <= 256 * 1024, "{left} B are left");
    [members, presence, lingering].map(|it| it.div_ceil(topics))
}

/// The outbox is never more than it says, and that is never more than its bounds.
fn fill_an_outbox() {
    let prefix = Prefix::new("p").unwrap();
    let before = heap();
    let config = OutboxConfig::default();
    let bound = config.plain_bytes;
    let mut outbox = Outbox::new(config);
    for number in 0..250_000_u64 {
        let to = prefix.topic(Space::Broadcast, "a");
        let envelope = Bytes::copy_from_slice(&number.to_le_bytes());
        outbox.push(Class::Plain, to, envelope, 0).unwrap();
        if number.is_multiple_of(1000) {
            let (heap, said) = (heap() - before, outbox.bytes());
            assert!(heap <= said + 8 * 1024, "{heap} B, said to be {said}");
            assert!(said <= bound);
        }
    }
    let (heap_full, len) = (heap() - before, outbox.len());
    assert!(heap_full * 2 > bound, "{heap_full} B for {len}: counted with far too much");
    // A clone of what is handed over costs a little more.
    while let Some((_, _, envelope)) = outbox.front() {
        drop(envelope.clone());
        outbox.pop();
    }
    let left = heap() - before;
    assert!(left <= 1024, "{left} B are left");
}

/// One test: the allocator counts for the whole process.
#[test]
fn a_topic_costs_what_is_promised_and_an_outbox_is_bounded() {
    let _profiler = dhat::Profiler::builder().testing().build();
    // The table of names doubles at seven eighths of 131,072.
    for topics in [100_000, 114_689] {
        let bytes = bytes_a_topic(topics);
        println!("{topics}: {bytes:?} B a topic");
        assert!(bytes.iter().all(|it| *it <= TOPIC_BYTES_MAX), "{bytes:?} B a topic");
    }
    fill_an_outbox();
}
