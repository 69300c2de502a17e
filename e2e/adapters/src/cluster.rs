//! Nodes under test on one broker, and their time.

use std::time::Duration;

use bytes::Bytes;
use simurgh_cluster::adapter::Fetch;
use simurgh_cluster::{
    Event, Fetched, Interest, NodeId, Prefix, QueueFull, Received, Space, Subject, Ticket, Wanted,
};

pub(super) use super::message::{TestMessage, exact, mates, no, once, prefix, whole, yes};
use super::node::Node;
use super::{Harness, Unsupported};

/// Longer than a dead link takes to be noticed and replaced.
const WAIT: Duration = Duration::from_secs(40);
const STEP: Duration = Duration::from_millis(1);

pub(super) struct TestCluster<'a> {
    pub(super) harness: &'a mut dyn Harness,
    pub(super) prefix: Prefix,
    pub(super) nodes: Vec<Node>,
    pub(super) not_polled: Option<usize>,
    passed: Duration,
    tickets: u64,
}

impl<'a> TestCluster<'a> {
    pub(super) fn new(harness: &'a mut dyn Harness, count: usize) -> Self {
        let mut cluster = Self::empty(harness);
        for _ in 0..count {
            cluster.add();
        }
        cluster.wait("all to be up", |it| it.nodes.iter().all(|node| node.is_up));
        cluster
    }

    /// The same; an error if the broker stores nothing.
    pub(super) fn keeping(harness: &'a mut dyn Harness, count: usize) -> Result<Self, Unsupported> {
        if !harness.keeps() {
            return Err(Unsupported("it keeps nothing"));
        }
        Ok(Self::new(harness, count))
    }

    pub(super) fn empty(harness: &'a mut dyn Harness) -> Self {
        let passed = Duration::ZERO;
        let prefix = prefix("contract");
        Self { harness, prefix, nodes: Vec::new(), not_polled: None, passed, tickets: 0 }
    }

    pub(super) fn add(&mut self) -> usize {
        let mut adapter = self.harness.adapter(&self.prefix);
        let id = NodeId(0x5150_0000_0000_0001 + self.nodes.len() as u64);
        adapter.start(id);
        self.nodes.push(Node::new(adapter, id));
        self.nodes.len() - 1
    }

    pub(super) const fn passed(&self) -> Duration {
        self.passed
    }

    pub(super) fn turn(&mut self, time: Duration) {
        self.harness.pass(time);
        self.passed += time;
        self.poll();
    }

    pub(super) fn poll(&mut self) {
        let not_polled = self.not_polled;
        let awake = self.nodes.iter_mut().enumerate().filter(|(at, _)| Some(*at) != not_polled);
        awake.for_each(|(_, node)| node.poll());
    }

    #[track_caller]
    pub(super) fn wait(&mut self, what: &str, is_so: impl Fn(&Self) -> bool) {
        let mut waited = Duration::ZERO;
        self.poll();
        while !is_so(self) {
            assert!(waited < WAIT, "waited in vain for {what}");
            // In small steps first, so that a short wait stays short.
            let time = if waited < 200 * STEP { STEP } else { 10 * STEP };
            self.turn(time);
            waited += time;
        }
    }

    /// Lets this much time pass, in small steps.
    pub(super) fn pass(&mut self, time: Duration) {
        let end = self.passed + time;
        while self.passed < end {
            self.turn((end - self.passed).min(10 * STEP));
        }
    }

    pub(super) fn quiet(&mut self) {
        self.pass(self.harness.quiet());
    }

    #[track_caller]
    pub(super) fn want(&mut self, node: usize, changes: &[(Interest, Wanted)]) {
        let generation = self.nodes[node].change(changes);
        self.wait("a change to be in force", |it| it.nodes[node].in_force >= Some(generation));
    }

    /// Publishes a broadcast; waits while the adapter is full.
    #[track_caller]
    pub(super) fn publish(&mut self, node: usize, topic: &str, payload: &str) -> u64 {
        self.publish_in(node, Space::Broadcast, topic, payload)
    }

    #[track_caller]
    pub(super) fn publish_each(
        &mut self,
        node: usize,
        topics: impl IntoIterator<Item: AsRef<str>>,
        payload: &str,
    ) {
        for topic in topics {
            self.publish(node, topic.as_ref(), payload);
        }
    }

    #[track_caller]
    pub(super) fn publish_in(
        &mut self,
        node: usize,
        space: Space,
        topic: &str,
        payload: &str,
    ) -> u64 {
        loop {
            let rooms = self.nodes[node].rooms;
            match self.try_publish(node, space, topic, payload) {
                Ok(n) => return n,
                Err(QueueFull) => self.wait("room", |it| it.nodes[node].rooms > rooms),
            }
        }
    }

    pub(super) fn try_publish(
        &mut self,
        node: usize,
        space: Space,
        topic: &str,
        payload: &str,
    ) -> Result<u64, QueueFull> {
        let to = self.prefix.topic(space, topic);
        let from = &mut self.nodes[node];
        from.publish(
            &to,
            &TestMessage { origin: from.id, n: from.n + 1, topic, payload }.encode(),
        )?;
        Ok(from.n)
    }

