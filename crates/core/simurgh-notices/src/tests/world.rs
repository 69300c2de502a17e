//! Several nodes, their broker, a back end and everything between them, which fail by a seed.

use std::collections::{BTreeMap, BTreeSet};

use fastrand::Rng;

use super::back_end::{BackEnd, DECIDED_MS};
use super::*;

/// Milliseconds after which a node is silent, and gone.
const SILENT_MS: u64 = 10_000;
pub(super) const GONE_MS: u64 = 30_000;
pub(super) const GRACE_MS: u64 = 5_000;
/// A report or append may be answered so late.
const LOST_MS: u64 = 2_000;
const STEP_MS: u64 = 25;
/// The types that the second hook wants: all but topics.
pub(super) const USERS: u8 =
    ALL & !(HookRule::bit(Kind::Topic, false) | HookRule::bit(Kind::Topic, true));

/// What a test breaks on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Plant {
    Nothing,
    /// An end is stored, and is not read by anybody.
    LostEnd,
    /// A start is stored twice, with another id.
    DoubleStart,
    /// Stays end at once.
    NoGrace,
    /// Records of all terms count.
    NoFence,
}

enum Message {
    Report { from: u64, to: u64, call: u64, report: Report },
    Answer { to: u64, partition: u8, call: u64, verdict: Option<Verdict> },
    Append { from: u64, partition: u8, entries: Vec<Entry> },
    AppendFailed { to: u64, partition: u8 },
    Delivered { from: u64, partition: u8, hook: usize, batch: Arc<Batch> },
    Outcome { to: u64, partition: u8, hook: usize, batch: Arc<Batch>, outcome: Outcome },
}

pub(super) struct Node {
    pub(super) notices: Notices,
    /// Memberships.
    pub(super) here: BTreeSet<Key>,
    /// Each other node, and when it was heard.
    heard: BTreeMap<u64, u64>,
    is_linked: bool,
    linked_ms: u64,
    pub(super) frozen_until_ms: u64,
    is_draining: bool,
    follows: BTreeMap<u8, Follow>,
}

/// A log that a node follows.
struct Follow {
    epoch: Epoch,
    /// How many of its records the node has read.
    read: usize,
    /// The place behind which the node reads them again.
    again: Option<u64>,
}

#[derive(Default)]
struct Log {
    records: Vec<(u64, Vec<u8>)>,
    removed: usize,
    last: u64,
}

pub(super) struct World {
    pub(super) rng: Rng,
    pub(super) ms: u64,
    plant: Plant,
    pub(super) nodes: BTreeMap<u64, Node>,
    last_node: u64,
    messages: BTreeMap<(u64, u64), Message>,
    sent: u64,
    logs: BTreeMap<u8, Log>,
    epoch: Epoch,
    is_broker_up: bool,
    /// One for each hook.
    pub(super) backs: [BackEnd; 2],
    /// Keys with memberships, and when others lost their last one.
    here: BTreeSet<Key>,
    /// When the last absence of a key ended, and how long it was, or one shortly before.
    pub(super) lasted: BTreeMap<Key, (u64, u64)>,
    pub(super) absent: BTreeMap<Key, u64>,
    /// Whether nothing has failed: then nothing is lost, and no stay ends early.
    pub(super) is_calm: bool,
    pub(super) events: u64,
    pub(super) met: BTreeMap<&'static str, u64>,
    pub(super) failure: Option<String>,
}

impl World {
    pub(super) fn new(seed: u64, nodes: u64, plant: Plant) -> Self {
        let mut world = Self {
            rng: Rng::with_seed(seed),
            ms: 1_000,
            plant,
            nodes: BTreeMap::new(),
            last_node: 0,
            messages: BTreeMap::new(),
            sent: 0,
            logs: BTreeMap::new(),
            epoch: Epoch::from_seed(seed),
            is_broker_up: true,
            backs: Default::default(),
            here: BTreeSet::new(),
            lasted: BTreeMap::new(),
            absent: BTreeMap::new(),
            is_calm: true,
            events: 0,
            met: BTreeMap::new(),
            failure: None,
        };
        (0..nodes).for_each(|_| world.start());
        world
    }

    fn time(&self) -> Time {
        at(self.ms)
    }

    pub(super) fn meet(&mut self, what: &'static str) {
        *self.met.entry(what).or_default() += 1;
    }

