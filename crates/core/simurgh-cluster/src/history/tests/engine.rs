//! A broker that is a list, and nodes that follow it.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use simurgh_history::{NotKept, Place, StoredAt};

use super::log::{Checked, SeenEvent, Stored, check};
use super::*;
use crate::adapter::Received;
use crate::envelope::Kind;

pub(super) const TOPICS: [&str; 3] = ["a", "rooms:lobby", "x"];
pub(super) const WANTS: Retention = Retention { count: 20, bytes: 1 << 20, age_ms: 300_000 };

#[derive(Default)]
pub(super) struct RecordingSink {
    pub(super) events: BTreeMap<String, Vec<SeenEvent>>,
    pub(super) stored: BTreeMap<u64, Result<StoredAt, NotKept>>,
}

impl HistorySink for RecordingSink {
    fn history(&mut self, topic: &str, what: HistoryEvent<'_>) {
        self.events.entry(topic.into()).or_default().push(SeenEvent::of(&what));
    }

    fn stored(&mut self, _: &str, number: u64, outcome: Result<StoredAt, NotKept>) {
        assert!(self.stored.insert(number, outcome).is_none(), "{number} is answered once");
    }
}

#[derive(Clone)]
pub(super) struct Entry {
    pub(super) topic: String,
    pub(super) number: Number,
    pub(super) envelope: Bytes,
    at_ns: u64,
    pub(super) gone_ns: Option<u64>,
}

/// A message to a node.
#[derive(Clone)]
enum Event {
    Message(Entry),
    Stored(Ticket, Result<(u64, bool), NotStored>),
}

enum Answered {
    Fetched(Fetched),
    Since(Option<u64>),
}

pub(super) struct Node {
    pub(super) keeping: History,
    pub(super) sink: RecordingSink,
    inbox: VecDeque<Event>,
    fetches: VecDeque<(u64, Ticket, Fetch)>,
    n: u64,
    pub(super) has_link: bool,
    /// How many of the next messages to it are lost.
    pub(super) loses: usize,
    pub(super) has_lost: bool,
}

pub(super) struct Scenario {
    pub(super) now_ns: u64,
    pub(super) epoch: u64,
    pub(super) log: Vec<Entry>,
    seq: u64,
    ids: BTreeMap<String, u64>,
    pub(super) nodes: Vec<Node>,
    stored: BTreeMap<String, BTreeMap<u64, Stored>>,
    pub(super) count_max: usize,
    pub(super) age_ns: u64,
    /// How far a copy other than the leader lags behind, and how long an answer takes.
    pub(super) lag_ns: u64,
    pub(super) delay_ns: u64,
    pub(super) knows_head: bool,
    pub(super) answers: bool,
    pub(super) page: usize,
    pub(super) wants: Retention,
    /// Whether the broker answers requests for watermarks, from the times in `given`.
    pub(super) knows_since: bool,
    given: Vec<(u64, u64)>,
    /// How many messages of all topics it stores; `None`: any number.
    pub(super) room: Option<usize>,
    numbers: u64,
    pub(super) asked: usize,
}

pub(super) fn prefix() -> Prefix {
    Prefix::new("p").unwrap()
}

impl Scenario {
    pub(super) fn new(nodes: usize, config: &HistoryConfig) -> Self {
        let node = |at: usize| Node {
            keeping: History::new(config.clone(), NodeId(at as u64 + 1), &prefix(), 7),
            sink: RecordingSink::default(),
            inbox: VecDeque::new(),
            fetches: VecDeque::new(),
            n: 0,
            has_link: false,
            loses: 0,
            has_lost: false,
        };
        let mut scenario = Self {
            now_ns: 1_000 * SECOND,
            epoch: 1,
            log: Vec::new(),
            seq: 0,
            ids: BTreeMap::new(),
            nodes: (0..nodes).map(node).collect(),
            stored: BTreeMap::new(),
            count_max: 1_000,
            age_ns: 300 * SECOND,
            lag_ns: 0,
            delay_ns: 0,
            knows_head: true,
            answers: true,
            page: usize::MAX,
            wants: WANTS,
            knows_since: true,
            given: Vec::new(),
            room: None,
            numbers: 0,
            asked: 0,
        };
        (0..nodes).for_each(|at| scenario.up(at));
        scenario
    }

    pub(super) fn time(&self) -> Time {
        Time { ns: self.now_ns, unix_ms: 1_700_000_000_000 + self.now_ns / MILLISECOND }
    }

