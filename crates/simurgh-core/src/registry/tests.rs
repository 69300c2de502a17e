//! The registry against what it promises: by hand, and against a model.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use simurgh_proto::message::OwnedRef;

use super::*;
use crate::outcome::Outcome;
use crate::testing::scripted;

/// Deliveries of which nothing is ever under way, unless a test says so.
#[derive(Default)]
pub(super) struct Nothing {
    pub(super) is_busy: bool,
    pub(super) has_room: bool,
    head: u32,
}

impl Deliveries for Nothing {
    fn head(&self) -> u32 {
        self.head
    }

    fn is_idle(&self) -> bool {
        !self.is_busy
    }

    fn shrink(&mut self) -> bool {
        std::mem::take(&mut self.has_room)
    }
}

fn registry() -> (Registry<Nothing>, Arc<ShardMetrics>) {
    let metrics = Arc::<ShardMetrics>::default();
    (Registry::new(Arc::clone(&metrics), 7), metrics)
}

fn key(socket: usize) -> Key {
    Key { slot: socket as u32, generation: 9 }
}

fn channel(flags: u16) -> Subscriber {
    let holds = Holds::Channel(Box::new(scripted(|_, _| Outcome::NoReply)));
    Subscriber { holds, join_ref: OwnedRef::NULL, through_channel: false, flags }
}

fn join(registry: &mut Registry<Nothing>, list: &mut List, socket: usize, topic: &str) -> u32 {
    registry.subscribe(list, key(socket), topic, channel(0)).ok().unwrap()
}

/// Whether fewer memberships or fewer members are to be looked through; ids and further topics are
/// no channels.
#[test]
fn a_channel_is_found_by_its_socket_and_topic() {
    let (mut registry, _) = registry();
    let (mut one, mut two, mut three) = (List::default(), List::default(), List::default());
    let relay = Subscriber::through(Holds::Relay(0), RELAY);
    registry.subscribe(&mut one, key(1), "a", relay).ok().unwrap();
    let itself = Subscriber::through(Holds::NOTHING, SOCKET_ID);
    registry.subscribe(&mut one, key(1), "a", itself).ok().unwrap();
    let one_a = join(&mut registry, &mut one, 1, "a");
    let one_b = join(&mut registry, &mut one, 1, "b");
    let two_a = join(&mut registry, &mut two, 2, "a");
    let (a, b) = (registry.find("a").unwrap(), registry.find("b").unwrap());
    // One member and two channels; then more members than channels.
    assert_eq!(registry.joined_in(key(1), one, b), Some(one_b));
    assert_eq!(registry.joined_in(key(1), one, a), Some(one_a));
    assert_eq!(registry.joined_in(key(2), two, a), Some(two_a));
    assert_eq!(registry.joined_in(key(2), two, b), None);
    assert_eq!(registry.joined_in(key(3), three, a), None);
    // More channels than members, of whom one is no channel: the members are looked through.
    let three_a = join(&mut registry, &mut three, 3, "a");
    for topic in ["c", "d", "e", "f", "g"] {
        join(&mut registry, &mut three, 3, topic);
    }
    assert_eq!(registry.joined_in(key(3), three, a), Some(three_a));
    assert_eq!(registry.joined_in(key(3), three, b), None);
    registry.leave(&mut three, three_a);
    let itself = Subscriber::through(Holds::NOTHING, SOCKET_ID);
    registry.subscribe(&mut three, key(3), "a", itself).ok().unwrap();
    assert_eq!(registry.joined_in(key(3), three, a), None, "the socket itself is no channel");
    assert_eq!(registry.joined_in(key(3), three, TopicId::default()), None);
}

