//! Topics with a history on several nodes: one order for all, through all faults.

use std::time::Duration;

use simurgh_cluster::{Bucket, HistoryNotice, Retention, StoreItem};
use simurgh_loopback::StreamLimits;

use super::log::{Message, Stored, check};
use super::*;

const WANTS: Retention = Retention { count: 100, bytes: 1 << 20, age_ms: 300_000 };
const TOPICS: [&str; 3] = ["a", "rooms:lobby", "x"];

impl Simulation {
    /// Nodes of which the first two follow a topic.
    fn keeping(nodes: usize, seed: u64) -> Self {
        let mut it = Self::new(nodes, seed);
        (0..2).for_each(|at| it.begins_kept(at, "a"));
        it.advance(10 * MILLISECOND);
        it
    }

    fn begins_kept(&mut self, at: usize, topic: &str) {
        let time = self.time();
        self.node(at).cluster.topic_begins(topic, 0, Some(WANTS), time);
    }

    fn follows(&mut self, at: usize, topic: &str) {
        let time = self.time();
        let Node { cluster, heard } = self.node(at);
        cluster.follow(topic, WANTS, time, heard);
    }

    fn stores(&mut self, at: usize, topic: &str, number: u64) {
        let (time, text) = (self.time(), number.to_string());
        let item = Item::new("e", ItemPayload::Json(&text));
        let store = StoreItem { number, item, id: None, age: None };
        let Node { cluster, heard } = self.node(at);
        cluster.store(topic, store, time, heard);
    }

    fn forgets(&mut self, at: usize, topic: &str, number: u64) {
        let time = self.time();
        let Node { cluster, heard } = self.node(at);
        cluster.forget(topic, number, time, heard);
    }

    fn kept(&mut self, at: usize, topic: &str) -> Vec<SeenEvent> {
        self.node(at).heard.kept.remove(topic).unwrap_or_default()
    }

    fn stored(&mut self, at: usize, number: u64) -> Option<Result<StoredAt, NotKept>> {
        self.node(at).heard.stored.get(&number).cloned()
    }
}

/// The broadcasts among the events, and which node published them.
fn messages(said: &[SeenEvent]) -> Vec<Message> {
    let of = |it: &SeenEvent| match it {
        SeenEvent::Begun { messages, .. } => messages.clone(),
        SeenEvent::Next(message) => vec![message.clone()],
        _ => Vec::new(),
    };
    said.iter().flat_map(of).collect()
}

fn texts(said: &[SeenEvent]) -> Vec<String> {
    messages(said).into_iter().map(|it| it.text).collect()
}

#[test]
fn followers_see_one_order_and_publishers_learn_their_positions() {
    let mut it = Simulation::keeping(3, 30);
    for number in 0..60 {
        it.stores((number % 3) as usize, "a", number);
        if number % 7 == 0 {
            it.advance(MILLISECOND);
        }
    }
    it.advance(50 * MILLISECOND);
    it.follows(2, "a");
    it.advance(10 * MILLISECOND);
    let all = [0, 1, 2].map(|at| messages(&it.kept(at, "a")));
    let places =
        |all: &[Message]| all.iter().map(|it| (it.at, it.text.clone())).collect::<Vec<_>>();
    assert_eq!(all[0].len(), 60);
    assert_eq!(places(&all[1]), places(&all[0]));
    assert_eq!(places(&all[2]), places(&all[0]));
    for (number, at) in all[0].iter().map(|it| (it.text.parse::<u64>().unwrap(), it.at)) {
        let stored = it.stored((number % 3) as usize, number).unwrap().unwrap();
        assert_eq!((stored.seq, stored.index), (at.seq, at.index));
        let mine = |node: usize| all[node].iter().find(|it| it.at == at).unwrap().mine;
        let is = |node: u64| (number % 3 == node).then_some(number);
        assert_eq!([mine(0), mine(1)], [is(0), is(1)], "{number}");
    }
    assert!((0..3).all(|at| it.take_broadcasts(at, "a").is_empty()));
    let counts = it.node(1).cluster.counts();
    assert_eq!((counts.unwanted, counts.own, counts.again, counts.broken), (0, 0, 0, 0));
}

