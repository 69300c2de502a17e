//! Memory: the costs of a topic, with a history too, and of an outbox, and that nothing is left.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use simurgh_cluster::adapter::{Fetch, Fetched};
use simurgh_cluster::{
    Adapter, Class, Cluster, ClusterConfig, Event, Generation, HistoryConfig, HistoryEvent,
    Interest, Interests, InterestsConfig, Item, LocalNode, NodeId, NotKept, Outbox, OutboxConfig,
    Prefix, QueueFull, Retention, Session, Shards, Space, StoredAt, Subject, Ticket, Time, Wanted,
};
use simurgh_presence::FromPeers;

#[global_allocator]
static ALLOCATOR: dhat::Alloc = dhat::Alloc;

/// The most bytes of a topic, its name of about 20 bytes and the table's overhead included.
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

/// The outbox never takes more than it reports, and never reports more than its bounds.
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

/// A broker that stores nothing.
struct Nothing {
    events: Vec<Event>,
    generation: u64,
}

impl Adapter for Nothing {
    fn start(&mut self, _: NodeId) {
        self.events.push(Event::Up { session: Session(1), kept: Some(1), log: None });
    }

    fn publish(&mut self, _: &Subject, _: Bytes) -> Result<(), QueueFull> {
        Ok(())
    }

    fn store(
        &mut self,
        _: &Subject,
        _: &str,
        _: Option<Duration>,
        _: Bytes,
        _: Ticket,
    ) -> Result<(), QueueFull> {
        Err(QueueFull)
    }

    fn purge(&mut self, _: &Subject, _: u64, _: Ticket) -> Result<(), QueueFull> {
        Err(QueueFull)
    }

    fn interest(&mut self, _: &[(Interest, Wanted)]) -> Generation {
        self.generation += 1;
        self.events.push(Event::InForce(Generation(self.generation)));
        Generation(self.generation)
    }

    fn fetch(&mut self, what: Fetch, ticket: Ticket) -> Result<(), QueueFull> {
        let kept = Some(Fetched { messages: Vec::new(), head: 1, is_all: true });
        self.events.push(match what {
            Fetch::Since { .. } => Event::Since { ticket, behind: Some(0) },
            _ => Event::Fetched { ticket, kept },
        });
        Ok(())
    }

    fn poll_event(&mut self, _: &mut Context<'_>) -> Poll<Event> {
        self.events.pop().map_or(Poll::Pending, Poll::Ready)
    }

    fn in_flight(&self) -> usize {
        0
    }
}

#[derive(Default)]
struct Begun(usize);

impl LocalNode for Begun {
    fn broadcast(&mut self, _: &str, _: &Item<'_>, _: Shards<'_>) {}
    fn disconnect(&mut self, _: &str) {}
    fn order(&mut self, _: NodeId, _: u64, _: &[u8]) {}
    fn presence(&mut self, _: &str, _: FromPeers) {}
    fn gone(&mut self, _: NodeId) {}
    fn stored(&mut self, _: &str, _: u64, _: Result<StoredAt, NotKept>) {}

    fn history(&mut self, _: &str, what: HistoryEvent<'_>) {
        self.0 += usize::from(matches!(what, HistoryEvent::Begun { .. }));
    }
}

/// Bytes for each of so many topics with members, followed or not.
fn bytes_followed(topics: usize, wants: Option<Retention>) -> usize {
    let mut config = ClusterConfig::new(Prefix::new("p").unwrap(), "node");
    config.history = Some(HistoryConfig::default());
    let adapter = Box::new(Nothing { events: Vec::new(), generation: 0 });
    let (mut it, mut local) =
        (Cluster::new(config, adapter, NodeId(1), 1, Time::default()), Begun::default());
    let mut context = Context::from_waker(Waker::noop());
    let before = heap();
    for at in 0..topics {
        it.topic_begins(&name(at), 0, wants, Time::default());
        while it.settle(Time::default()) {
            while it.poll(&mut context, Time::default(), &mut local) {}
        }
    }
    assert_eq!(local.0, if wants.is_some() { topics } else { 0 });
    (heap() - before).div_ceil(topics)
}

/// One test: the allocator counts for the whole process.
#[test]
fn topic_memory_meets_its_limit_and_outbox_memory_is_bounded() {
    let _profiler = dhat::Profiler::builder().testing().build();
    // The table of names doubles at seven eighths of 131,072.
    for topics in [100_000, 114_689] {
        let bytes = bytes_a_topic(topics);
        println!("{topics}: {bytes:?} B a topic");
        assert!(bytes.iter().all(|it| *it <= TOPIC_BYTES_MAX), "{bytes:?} B a topic");
    }
    let wants = Retention { count: 100, bytes: 1 << 20, age_ms: 300_000 };
    let (kept, plain) = (bytes_followed(20_000, Some(wants)), bytes_followed(20_000, None));
    println!("followed: {} B a topic more than {plain}", kept - plain);
    assert!(kept - plain <= TOPIC_BYTES_MAX, "{kept} B for a topic that is kept, {plain} else");
    fill_an_outbox();
}