#[test]
fn a_relay_is_found_by_its_channel_and_topic() {
    let (mut registry, _) = registry();
    let mut list = List::default();
    let first = join(&mut registry, &mut list, 1, "t");
    let second = join(&mut registry, &mut list, 1, "u");
    let mut relay = |list: &mut List, channel: u32, topic: &str| {
        let relay = Subscriber::through(Holds::Relay(channel), RELAY);
        registry.subscribe(list, key(1), topic, relay).ok().unwrap()
    };
    let relays =
        [relay(&mut list, first, "x"), relay(&mut list, second, "x"), relay(&mut list, first, "y")];
    assert_eq!(registry.relay(list, first, "x"), Some(relays[0]));
    assert_eq!(registry.relay(list, second, "x"), Some(relays[1]));
    assert_eq!(registry.relay(list, first, "y"), Some(relays[2]));
    assert_eq!(registry.relay(list, second, "y"), None);
    assert_eq!(registry.relay(list, first, "t"), None, "its own topic");
    assert_eq!(registry.relay(list, first, "z"), None, "no topic");
    let it = registry.member(relays[1]).unwrap();
    assert_eq!((it.relay_for(), it.is_joined()), (Some(second), false));
    assert_eq!(registry.member(first).unwrap().relay_for(), None);
    registry.wake(first);
    assert_eq!(registry.member(first).unwrap().relay_for(), None, "a callback of it runs");
}

#[test]
fn whoever_leaves_leaves_what_is_to_be_done() {
    let (mut registry, metrics) = registry();
    let mut list = List::default();
    let counted = registry.subscribe(&mut list, key(1), "t", channel(COUNTED)).ok().unwrap();
    let plain = join(&mut registry, &mut list, 1, "t");
    assert!(registry.mark(plain, BEHIND, true));
    let left = registry.leave(&mut list, counted).unwrap();
    assert_eq!((left.counted.as_deref(), left.was_behind), (Some("t"), false));
    assert!(left.channel.is_some());
    assert_eq!(left.topic, registry.find("t").unwrap());
    assert!(registry.leave(&mut list, counted).is_none(), "it has left");
    assert_eq!((registry.ended(), list.channels(), metrics.channels.value()), (1, 1, 1));
    let taken = registry.wake(plain);
    let left = registry.leave(&mut list, plain).unwrap();
    assert!(left.counted.is_none() && left.was_behind);
    assert!(taken.is_some() && left.channel.is_none(), "a callback has it");
    registry.close_if_empty(left.topic);
    assert_eq!((registry.topics(), registry.topic_places(), metrics.topics.value()), (0, 1, 0));
}

#[test]
fn a_mark_is_news_once() {
    let (mut registry, _) = registry();
    let mut list = List::default();
    let id = join(&mut registry, &mut list, 1, "t");
    assert!(registry.mark(id, BEHIND, true) && !registry.mark(id, BEHIND, true));
    assert!(registry.mark(id, HAS_RELAYS, true), "marks do not touch each other");
    assert!(registry.mark(id, BEHIND, false) && !registry.mark(id, BEHIND, false));
    assert!(
        registry.member(id).unwrap().is(HAS_RELAYS) && !registry.member(id).unwrap().is(BEHIND)
    );
    assert!(!registry.mark(id + 1, BEHIND, true) && !registry.mark(id + 1, BEHIND, false));
}

#[test]
fn a_channel_is_taken_out_for_its_callbacks() {
    let (mut registry, metrics) = registry();
    let mut list = List::default();
    let id = join(&mut registry, &mut list, 1, "t");
    let channel = registry.wake(id).unwrap();
    assert!(registry.wake(id).is_none() && registry.member(id).unwrap().channel().is_none());
    registry.put_back(id, channel);
    assert!(registry.member(id).unwrap().channel().is_some());
    assert!(registry.send_to_sleep(id).is_none() && registry.send_to_sleep(id).is_some());
    assert_eq!((metrics.channels_hibernating.value(), registry.awake()), (1, 0));
    assert!(registry.send_to_sleep(id).is_none(), "it sleeps");
    let channel = registry.wake(id).unwrap();
    assert_eq!((metrics.channels_hibernating.value(), registry.awake()), (0, 1));
    registry.put_back(id, channel);
    let itself = Subscriber::through(Holds::NOTHING, SOCKET_ID);
    let itself = registry.subscribe(&mut list, key(1), "id", itself).ok().unwrap();
    assert!((0..3).all(|_| registry.send_to_sleep(itself).is_none()));
    assert_eq!(registry.awake(), 1, "the socket itself is nobody to sleep");
    registry.send_to_sleep(id);
    registry.send_to_sleep(id);
    registry.leave(&mut list, id);
    assert_eq!((metrics.channels_hibernating.value(), registry.awake()), (0, 0));
}

