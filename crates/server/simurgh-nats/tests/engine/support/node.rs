//! A node: an adapter that is polled, and a record of its events.

use std::collections::HashMap;
use std::future::poll_fn;
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use bytes::Bytes;
use simurgh_cluster::adapter::{Adapter, Down, Fetch};
use simurgh_cluster::{
    Event, Generation, Interest, NodeId, Prefix, QueueFull, Received, Space, Ticket, Wanted,
};
use simurgh_nats::{Config, NatsAdapter, StreamsConfig};
use tokio::runtime::Runtime;
use tokio::time::timeout;

/// Timeout of each wait of a test.
const WITHIN: Duration = Duration::from_secs(30);

static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
});

pub(crate) fn runtime() -> &'static Runtime {
    &RUNTIME
}

pub(crate) fn prefix() -> Prefix {
    Prefix::new("p").unwrap()
}

pub(crate) struct Node {
    pub(crate) adapter: NatsAdapter,
    pub(crate) id: NodeId,
    n: u64,
    /// Origin, number, and whether it was marked, of each envelope.
    pub(crate) received: Vec<(u64, u64, bool)>,
    pub(crate) downs: Vec<Down>,
    pub(crate) ups: usize,
    pub(crate) is_up: bool,
    pub(crate) lost: Vec<Interest>,
    pub(crate) in_force: Generation,
    /// The epoch reported with the last link.
    pub(crate) kept: Option<u64>,
    /// Received stored envelopes, of all topics together.
    pub(crate) stored: Vec<Received>,
    answers: HashMap<Ticket, Event>,
    tickets: u64,
}

impl Node {
    pub(crate) fn start(id: u64, config: Config) -> Self {
        let mut adapter = NatsAdapter::new(config, runtime().handle().clone());
        adapter.start(NodeId(id));
        Self {
            adapter,
            id: NodeId(id),
            n: 0,
            received: vec![],
            downs: vec![],
            ups: 0,
            is_up: false,
            lost: vec![],
            in_force: Generation(0),
            kept: None,
            stored: vec![],
            answers: HashMap::new(),
            tickets: 0,
        }
    }

    pub(crate) fn plain(id: u64, address: &str) -> Self {
        Self::start(id, Config::new(vec![address.parse().unwrap()], prefix(), "test"))
    }

    #[track_caller]
    pub(crate) fn wait(&mut self, what: &str, is_so: impl Fn(&Self) -> bool) {
        let start = Instant::now();
        while !is_so(self) {
            assert!(start.elapsed() < WITHIN, "waited in vain for {what}: {:?}", self.downs);
            self.turn(Duration::from_millis(100));
        }
    }

    pub(crate) fn pass(&mut self, time: Duration) {
        let end = Instant::now() + time;
        while let Some(left) = end.checked_duration_since(Instant::now()) {
            self.turn(left.min(Duration::from_millis(100)));
        }
    }

    /// Handles the next event within this time.
    fn turn(&mut self, time: Duration) {
        let event = poll_fn(|context| self.adapter.poll_event(context));
        let Ok(event) = runtime().block_on(async { timeout(time, event).await }) else { return };
        match event {
            Event::Up { kept, .. } => {
                assert!(!self.is_up);
                (self.is_up, self.ups, self.kept) = (true, self.ups + 1, kept);
            }
            Event::Down(down) => {
                self.is_up = false;
                self.downs.push(down);
            }
            Event::Received(message) if message.stored.is_some() => self.stored.push(message),
            Event::Received(message) => {
                let bytes = message.envelope;
                let field = |at| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
                self.received.push((field(4), field(12), bytes[2] & 1 == 1));
            }
            Event::Lost(interests) => self.lost.extend(interests),
            Event::InForce(generation) => self.in_force = generation,
            Event::Room => {}
            Event::Stored { ticket, .. }
            | Event::NotStored { ticket, .. }
            | Event::Fetched { ticket, .. }
            | Event::Since { ticket, .. }
            | Event::Purged { ticket, .. } => {
                assert!(self.answers.insert(ticket, event).is_none(), "answered twice");
            }
        }
    }

    /// Subscribes to a topic, and waits until that is in force.
    #[track_caller]
    pub(crate) fn want(&mut self, topic: &str) {
        let interest = Interest::Exact(Space::Broadcast, topic.into());
        let generation = self.adapter.interest(&[(interest, Wanted::Yes)]);
        self.wait("an interest in force", |it| it.in_force >= generation);
    }

    pub(crate) fn try_publish(&mut self, topic: &str) -> Result<(), QueueFull> {
        let mut bytes = vec![1, 1, 0, 0];
        bytes.extend_from_slice(&self.id.0.to_le_bytes());
        bytes.extend_from_slice(&(self.n + 1).to_le_bytes());
        let subject = prefix().topic(Space::Broadcast, topic);
        self.adapter.publish(&subject, Bytes::from(bytes))?;
        self.n += 1;
        Ok(())
    }

