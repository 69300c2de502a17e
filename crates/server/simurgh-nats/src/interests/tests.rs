//! Interests against a simulated engine with late deliveries, in any order that engines may choose.

use std::collections::VecDeque;

use proptest::prelude::*;
use simurgh_cluster::Subject;

use super::*;
use crate::wire::{Decoder, Op};

/// The longest time between matching a message with subscriptions and delivering it.
const LATE_MS_MAX: u64 = 150;
const ORIGINS: usize = 2;

fn topics() -> [Box<str>; 2] {
    let first = "room:0";
    let of_same = |it: &String| Bucket::of(it) == Bucket::of(first) && it != first;
    let second = (1..).map(|it| format!("room:{it}")).find(of_same).unwrap();
    [first.into(), second.into()]
}

fn message(sid: u64, subject: &str, origin: u64, n: u64) -> Vec<u8> {
    let mut bytes = format!("MSG {subject} {sid} 20\r\n").into_bytes();
    bytes.extend_from_slice(&[1, 1, 0, 0]);
    bytes.extend_from_slice(&origin.to_le_bytes());
    bytes.extend_from_slice(&n.to_le_bytes());
    bytes.extend_from_slice(b"\r\n");
    bytes
}

fn read(bytes: &[u8]) -> Op {
    let mut decoder = Decoder::default();
    decoder.buffer.extend_from_slice(bytes);
    decoder.next().unwrap().unwrap()
}

/// A message that was matched with subscriptions, and is not delivered to all of them yet.
#[derive(Debug)]
struct Delivery {
    subject: String,
    n: u64,
    sids: Vec<u64>,
    matched_ms: u64,
}

struct Simulation {
    prefix: Prefix,
    topics: [Box<str>; 2],
    interests: Interests,
    /// Written by the node, not yet read by the engine.
    out: BytesMut,
    next_ping: u64,
    needs_ping: bool,
    subscriptions: Vec<(u64, String)>,
    deliveries: [Option<Delivery>; ORIGINS],
    /// Written by the engine, not yet read by the node; `None` is a PONG.
    stream: VecDeque<Option<Vec<u8>>>,
    answered: u64,
    now_ms: u64,
    numbers: [u64; ORIGINS],
    /// Numbers published to the first topic, and those that the node received.
    published: [Vec<u64>; ORIGINS],
    received: [Vec<u64>; ORIGINS],
    wants_second: bool,
}

impl Simulation {
    fn new() -> Self {
        let prefix = Prefix::new("p").unwrap();
        let mut interests = Interests::new(prefix.clone());
        interests.link(&mut BytesMut::new());
        Self {
            interests,
            prefix,
            topics: topics(),
            out: BytesMut::new(),
            next_ping: 1,
            needs_ping: false,
            subscriptions: vec![],
            deliveries: [None, None],
            stream: VecDeque::new(),
            answered: 0,
            now_ms: 0,
            numbers: [0; ORIGINS],
            published: [vec![], vec![]],
            received: [vec![], vec![]],
            wants_second: false,
        }
    }

    fn want(&mut self, second: bool, whole: bool) {
        let space = Space::Broadcast;
        let wanted = |it| if it { Wanted::Yes } else { Wanted::No };
        let changes = [
            // The first topic is always wanted: alone, or with the whole bucket.
            (Interest::Exact(space, self.topics[0].clone()), wanted(!whole)),
            (Interest::Exact(space, self.topics[1].clone()), wanted(second)),
            (Interest::Whole(space, Bucket::of(&self.topics[0])), wanted(whole)),
        ];
        self.interests.change(&changes, self.next_ping, &mut self.out);
        (self.wants_second, self.needs_ping) = (second || whole, true);
    }

    fn ping(&mut self) {
        self.needs_ping |= self.interests.tick(self.now_ms, self.next_ping, &mut self.out);
        if std::mem::take(&mut self.needs_ping) {
            self.out.extend_from_slice(b"PING\r\n");
            self.next_ping += 1;
        }
    }