#[test]
fn who_is_asked_for_by_an_old_name_is_not_there() {
    let (mut registry, _) = registry();
    let mut list = List::default();
    let id = join(&mut registry, &mut list, 1, "t");
    let topic = registry.find("t").unwrap();
    let generation = registry.member(id).unwrap().generation;
    let is = |registry: &mut Registry<Nothing>, generation| {
        registry.topic_and_members(topic).unwrap().1.is(id, generation)
    };
    assert!(is(&mut registry, generation) && !is(&mut registry, generation + 1));
    registry.leave(&mut list, id);
    assert!(!is(&mut registry, generation));
    assert_eq!(join(&mut registry, &mut list, 1, "t"), id);
    assert!(!is(&mut registry, generation) && is(&mut registry, generation + 1));
    assert!(id < registry.end());
}

#[test]
fn a_topic_gives_back_what_it_does_not_use() {
    let (mut registry, _) = registry();
    let mut list = List::default();
    let ids: Vec<u32> = (0..9).map(|_| join(&mut registry, &mut list, 1, "t")).collect();
    ids.iter().for_each(|id| assert!(registry.leave(&mut list, *id).is_some()));
    let topic = registry.find("t").unwrap();
    assert!(registry.shrink_topic(0) && !registry.shrink_topic(0), "once");
    registry.topic_mut(topic).unwrap().deliveries.has_room = true;
    assert!(registry.shrink_topic(0) && !registry.shrink_topic(0), "what is under way, too");
    registry.topic_mut(topic).unwrap().deliveries.has_room = true;
    registry.topic_mut(topic).unwrap().deliveries.is_busy = true;
    assert!(!registry.shrink_topic(0) && !registry.shrink_topic(1));
    join(&mut registry, &mut list, 1, "u");
    assert_eq!((registry.topics(), registry.topic_places()), (2, 2));
}

const SOCKETS: usize = 5;
const TOPICS: [&str; 3] = ["a", "b", "c"];
const KINDS: [u16; 4] = [0, COUNTED, RELAY, SOCKET_ID];

#[derive(Debug, Clone)]
enum Step {
    Subscribe { socket: usize, topic: usize, kind: usize, count: usize },
    Leave(usize),
    Mark(usize, bool),
    Sleep(usize),
    Wake(usize),
    Visit { topic: usize, count: usize },
    BeginRound(usize),
    Broadcast(usize),
    Busy(usize, bool),
    Shrink,
}

fn step() -> impl Strategy<Value = Step> {
    let (topic, any) = (0..TOPICS.len(), any::<usize>());
    prop_oneof![
        4 => (0..SOCKETS, topic.clone(), 0..KINDS.len(), 1..9_usize).prop_map(
            |(socket, topic, kind, count)| Step::Subscribe { socket, topic, kind, count }
        ),
        12 => any.prop_map(Step::Leave),
        2 => (any, proptest::bool::ANY).prop_map(|(at, on)| Step::Mark(at, on)),
        4 => any.prop_map(Step::Sleep),
        2 => any.prop_map(Step::Wake),
        4 => (topic.clone(), 1..9_usize).prop_map(|(topic, count)| Step::Visit { topic, count }),
        1 => topic.clone().prop_map(Step::BeginRound),
        1 => topic.clone().prop_map(Step::Broadcast),
        1 => (topic, proptest::bool::ANY).prop_map(|(topic, on)| Step::Busy(topic, on)),
        1 => Just(Step::Shrink),
    ]
}

/// What is known of a membership.
struct Known {
    socket: usize,
    topic: usize,
    kind: u16,
    generation: u32,
    cursor: u32,
    is_visited: bool,
    is_behind: bool,
    is_quiet: bool,
    sleeps: bool,
}

impl Known {
    fn is_channel(&self) -> bool {
        self.kind & (RELAY | SOCKET_ID) == 0
    }
}

/// The registry, and the same in the plainest way.
struct Pair {
    registry: Registry<Nothing>,
    metrics: Arc<ShardMetrics>,
    lists: [List; SOCKETS],
    all: BTreeMap<u32, Known>,
    /// By socket, the last to come first.
    order: [Vec<u32>; SOCKETS],
    heads: [u32; TOPICS.len()],
    busy: [bool; TOPICS.len()],
    names: BTreeSet<(u32, u32)>,
    ended: u64,
}

impl Pair {
    fn new() -> Self {
        let (registry, metrics) = registry();
        Self {
            registry,
            metrics,
            lists: Default::default(),
            all: BTreeMap::new(),
            order: Default::default(),
            heads: [0; TOPICS.len()],
            busy: [false; TOPICS.len()],
            names: BTreeSet::new(),
            ended: 0,
        }
    }

