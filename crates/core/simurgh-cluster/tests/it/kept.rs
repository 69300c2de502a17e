//! Topics with a history on several nodes: who follows them, and stores that the broker refuses.

use simurgh_cluster::{Bucket, HistoryNotice, Retention, StoreItem};

use super::*;

const WANTS: Retention = Retention { count: 100, bytes: 1 << 20, age_ms: 300_000 };

impl Simulation {
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

    fn kept(&mut self, at: usize, topic: &str) -> Vec<String> {
        self.node(at).heard.kept.remove(topic).unwrap_or_default()
    }

    /// The payloads among what a node has received of a topic.
    fn texts(&mut self, at: usize, topic: &str) -> Vec<String> {
        let mut kept = self.kept(at, topic);
        kept.retain(|it| it.parse::<u64>().is_ok());
        kept
    }

    fn stored(&mut self, at: usize, number: u64) -> Option<Result<StoredAt, NotKept>> {
        self.node(at).heard.stored.get(&number).cloned()
    }
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
        assert_eq!(it.kept(0, topic), ["Begun", "Ended"]);
    }
    assert_eq!(it.node(0).cluster.followed(), 0);
    it.stores(0, "members", 1);
    assert!(it.advance(10 * MILLISECOND).kept(0, "members").is_empty());
    it.begins_kept(0, "members");
    it.advance(10 * MILLISECOND);
    assert_eq!(it.texts(0, "members"), ["1"]);
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
    assert_eq!(it.texts(0, "a"), ["1"]);
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
    assert_eq!(it.texts(1, "0"), ["1"]);
    assert!(it.kept(1, &same).is_empty());
    let cluster = &it.node(1).cluster;
    assert_eq!((cluster.counts().unwanted, cluster.interests().unwanted()), (1, 1));
}

#[test]
fn stores_wait_for_a_temporarily_unreachable_broker() {
    let mut it = Simulation::new(2, 34);
    (0..2).for_each(|at| it.begins_kept(at, "a"));
    it.advance(10 * MILLISECOND);
    it.network.kill();
    it.advance(100 * MILLISECOND);
    it.stores(0, "a", 1);
    assert_eq!(it.advance(3 * SECOND).stored(0, 1), None);
    assert!(!it.node(0).cluster.is_flushed());
    it.network.restart(RestartData::Stays);
    it.advance(5 * SECOND);
    assert!(it.stored(0, 1).is_some_and(|it| it.is_ok()));
    assert_eq!([it.texts(0, "a"), it.texts(1, "a")], [["1"], ["1"]]);
    it.network.kill();
    it.advance(100 * MILLISECOND);
    it.stores(0, "a", 2);
    it.advance(9 * SECOND);
    assert!(matches!(it.stored(0, 2), Some(Err(NotKept::Refused(_)))));
    assert!(it.node(0).cluster.is_flushed());
    it.network.restart(RestartData::Stays);
    it.advance(10 * SECOND);
    assert_eq!(it.texts(0, "a"), [""; 0]);
}

#[test]
fn broker_without_storage_refuses_stores_with_its_own_reason() {
    let config = NetworkConfig { kept: None, ..NetworkConfig::default() };
    let mut it = Simulation::on(Network::new(35, config), 1, PeersConfig::default().gone_ns);
    it.begins_kept(0, "a");
    it.stores(0, "a", 1);
    it.advance(10 * MILLISECOND);
    let why = NotKept::Refused("this broker stores nothing".into());
    assert_eq!(it.stored(0, 1), Some(Err(why)));
    assert_eq!(it.kept(0, "a"), ["Unavailable"]);
    let notices = std::iter::from_fn(|| it.node(0).cluster.poll_notice());
    assert_eq!(notices.filter(|it| *it == Notice::History(HistoryNotice::Nothing)).count(), 1);
    it.network.kill();
    assert_eq!(it.advance(10 * SECOND).kept(0, "a"), ["Unknown"]);
    it.network.restart(RestartData::Stays);
    assert_eq!(it.advance(10 * SECOND).kept(0, "a"), ["Unavailable"]);
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
    assert_eq!(it.kept(0, "a"), ["Unavailable"]);
}