    pub(super) fn fail(&mut self, text: String) {
        let ms = self.ms;
        self.failure.get_or_insert_with(|| format!("{ms} ms: {text}"));
    }

    pub(super) fn start(&mut self) {
        self.last_node += 1;
        let id = self.last_node;
        let name = format!("n{id}");
        let grace_ms = if self.plant == Plant::NoGrace { 500 } else { GRACE_MS };
        let settings = Settings {
            grace_ns: grace_ms * MILLISECOND,
            window_bytes: 1 << self.rng.u8(9..13),
            hooks: vec![
                HookRule { batch: 10, ..HookRule::new("app", ALL) },
                HookRule::new("users", USERS),
            ],
            compacted: 8,
            ..settings()
        };
        let node = Node {
            notices: Notices::new((id, &name), settings, false, self.rng.u64(..)),
            here: BTreeSet::new(),
            heard: BTreeMap::new(),
            is_linked: true,
            linked_ms: self.ms,
            frozen_until_ms: 0,
            is_draining: false,
            follows: BTreeMap::new(),
        };
        self.nodes.insert(id, node);
    }

    fn any_node(&mut self) -> Option<u64> {
        let ids: Vec<u64> = self.nodes.keys().copied().collect();
        self.rng.choice(ids)
    }

    fn any_key(&mut self) -> Key {
        let (topic, user) = (self.rng.u8(..3), self.rng.u8(..4));
        let [topic, user] = [format!("t{topic}"), format!("u{user}")];
        match self.rng.u8(..4) {
            0 => Key::user_of(&user),
            1 => Key::member("t9", ""),
            _ => Key::member(&topic, &user),
        }
    }

    /// A member joins somewhere, or leaves.
    pub(super) fn change(&mut self) {
        let Some(id) = self.any_node() else { return };
        let (key, time) = (self.any_key(), self.time());
        let Some(node) = self.nodes.get_mut(&id).filter(|node| node.frozen_until_ms < self.ms)
        else {
            return;
        };
        if node.here.remove(&key) {
            node.notices.end(&key, Reason::Left, time);
        } else if !node.is_draining {
            node.here.insert(key.clone());
            node.notices.begin(key, time);
        }
        self.note_absent();
    }

    pub(super) fn join(&mut self, id: u64, key: &Key) {
        let time = self.time();
        if let Some(node) = self.nodes.get_mut(&id) {
            node.here.insert(key.clone());
            node.notices.begin(key.clone(), time);
        }
        self.note_absent();
    }

    /// Kills a node. Returns the keys of its memberships.
    pub(super) fn kill(&mut self, id: u64) -> BTreeSet<Key> {
        self.is_calm = false;
        let node = self.nodes.remove(&id);
        self.note_absent();
        node.map(|node| node.here).unwrap_or_default()
    }

    /// Notes which keys have no membership now.
    pub(super) fn note_absent(&mut self) {
        let mut here: BTreeSet<Key> = BTreeSet::new();
        for key in self.nodes.values().flat_map(|node| &node.here) {
            here.insert(key.clone());
            if key.kind() == Kind::Member {
                here.insert(Key::topic_of(key.topic()));
            }
        }
        for key in here.difference(&self.here) {
            let lasted_ms = self.absent.remove(key).map_or(0, |since_ms| self.ms - since_ms);
            let before = self.lasted.get(key).filter(|it| it.0 + DECIDED_MS > self.ms);
            let lasted_ms = lasted_ms.max(before.map_or(0, |it| it.1));
            self.lasted.insert(key.clone(), (self.ms, lasted_ms));
        }
        for key in self.here.iter().filter(|key| !here.contains(key)) {
            self.absent.insert(key.clone(), self.ms);
        }
        self.here = here;
    }

