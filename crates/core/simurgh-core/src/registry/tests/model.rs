//! The registry beside a model of it: operations on both, and what must be equal after each.
//!
//! Tests draw operations with proptest; the fuzz target `registry` reads them from its input.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test, also where the fuzzer runs it")]

use std::collections::{BTreeMap, BTreeSet};

use simurgh_channel::{Outcome, ShardContext};
use simurgh_proto::message::{OwnedRef, Payload};

use super::*;

struct Silent;

impl ShardChannel for Silent {
    fn handle_in(&mut self, _: &mut ShardContext<'_>, _: &str, _: Payload<'_>) -> Outcome {
        Outcome::NoReply
    }
}

/// Deliveries without broadcasts in flight, unless a test sets some.
#[derive(Default)]
pub(super) struct Nothing {
    pub(super) is_busy: bool,
    pub(super) has_room: bool,
    pub(super) head: u32,
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

pub(super) fn registry() -> (Registry<Nothing>, Arc<ShardMetrics>) {
    let metrics = Arc::<ShardMetrics>::default();
    (Registry::new(Arc::clone(&metrics), 0, 7), metrics)
}

pub(super) fn key(socket: usize) -> Key {
    Key { slot: socket as u32, generation: 9 }
}

pub(super) const SOCKETS: usize = 5;
pub(super) const TOPICS: [&str; 3] = ["a", "b", "c"];
pub(super) const KINDS: [u16; 4] = [0, COUNTED, RELAY, SOCKET_ID];

#[derive(Debug, Clone)]
pub(super) enum Step {
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

#[derive(Default)]
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

pub(super) struct Pair {
    registry: Registry<Nothing>,
    metrics: Arc<ShardMetrics>,
    lists: [List; SOCKETS],
    all: BTreeMap<u32, Known>,
    order: [Vec<u32>; SOCKETS],
    heads: [u32; TOPICS.len()],
    busy: [bool; TOPICS.len()],
    names: BTreeSet<(u32, u32)>,
    ended: u64,
}

impl Pair {
    pub(super) fn new() -> Self {
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
            _ => Subscriber {
                holds: Holds::Channel(Box::new(Silent)),
                join_ref: OwnedRef::NULL,
                via_channel: false,
                flags: kind,
            },
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
        let known = Known { socket, topic, kind, generation, cursor, ..Known::default() };
        self.all.insert(id, known);
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

    /// The cursor visits each member exactly once in a pass.
    fn visit(&mut self, topic: usize, count: usize) {
        let head = self.heads[topic];
        let mut visited = Vec::new();
        self.change(topic, |it| visited.extend((0..count).map_while(|_| it.visit(head))));
        let is_round = visited.len() < count;
        for member in visited {
            let known = self.all.get_mut(&member.membership()).unwrap();
            assert_eq!((member.conn, member.cursor), (key(known.socket), known.cursor));
            assert_eq!(member.is_apart(), !known.is_channel());
            assert!(!std::mem::replace(&mut known.is_visited, true), "visited twice in a round");
            known.cursor = head;
        }
        let mut all = self.all.values().filter(|it| it.topic == topic);
        assert!(!is_round || all.all(|it| it.is_visited), "somebody was left out");
    }

    pub(super) fn take(&mut self, step: &Step) {
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
                self.change(topic, Topic::begin_pass_at_first);
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
                    self.registry.topics.shrink(place);
                }
            }
        }
    }

    pub(super) fn check(&mut self) {
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

    /// Topics exist while they have members or something in flight, and each is shown once.
    fn check_topics(&mut self) {
        let is_there = |topic: &usize| self.busy[*topic] || self.members(*topic) > 0;
        let expected: BTreeSet<&str> =
            (0..TOPICS.len()).filter(is_there).map(|it| TOPICS[it]).collect();
        let (mut seen, mut cursor) = (Vec::new(), 0);
        for _ in 0..TOPICS.len() {
            let show = |id, it: &mut Topic<_>| seen.push((it.name.to_string(), id, it.len()));
            self.registry.topics.visit(&mut cursor, 1, show);
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
        assert_eq!(self.registry.topics.len(), expected.len());
        assert_eq!(self.metrics.topics.value(), expected.len() as u64);
    }
}

/// Operations of the fuzzer: a byte chooses the operation, two or three more its arguments.
fn read(data: &mut std::slice::Iter<'_, u8>) -> Option<Step> {
    let kind = data.next()?;
    let mut next = || data.next().map(|byte| usize::from(*byte));
    let (at, more) = (next()?, next()?);
    let topic = at % TOPICS.len();
    Some(match kind % 10 {
        0 => Step::Subscribe {
            socket: at % SOCKETS,
            topic: more % TOPICS.len(),
            kind: more / 8 % KINDS.len(),
            count: 1 + next()? % 64,
        },
        1 => Step::Leave(at << 8 | more),
        2 => Step::Mark(at, more % 2 == 0),
        3 => Step::Sleep(at << 8 | more),
        4 => Step::Wake(at << 8 | more),
        5 => Step::Visit { topic, count: 1 + more },
        6 => Step::BeginRound(topic),
        7 => Step::Broadcast(topic),
        8 => Step::Busy(topic, more % 2 == 0),
        _ => Step::Shrink,
    })
}

/// Carries out the operations of a fuzzer's input, at most some hundreds of them.
#[allow(unreachable_pub, reason = "the fuzz target calls it")]
pub fn run(data: &[u8]) {
    let (mut pair, mut data) = (Pair::new(), data.iter());
    for _ in 0..400 {
        let Some(step) = read(&mut data) else { break };
        pair.take(&step);
        pair.check();
    }
}
