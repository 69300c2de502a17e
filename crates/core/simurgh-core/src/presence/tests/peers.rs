//! Homes of one topic on several nodes, whose messages arrive late or never. The simulator checks
//! that all nodes agree in the end, whatever is lost, doubled or comes in another order.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::Value;
use simurgh_channel::{PresenceCall, PresenceConfig};
use simurgh_presence::{Meta, Owner};

use crate::presence::home::{Home, MemberCall};
use crate::presence::output::Output;
use crate::*;
use simurgh_presence::{FromPeers, ToPeers};

const TOPIC: &str = "t";
const MILLISECOND: u64 = 1_000_000;

/// The keys of the last list that a member received.
type Listed = Option<Vec<String>>;

fn receive(listed: &mut Listed, event: &str, json: &str) {
    if event == "presence_state" {
        let list: BTreeMap<String, Value> = serde_json::from_str(json).unwrap();
        *listed = Some(list.into_keys().collect());
    }
}

struct Node {
    owner: Owner,
    home: Home,
    channels: BTreeMap<u32, Listed>,
}

impl Node {
    fn new(owner: u64) -> Self {
        let home = Home::new(Owner(owner), 0, true, owner);
        Self { owner: Owner(owner), home, channels: BTreeMap::new() }
    }
}

/// A message in flight: when, to which node, what.
type Sent = (u64, usize, FromPeers);

struct Scenario {
    nodes: Vec<Node>,
    sent: Vec<Sent>,
    now_ns: u64,
    loses_all: bool,
    config: PresenceConfig,
}

fn channel(membership: u32) -> ChannelId {
    ChannelId { shard: 0, membership, generation: 1 }
}

impl Scenario {
    fn new() -> Self {
        let nodes = (1..=3).map(|n| Node::new(n << 16)).collect();
        let config = PresenceConfig::default();
        Self { nodes, sent: Vec::new(), now_ns: 1, loses_all: false, config }
    }

    fn send(&mut self, to: usize, what: FromPeers) {
        if !self.loses_all {
            self.sent.push((self.now_ns + 20 * MILLISECOND, to, what));
        }
    }

    fn send_to(&mut self, owner: Owner, what: FromPeers) {
        if let Some(to) = self.at(owner) {
            self.send(to, what);
        }
    }

    fn others(&self, at: usize) -> Vec<usize> {
        (0..self.nodes.len()).filter(|it| *it != at).collect()
    }

    fn at(&self, owner: Owner) -> Option<usize> {
        self.nodes.iter().position(|it| it.owner == owner)
    }

    fn passes_on(&mut self, at: usize) {
        let me = self.nodes[at].owner;
        for (topic, what) in self.nodes[at].home.take_outbox() {
            assert_eq!(&*topic, TOPIC);
            match what {
                ToPeers::Begin => self.asks(at),
                ToPeers::End => {}
                ToPeers::Delta(delta) => {
                    for to in self.others(at) {
                        self.send(to, FromPeers::Delta(delta.clone()));
                    }
                }
                ToPeers::RequestState(owner) => self.send_to(owner, FromPeers::StateWanted(me)),
                ToPeers::State(owner, state) => self.send_to(owner, FromPeers::State(state)),
            }
        }
    }

    fn asks(&mut self, at: usize) {
        let others = self.others(at);
        let owners: Arc<[Owner]> = others.iter().map(|it| self.nodes[*it].owner).collect();
        let (asked, now_ns) = (FromPeers::Requested(owners), self.now_ns);
        self.nodes[at].home.peers_message(TOPIC, asked, &self.config, now_ns);
        let me = self.nodes[at].owner;
        for to in others {
            self.send(to, FromPeers::StateWanted(me));
        }
    }

    fn call(&mut self, at: usize, membership: u32, call: PresenceCall) {
        let node = &mut self.nodes[at];
        let call = MemberCall::uncharged(channel(membership), call);
        node.home.call(TOPIC, call, &self.config, self.now_ns);
    }

    fn advances(&mut self, milliseconds: u64) {
        self.now_ns += milliseconds * MILLISECOND;
        let now_ns = self.now_ns;
        let (mut due, later): (Vec<Sent>, _) =
            std::mem::take(&mut self.sent).into_iter().partition(|(at_ns, ..)| *at_ns <= now_ns);
        self.sent = later;
        due.sort_by_key(|(at_ns, ..)| *at_ns);
        for (_, to, what) in due {
            let from = match &what {
                FromPeers::Delta(it) => Some(it.owner),
                FromPeers::State(it) => Some(it.owner),
                _ => None,
            };
            // Nothing of a node that is gone is passed on any more.
            if from.is_none_or(|it| self.at(it).is_some()) {
                self.nodes[to].home.peers_message(TOPIC, what, &self.config, now_ns);
            }
            self.passes_on(to);
        }
        for at in 0..self.nodes.len() {
            self.tells(at);
        }
    }