#[test]
fn topic_history_is_followed_while_its_subscription_lasts() {
    let mut it = Simulation::new(1, 31);
    it.begins_kept(0, "members");
    it.follows(0, "asked");
    it.advance(14 * SECOND);
    it.follows(0, "asked");
    it.end(0, "members");
    assert_eq!(it.advance(14 * SECOND).node(0).cluster.followed(), 2);
    it.advance(15 * SECOND);
    for topic in ["asked", "members"] {
        let said = it.kept(0, topic);
        assert!(matches!(said[..], [SeenEvent::Begun { .. }, SeenEvent::Ended]), "{said:?}");
    }
    assert_eq!(it.node(0).cluster.followed(), 0);
    it.stores(0, "members", 1);
    assert!(it.advance(10 * MILLISECOND).kept(0, "members").is_empty());
    it.begins_kept(0, "members");
    it.advance(10 * MILLISECOND);
    assert_eq!(texts(&it.kept(0, "members")), ["1"]);
}

/// Patterns differ while a setting is rolled out.
#[test]
fn message_stored_elsewhere_is_plain_where_history_is_not_declared() {
    let mut it = Simulation::new(2, 32);
    it.begins_kept(0, "a");
    it.begin(1, "a", 3);
    it.advance(10 * MILLISECOND);
    it.stores(0, "a", 1);
    it.broadcast(1, "a", "2");
    it.advance(10 * MILLISECOND);
    assert_eq!(texts(&it.kept(0, "a")), ["1"]);
    assert_eq!(it.take_broadcasts(0, "a"), ["2"], "and the other way round");
    assert_eq!(it.take_broadcasts(1, "a"), ["1"]);
    assert!(it.kept(1, "a").is_empty());
    it.broadcast(0, "a", "3");
    it.stores(0, "a", 4);
    it.broadcast(0, "a", "5");
    it.advance(10 * MILLISECOND);
    let mut heard = it.take_broadcasts(1, "a");
    heard.sort_unstable();
    assert_eq!(heard, ["3", "4", "5"]);
}

#[test]
fn whole_bucket_messages_of_unfollowed_topics_count_as_unwanted() {
    let mut it = Simulation::new(1, 33);
    let mut config = ClusterConfig::new(Prefix::new("a").unwrap(), "whole");
    config.history = Some(HistoryConfig::default());
    config.interests.exact_max = 0;
    it.starts_with(config, NodeId(1001));
    let bucket = Bucket::of("0");
    let same = (1..).map(|it: u32| it.to_string()).find(|it| Bucket::of(it) == bucket);
    let same = same.unwrap();
    it.begins_kept(1, "0");
    it.advance(SECOND);
    it.stores(0, "0", 1);
    it.stores(0, &same, 2);
    it.advance(10 * MILLISECOND);
    assert_eq!(texts(&it.kept(1, "0")), ["1"]);
    assert!(it.kept(1, &same).is_empty());
    let cluster = &it.node(1).cluster;
    assert_eq!((cluster.counts().unwanted, cluster.interests().unwanted()), (1, 1));
}

#[test]
fn stores_wait_for_a_temporarily_unreachable_broker() {
    let mut it = Simulation::keeping(2, 34);
    it.network.kill();
    it.advance(100 * MILLISECOND);
    it.stores(0, "a", 1);
    assert_eq!(it.advance(3 * SECOND).stored(0, 1), None);
    assert!(!it.node(0).cluster.is_flushed());
    it.network.restart(RestartData::Stays);
    it.advance(5 * SECOND);
    assert!(it.stored(0, 1).is_some_and(|it| it.is_ok()));
    assert_eq!([texts(&it.kept(0, "a")), texts(&it.kept(1, "a"))], [["1"], ["1"]]);
    it.network.kill();
    it.advance(100 * MILLISECOND);
    it.stores(0, "a", 2);
    it.advance(9 * SECOND);
    assert!(matches!(it.stored(0, 2), Some(Err(NotKept::Refused(_)))));
    assert!(it.node(0).cluster.is_flushed());
    it.network.restart(RestartData::Stays);
    it.advance(10 * SECOND);
    assert_eq!(texts(&it.kept(0, "a")), [""; 0]);
}

#[test]
fn broker_without_storage_refuses_stores_with_its_own_reason() {
    let config = NetworkConfig { kept: None, ..NetworkConfig::default() };
    let mut it = Simulation::on(Network::new(35, config), 1, PeersConfig::default().gone_ns);
    it.begins_kept(0, "a");
    it.stores(0, "a", 1);
    it.advance(10 * MILLISECOND);
    let why = NotKept::Refused("this engine keeps nothing".into());
    assert_eq!(it.stored(0, 1), Some(Err(why)));
    assert_eq!(it.kept(0, "a"), [SeenEvent::Unavailable]);
    let notices = std::iter::from_fn(|| it.node(0).cluster.poll_notice());
    assert_eq!(notices.filter(|it| *it == Notice::History(HistoryNotice::Nothing)).count(), 1);
    it.network.kill();
    assert_eq!(it.advance(10 * SECOND).kept(0, "a"), [SeenEvent::Unknown]);
    it.network.restart(RestartData::Stays);
    assert_eq!(it.advance(10 * SECOND).kept(0, "a"), [SeenEvent::Unavailable]);
}

