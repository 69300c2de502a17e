//! The fan-out of one shard against the plainest model: a list, for each member, of what it must
//! get.

use std::collections::HashMap;
use std::time::Duration;

use proptest::prelude::*;
use simurgh_proto::message::Payload;
use simurgh_reactor::Key;

use crate::registry::BEHIND;
use crate::testing::*;
use crate::*;

const PEERS: usize = 20;
const TOPICS: [&str; 2] = ["topic-a", "topic-b"];
/// Longer than what is sent between two readings of the clock.
const LONG: usize = 17 << 10;

#[derive(Debug, Clone)]
enum Step {
    Join(usize, usize),
    Leave(usize, usize),
    Go(usize),
    Echo(usize, usize),
    Broadcast {
        topic: usize,
        is_long: bool,
    },
    Publish {
        peer: usize,
        topic: usize,
        is_from: bool,
    },
    /// A slice of so many readings of the clock.
    Slice(u64),
    Turn,
    /// A peer takes so much and no more, until it takes more.
    Window(usize, usize),
    Take(usize, usize),
    Settle(u64),
}

fn step() -> impl Strategy<Value = Step> {
    let (peer, topic) = (0..PEERS, 0..TOPICS.len());
    let both = (peer.clone(), topic.clone());
    prop_oneof![
        6 => both.clone().prop_map(|(peer, topic)| Step::Join(peer, topic)),
        3 => both.clone().prop_map(|(peer, topic)| Step::Leave(peer, topic)),
        1 => peer.clone().prop_map(Step::Go),
        3 => both.clone().prop_map(|(peer, topic)| Step::Echo(peer, topic)),
        6 => (topic, prop::bool::weighted(0.2))
            .prop_map(|(topic, is_long)| Step::Broadcast { topic, is_long }),
        4 => (both, any::<bool>())
            .prop_map(|((peer, topic), is_from)| Step::Publish { peer, topic, is_from }),
        6 => (1..4_u64).prop_map(Step::Slice),
        2 => Just(Step::Turn),
        2 => (peer.clone(), 0..400_usize).prop_map(|(peer, bytes)| Step::Window(peer, bytes)),
        4 => (peer, 0..30_000_usize).prop_map(|(peer, bytes)| Step::Take(peer, bytes)),
        1 => (0..2_000_u64).prop_map(Step::Settle),
    ]
}

struct Pair {
    test_shard: TestShard,
    keys: Vec<Key>,
    /// By peer and topic: what it must get, and whether it is a member.
    must: HashMap<(usize, usize), (Vec<u32>, bool)>,
    got: HashMap<(usize, usize), Vec<u32>>,
    number: u32,
}

fn read(text: &str) -> Option<(usize, u32)> {
    let (_, number) = text.split_once("\"#")?;
    let number = number.split(|it: char| !it.is_ascii_digit()).next()?.parse().ok()?;
    Some((usize::from(text.contains(TOPICS[1])), number))
}

impl Pair {
    fn new() -> Self {
        // An interceptor pushes what it gets unchanged; publishers are held early.
        let passing = scripted(|ctx, heard| match heard {
            ChannelCall::Out(event, payload) => {
                ctx.push(event, payload);
                Outcome::NoReply
            }
            other => standard(ctx, other),
        });
        let user_sockets = vec![
            scripted(standard).user_socket(),
            passing.intercepting(&["odd", "news"]).user_socket(),
        ];
        let config = Config {
            mailbox_bytes_max: 120 << 10,
            outbound_bytes_max: 80 << 10,
            ..Config::default()
        };
        let mut test_shard = TestShard::with(config, user_sockets);
        let keys = (0..PEERS).map(|peer| Self::open(&mut test_shard, peer)).collect();
        Self { test_shard, keys, must: HashMap::new(), got: HashMap::new(), number: 0 }
    }

    fn open(test_shard: &mut TestShard, peer: usize) -> Key {
        let (user_socket, wire) =
            [(0, Wire::V2), (0, Wire::V1), (1, Wire::V2), (0, Wire::Values), (1, Wire::V1)]
                [peer % 5];
        let key = test_shard.out.connect(Phase::Connecting, wire);
        test_shard.out.peer(key).socket.lead_to(user_socket, wire);
        test_shard.core.opened(&mut test_shard.out, key, SocketState::default());
        key
    }

    fn next(&mut self) -> u32 {
        self.number += 1;
        self.number
    }