    fn pick(&self, at: usize) -> Option<u32> {
        self.all.keys().nth(at % self.all.len().max(1)).copied()
    }

    fn subscribe(&mut self, socket: usize, topic: usize, kind: u16) {
        let subscriber = match kind {
            RELAY | SOCKET_ID => Subscriber::through(Holds::Relay(1), kind),
            _ => channel(kind),
        };
        let list = &mut self.lists[socket];
        let entered = self.registry.subscribe(list, key(socket), TOPICS[topic], subscriber);
        let id = entered.ok().unwrap();
        let generation = self.registry.member(id).unwrap().generation;
        assert!(self.names.insert((id, generation)), "{id} {generation} was somebody else");
        if self.members(topic) == 0 && !self.busy[topic] {
            self.heads[topic] = 0;
        }
        let cursor = self.heads[topic];
        let (is_visited, is_behind, is_quiet, sleeps) = (false, false, false, false);
        self.all.insert(
            id,
            Known {
                socket,
                topic,
                kind,
                generation,
                cursor,
                is_visited,
                is_behind,
                is_quiet,
                sleeps,
            },
        );
        self.order[socket].insert(0, id);
    }

    fn members(&self, topic: usize) -> usize {
        self.all.values().filter(|it| it.topic == topic).count()
    }

    fn leave(&mut self, id: u32) {
        let known = self.all.remove(&id).unwrap();
        let left = self.registry.leave(&mut self.lists[known.socket], id).unwrap();
        assert_eq!(
            (left.was_behind, left.channel.is_some()),
            (known.is_behind, known.is_channel())
        );
        let counted = (known.kind == COUNTED).then_some(TOPICS[known.topic]);
        assert_eq!(left.counted.as_deref(), counted);
        self.registry.close_if_empty(left.topic);
        self.order[known.socket].retain(|it| *it != id);
        self.ended += 1;
    }

    fn change(&mut self, topic: usize, f: impl FnOnce(&mut Topic<Nothing>)) -> Option<TopicId> {
        let id = self.registry.find(TOPICS[topic])?;
        f(self.registry.topic_mut(id).unwrap());
        Some(id)
    }

    /// The hand's side of each is told by whom it visits: nobody twice in a round, nobody not.
    fn visit(&mut self, topic: usize, count: usize) {
        let head = self.heads[topic];
        let mut visited = Vec::new();
        self.change(topic, |it| visited.extend((0..count).map_while(|_| it.visit(head))));
        let is_round = visited.len() < count;
        for member in visited {
            let known = self.all.get_mut(&member.membership()).unwrap();
            assert_eq!((member.conn, member.cursor), (key(known.socket), known.cursor));
            assert_eq!(member.through_channel(), !known.is_channel());
            assert!(!std::mem::replace(&mut known.is_visited, true), "visited twice in a round");
            known.cursor = head;
        }
        let mut all = self.all.values().filter(|it| it.topic == topic);
        assert!(!is_round || all.all(|it| it.is_visited), "somebody was left out");
    }

    fn take(&mut self, step: &Step) {
        match *step {
            Step::Subscribe { socket, topic, kind, count } => {
                (0..count).for_each(|_| self.subscribe(socket, topic, KINDS[kind]));
            }
            Step::Leave(at) => self.pick(at).into_iter().for_each(|id| self.leave(id)),
            Step::Mark(at, on) => {
                let Some(id) = self.pick(at) else { return };
                let was = std::mem::replace(&mut self.all.get_mut(&id).unwrap().is_behind, on);
                assert_eq!(self.registry.mark(id, BEHIND, on), was != on);
            }
            Step::Sleep(at) => {
                let Some(id) = self.pick(at) else { return };
                let known = self.all.get_mut(&id).unwrap();
                let falls_asleep = known.is_channel() && known.is_quiet && !known.sleeps;
                known.is_quiet |= known.is_channel();
                known.sleeps |= falls_asleep;
                assert_eq!(self.registry.send_to_sleep(id).is_some(), falls_asleep);
            }
            Step::Wake(at) => {
                let Some(id) = self.pick(at) else { return };
                let known = self.all.get_mut(&id).unwrap();
                (known.is_quiet, known.sleeps) = (false, false);
                let channel = self.registry.wake(id);
                assert_eq!(channel.is_some(), known.is_channel());
                channel.into_iter().for_each(|it| self.registry.put_back(id, it));
            }
            Step::Visit { topic, count } => self.visit(topic, count),
            Step::BeginRound(topic) => {
                self.change(topic, Topic::begin_round);
                let all = self.all.values_mut();
                all.filter(|it| it.topic == topic).for_each(|it| it.is_visited = false);
            }
            Step::Broadcast(topic) => {
                let head = self.heads[topic] + 1;
                if self.change(topic, |it| it.deliveries.head = head).is_some() {
                    self.heads[topic] = head;
                }
            }
            Step::Busy(topic, on) => {
                let is_there = self.change(topic, |it| it.deliveries.is_busy = on);
                self.busy[topic] = on && is_there.is_some();
                is_there.into_iter().for_each(|id| self.registry.close_if_empty(id));
            }
            Step::Shrink => {
                for place in 0..TOPICS.len() {
                    self.registry.shrink_topic(place);
                }
            }
        }
    }