    fn tells(&mut self, at: usize) {
        let (config, now_ns) = (self.config.clone(), self.now_ns);
        let Node { home, channels, .. } = &mut self.nodes[at];
        home.go_on_forgetting(&config, now_ns);
        while let Some(topic) = home.take_due(now_ns) {
            for say in home.tell(&topic, &config, 1 << 20, now_ns) {
                match say {
                    Output::All(event, json) => {
                        channels.values_mut().for_each(|it| receive(it, event, &json));
                    }
                    Output::Some(events, who) | Output::Again(events, who) => {
                        for member in who {
                            if let Some(it) = channels.get_mut(&member.membership) {
                                events.iter().for_each(|(event, json)| receive(it, event, json));
                            }
                        }
                    }
                    other => panic!("{other:?}"),
                }
            }
        }
        self.passes_on(at);
    }
}

#[test]
fn first_list_of_a_topic_contains_members_of_other_nodes() {
    let mut world = Scenario::new();
    let join = |world: &mut Scenario, at: usize, member: u32| {
        world.nodes[at].channels.insert(member, None);
        world.nodes[at].home.begin(TOPIC, &PresenceConfig::default(), world.now_ns);
        let meta = Meta::parse("{}").unwrap();
        world.call(at, member, PresenceCall::PushState);
        world.call(at, member, PresenceCall::Track(format!("m{member}").into(), meta, None));
        world.passes_on(at);
    };
    join(&mut world, 0, 1);
    // Nodes 1 and 2 answer that they have no presences.
    (0..30).for_each(|_| world.advances(10));
    assert_eq!(world.nodes[0].channels[&1].as_deref(), Some(&["m1".to_owned()][..]));
    join(&mut world, 1, 2);
    world.advances(1);
    assert_eq!(world.nodes[1].channels[&2], None, "answers are missing");
    (0..15).for_each(|_| world.advances(10));
    let listed = world.nodes[1].channels[&2].clone().expect("all have answered");
    assert_eq!(listed, ["m1", "m2"]);
    world.loses_all = true;
    join(&mut world, 2, 3);
    (0..29).for_each(|_| world.advances(10));
    assert_eq!(world.nodes[2].channels[&3], None);
    (0..2).for_each(|_| world.advances(10));
    assert_eq!(world.nodes[2].channels[&3].clone().expect("300 ms are over"), ["m3"]);
}

#[test]
fn list_from_outside_contains_members_of_other_nodes() {
    let mut world = Scenario::new();
    world.nodes[0].channels.insert(1, None);
    world.nodes[0].home.begin(TOPIC, &PresenceConfig::default(), world.now_ns);
    let meta = Meta::parse("{}").unwrap();
    world.call(0, 1, PresenceCall::Track("far".into(), meta, None));
    (0..40).for_each(|_| world.advances(10));
    let (config, now_ns) = (PresenceConfig::default(), world.now_ns);
    let home = &mut world.nodes[1].home;
    assert!(home.list(TOPIC, Box::new(|_| ()), &config, now_ns).is_none(), "nobody is here");
    world.passes_on(1);
    let mut told = Vec::new();
    for _ in 0..20 {
        world.now_ns += 10 * MILLISECOND;
        let now_ns = world.now_ns;
        for (_, to, what) in std::mem::take(&mut world.sent) {
            world.nodes[to].home.peers_message(TOPIC, what, &config, now_ns);
            world.passes_on(to);
        }
        while let Some(topic) = world.nodes[1].home.take_due(now_ns) {
            told.extend(world.nodes[1].home.tell(&topic, &config, 1 << 20, now_ns));
        }
    }
    let [.., Output::Answer(_, list), Output::All("presence_diff", forgotten)] = &told[..] else {
        panic!("{told:?}")
    };
    assert_eq!((list.entries, list.keys), (1, 1));
    assert!(forgotten.starts_with(r#"{"joins":{},"#), "{forgotten}");
    assert!(world.nodes[1].home.is_empty(), "nothing is kept for whoever has asked");
}

/// Sends what is due. Returns the versions of the deltas for other nodes.
fn take_deltas(home: &mut Home, config: &PresenceConfig, now_ns: u64) -> Vec<(u64, u64)> {
    while let Some(topic) = home.take_due(now_ns) {
        home.tell(&topic, config, 1 << 20, now_ns);
    }
    let deltas = home.take_outbox().into_iter().filter_map(|(_, what)| match what {
        ToPeers::Delta(delta) => Some((delta.from, delta.to)),
        _ => None,
    });
    deltas.collect()
}

#[test]
fn delta_that_precedes_a_requested_state_is_repeated() {
    let (mut home, config) = (Home::new(Owner(7), 0, true, 7), PresenceConfig::default());
    let at_ns = |second: u64| 1 + second * 1_000 * MILLISECOND;
    home.begin(TOPIC, &config, at_ns(0));
    let track = PresenceCall::Track("k".into(), Meta::parse("{}").unwrap(), None);
    home.call(TOPIC, MemberCall::uncharged(channel(1), track), &config, at_ns(0));
    // The version of the join is not repeated any more.
    for second in 0..40 {
        take_deltas(&mut home, &config, at_ns(second));
    }
    home.call(TOPIC, MemberCall::uncharged(channel(1), PresenceCall::End), &config, at_ns(40));
    home.peers_message(TOPIC, FromPeers::StateWanted(Owner(9)), &config, at_ns(40));
    let mut sent = Vec::new();
    for second in 40..80 {
        sent.extend(take_deltas(&mut home, &config, at_ns(second)));
    }
    assert_eq!(sent, [(1, 2), (2, 2), (2, 2), (2, 2)]);
    assert!(home.is_empty());
}