    fn sends(&mut self, peer: usize, topic: usize, event: &str, payload: &str) {
        let (key, topic) = (self.keys[peer], TOPICS[topic]);
        let text = match self.test_shard.out.peer(key).socket.wire() {
            Wire::V1 => {
                let refs = r#""ref":1,"join_ref":1"#;
                format!(r#"{{"topic":"{topic}","event":"{event}","payload":{payload},{refs}}}"#)
            }
            _ => format!(r#"[1,1,"{topic}","{event}",{payload}]"#),
        };
        self.test_shard.sends(key, &text);
    }

    fn is_member(&self, peer: usize, topic: usize) -> bool {
        self.must.get(&(peer, topic)).is_some_and(|(_, is_member)| *is_member)
    }

    /// A broadcast is for all members, except perhaps one.
    fn is_for_all(&mut self, number: u32, topic: usize, but: Option<usize>) {
        for ((peer, at), (list, is_member)) in &mut self.must {
            if *at == topic && *is_member && Some(*peer) != but {
                list.push(number);
            }
        }
    }

    fn take(&mut self, step: &Step) {
        match *step {
            Step::Join(peer, topic) => {
                self.sends(peer, topic, "phx_join", "{}");
                self.must.entry((peer, topic)).or_default().1 = true;
            }
            Step::Leave(peer, topic) => {
                self.sends(peer, topic, "phx_leave", "{}");
                self.must.entry((peer, topic)).or_default().1 = false;
            }
            Step::Go(peer) => {
                self.read();
                self.test_shard.disconnects(self.keys[peer]);
                self.keys[peer] = Self::open(&mut self.test_shard, peer);
                for topic in 0..TOPICS.len() {
                    let (must, _) = self.must.remove(&(peer, topic)).unwrap_or_default();
                    let got = self.got.remove(&(peer, topic)).unwrap_or_default();
                    assert!(must.starts_with(&got), "{peer} must get {must:?}, got {got:?}");
                }
            }
            Step::Echo(peer, topic) => {
                let number = self.next();
                self.sends(peer, topic, "echo", &format!("\"#{number}\""));
                if self.is_member(peer, topic) {
                    self.must.get_mut(&(peer, topic)).unwrap().0.push(number);
                }
            }
            Step::Broadcast { topic, is_long } => {
                let number = self.next();
                let event = if number % 2 == 1 { "odd" } else { "even" };
                let rest = "x".repeat(if is_long { LONG } else { 0 });
                let payload = Payload::from_json(format!("\"#{number}{rest}\""));
                let broadcast = Broadcast::new(TOPICS[topic], event, payload);
                if self.test_shard.node.broadcast(broadcast).is_ok() {
                    self.test_shard.handles_mail();
                    self.is_for_all(number, topic, None);
                }
            }
            Step::Publish { peer, topic, is_from } => {
                if !self.is_member(peer, topic) {
                    return;
                }
                let number = self.next();
                let event = if is_from { "bcast_from" } else { "bcast" };
                self.sends(peer, topic, event, &format!("\"#{number}\""));
                self.is_for_all(number, topic, is_from.then_some(peer));
            }
            Step::Slice(looks) => {
                self.test_shard.out.step_ns = 400_000 / looks;
                self.test_shard.core.fan_out(&mut self.test_shard.out);
                self.test_shard.out.step_ns = 0;
            }
            Step::Turn => self.test_shard.out.end_turn(),
            Step::Window(peer, bytes) => self.test_shard.out.peer(self.keys[peer]).window = bytes,
            Step::Take(peer, bytes) => self.peer_takes(peer, bytes),
            Step::Settle(ms) => {
                self.test_shard.advances(Duration::from_millis(ms));
                self.test_shard.core.settle(&mut self.test_shard.out);
            }
        }
    }

    fn peer_takes(&mut self, peer: usize, bytes: usize) {
        let key = self.keys[peer];
        if self.test_shard.out.peer(key).takes_more(bytes) {
            self.test_shard.core.drained(&self.test_shard.out, key);
        }
    }

    fn read(&mut self) {
        for (peer, key) in self.keys.iter().enumerate() {
            for text in self.test_shard.out.peer(*key).received() {
                if let Some((topic, number)) = read(&text) {
                    self.got.entry((peer, topic)).or_default().push(number);
                }
            }
        }
    }

    /// The marked members are the counted ones.
    fn check(&self) {
        let registry = &self.test_shard.core.registry;
        for topic in TOPICS.iter().filter_map(|topic| registry.topic(registry.find(topic)?)) {
            let members = (0..topic.len()).map(|at| topic.member_at(at).unwrap().membership());
            let behind = members.filter(|id| registry.member(*id).unwrap().is(BEHIND)).count();
            assert_eq!(topic.deliveries.behind as usize, behind);
        }
    }

    fn end(mut self) {
        for _ in 0..2 {
            self.test_shard.fans_out();
            for peer in 0..PEERS {
                self.test_shard.out.peer(self.keys[peer]).window = usize::MAX;
                self.peer_takes(peer, usize::MAX);
            }
        }
        self.check();
        self.test_shard.core.settle(&mut self.test_shard.out);
        self.read();
        for (member, (must, _)) in &self.must {
            let got = self.got.get(member).map_or(&[][..], Vec::as_slice);
            assert_eq!(got, must, "{member:?}");
        }
        assert_eq!(self.test_shard.node.charged(0), 0, "bytes charged are bytes done");
        for key in &self.keys {
            assert!(!self.test_shard.out.is_held(*key), "nobody is held for what is done");
        }
        self.keys.clone().into_iter().for_each(|key| self.test_shard.disconnects(key));
        let metrics = self.test_shard.core.metrics;
        assert_eq!((metrics.topics.value(), metrics.fanout_topics.value()), (0, 0));
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 64,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn members_get_what_is_broadcast_while_they_are_members_once_and_in_order(
        steps in prop::collection::vec(step(), 1..120)
    ) {
        let mut pair = Pair::new();
        (0..PEERS).for_each(|peer| pair.take(&Step::Join(peer, peer % 2)));
        for step in &steps {
            pair.take(step);
            pair.check();
        }
        pair.end();
    }
}