    fn serve(&mut self) {
        let Some(end) = memchr::memchr(b'\n', &self.out) else { return };
        let line = String::from_utf8(self.out.split_to(end + 1).to_vec()).unwrap();
        let fields: Vec<&str> = line.split_whitespace().collect();
        match fields[..] {
            ["SUB", filter, sid] => {
                self.subscriptions.push((sid.parse().unwrap(), filter.to_owned()));
            }
            ["UNSUB", sid] => {
                let sid: u64 = sid.parse().unwrap();
                self.subscriptions.retain(|it| it.0 != sid);
            }
            _ => self.stream.push_back(None),
        }
    }

    /// A publisher's message reaches the engine, which looks up its subscriptions.
    fn publish(&mut self, origin: usize, topic: usize, shuffled: bool) {
        self.deliver(origin, usize::MAX);
        self.numbers[origin] += 1;
        let n = self.numbers[origin];
        let subject = self.prefix.topic(Space::Broadcast, &self.topics[topic]).as_str().to_owned();
        let matches = |filter: &str| {
            filter == subject || filter.strip_suffix('*').is_some_and(|it| subject.starts_with(it))
        };
        let of = |it: &&(u64, String)| matches(&it.1);
        let mut sids: Vec<u64> = self.subscriptions.iter().filter(of).map(|it| it.0).collect();
        if shuffled {
            sids.reverse();
        }
        if topic == 0 {
            self.published[origin].push(n);
        }
        self.deliveries[origin] = Some(Delivery { subject, n, sids, matched_ms: self.now_ms });
    }

    /// The engine delivers it to this many of them.
    fn deliver(&mut self, origin: usize, count: usize) {
        let Some(delivery) = &mut self.deliveries[origin] else { return };
        let count = count.min(delivery.sids.len());
        for sid in delivery.sids.drain(..count) {
            if self.subscriptions.iter().any(|it| it.0 == sid) {
                let bytes = message(sid, &delivery.subject, origin as u64, delivery.n);
                self.stream.push_back(Some(bytes));
            }
        }
    }

    fn receive(&mut self) {
        match self.stream.pop_front() {
            None => {}
            Some(None) => {
                self.answered += 1;
                self.interests.pong(self.answered, self.now_ms);
            }
            Some(Some(bytes)) => {
                let Op::Message(message) = read(&bytes) else { panic!("{bytes:?}") };
                if self.interests.accept(&message).is_none() {
                    return;
                }
                let second = self.prefix.topic(Space::Broadcast, &self.topics[1]);
                if message.subject() == second.as_str().as_bytes() {
                    assert!(self.wants_second, "received what is not wanted");
                    return;
                }
                let field =
                    |at| u64::from_le_bytes(message.payload()[at..at + 8].try_into().unwrap());
                self.received[field(4) as usize].push(field(12));
            }
        }
    }

    fn pass_time(&mut self) {
        self.now_ms += 60;
        for origin in 0..ORIGINS {
            let matched = self.deliveries[origin].as_ref().map(|it| it.matched_ms);
            if matched.is_some_and(|it| it + LATE_MS_MAX <= self.now_ms) {
                self.deliver(origin, usize::MAX);
            }
        }
    }

    /// Everything written is read and answered, and the answers are read. Deliveries do not
    /// proceed.
    fn round_trip(&mut self) {
        self.ping();
        while !self.out.is_empty() {
            self.serve();
        }
        while !self.stream.is_empty() {
            self.receive();
        }
    }