#[test]
fn node_without_history_refuses_stores_and_reports_unavailable() {
    let mut it = Simulation::new(0, 36);
    it.starts_with(ClusterConfig::new(Prefix::new("a").unwrap(), "plain"), NodeId(1));
    it.stores(0, "a", 1);
    it.forgets(0, "a", 2);
    it.follows(0, "a");
    assert!(matches!(it.stored(0, 1), Some(Err(NotKept::Refused(_)))));
    assert!(matches!(it.stored(0, 2), Some(Err(NotKept::Refused(_)))));
    assert_eq!(it.kept(0, "a"), [SeenEvent::Unavailable]);
}

#[test]
fn broker_that_lost_its_data_restarts_history_on_every_node() {
    let mut it = Simulation::keeping(2, 37);
    it.stores(0, "a", 1);
    it.advance(10 * MILLISECOND);
    it.network.restart(RestartData::Lost);
    it.advance(5 * SECOND);
    it.stores(0, "a", 2);
    it.advance(10 * MILLISECOND);
    for at in 0..2 {
        let said = it.kept(at, "a");
        let epochs = said.iter().filter_map(|it| match it {
            SeenEvent::Begun { epoch, messages, .. } => Some((*epoch, messages.len())),
            _ => None,
        });
        let epochs: Vec<_> = epochs.collect();
        assert!(epochs.len() == 2 && epochs[0].0 != epochs[1].0, "{epochs:?}");
        assert_eq!(texts(&said), ["1", "2"]);
        assert_eq!(it.stored(0, 2).unwrap().unwrap().epoch, epochs[1].0);
    }
}

#[test]
fn purge_removes_messages_on_every_node_and_in_the_broker() {
    let mut it = Simulation::keeping(3, 38);
    it.stores(0, "a", 1);
    it.advance(10 * MILLISECOND);
    it.forgets(1, "a", 2);
    it.advance(10 * MILLISECOND);
    it.stores(0, "a", 3);
    it.advance(10 * MILLISECOND);
    for at in 0..2 {
        let said = it.kept(at, "a");
        let place = said.iter().position(|it| matches!(it, SeenEvent::Purged(_))).unwrap();
        assert_eq!(
            (texts(&said[..place]), texts(&said[place..])),
            (vec!["1".into()], vec!["3".into()])
        );
    }
    assert!(matches!(it.stored(1, 2), Some(Ok(StoredAt { index: 0, .. }))));
    it.begins_kept(2, "a");
    it.advance(10 * MILLISECOND);
    assert_eq!(texts(&it.kept(2, "a")), ["3"]);
}

/// A repeated id is stored once, whichever node repeats it.
#[test]
fn message_with_a_repeated_id_is_stored_once_across_nodes() {
    let mut it = Simulation::new(2, 39);
    it.begins_kept(0, "a");
    it.advance(10 * MILLISECOND);
    for (number, at) in [(1, 0), (2, 1), (3, 0)] {
        let time = it.time();
        let item = Item::new("e", ItemPayload::Json("7"));
        let age = Some(Duration::from_secs(60));
        let store = StoreItem { number, item, id: Some("order 7"), age };
        let Node { cluster, heard } = it.node(at);
        cluster.store("a", store, time, heard);
        it.advance(10 * MILLISECOND);
    }
    assert_eq!(texts(&it.kept(0, "a")), ["7"]);
    let places =
        [(0, 1), (1, 2), (0, 3)].map(|(at, number)| it.stored(at, number).unwrap().unwrap());
    assert!(places.iter().all(|it| it.seq == places[0].seq));
    assert_eq!(places.map(|it| it.is_duplicate), [false, true, true]);
}