    pub(super) fn up(&mut self, at: usize) {
        let node = &mut self.nodes[at];
        node.has_link = true;
        node.keeping.up(Some(self.epoch), self.now_ns);
    }

    pub(super) fn down(&mut self, at: usize) {
        let node = &mut self.nodes[at];
        if std::mem::take(&mut node.has_link) {
            node.keeping.follows.down(false, self.now_ns);
            node.inbox.retain(|it| matches!(it, Event::Stored(..)));
        }
    }

    /// Everything stored is lost, and all links are made again.
    pub(super) fn remade(&mut self) {
        (0..self.nodes.len()).for_each(|at| self.down(at));
        for event in self.nodes.iter_mut().flat_map(|it| &mut it.inbox) {
            if let Event::Stored(_, answer) = event {
                *answer = Err(NotStored::Unconfirmed);
            }
        }
        (self.epoch, self.seq) = (self.epoch + 1, 0);
        self.log.clear();
        self.given.clear();
        self.ids.clear();
        (0..self.nodes.len()).for_each(|at| self.up(at));
    }

    pub(super) fn follow(&mut self, at: usize, topic: &str) -> &mut Self {
        let wants = self.wants;
        if let Some(id) = self.nodes[at].keeping.follows.begin(topic, wants) {
            self.nodes[at].keeping.follows.in_force(id);
        }
        self.run();
        self
    }

    pub(super) fn end(&mut self, at: usize, topic: &str) {
        let Node { keeping, sink, .. } = &mut self.nodes[at];
        keeping.follows.end(topic, sink);
    }

    /// Has a node store something. Returns its number, which is also its content.
    pub(super) fn store(&mut self, at: usize, topic: &str) -> u64 {
        self.numbers += 1;
        let (number, text) = (self.numbers, self.numbers.to_string());
        let Node { keeping, sink, .. } = &mut self.nodes[at];
        keeping.push(topic, &Storing::Item(store(number, &text)), self.now_ns, sink);
        number
    }

    pub(super) fn forget(&mut self, at: usize, topic: &str) -> u64 {
        self.numbers += 1;
        let Node { keeping, sink, .. } = &mut self.nodes[at];
        keeping.push(topic, &Storing::Forget(self.numbers), self.now_ns, sink);
        self.numbers
    }

    pub(super) fn keep(&mut self, topic: &str, envelope: Bytes) -> u64 {
        self.skip(1);
        let left = self.log.iter().rfind(|it| it.topic == topic && it.gone_ns.is_none());
        let number = Number { seq: self.seq, prev: left.map_or(0, |it| it.number.seq) };
        let entry =
            Entry { topic: topic.into(), number, envelope, at_ns: self.now_ns, gone_ns: None };
        self.note(&entry);
        self.log.push(entry.clone());
        let of = self.log.iter_mut().rev().filter(|it| it.topic == topic && it.gone_ns.is_none());
        of.skip(self.count_max).for_each(|it| it.gone_ns = Some(self.now_ns));
        if let Some(room) = self.room {
            let all = self.log.iter_mut().rev().filter(|it| it.gone_ns.is_none());
            all.skip(room).for_each(|it| it.gone_ns = Some(self.now_ns));
        }
        for node in self.nodes.iter_mut().filter(|it| it.has_link) {
            if node.loses > 0 {
                node.loses -= 1;
                node.has_lost = true;
            } else {
                node.inbox.push_back(Event::Message(entry.clone()));
            }
        }
        self.seq
    }

    fn note(&mut self, entry: &Entry) {
        let of = self.stored.entry(entry.topic.clone()).or_default();
        let of = of.entry(self.epoch).or_default();
        let Ok(envelope) = Envelope::decode(&entry.envelope) else { return };
        if envelope.topic != entry.topic {
            return;
        }
        let seq = entry.number.seq;
        if envelope.header.kind == Kind::Forget {
            of.insert(Place::new(seq), None);
        }
        for (index, item) in (0..).zip(envelope.items()) {
            let text = String::from_utf8(item.payload.data().into()).unwrap();
            of.insert(Place { seq, item: index }, Some(text));
        }
    }

    /// Numbers are assigned to other topics.
    pub(super) fn skip(&mut self, by: u64) {
        self.seq += by;
        self.given.push((self.now_ns, self.seq));
    }