    fn settle(&mut self) {
        for _ in 0..20 {
            self.round_trip();
            (0..ORIGINS).for_each(|origin| self.deliver(origin, usize::MAX));
            self.pass_time();
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    /// A topic that is wanted before and after each change is received without a gap, once, in
    /// order.
    #[test]
    fn topic_is_delivered_once_while_its_interest_changes(
        steps in prop::collection::vec((0..10_u8, any::<bool>(), any::<bool>()), 1..150),
    ) {
        let mut sim = Simulation::new();
        sim.want(false, false);
        sim.settle();
        for (step, one, other) in steps {
            match step {
                0 => sim.want(one, other),
                1 => sim.ping(),
                2 => sim.serve(),
                3 | 4 => sim.publish(usize::from(one), 0, other),
                5 => sim.publish(usize::from(one), 1, other),
                6 => sim.deliver(usize::from(one), 1),
                7 => sim.receive(),
                8 => sim.round_trip(),
                _ => sim.pass_time(),
            }
        }
        sim.settle();
        prop_assert_eq!(&sim.received, &sim.published);
        let expected = if sim.interests.groups.values().any(|it| it.is_whole) {
            1
        } else {
            1 + usize::from(sim.wants_second)
        };
        prop_assert_eq!(sim.interests.subscriptions(), expected);
        prop_assert_eq!(sim.subscriptions.len(), expected);
        prop_assert!(sim.interests.overlapping.is_empty());
    }
}

#[test]
fn message_split_over_two_links_is_delivered_once() {
    let mut sim = Simulation::new();
    sim.want(false, false);
    sim.settle();
    sim.want(false, true);
    sim.round_trip();
    (0..5).for_each(|_| sim.pass_time());
    sim.publish(0, 0, false);
    sim.deliver(0, 1);
    // The old subscription ends, and the engine confirms it; then it delivers to the new one.
    sim.round_trip();
    assert_eq!(sim.subscriptions.len(), 1);
    sim.deliver(0, 1);
    sim.round_trip();
    assert_eq!(sim.received, sim.published);
}

/// It was read after the numbers had been forgotten, since the node was late.
#[test]
fn late_message_is_delivered_once() {
    let mut sim = Simulation::new();
    sim.want(false, false);
    sim.settle();
    sim.want(false, true);
    sim.want(false, false);
    sim.round_trip();
    (0..3).for_each(|_| sim.pass_time());
    sim.publish(1, 0, false);
    sim.pass_time();
    sim.deliver(1, 1);
    sim.pass_time();
    sim.round_trip();
    // The engine delivers it again soon. The node reads it when the overlap is over.
    (0..5).for_each(|_| sim.pass_time());
    sim.settle();
    assert_eq!(sim.received, sim.published);
}

#[test]
fn pong_of_an_earlier_ping_confirms_nothing() {
    let mut sim = Simulation::new();
    sim.want(false, false);
    sim.settle();
    sim.needs_ping = true;
    sim.ping();
    sim.serve();
    sim.want(false, true);
    sim.receive();
    (0..5).for_each(|_| sim.pass_time());
    sim.ping();
    // The message is matched with the old subscription only, before the engine reads the new one.
    sim.publish(0, 0, false);
    while !sim.out.is_empty() {
        sim.serve();
    }
    sim.settle();
    assert_eq!(sim.received, sim.published);
}

fn written(interests: &mut Interests, changes: &[(Interest, Wanted)]) -> String {
    let mut out = BytesMut::new();
    interests.change(changes, 1, &mut out);
    String::from_utf8(out.to_vec()).unwrap()
}

fn linked() -> Interests {
    let mut interests = Interests::new(Prefix::new("p").unwrap());
    interests.link(&mut BytesMut::new());
    interests
}

/// Subscribes to a topic and then to its whole bucket, so that two subscriptions overlap. Returns
/// the topic's subject.
fn overlap(interests: &mut Interests, topic: &str) -> Subject {
    let whole = Interest::Whole(Space::Broadcast, Bucket::of(topic));
    let exact = Interest::Exact(Space::Broadcast, topic.into());
    written(interests, &[(exact.clone(), Wanted::Yes)]);
    written(interests, &[(exact, Wanted::No), (whole, Wanted::Yes)]);
    Prefix::new("p").unwrap().topic(Space::Broadcast, topic)
}

fn republished(subject: &str, sid: u64, seq: u64) -> Message {
    let headers = format!("NATS/1.0\r\nNats-Sequence: {seq}\r\n\r\n");
    let (head, all) = (headers.len(), headers.len() + 2);
    let text = format!("HMSG {subject} {sid} {head} {all}\r\n{headers}ab\r\n");
    match read(text.as_bytes()) {
        Op::Message(message) => message,
        other => panic!("{other:?}"),
    }
}

#[test]
fn topic_within_a_subscribed_bucket_needs_no_subscription() {
    let (mut interests, [topic, _]) = (linked(), topics());
    let whole = Interest::Whole(Space::Broadcast, Bucket::of(&topic));
    let exact = Interest::Exact(Space::Broadcast, topic);
    let both = [(exact.clone(), Wanted::Yes), (whole.clone(), Wanted::Yes)];
    assert_eq!(written(&mut interests, &both).matches("SUB").count(), 1);
    assert_eq!(written(&mut interests, &[(exact.clone(), Wanted::No)]), "");
    assert_eq!(written(&mut interests, &[(exact, Wanted::Yes)]), "");
    let back = written(&mut interests, &[(whole, Wanted::No)]);
    assert!(back.starts_with("SUB p.b."), "{back}");
}

#[test]
fn interest_that_ends_and_begins_in_one_step_does_not_change() {
    let mut interests = linked();
    let nodes = [Interest::Nodes, Interest::Exact(Space::Presence, "t".into())];
    for interest in nodes {
        let begin = written(&mut interests, &[(interest.clone(), Wanted::Yes)]);
        assert!(begin.starts_with("SUB"), "{begin}");
        let again = [(interest.clone(), Wanted::No), (interest.clone(), Wanted::Yes)];
        assert_eq!(written(&mut interests, &again), "");
        assert_eq!(written(&mut interests, &[(interest.clone(), Wanted::Yes)]), "");
        assert!(written(&mut interests, &[(interest.clone(), Wanted::No)]).starts_with("UNSUB"));
        assert_eq!(written(&mut interests, &[(interest, Wanted::No)]), "");
    }
    assert_eq!(interests.subscriptions(), 0);
}

#[test]
fn changes_without_a_link_apply_to_the_next_link() {
    let [first, second] = topics();
    let mut interests = Interests::new(Prefix::new("p").unwrap());
    let exact = |topic: &str| Interest::Exact(Space::Broadcast, topic.into());
    let all = [exact(&first), exact(&second), Interest::Nodes].map(|it| (it, Wanted::Yes));
    assert_eq!(written(&mut interests, &all), "");
    assert_eq!(written(&mut interests, &[(exact(&second), Wanted::No)]), "");
    for _ in 0..2 {
        let mut out = BytesMut::new();
        interests.link(&mut out);
        assert_eq!(str::from_utf8(&out).unwrap().matches("SUB p.").count(), 2);
        assert_eq!(interests.subscriptions(), 2);
        interests.unlink();
        assert_eq!(interests.subscriptions(), 0);
    }
}

#[test]
fn publisher_flood_during_interest_changes_is_bounded() {
    let (mut interests, [topic, _]) = (linked(), topics());
    let subject = overlap(&mut interests, &topic);
    let mut takes = |sid, origin| {
        let Op::Message(message) = read(&message(sid, subject.as_str(), origin, 1)) else {
            panic!("no message")
        };
        interests.accept(&message).is_some()
    };
    for origin in 0..2 * NUMBERS_MAX as u64 {
        // Beyond the maximum, only messages of the old subscription are accepted.
        assert!(takes(1, origin));
        assert!(!takes(2, origin));
    }
    let overlap = interests.groups.values().next().unwrap().overlap.as_ref().unwrap();
    assert_eq!(overlap.highest.len(), NUMBERS_MAX);
}

#[test]
fn republished_messages_are_recognised_by_their_number() {
    let (mut interests, [topic, _]) = (linked(), topics());
    let subject = overlap(&mut interests, &topic);
    let mut takes =
        |sid, seq: u64| interests.accept(&republished(subject.as_str(), sid, seq)).is_some();
    let taken = [takes(1, 7), takes(2, 7), takes(2, 9), takes(1, 9), takes(2, 10)];
    assert_eq!(taken, [true, false, true, false, true]);
}

#[test]
fn numbers_of_one_bucket_do_not_apply_to_another_with_another_stream() {
    let mut interests = linked();
    let topics = ["room:0", "room:1"].map(Box::<str>::from);
    assert_ne!(Bucket::of(&topics[0]), Bucket::of(&topics[1]));
    let mut sids = Vec::new();
    for topic in &topics {
        overlap(&mut interests, topic);
        sids.push(interests.next_sid - 2);
    }
    for (topic, (sid, seq)) in topics.iter().zip(sids.into_iter().zip([700, 3])) {
        let subject = Prefix::new("p").unwrap().topic(Space::Broadcast, topic);
        let taken = [sid, sid + 1]
            .map(|sid| interests.accept(&republished(subject.as_str(), sid, seq)).is_some());
        assert_eq!(taken, [true, false], "{topic}");
    }
}