    /// Something breaks, or is mended.
    pub(super) fn break_something(&mut self) {
        let Some(id) = self.any_node() else { return };
        let kind = self.rng.u8(..12);
        self.is_calm = false;
        let ms = self.ms;
        let frozen_ms = ms + self.rng.u64(1_000..40_000);
        let count = self.nodes.len();
        let Some(node) = self.nodes.get_mut(&id) else { return };
        match kind {
            0 if count > 1 => {
                self.nodes.remove(&id);
                self.meet("killed");
            }
            1 | 2 if count < 7 => self.start(),
            3 => {
                node.frozen_until_ms = frozen_ms;
                self.meet("frozen");
            }
            4 | 5 => {
                node.is_linked = false;
                self.meet("cut off");
            }
            6 | 7 => self.mend_links(),
            8 => {
                self.is_broker_up = !self.is_broker_up;
                self.meet("broker");
            }
            9 if self.rng.u8(..4) == 0 => self.lose_logs(),
            10 => {
                let hook = self.rng.usize(..2);
                self.backs[hook].refuses = self.rng.u64(..=100);
                self.meet("back end");
            }
            11 if count > 1 => self.drain(id),
            _ => {}
        }
        self.note_absent();
    }

    fn mend_links(&mut self) {
        for node in self.nodes.values_mut().filter(|node| !node.is_linked) {
            (node.is_linked, node.linked_ms) = (true, self.ms);
        }
    }

    /// The broker returns without its data.
    fn lose_logs(&mut self) {
        self.logs.clear();
        self.epoch = Epoch::from_seed(self.rng.u64(..));
        self.meet("logs lost");
    }

    fn drain(&mut self, id: u64) {
        let time = self.time();
        let Some(node) = self.nodes.get_mut(&id) else { return };
        if std::mem::replace(&mut node.is_draining, true) {
            self.nodes.remove(&id);
            for other in self.nodes.values_mut() {
                // Its last message.
                other.heard.remove(&id);
            }
            return self.meet("bye");
        }
        for key in std::mem::take(&mut node.here) {
            node.notices.end(&key, Reason::Closed, time);
        }
        self.meet("drained");
    }

    pub(super) fn mend(&mut self) {
        self.mend_links();
        self.is_broker_up = true;
        self.backs.iter_mut().for_each(|back| back.refuses = 0);
        for node in self.nodes.values_mut() {
            node.frozen_until_ms = 0;
        }
        if self.nodes.values().all(|node| node.is_draining) {
            self.start();
        }
    }

    /// Lets time pass.
    pub(super) fn run(&mut self, ms: u64) {
        let until = self.ms + ms;
        while self.ms < until && self.failure.is_none() {
            self.ms += STEP_MS;
            self.beat();
            while let Some(entry) = self.messages.first_entry()
                && entry.key().0 <= self.ms
            {
                let message = entry.remove();
                self.receive(message);
            }
            let ids: Vec<u64> = self.nodes.keys().copied().collect();
            ids.into_iter().for_each(|id| self.turn(id));
            self.read_stays();
        }
    }

    /// Nodes hear each other, and judge.
    fn beat(&mut self) {
        let ms = self.ms;
        let heard = |node: &&Node| node.is_linked && node.frozen_until_ms < ms;
        let all: Vec<(u64, bool)> = self
            .nodes
            .iter()
            .filter(|(_, node)| heard(node) && self.is_broker_up)
            .map(|(id, node)| (*id, node.is_draining))
            .collect();
        let is_broker_up = self.is_broker_up;
        for (me, node) in &mut self.nodes {
            if node.frozen_until_ms >= ms {
                node.heard.values_mut().for_each(|heard_ms| *heard_ms += STEP_MS);
                continue;
            }
            if !node.is_linked || !is_broker_up || ms < node.linked_ms + SILENT_MS {
                // Nobody ages.
                node.heard.values_mut().for_each(|heard_ms| *heard_ms += STEP_MS);
            }
            if node.is_linked && is_broker_up {
                for (id, _) in all.iter().filter(|(id, _)| id != me) {
                    node.heard.insert(*id, ms);
                }
            }
            node.heard.retain(|_, heard_ms| *heard_ms + GONE_MS > ms);
            let peers = node.heard.iter().map(|(id, heard_ms)| {
                let is_draining = all.contains(&(*id, true));
                let is_candidate = *heard_ms + SILENT_MS > ms && !is_draining;
                let (id, name) = (*id, format!("n{id}").into());
                Peer { id, name, heard_ns: heard_ms * MILLISECOND, is_candidate }
            });
            node.notices.set_peers(peers.collect(), !node.is_draining, at(ms));
        }
    }

    fn send(&mut self, delay_ms: u64, message: Message) {
        self.sent += 1;
        self.messages.insert((self.ms + delay_ms, self.sent), message);
    }