    pub(super) fn remove(&mut self, topic: &str, before: u64) {
        let of = self.log.iter_mut().filter(|it| it.topic == topic && it.number.seq < before);
        of.for_each(|it| it.gone_ns = it.gone_ns.or(Some(self.now_ns)));
    }

    pub(super) fn run(&mut self) {
        for _ in 0..1_000 {
            let mut has_done = false;
            for at in 0..self.nodes.len() {
                has_done |= self.turn(at);
            }
            if !has_done {
                return;
            }
        }
        panic!("it never comes to rest");
    }

    fn turn(&mut self, at: usize) -> bool {
        let (time, mut has_done) = (self.time(), false);
        let Node { keeping, sink, inbox, .. } = &mut self.nodes[at];
        while let Some(event) = inbox.pop_front() {
            has_done = true;
            match event {
                Event::Message(Entry { number, envelope, .. }) => {
                    if let Ok(read) = Envelope::decode(&envelope) {
                        keeping.receive(&read, (&envelope, number, 0), time, sink);
                    }
                }
                Event::Stored(ticket, answer) => keeping.stored(ticket, answer, time, sink),
            }
        }
        while let Some((_, ticket, fetch)) =
            self.nodes[at].fetches.pop_front_if(|it| it.0 + self.delay_ns <= self.now_ns)
        {
            let what = self.answers.then(|| match &fetch {
                Fetch::Since { age, .. } => Answered::Since(self.since(*age)),
                _ => Answered::Fetched(self.answer(&fetch)),
            });
            let Node { keeping, sink, .. } = &mut self.nodes[at];
            match (fetch, what) {
                (Fetch::Since { .. }, Some(Answered::Since(it))) => {
                    keeping.follows.watermark_answered(ticket, it, time)
                }
                (Fetch::Since { .. }, _) => keeping.follows.watermark_answered(ticket, None, time),
                (_, Some(Answered::Fetched(it))) => keeping.fetched(ticket, Some(it), time, sink),
                (..) => keeping.fetched(ticket, None, time, sink),
            }
            has_done = true;
        }
        let Node { keeping, sink, .. } = &mut self.nodes[at];
        keeping.tick(time, sink);
        has_done | self.settle(at)
    }

    fn settle(&mut self, at: usize) -> bool {
        let mut has_done = false;
        while self.nodes[at].has_link {
            let Node { keeping, n, .. } = &mut self.nodes[at];
            let Some(next) = keeping.next(n, self.now_ns) else { break };
            has_done = true;
            match next {
                Next::Fetch(ticket, fetch) => {
                    self.nodes[at].fetches.push_back((self.now_ns, ticket, fetch));
                }
                Next::Purge(ticket, of, before) => {
                    let topic = topic_of(&of);
                    self.remove(topic, before);
                    self.nodes[at].keeping.purged(ticket, None);
                }
                Next::Store(outgoing) => self.store_outgoing(at, &outgoing),
            }
        }
        has_done
    }

    /// The broker stores a node's envelope, and answers before or after it sends it to that node.
    fn store_outgoing(&mut self, at: usize, outgoing: &Outgoing) {
        let topic = topic_of(&outgoing.to);
        let known = self.ids.get(&*outgoing.id).copied();
        let answer = Event::Stored(outgoing.ticket, Ok((self.seq + 1, false)));
        if known.is_none() && self.seq.is_multiple_of(2) {
            self.nodes[at].inbox.push_back(answer);
            let seq = self.keep(topic, outgoing.envelope.clone());
            self.ids.insert((*outgoing.id).into(), seq);
            return;
        }
        let seq = known.unwrap_or_else(|| self.keep(topic, outgoing.envelope.clone()));
        self.ids.insert((*outgoing.id).into(), seq);
        let answer = Event::Stored(outgoing.ticket, Ok((seq, known.is_some())));
        self.nodes[at].inbox.push_back(answer);
    }

    /// The last number assigned before so long ago.
    fn since(&mut self, age: Duration) -> Option<u64> {
        self.asked += 1;
        let age_ns = u64::try_from(age.as_nanos()).unwrap();
        let is_old = |it: &&(u64, u64)| self.now_ns.saturating_sub(it.0) > age_ns;
        let old = self.given.iter().rfind(is_old).map_or(0, |it| it.1);
        let is_said = self.knows_since && self.room.is_none() && age_ns <= self.age_ns;
        is_said.then_some(old)
    }

