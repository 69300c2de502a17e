//! A node of two shards whose topics a broker numbers, and that broker: a list in the test, which
//! sends what it has as the cluster's thread would, or late, or never.

mod gaps;
mod joins;
mod publish;
mod read;
mod unknown_position;

use std::collections::{BTreeSet, VecDeque};
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::time::Duration;

use simurgh_channel::{HistoryRule, Outcome, home_shard};
use simurgh_data::Key;
use simurgh_history::Epoch;
use simurgh_proto::message::Payload;

use crate::testing::*;
use crate::wire::Wire;
use crate::*;

#[derive(Clone)]
struct Logged {
    topic: String,
    seq: u64,
    index: u16,
    at_ms: u64,
    /// `None`: a purge.
    what: Option<(String, Payload<'static>)>,
    sender: u64,
    except: Option<ChannelId>,
    by: Option<(usize, u64)>,
}

struct Engine {
    epoch: u64,
    seq: u64,
    step: u64,
    log: Vec<Logged>,
    floor: u64,
    now_ms: u64,
}

impl Engine {
    fn new() -> Self {
        Self { epoch: 1_000, seq: 10, step: 7, log: Vec::new(), floor: 0, now_ms: 1_000_000 }
    }

    fn position(&self, at: usize) -> Position {
        let it = &self.log[at];
        let place = simurgh_history::Place { seq: it.seq, item: it.index };
        Position { epoch: Epoch::from_seed(self.epoch), place }
    }

    /// The next number, or the next item of the last.
    fn number(&mut self, is_joined: bool) -> (u64, u16) {
        match self.log.last() {
            Some(last) if is_joined && last.seq == self.seq => (last.seq, last.index + 1),
            _ => {
                self.seq += self.step;
                (self.seq, 0)
            }
        }
    }

    fn keeps(&mut self, node: usize, store: StoreRequest, is_joined: bool) -> StoredAt {
        let StoreRequest { number, broadcast, sender, .. } = store;
        let (seq, index) = self.number(is_joined);
        self.log.push(Logged {
            topic: broadcast.topic().to_owned(),
            seq,
            index,
            at_ms: self.now_ms,
            what: Some((broadcast.event().to_owned(), broadcast.payload().clone())),
            sender,
            except: broadcast.except(),
            by: Some((node, number)),
        });
        StoredAt { epoch: self.epoch, seq, index, is_duplicate: false }
    }