    fn is_linked(&self, id: u64) -> bool {
        self.is_broker_up && self.nodes.get(&id).is_some_and(|node| node.is_linked)
    }

    /// A running node; what comes to a frozen one waits.
    fn awake(&mut self, id: u64, message: Message) -> Option<(&mut Notices, Message)> {
        let until_ms = self.nodes.get(&id)?.frozen_until_ms;
        if until_ms >= self.ms {
            self.send(until_ms + 1 - self.ms, message);
            return None;
        }
        Some((&mut self.nodes.get_mut(&id)?.notices, message))
    }

    fn receive(&mut self, message: Message) {
        self.events += 1;
        let time = self.time();
        let to = match &message {
            Message::Report { to, .. }
            | Message::Answer { to, .. }
            | Message::AppendFailed { to, .. }
            | Message::Outcome { to, .. } => *to,
            Message::Append { .. } | Message::Delivered { .. } => return self.serve(message),
        };
        let is_lost = !self.is_linked(to);
        let Some((notices, message)) = self.awake(to, message) else { return };
        match message {
            Message::Report { from, call, report, .. } => {
                let bytes = report.encode();
                let report = Report::decode(&bytes).unwrap();
                let partition = report.partition;
                let verdict = (!is_lost).then(|| notices.report(from, &report, time));
                let verdict = verdict.filter(|_| self.is_calm || self.rng.u8(..50) > 0);
                let delay_ms = if verdict.is_some() { self.rng.u64(..50) } else { LOST_MS };
                self.send(delay_ms, Message::Answer { to: from, partition, call, verdict });
            }
            Message::Answer { partition, call, verdict, .. } => {
                notices.answered(partition, call, verdict.filter(|_| !is_lost), time);
            }
            Message::AppendFailed { partition, .. } => {
                if let Some(coordinator) = notices.coordinator_mut(partition) {
                    coordinator.append_failed(time);
                }
            }
            Message::Outcome { partition, hook, batch, outcome, .. } => {
                let which = (partition, hook, &batch);
                notices.finished(which, &outcome, None, 20, time);
            }
            Message::Append { .. } | Message::Delivered { .. } => {}
        }
    }

    /// The broker or the back end.
    fn serve(&mut self, message: Message) {
        match message {
            Message::Append { from, partition, entries } => {
                let is_lost = !self.is_linked(from) || (!self.is_calm && self.rng.u8(..40) == 0);
                // Unconfirmed: it may be in the log, or some of it.
                let stored = if is_lost { self.rng.usize(..=entries.len()) } else { entries.len() };
                let stored = if self.is_broker_up { stored } else { 0 };
                for entry in entries.into_iter().take(stored) {
                    self.store(partition, entry);
                }
                if is_lost {
                    self.meet("unconfirmed");
                    self.send(LOST_MS, Message::AppendFailed { to: from, partition });
                }
            }
            Message::Delivered { from, partition, hook, batch } => {
                let (is_lost, fails) = (self.rng.u64(..100), self.rng.u64(..100));
                let outcome = match fails < self.backs[hook].refuses {
                    true if is_lost < 50 => Outcome::Failed(503, "".into()),
                    true => Outcome::Failed(0, "late".into()),
                    false => Outcome::Accepted,
                };
                if outcome != Outcome::Failed(503, "".into()) {
                    self.apply(hook, partition, &batch);
                }
                let delay_ms = self.rng.u64(1..100);
                let to = from;
                self.send(delay_ms, Message::Outcome { to, partition, hook, batch, outcome });
            }
            _ => {}
        }
    }

    fn store(&mut self, partition: u8, entry: Entry) {
        let log = self.logs.entry(partition).or_default();
        let mut put = |entry: &Entry| {
            let mut bytes = Vec::new();
            entry.encode(&mut bytes);
            log.last += 1;
            log.records.push((log.last, bytes));
        };
        if let Record::Notice(notice) = &entry.record {
            match self.plant {
                Plant::LostEnd if notice.end.is_some() && self.rng.u8(..20) == 0 => return,
                Plant::DoubleStart if notice.end.is_none() && self.rng.u8(..20) == 0 => {
                    let mut other = Notice::clone(notice);
                    other.stay.id = simurgh_presence::PhxRef::from_bytes(
                        self.rng.u128(..).to_le_bytes()[..12].try_into().unwrap(),
                    );
                    let other = Arc::new(other);
                    put(&entry);
                    return self.apply_notice(0, partition, &other);
                }
                _ => {}
            }
        }
        put(&entry);
    }