    fn answer(&mut self, fetch: &Fetch) -> Fetched {
        self.asked += 1;
        self.expire();
        let lag_ns = match fetch {
            Fetch::After { from_leader: true, .. } => 0,
            _ => self.lag_ns,
        };
        let is_old = |it: &&Entry| lag_ns == 0 || it.at_ns + lag_ns <= self.now_ns;
        let seen = self.log.iter().filter(is_old);
        let head = seen.clone().map(|it| it.number.seq).max().unwrap_or_default();
        // Messages of other topics are at the end.
        let head = if lag_ns == 0 { self.seq } else { head };
        // A copy that lags removes as late as it adds; only age is the same for all.
        let left = seen.filter(|it| match it.gone_ns {
            Some(gone_ns) => lag_ns > 0 && gone_ns + lag_ns > self.now_ns && !self.is_old(it),
            None => true,
        });
        let (all, most): (Vec<&Entry>, usize) = match fetch {
            Fetch::After { subject, seq, count, bytes, .. } => {
                assert!(*bytes > 0);
                let topic = topic_of(subject);
                let of = left.filter(|it| it.topic == topic && it.number.seq > *seq);
                (of.collect(), (*count as usize).min(self.page))
            }
            Fetch::LastOf { subjects } => {
                let last = |it: &Subject| left.clone().rfind(|of| of.topic == topic_of(it));
                let mut all: Vec<&Entry> = subjects.iter().filter_map(last).collect();
                all.sort_by_key(|it| it.number.seq);
                (all, usize::MAX)
            }
            Fetch::Since { .. } => unreachable!("it has another answer"),
        };
        let is_all = all.len() <= most;
        let messages = all.into_iter().take(most).map(received).collect();
        Fetched { messages, head: if self.knows_head { head } else { 0 }, is_all }
    }

    fn expire(&mut self) {
        let (now_ns, age_ns) = (self.now_ns, self.age_ns);
        let old = self.log.iter_mut().filter(|it| now_ns - it.at_ns >= age_ns);
        old.for_each(|it| it.gone_ns = it.gone_ns.or(Some(now_ns)));
    }

    fn is_old(&self, entry: &Entry) -> bool {
        self.now_ns - entry.at_ns >= self.age_ns
    }

    pub(super) fn advance(&mut self, ns: u64, step_ns: u64) -> &mut Self {
        let end_ns = self.now_ns + ns;
        self.run();
        while self.now_ns < end_ns {
            self.now_ns = (self.now_ns + step_ns).min(end_ns);
            self.expire();
            self.run();
        }
        self
    }

    pub(super) fn take_events(&mut self, at: usize, topic: &str) -> Vec<SeenEvent> {
        self.nodes[at].sink.events.remove(topic).unwrap_or_default()
    }

    /// Whether what all nodes received is what was stored.
    pub(super) fn check(&self, is_settled: bool) -> Checked {
        let (none, mut all) = (BTreeMap::new(), Checked::default());
        for node in &self.nodes {
            for (topic, said) in &node.sink.events {
                let stored = self.stored.get(topic).unwrap_or(&none);
                let checked = check(said, stored, is_settled.then_some(self.epoch));
                all.told += checked.told;
                all.gaps += checked.gaps;
                all.fills += checked.fills;
            }
        }
        all
    }

    /// Sends a stored message to a node again.
    pub(super) fn send_again(&mut self, at: usize, back: usize) {
        let place = self.log.len().checked_sub(back + 1);
        if let Some(entry) = place.and_then(|it| self.log.get(it)).cloned()
            && self.nodes[at].has_link
        {
            self.nodes[at].inbox.push_back(Event::Message(entry));
        }
    }

    /// Reports a loss of a topic, or of any.
    pub(super) fn report_lost(&mut self, at: usize, is_any: bool) {
        let now_ns = self.now_ns;
        let node = &mut self.nodes[at];
        node.has_lost = false;
        match is_any {
            true => node.keeping.lost_any(now_ns),
            false => node.keeping.lost(TOPICS.into_iter(), now_ns),
        }
    }
}

fn received(entry: &Entry) -> Received {
    Received {
        space: Some(Space::Store),
        envelope: entry.envelope.clone(),
        stored: Some(Number { seq: entry.number.seq, prev: 0 }),
        at_ms: 1_700_000_000_000 + entry.at_ns / MILLISECOND,
    }
}

fn topic_of(subject: &Subject) -> &'static str {
    let found = TOPICS.into_iter().find(|it| prefix().topic(Space::Store, it) == *subject);
    found.expect("a topic of these tests")
}