    #[track_caller]
    pub(crate) fn publish(&mut self, topic: &str, count: u64) {
        for _ in 0..count {
            let start = Instant::now();
            while self.try_publish(topic).is_err() {
                assert!(start.elapsed() < WITHIN, "full for long: {:?}", self.downs);
                self.turn(Duration::from_millis(10));
            }
        }
    }

    /// The received numbers without duplicates: each is higher than all before.
    pub(crate) fn numbers(&self) -> Vec<u64> {
        let mut highest = 0;
        let is_new = |n: &u64| {
            let is_new = *n > highest;
            highest = highest.max(*n);
            is_new
        };
        self.received.iter().map(|it| it.1).filter(is_new).collect()
    }

    /// Waits until it is down; returns the reason.
    #[track_caller]
    pub(crate) fn why_down(&mut self) -> Down {
        self.wait("being down", |it| !it.downs.is_empty());
        self.downs.last().unwrap().clone()
    }

    /// Waits until it is up, and its publishing has arrived at the broker.
    #[track_caller]
    pub(crate) fn is_of_use(&mut self) {
        self.wait("up", |it| it.is_up);
        self.publish("a", 1);
        self.wait("nothing under way", |it| it.adapter.in_flight() == 0);
        assert_eq!(self.downs, []);
    }

    // Stored envelopes.

    pub(crate) fn keeping(id: u64, address: &str, keeping: StreamsConfig) -> Self {
        let mut config = Config::new(vec![address.parse().unwrap()], prefix(), "test");
        config.streams = Some(keeping);
        Self::start(id, config)
    }

    fn ticket(&mut self) -> Ticket {
        self.tickets += 1;
        Ticket(self.tickets)
    }

    pub(crate) fn store(&mut self, topic: &str, id: &str) -> Ticket {
        self.store_envelope(topic, id, id)
    }

    pub(crate) fn store_envelope(&mut self, topic: &str, id: &str, text: &str) -> Ticket {
        let (ticket, subject) = (self.ticket(), prefix().topic(Space::Store, topic));
        let start = Instant::now();
        let envelope = Bytes::copy_from_slice(text.as_bytes());
        while self.adapter.store(&subject, id, None, envelope.clone(), ticket).is_err() {
            assert!(start.elapsed() < WITHIN, "full for long: {:?}", self.downs);
            self.turn(Duration::from_millis(10));
        }
        ticket
    }

    pub(crate) fn ask(&mut self, what: Fetch) -> Ticket {
        let ticket = self.ticket();
        self.adapter.fetch(what, ticket).unwrap();
        ticket
    }

    pub(crate) fn purge(&mut self, topic: &str, before: u64) -> Event {
        let (ticket, subject) = (self.ticket(), prefix().topic(Space::Store, topic));
        self.adapter.purge(&subject, before, ticket).unwrap();
        self.answer(ticket)
    }

    #[track_caller]
    pub(crate) fn answer(&mut self, ticket: Ticket) -> Event {
        self.wait("an answer", |it| it.answers.contains_key(&ticket));
        self.answers[&ticket].clone()
    }

    /// Stores an envelope; returns its number.
    #[track_caller]
    pub(crate) fn stored(&mut self, topic: &str, id: &str) -> u64 {
        let ticket = self.store(topic, id);
        match self.answer(ticket) {
            Event::Stored { seq, .. } => seq,
            other => panic!("{other:?}"),
        }
    }

    /// Number and text of each envelope that is kept of a topic.
    #[track_caller]
    pub(crate) fn all(&mut self, topic: &str, from_leader: bool) -> Vec<(u64, String)> {
        let subject = prefix().topic(Space::Store, topic);
        let (count, bytes) = (100_000, 1 << 30);
        let ticket = self.ask(Fetch::After { subject, seq: 0, count, bytes, from_leader });
        match self.answer(ticket) {
            Event::Fetched { kept: Some(kept), .. } => {
                assert!(kept.is_all);
                kept.messages.iter().map(numbered).collect()
            }
            other => panic!("{other:?}"),
        }
    }

    /// Waits until it is up with streams; returns the epoch.
    #[track_caller]
    pub(crate) fn keeps(&mut self) -> u64 {
        self.wait("up, and something kept", |it| it.is_up && it.kept.is_some());
        self.kept.unwrap()
    }

    /// Waits until it is up without streams; returns the reason.
    #[track_caller]
    pub(crate) fn why_nothing_is_kept(&mut self) -> String {
        self.wait("up, and nothing kept", |it| it.is_up && it.kept.is_none());
        self.adapter.measures().keeping.unwrap()
    }
}

pub(crate) fn numbered(received: &Received) -> (u64, String) {
    let seq = received.stored.unwrap().seq;
    (seq, String::from_utf8(received.envelope.to_vec()).unwrap())
}