fn faulty(it: &mut Simulation, random: &mut Random, number: u64) {
    let at = random.below(3) as usize;
    let topic = TOPICS[random.below(3) as usize];
    match random.below(18) {
        0 => it.network.cut(at, Direction::Both),
        1 => it.network.cut(at, Direction::Sending),
        2 => it.network.cut(at, Direction::Hearing),
        3..=6 => it.network.mend(at),
        7 => it.network.reset(at),
        8 => it.network.freeze(),
        9..=10 => it.network.thaw(),
        11 => it.network.restart(RestartData::Stays),
        12 => it.network.lossy(at, 200_000),
        13 => it.network.lossy(at, 0),
        14 => it.forgets(at, topic, number),
        15 => it.end(at, topic),
        16 => it.begins_kept(at, topic),
        _ if random.below(4) == 0 => it.network.restart(RestartData::Lost),
        _ => {}
    }
}

type Log = BTreeMap<String, BTreeMap<u64, Stored>>;

fn note(log: &mut Log, topic: &str, epoch: u64, at: HistoryPosition, text: Option<String>) {
    let of = log.entry(topic.into()).or_default().entry(epoch).or_default();
    let before = of.insert(at, text.clone());
    assert!(before.is_none_or(|it| it == text), "{topic}: two things at {at:?}");
}

/// Everything that was received by any node, or reported to be stored.
fn stored(it: &Simulation, asked: &[(u64, usize, &str)]) -> Log {
    let mut log = Log::new();
    for (topic, said) in it.nodes.iter().flatten().flat_map(|it| &it.heard.kept) {
        let mut now = 0;
        for what in said {
            if let SeenEvent::Begun { epoch, .. } = what {
                now = *epoch;
            }
            if let SeenEvent::Purged(at) = what {
                note(&mut log, topic, now, *at, None);
            }
            for message in messages(std::slice::from_ref(what)) {
                note(&mut log, topic, now, message.at, Some(message.text));
            }
        }
    }
    for (number, at, topic) in asked {
        let node = it.nodes[*at].as_ref().unwrap();
        let outcome = &node.heard.stored[number];
        if let Ok(StoredAt { epoch, seq, index, .. }) = outcome {
            let at = HistoryPosition { seq: *seq, index: *index };
            note(&mut log, topic, *epoch, at, Some(number.to_string()));
        }
    }
    log
}

fn run(seed: u64) -> (usize, usize) {
    let count = 20 + (seed % 2 * 1_000) as usize;
    let config = NetworkConfig {
        lag_ns: 0..=seed % 3 * 700 * MILLISECOND,
        kept: Some(StreamLimits { count, ..StreamLimits::default() }),
        ..NetworkConfig::default()
    };
    let network = Network::new(seed, config);
    let (mut it, mut random) =
        (Simulation::on(network, 3, PeersConfig::default().gone_ns), Random(seed));
    let mut asked: Vec<(u64, usize, &str)> = Vec::new();
    for at in 0..3 {
        TOPICS.iter().for_each(|topic| it.begins_kept(at, topic));
    }
    it.advance(50 * MILLISECOND);
    for round in 0..60 {
        if random.below(3) == 0 {
            faulty(&mut it, &mut random, 1_000_000 + round);
        }
        for _ in 0..random.below(20) {
            let (at, topic) = (random.below(3) as usize, TOPICS[random.below(3) as usize]);
            let number = asked.len() as u64 + 1;
            asked.push((number, at, topic));
            it.stores(at, topic, number);
        }
        it.advance((1 + random.below(400)) * MILLISECOND);
    }
    for at in 0..3 {
        it.network.mend(at);
        it.network.lossy(at, 0);
        TOPICS.iter().for_each(|topic| it.begins_kept(at, topic));
    }
    it.network.thaw();
    it.advance(15 * SECOND);
    it.step_ns = 20 * MILLISECOND;
    it.advance(60 * SECOND);
    let log = stored(&it, &asked);
    let epoch = it.node(0).heard.kept["a"].iter().rev().find_map(|it| match it {
        SeenEvent::Begun { epoch, .. } => Some(*epoch),
        _ => None,
    });
    let (mut told, mut gaps) = (0, 0);
    for (at, node) in it.nodes.iter().flatten().enumerate() {
        println!("seed {seed}, node {at}");
        assert_eq!(node.cluster.store_bytes(), 0);
        for (topic, said) in &node.heard.kept {
            let checked = check(said, &log[topic], epoch);
            (told, gaps) = (told + checked.told, gaps + checked.gaps);
        }
    }
    (told, gaps)
}

#[test]
fn followers_see_one_order_or_a_gap_whatever_fails() {
    let (mut told, mut gaps) = (0, 0);
    for seed in 0..24 {
        let (more, missing) = run(seed);
        (told, gaps) = (told + more, gaps + missing);
    }
    assert!(told > 5_000, "{told} were told");
    assert!(gaps > 0, "nothing was ever lost");
}