    /// Stores; waits while the adapter is full.
    #[track_caller]
    pub(super) fn store(&mut self, node: usize, topic: &str, id: &str, payload: &str) -> Ticket {
        self.store_for(node, topic, (id, None), payload)
    }

    /// Stores with an age; waits while the adapter is full.
    #[track_caller]
    pub(super) fn store_for(
        &mut self,
        node: usize,
        topic: &str,
        (id, age): (&str, Option<Duration>),
        payload: &str,
    ) -> Ticket {
        let to = self.prefix.topic(Space::Store, topic);
        let (origin, n) = (self.nodes[node].id, self.nodes[node].n + 1);
        let envelope = TestMessage { origin, n, topic, payload }.encode();
        self.store_to(node, &to, (id, age), &envelope)
    }

    /// Stores an envelope on a subject; waits while the adapter is full.
    #[track_caller]
    pub(super) fn store_to(
        &mut self,
        node: usize,
        to: &Subject,
        (id, age): (&str, Option<Duration>),
        envelope: &Bytes,
    ) -> Ticket {
        let ticket = self.ticket();
        self.nodes[node].n += 1;
        loop {
            let (rooms, from) = (self.nodes[node].rooms, &mut self.nodes[node]);
            let stored = from.adapter().store(to, id, age, envelope.clone(), ticket);
            match stored {
                Ok(()) => {
                    self.nodes[node].unanswered.insert(ticket);
                    return ticket;
                }
                Err(QueueFull) => {
                    self.nodes[node].is_full = true;
                    self.wait("room", |it| it.nodes[node].rooms > rooms);
                }
            }
        }
    }

    #[track_caller]
    pub(super) fn stored(&mut self, node: usize, topic: &str, id: &str, payload: &str) -> u64 {
        let ticket = self.store(node, topic, id, payload);
        match self.answer(node, ticket) {
            Event::Stored { seq, .. } => seq,
            other => unreachable!("not stored: {other:?}"),
        }
    }

    #[track_caller]
    pub(super) fn fetch(&mut self, node: usize, what: Fetch) -> Option<Fetched> {
        let ticket = self.ask(node, what);
        match self.answer(node, ticket) {
            Event::Fetched { kept, .. } => kept,
            other => unreachable!("not an answer to a fetch: {other:?}"),
        }
    }

    /// Purges messages before a number, and waits for the answer.
    #[track_caller]
    pub(super) fn purge(&mut self, node: usize, topic: &str, before: u64) {
        let ticket = self.ask_purge(node, topic, before);
        assert_eq!(self.answer(node, ticket), Event::Purged { ticket, why: None });
    }

    #[track_caller]
    pub(super) fn ask_purge(&mut self, node: usize, topic: &str, before: u64) -> Ticket {
        let subject = self.prefix.topic(Space::Store, topic);
        let ticket = self.ticket();
        let from = &mut self.nodes[node];
        assert_eq!(from.adapter().purge(&subject, before, ticket), Ok(()));
        from.unanswered.insert(ticket);
        ticket
    }

    #[track_caller]
    pub(super) fn ask(&mut self, node: usize, what: Fetch) -> Ticket {
        let ticket = self.ticket();
        let from = &mut self.nodes[node];
        assert_eq!(from.adapter().fetch(what, ticket), Ok(()));
        from.unanswered.insert(ticket);
        ticket
    }

    #[track_caller]
    pub(super) fn answer(&mut self, node: usize, ticket: Ticket) -> Event {
        self.wait("an answer", |it| it.nodes[node].answer(ticket).is_some());
        match self.nodes[node].answer(ticket) {
            Some(event) => event.clone(),
            None => unreachable!("it was waited for"),
        }
    }

    pub(super) const fn ticket(&mut self) -> Ticket {
        self.tickets += 1;
        Ticket(self.tickets)
    }

    /// Fetches the messages after a number on a topic: payloads with their numbers.
    #[track_caller]
    pub(super) fn after(&mut self, node: usize, topic: &str, seq: u64) -> Vec<(u64, String)> {
        let subject = self.prefix.topic(Space::Store, topic);
        let (count, bytes, from_leader) = (1_000, 1 << 20, false);
        let what = Fetch::After { subject, seq, count, bytes, from_leader };
        let fetched = self.fetch(node, what);
        assert!(fetched.is_some(), "the broker did not answer");
        fetched.unwrap_or_default().messages.iter().map(numbered).collect()
    }

    /// The messages a node has received, as `topic payload`.
    pub(super) fn texts(&self, node: usize) -> Vec<String> {
        let received = self.nodes[node].received.iter().map(TestMessage::read);
        received.map(|it| format!("{} {}", it.topic, it.payload)).collect()
    }

    /// The received numbers of a publisher on a topic, in order.
    pub(super) fn numbers(&self, node: usize, from: usize, topic: &str) -> Vec<u64> {
        let origin = self.nodes[from].id;
        let received = self.nodes[node].received.iter().map(TestMessage::read);
        received.filter(|it| it.origin == origin && it.topic == topic).map(|it| it.n).collect()
    }

    pub(super) fn forget(&mut self) {
        self.poll();
        self.nodes.iter_mut().for_each(|node| node.received.clear());
    }
}

fn numbered(received: &Received) -> (u64, String) {
    let seq = received.stored.map_or(0, |it| it.seq);
    (seq, TestMessage::read(received).payload.to_owned())
}
