//! Interests against an engine that delivers as late and in as odd an order as engines may.

use std::collections::VecDeque;

use proptest::prelude::*;

use super::*;
use crate::wire::{Decoder, Op};

/// How long a server may be between looking up who hears a message and giving it to them.
const LATE_MS_MAX: u64 = 150;
const ORIGINS: usize = 2;

/// Topics of one bucket.
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
    decoder.buffer().extend_from_slice(bytes);
    decoder.next().unwrap().unwrap()
}

/// A message that a server is about to give to those who wanted it when it looked.
#[derive(Debug)]
struct Delivery {
    subject: String,
    n: u64,
    sids: Vec<u64>,
    looked_ms: u64,
}

/// An engine, and a node that is linked to it.
struct World {
    prefix: Prefix,
    topics: [Box<str>; 2],
    interests: Interests,
    /// Said by the node, and not read by the engine.
    out: BytesMut,
    next_ping: u64,
    needs_ping: bool,
    subscriptions: Vec<(u64, String)>,
    deliveries: [Option<Delivery>; ORIGINS],
    /// Said by the engine, and not read by the node; PONGs as none.
    stream: VecDeque<Option<Vec<u8>>>,
    answered: u64,
    now_ms: u64,
    numbers: [u64; ORIGINS],
    /// What was published of the first topic, and what the node has heard of it.
    published: [Vec<u64>; ORIGINS],
    heard: [Vec<u64>; ORIGINS],
    wants_second: bool,
}