    fn turn(&mut self, id: u64) {
        let time = self.time();
        self.catch_up(id);
        for _ in 0..1_000 {
            let Some(node) = self.nodes.get_mut(&id).filter(|it| it.frozen_until_ms < self.ms)
            else {
                return;
            };
            let Some(output) = node.notices.poll(time) else { return };
            self.events += 1;
            self.act(id, output);
        }
        self.fail(format!("node {id} does not rest"));
    }

    fn act(&mut self, id: u64, output: Output) {
        let delay_ms = self.rng.u64(..50);
        let is_linked = self.is_linked(id);
        let Some(node) = self.nodes.get_mut(&id) else { return };
        match output {
            Output::Report(to, call, report) if is_linked => {
                self.send(delay_ms, Message::Report { from: id, to, call, report });
            }
            Output::Report(_, call, report) => {
                let (to, partition) = (id, report.partition);
                self.send(LOST_MS, Message::Answer { to, partition, call, verdict: None });
            }
            // No place is behind this: it reads all when it is linked.
            Output::Follow(partition) => {
                let epoch = Epoch::from_seed(u64::MAX);
                node.follows.insert(partition, Follow { epoch, read: 0, again: None });
            }
            Output::Leave(partition) => drop(node.follows.remove(&partition)),
            Output::Append(partition, _) if !is_linked => {
                self.send(LOST_MS, Message::AppendFailed { to: id, partition });
            }
            Output::Append(partition, entries) => {
                self.send(delay_ms, Message::Append { from: id, partition, entries });
            }
            Output::Purge(partition, before) => {
                if let Some(log) = self.logs.get_mut(&partition).filter(|_| is_linked) {
                    let count = log.records.partition_point(|(at, _)| *at < before);
                    log.removed = log.removed.max(count);
                    self.meet("compacted");
                }
            }
            Output::ReadAgain(partition, behind) => {
                if let Some(follow) = node.follows.get_mut(&partition) {
                    follow.again = Some(behind);
                }
                self.meet("read again");
            }
            Output::Deliver(partition, hook, batch) => {
                self.send(delay_ms, Message::Delivered { from: id, partition, hook, batch });
            }
        }
    }

    /// A node reads the logs that it follows.
    fn catch_up(&mut self, id: u64) {
        let (ms, epoch, plant, time) = (self.ms, self.epoch, self.plant, self.time());
        if !self.is_linked(id) {
            return;
        }
        let Some(node) = self.nodes.get_mut(&id).filter(|it| it.frozen_until_ms < ms) else {
            return;
        };
        for (partition, follow) in &mut node.follows {
            let log = self.logs.entry(*partition).or_default();
            let Some(coordinator) = node.notices.coordinator_mut(*partition) else { continue };
            if follow.epoch != epoch {
                let records = log.records.get(log.removed..).unwrap_or_default();
                *follow = Follow { epoch, read: log.records.len(), again: None };
                coordinator.begun(epoch, records.iter().map(decoded).collect(), time);
            }
            if let Some(behind) = follow.again.take() {
                let known = log.records.get(log.removed..follow.read).unwrap_or_default().iter();
                let left: Vec<_> = known.filter(|(at, _)| *at > behind).map(decoded).collect();
                let some = left.iter().take(7).cloned().collect();
                coordinator.read_again(some, left.len() <= 7);
            }
            while let Some(record) = log.records.get(follow.read) {
                follow.read += 1;
                let (at, mut entry) = decoded(record);
                let is_take = matches!(entry.record, Record::Take { .. });
                if plant == Plant::NoFence && !is_take {
                    let before = log.records.get(..follow.read).unwrap_or_default().iter().rev();
                    let takes = before
                        .map(decoded)
                        .filter(|(_, it)| matches!(it.record, Record::Take { .. }));
                    let term = takes.map(|(_, it)| it.term).max();
                    entry.term = term.unwrap_or(entry.term);
                }
                coordinator.read(at, entry, time);
            }
        }
    }
}

fn decoded((at, bytes): &(u64, Vec<u8>)) -> (u64, Entry) {
    (*at, Entry::decode(bytes).unwrap())
}