    fn check(&mut self) {
        let registry = &self.registry;
        for (socket, order) in self.order.iter().enumerate() {
            let list = self.lists[socket];
            let ids: Vec<u32> = registry.of(list).map(|(id, _)| id).collect();
            assert_eq!(&ids, order, "the list of {socket}");
            let before: Vec<u32> = registry.of(list).map(|(_, it)| it.previous).collect();
            let expected = std::iter::once(&NO_MEMBERSHIP).chain(order).take(order.len());
            assert_eq!(before, Vec::from_iter(expected.copied()), "and its way back");
            let channels = order.iter().filter(|id| self.all[id].is_channel()).count();
            assert_eq!(usize::from(list.channels()), channels);
        }
        for (id, known) in &self.all {
            let it = registry.member(*id).unwrap();
            let topic = registry.topic(it.topic).unwrap();
            let member = topic.member_at(it.at as usize).unwrap();
            assert_eq!((&*topic.name, it.generation), (TOPICS[known.topic], known.generation));
            assert_eq!((member.membership(), member.cursor), (*id, known.cursor));
            assert_eq!((member.conn, it.conn), (key(known.socket), key(known.socket)));
            assert_eq!(it.is(BEHIND), known.is_behind);
        }
        let channels = self.all.values().filter(|it| it.is_channel()).count();
        let asleep = self.all.values().filter(|it| it.sleeps).count();
        let metrics = &self.metrics;
        assert_eq!(metrics.subscriptions.value(), self.all.len() as u64);
        assert_eq!(metrics.channels.value(), channels as u64);
        assert_eq!(metrics.channels_hibernating.value(), asleep as u64);
        assert_eq!((registry.awake(), registry.ended()), (channels - asleep, self.ended));
        self.check_topics();
    }

    /// They are there while they have members or something is under way, and each is shown once.
    fn check_topics(&mut self) {
        let is_there = |topic: &usize| self.busy[*topic] || self.members(*topic) > 0;
        let expected: BTreeSet<&str> =
            (0..TOPICS.len()).filter(is_there).map(|it| TOPICS[it]).collect();
        let (mut seen, mut cursor) = (Vec::new(), 0);
        for _ in 0..TOPICS.len() {
            let show = |id, it: &mut Topic<_>| seen.push((it.name.to_string(), id, it.len()));
            self.registry.visit_topics(&mut cursor, 1, show);
            if cursor == 0 {
                break;
            }
        }
        let names: BTreeSet<&str> = seen.iter().map(|(name, ..)| &**name).collect();
        assert_eq!((&names, names.len()), (&expected, seen.len()));
        for (name, id, len) in &seen {
            let topic = TOPICS.iter().position(|it| it == name).unwrap();
            assert_eq!((self.registry.find(name), self.members(topic)), (Some(*id), *len));
        }
        assert_eq!(self.registry.topics(), expected.len());
        assert_eq!(self.metrics.topics.value(), expected.len() as u64);
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 48,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn tables_and_lists_and_counters_agree_whatever_happens(
        steps in prop::collection::vec(step(), 1..120)
    ) {
        let mut pair = Pair::new();
        for step in &steps {
            pair.take(step);
            pair.check();
        }
    }
}