    /// Keeps the store of a node that is not part of the test.
    fn receives(&mut self, topic: &str, n: u64, is_joined: bool) {
        let (seq, index) = self.number(is_joined);
        let payload = Payload::from_json(format!(r#"{{"n":{n}}}"#));
        let (topic, what) = (topic.to_owned(), Some(("news".to_owned(), payload)));
        let (sender, except, by, at_ms) = (0, None, None, self.now_ms);
        self.log.push(Logged { topic, seq, index, at_ms, what, sender, except, by });
    }

    fn purges(&mut self, topic: &str, by: Option<(usize, u64)>) {
        let (seq, index) = self.number(false);
        let (sender, except, at_ms) = (0, None, self.now_ms);
        let topic = topic.to_owned();
        self.log.push(Logged { topic, seq, index, at_ms, what: None, sender, except, by });
    }

    fn told(&self, node: usize, at: usize) -> FromEngine {
        let it = &self.log[at];
        match self.item(node, at) {
            Some(item) => FromEngine::Next(item),
            None => FromEngine::Purged { seq: it.seq, index: it.index },
        }
    }

    fn item(&self, node: usize, at: usize) -> Option<KeptItem> {
        let Logged { topic, seq, index, at_ms, what, sender, except, by } = self.log[at].clone();
        let (event, payload) = what?;
        let mut broadcast = Broadcast::new(topic, event, payload);
        if let Some(except) = except {
            broadcast = broadcast.but_for(except);
        }
        let mine = by.filter(|(by, _)| *by == node).map(|(_, number)| number);
        Some(KeptItem { seq, index, at_ms, mine, sender, broadcast })
    }

    fn begun(&self, node: usize, topic: &str, floor: u64) -> FromEngine {
        let of = |at: &usize| self.log[*at].topic == topic;
        let all: Vec<usize> = (0..self.log.len()).filter(of).collect();
        let purge = all.iter().filter(|at| self.log[**at].what.is_none()).max();
        let purged = purge.map_or(0, |at| self.log[*at].seq);
        let floor = purged.max(floor).max(self.floor);
        let kept = all.iter().filter(|at| self.log[**at].seq > floor);
        let messages = kept.filter_map(|at| self.item(node, *at)).collect();
        FromEngine::Begun { epoch: self.epoch, floor, purged, head: self.seq, messages }
    }
}

/// A node, and what it has asked the broker for.
struct Node {
    number: usize,
    shards: TwoShards,
    notes: Notes,
    begun: BTreeSet<String>,
    /// Stores that the broker has not seen yet.
    stores: VecDeque<StoreRequest>,
    follows: Vec<String>,
    looked_at: Vec<String>,
    forgets: Vec<(String, u64)>,
}

impl Deref for Node {
    type Target = TwoShards;

    fn deref(&self) -> &TwoShards {
        &self.shards
    }
}

impl DerefMut for Node {
    fn deref_mut(&mut self) -> &mut TwoShards {
        &mut self.shards
    }
}

impl Node {
    fn running(channel: Scripted) -> Self {
        Self::on(Config::default(), channel, HistoryRule::default())
    }

    fn on(config: Config, channel: Scripted, rule: HistoryRule) -> Self {
        let mut node = TestNode::new(2, config, vec![keeping(channel, rule)]);
        let notes = node.join_cluster(1 << 20);
        Self {
            number: 0,
            shards: TwoShards::new(node),
            notes,
            begun: BTreeSet::new(),
            stores: VecDeque::new(),
            follows: Vec::new(),
            looked_at: Vec::new(),
            forgets: Vec::new(),
        }
    }

    fn looks(&mut self) {
        for asked in self.test_shard.node.asked() {
            match asked {
                ToCluster::Store(store) => self.stores.push_back(*store),
                ToCluster::Follow(topic, _) => self.follows.push(topic.into()),
                ToCluster::CheckTopic(topic) => self.looked_at.push(topic.into()),
                ToCluster::Forget(topic, number) => self.forgets.push((topic.into(), number)),
                other => panic!("{other:?}"),
            }
        }
        for note in self.notes.take() {
            let begins = note.strip_prefix("begins ").and_then(|it| it.split(' ').next());
            self.follows.extend(begins.map(str::to_owned));
        }
    }

    /// The broker does everything that it is asked, and answers.
    fn is_served(&mut self, engine: &mut Engine) {
        for _ in 0..10 {
            self.settles();
            self.looks();
            for topic in std::mem::take(&mut self.follows) {
                if self.begun.insert(topic.clone()) {
                    let begun = engine.begun(self.number, &topic, 0);
                    self.test_shard.node.post_kept(&topic, begun);
                }
            }
            while let Some(store) = self.stores.pop_front() {
                let number = store.number;
                let at = engine.keeps(self.number, store, false);
                self.test_shard.node.post_stored(number, Ok(at));
                self.hears_last(engine);
            }
            for (topic, number) in std::mem::take(&mut self.forgets) {
                engine.purges(&topic, Some((self.number, number)));
                let (epoch, seq, is_duplicate) = (engine.epoch, engine.seq, false);
                let at = StoredAt { epoch, seq, index: 0, is_duplicate };
                self.test_shard.node.post_stored(number, Ok(at));
                self.hears_last(engine);
            }
        }
        self.settles();
    }

    fn hears_last(&mut self, engine: &Engine) {
        let at = engine.log.len() - 1;
        let topic = &engine.log[at].topic;
        if self.begun.contains(topic) {
            self.test_shard.node.post_kept(topic, engine.told(self.number, at));
        }
    }

    fn is_told(&mut self, topic: &str, what: FromEngine) -> &mut Self {
        self.test_shard.node.post_kept(topic, what);
        self.settles();
        self
    }

    fn hears_of(&mut self, engine: &mut Engine, topic: &str, n: u64) -> &mut Self {
        engine.receives(topic, n, false);
        self.hears_last(engine);
        self.settles();
        self
    }

    fn opens(&mut self, wire: Wire) -> Key {
        self.test_shard.opens(wire)
    }

    fn joins(&mut self, engine: &mut Engine, topic: &str, params: &str) -> (Key, Vec<String>) {
        let key = self.opens(Wire::V2);
        (key, self.joins_as(engine, key, topic, params))
    }

    fn joins_as(&mut self, of: &mut Engine, key: Key, topic: &str, params: &str) -> Vec<String> {
        self.writes(key, topic, "phx_join", params);
        self.is_served(of);
        self.receives(key)
    }

    /// A client sends this; what the broker has to do for it is not done.
    fn says(&mut self, key: Key, topic: &str, event: &str, payload: &str) {
        self.writes(key, topic, event, payload);
        self.settles();
    }

    /// A new client joins that receives positions. Returns its first.
    fn opts_in(&mut self, engine: &mut Engine, topic: &str) -> (Key, String) {
        let (key, joined) = self.joins(engine, topic, OPTED_IN);
        (key, position_of(&joined[1]))
    }

    /// A new client joins behind a position. Returns what follows the reply.
    fn resumes(&mut self, engine: &mut Engine, topic: &str, position: &str) -> Vec<String> {
        gist(&self.joins(engine, topic, &since(position)).1[1..])
    }

    fn is_answered(&mut self, number: u64, answer: Result<StoredAt, NotKept>) -> &mut Self {
        self.test_shard.node.post_stored(number, answer);
        self.settles();
        self
    }

    fn begins(&mut self, engine: &Engine, topic: &str) {
        self.is_told(topic, engine.begun(0, topic, 0));
        self.begun.insert(topic.to_owned());
    }

    /// What a client has received, in short.
    fn hears(&mut self, key: Key) -> Vec<String> {
        gist(&self.receives(key))
    }

    fn advances(&mut self, time: Duration) {
        self.shards.advances(time);
        self.settles();
    }

    fn topics(&self) -> [String; 2] {
        [self.here.clone(), self.there.clone()]
    }

    fn waits(&self) -> usize {
        self.test_shard.core.history_waits() + self.other.history_waits()
    }

    fn charged(&self) -> [usize; 2] {
        let told = self.test_shard.node.log();
        [told.bytes[0], told.bytes[1]]
    }
}

/// A node and its broker for a topic that its first shard keeps, and others for one that its second
/// keeps.
fn both() -> [(Node, Engine, String); 2] {
    both_on(&Config::default(), HistoryRule::default())
}

fn both_on(config: &Config, rule: HistoryRule) -> [(Node, Engine, String); 2] {
    let node = || Node::on(config.clone(), talking(), rule);
    [0, 1].map(|shard| (node(), Engine::new(), topic_at(shard)))
}

/// Events in short: `news 7`, `phx_reply ok`, `simurgh:gap lost`.
fn gist(heard: &[String]) -> Vec<String> {
    heard.iter().map(|text| said(text)).collect()
}

fn said(text: &str) -> String {
    if text.starts_with("binary") {
        return "binary".to_owned();
    }
    let value: serde_json::Value = serde_json::from_str(text).unwrap();
    let (event, payload) = match &value {
        serde_json::Value::Array(fields) => (&fields[3], &fields[4]),
        object => (&object["event"], &object["payload"]),
    };
    let detail = ["n", "reason", "recovered", "status"].iter().find_map(|it| payload.get(it));
    let reason = payload.pointer("/response/reason").or(detail);
    let event = event.as_str().unwrap();
    match reason {
        Some(serde_json::Value::String(text)) => format!("{event} {text}"),
        Some(other) => format!("{event} {other}"),
        None => event.to_owned(),
    }
}