impl World {
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
            heard: [vec![], vec![]],
            wants_second: false,
        }
    }

    fn want(&mut self, second: bool, whole: bool) {
        let space = Space::Broadcast;
        let wanted = |it| if it { Wanted::Yes } else { Wanted::No };
        let changes = [
            // The first is always wanted: by itself, or by all of the bucket.
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

    /// The engine reads a line.
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

    /// A publisher's message reaches the engine, which looks up who wants it.
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
        self.deliveries[origin] = Some(Delivery { subject, n, sids, looked_ms: self.now_ms });
    }

    /// The engine gives it to so many of them.
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

    /// The node reads.
    fn hear(&mut self) {
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
                    assert!(self.wants_second, "heard what is not wanted");
                    return;
                }
                let field =
                    |at| u64::from_le_bytes(message.payload()[at..at + 8].try_into().unwrap());
                self.heard[field(4) as usize].push(field(12));
            }
        }
    }

    fn pass_time(&mut self) {
        self.now_ms += 60;
        for origin in 0..ORIGINS {
            let looked = self.deliveries[origin].as_ref().map(|it| it.looked_ms);
            if looked.is_some_and(|it| it + LATE_MS_MAX <= self.now_ms) {
                self.deliver(origin, usize::MAX);
            }
        }
    }

    /// What the node has said is read, answered, and the answers are read; what the engine is about
    /// to deliver it is still about to.
    fn round_trip(&mut self) {
        self.ping();
        while !self.out.is_empty() {
            self.serve();
        }
        while !self.stream.is_empty() {
            self.hear();
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

    /// What is wanted before and after each change is heard without a hole, once, in order.
    #[test]
    fn a_topic_is_heard_once_however_its_interest_changes(
        steps in prop::collection::vec((0..10_u8, any::<bool>(), any::<bool>()), 1..150),
    ) {
        let mut world = World::new();
        world.want(false, false);
        world.settle();
        for (step, one, other) in steps {
            match step {
                0 => world.want(one, other),
                1 => world.ping(),
                2 => world.serve(),
                3 | 4 => world.publish(usize::from(one), 0, other),
                5 => world.publish(usize::from(one), 1, other),
                6 => world.deliver(usize::from(one), 1),
                7 => world.hear(),
                8 => world.round_trip(),
                _ => world.pass_time(),
            }
        }
        world.settle();
        prop_assert_eq!(&world.heard, &world.published);
        let expected = if world.interests.groups.values().any(|it| it.is_whole) {
            1
        } else {
            1 + usize::from(world.wants_second)
        };
        prop_assert_eq!(world.interests.subscriptions(), expected);
        prop_assert_eq!(world.subscriptions.len(), expected);
        prop_assert!(world.interests.overlapping.is_empty());
    }
}

#[test]
fn a_message_that_is_half_delivered_when_the_old_one_ends_is_heard_once() {
    let mut world = World::new();
    world.want(false, false);
    world.settle();
    world.want(false, true);
    world.round_trip();
    (0..5).for_each(|_| world.pass_time());
    world.publish(0, 0, false);
    world.deliver(0, 1);
    // The old one ends, and the engine says so; then it goes on with the new one.
    world.round_trip();
    assert_eq!(world.subscriptions.len(), 1);
    world.deliver(0, 1);
    world.round_trip();
    assert_eq!(world.heard, world.published);
}

#[test]
fn an_answer_to_an_earlier_ping_puts_nothing_in_force() {
    let mut world = World::new();
    world.want(false, false);
    world.settle();
    world.needs_ping = true;
    world.ping();
    world.serve();
    world.want(false, true);
    world.hear();
    (0..5).for_each(|_| world.pass_time());
    world.ping();
    // The engine is about to deliver to the old one only, and gets to know of the new one then.
    world.publish(0, 0, false);
    while !world.out.is_empty() {
        world.serve();
    }
    world.settle();
    assert_eq!(world.heard, world.published);
}

fn said(interests: &mut Interests, changes: &[(Interest, Wanted)]) -> String {
    let mut out = BytesMut::new();
    interests.change(changes, 1, &mut out);
    String::from_utf8(out.to_vec()).unwrap()
}

fn linked() -> Interests {
    let mut interests = Interests::new(Prefix::new("p").unwrap());
    interests.link(&mut BytesMut::new());
    interests
}

#[test]
fn a_topic_beside_its_whole_bucket_is_no_subscription_of_its_own() {
    let (mut interests, [topic, _]) = (linked(), topics());
    let whole = Interest::Whole(Space::Broadcast, Bucket::of(&topic));
    let exact = Interest::Exact(Space::Broadcast, topic);
    let both = [(exact.clone(), Wanted::Yes), (whole.clone(), Wanted::Yes)];
    assert_eq!(said(&mut interests, &both).matches("SUB").count(), 1);
    assert_eq!(said(&mut interests, &[(exact.clone(), Wanted::No)]), "");
    assert_eq!(said(&mut interests, &[(exact, Wanted::Yes)]), "");
    let back = said(&mut interests, &[(whole, Wanted::No)]);
    assert!(back.starts_with("SUB p.b."), "{back}");
}

#[test]
fn what_ends_and_begins_in_one_step_stays_as_it_is() {
    let mut interests = linked();
    let nodes = [Interest::Nodes, Interest::Exact(Space::Presence, "t".into())];
    for interest in nodes {
        let begin = said(&mut interests, &[(interest.clone(), Wanted::Yes)]);
        assert!(begin.starts_with("SUB"), "{begin}");
        let again = [(interest.clone(), Wanted::No), (interest.clone(), Wanted::Yes)];
        assert_eq!(said(&mut interests, &again), "");
        assert_eq!(said(&mut interests, &[(interest.clone(), Wanted::Yes)]), "");
        assert!(said(&mut interests, &[(interest.clone(), Wanted::No)]).starts_with("UNSUB"));
        assert_eq!(said(&mut interests, &[(interest, Wanted::No)]), "");
    }
    assert_eq!(interests.subscriptions(), 0);
}

#[test]
fn without_a_link_changes_are_remembered_for_the_next() {
    let [first, second] = topics();
    let mut interests = Interests::new(Prefix::new("p").unwrap());
    let exact = |topic: &str| Interest::Exact(Space::Broadcast, topic.into());
    let all = [exact(&first), exact(&second), Interest::Nodes].map(|it| (it, Wanted::Yes));
    assert_eq!(said(&mut interests, &all), "");
    assert_eq!(said(&mut interests, &[(exact(&second), Wanted::No)]), "");
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
fn a_flood_of_publishers_while_interests_change_is_bounded() {
    let (mut interests, [topic, _]) = (linked(), topics());
    let whole = Interest::Whole(Space::Broadcast, Bucket::of(&topic));
    let exact = Interest::Exact(Space::Broadcast, topic.clone());
    said(&mut interests, &[(exact.clone(), Wanted::Yes)]);
    said(&mut interests, &[(exact, Wanted::No), (whole, Wanted::Yes)]);
    let subject = Prefix::new("p").unwrap().topic(Space::Broadcast, &topic);
    let mut hears = |sid, origin| {
        let Op::Message(message) = read(&message(sid, subject.as_str(), origin, 1)) else {
            panic!("no message")
        };
        interests.accept(&message).is_some()
    };
    for origin in 0..2 * NUMBERS_MAX as u64 {
        // Of those beyond, the old subscription's are taken alone.
        assert!(hears(1, origin));
        assert!(!hears(2, origin));
    }
    let overlap = interests.groups.values().next().unwrap().overlap.as_ref().unwrap();
    assert_eq!(overlap.highest.len(), NUMBERS_MAX);
}

#[test]
fn what_a_stream_republished_is_told_apart_by_its_number() {
    let (mut interests, [topic, _]) = (linked(), topics());
    let whole = Interest::Whole(Space::Broadcast, Bucket::of(&topic));
    let exact = Interest::Exact(Space::Broadcast, topic.clone());
    said(&mut interests, &[(exact.clone(), Wanted::Yes)]);
    said(&mut interests, &[(exact, Wanted::No), (whole, Wanted::Yes)]);
    let subject = Prefix::new("p").unwrap().topic(Space::Broadcast, &topic);
    let mut hears = |sid, seq: u64| {
        let headers = format!("NATS/1.0\r\nNats-Sequence: {seq}\r\n\r\n");
        let (head, all) = (headers.len(), headers.len() + 2);
        let text = format!("HMSG {subject} {sid} {head} {all}\r\n{headers}ab\r\n");
        let Op::Message(message) = read(text.as_bytes()) else { panic!("{text}") };
        interests.accept(&message).is_some()
    };
    let heard = [hears(1, 7), hears(2, 7), hears(2, 9), hears(1, 9), hears(2, 10)];
    assert_eq!(heard, [true, false, true, false, true]);
}

#[test]
fn numbers_of_one_bucket_say_nothing_of_another_whose_stream_may_be_another() {
    let mut interests = linked();
    let topics = ["room:0", "room:1"].map(Box::<str>::from);
    assert_ne!(Bucket::of(&topics[0]), Bucket::of(&topics[1]));
    let mut sids = Vec::new();
    for topic in &topics {
        let whole = Interest::Whole(Space::Broadcast, Bucket::of(topic));
        let exact = Interest::Exact(Space::Broadcast, topic.clone());
        said(&mut interests, &[(exact.clone(), Wanted::Yes)]);
        said(&mut interests, &[(exact, Wanted::No), (whole, Wanted::Yes)]);
        sids.push(interests.next_sid - 2);
    }
    for (topic, (sid, seq)) in topics.iter().zip(sids.into_iter().zip([700, 3])) {
        let subject = Prefix::new("p").unwrap().topic(Space::Broadcast, topic);
        let headers = format!("NATS/1.0\r\nNats-Sequence: {seq}\r\n\r\n");
        let (head, all) = (headers.len(), headers.len() + 2);
        let hears = [sid, sid + 1].map(|sid| {
            let text = format!("HMSG {subject} {sid} {head} {all}\r\n{headers}ab\r\n");
            let Op::Message(message) = read(text.as_bytes()) else { panic!("{text}") };
            interests.accept(&message).is_some()
        });
        assert_eq!(hears, [true, false], "{topic}");
    }
}
