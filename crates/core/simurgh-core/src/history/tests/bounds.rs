//! Bounds of histories, and the counters of removed messages.

use super::read::{kept, missed_since, store};
use super::*;
use crate::history::kept_topics::KeptTopics;
use simurgh_channel::MissedRequest;
use simurgh_history::{Epoch, GapReason, Position};

fn asked(kept: &mut KeptTopics, topic: &str, since: Position, now_ms: u64) -> Option<GapReason> {
    let ask = MissedRequest { topic: topic.into(), ..missed_since(since) };
    kept.missed(&ask, &HistoryConfig::default(), now_ms).0.gap
}

fn places(kept: &KeptTopics) -> [usize; 4] {
    let KeptTopics { slots, by_name, free, events, .. } = kept;
    [slots.capacity(), by_name.capacity(), free.capacity(), events.capacity()]
}

fn sweeps(kept: &mut KeptTopics, now_ms: u64) {
    while !kept.sweep(2_048, now_ms) {}
}

#[test]
fn one_message_in_each_of_many_topics_stays_below_the_limit() {
    const BYTES_MAX: u64 = 1 << 20;
    let mut kept = kept(HistoryRule::default());
    for n in 0..100_000 {
        store(&mut kept, &format!("rooms:{n:07}"), 1_000, n);
        while kept.counts().2 > BYTES_MAX {
            assert!(kept.evict() > 0, "{n}: {} bytes", kept.counts().2);
        }
    }
    assert_eq!(kept.filled.len(), kept.counts().1, "one message a topic");
    sweeps(&mut kept, 1_000_000);
    assert_eq!((kept.counts(), kept.evict()), ((0, 0, 0), 0));
}

#[test]
fn eviction_passes_topics_whose_messages_are_lost() {
    let mut kept = kept(HistoryRule::default());
    for topic in ["a", "b"] {
        let last = store(&mut kept, topic, 8, 1);
        kept.lose(topic, last.place);
    }
    assert_eq!((kept.evict(), kept.filled.len()), (2, 0));
}

#[test]
fn million_topics_stay_below_the_limit_and_are_freed() {
    const TOPICS: u64 = 1_000_000;
    const OWN_BYTES_MAX: u64 = 16 << 20;
    let mut kept = kept(HistoryRule::default());
    let mut most = 0;
    let mut first = None;
    for n in 0..TOPICS {
        let position = store(&mut kept, &format!("rooms:{n:07}"), 8, n / 1_000);
        first.get_or_insert(position);
        kept.forget_over(OWN_BYTES_MAX);
        most = most.max(kept.counts().0);
        assert!(kept.own_bytes <= OWN_BYTES_MAX, "{n}: {}", kept.own_bytes);
    }
    // 240 bytes and a name of 13 each.
    let fit = (OWN_BYTES_MAX / 253) as usize;
    let (topics, messages, bytes) = kept.counts();
    assert_eq!((most, topics, messages), (fit, fit, fit));
    assert_eq!(bytes, 104 * fit as u64);
    let (dropped, _) = kept.losses();
    assert_eq!(dropped.evicted as u64, TOPICS - fit as u64, "all others, each once");
    let [slots, names, free, _] = places(&kept);
    assert!(slots <= 2 * fit && names <= 4 * fit && free <= 2 * fit, "{:?}", places(&kept));
    let last = kept.list(0, usize::MAX, usize::MAX).topics;
    assert!(last.iter().any(|it| &*it.name == "rooms:0999999"));
    assert!(!last.iter().any(|it| &*it.name == "rooms:0000000"));
    assert_eq!(asked(&mut kept, "rooms:0000000", first.unwrap(), 1_000), Some(GapReason::Evicted));
    sweeps(&mut kept, 301_000);
    assert_eq!(kept.counts(), (fit, 0, 0));
    sweeps(&mut kept, 601_001);
    assert_eq!(kept.counts(), (0, 0, 0));
    assert_eq!((kept.own_bytes, places(&kept)), (0, [0; 4]));
}

#[test]
fn memory_of_many_topics_is_freed_while_one_stays() {
    let rule = HistoryRule { age: Duration::from_millis(100), ..HistoryRule::default() };
    let mut kept = kept(rule);
    for n in 0..10_000 {
        store(&mut kept, &format!("{n}"), 8, 0);
    }
    let [slots, names, ..] = places(&kept);
    assert!(slots >= 10_000 && names >= 10_000);
    store(&mut kept, "0", 8, 201);
    sweeps(&mut kept, 201);
    let [slots, names, free, events] = places(&kept);
    assert_eq!(kept.counts().0, 1);
    assert!(slots == 1 && names <= 8 && free == 0 && events <= 8, "{:?}", places(&kept));
    for n in 0..10 {
        store(&mut kept, &format!("next {n}"), 8, 202);
    }
    assert_eq!(kept.list(0, 100, 100).topics.len(), 11);
    assert_eq!(kept.slots.len(), 11);
}

#[test]
fn slots_of_removed_topics_are_reused_from_the_first() {
    let rule = HistoryRule { age: Duration::from_millis(100), ..HistoryRule::default() };
    let mut kept = kept(rule);
    for n in 0..100 {
        store(&mut kept, &format!("{n}"), 8, if n % 10 == 9 { 150 } else { 0 });
    }
    sweeps(&mut kept, 201);
    assert_eq!((kept.counts().0, kept.free.len()), (10, 90));
    for n in 0..5 {
        store(&mut kept, &format!("next {n}"), 8, 202);
    }
    let names: Vec<_> = kept.list(0, 6, 100).topics.into_iter().map(|it| it.name).collect();
    let names: Vec<&str> = names.iter().map(|it| &**it).collect();
    assert_eq!(names, ["next 0", "next 1", "next 2", "next 3", "next 4", "9"]);
}

#[test]
fn event_names_are_stored_only_while_needed() {
    let say = |kept: &mut KeptTopics, event: &str, now_ms| {
        kept.store(Broadcast::new("t", event, Payload::from_bytes(vec![7; 8])), None, 0, 0, now_ms);
    };
    let rule = HistoryRule { count: 5, ..HistoryRule::default() };
    let mut kept = kept(rule);
    for n in 0..1_000 {
        say(&mut kept, &format!("event {n}"), 0);
        assert!(kept.events.len() <= 256, "{n}");
    }
    sweeps(&mut kept, 1);
    assert_eq!(kept.events.len(), 5, "those of what is kept");
    assert_eq!(kept.counts().2, 5 * 104);
    say(&mut kept, &"e".repeat(64), 1);
    assert_eq!(kept.counts().2, 5 * 104, "its name is shared");
    let long = "e".repeat(65);
    say(&mut kept, &long, 1);
    assert_eq!(kept.counts().2, 5 * 104 + 65);
    assert!(!kept.events.contains(&*long));
    say(&mut kept, &"e".repeat(2 << 20), 1);
    let (topics, messages, bytes) = kept.counts();
    assert_eq!((topics, messages, bytes), (1, 0, 0), "it is larger than the topic may keep");
    assert_eq!(kept.losses().1, 1);
    sweeps(&mut kept, 2);
    assert_eq!(kept.events.len(), 0);
}

#[test]
fn answer_is_stored_for_at_most_one_round() {
    let mut kept = kept(HistoryRule::default());
    let payload = Payload::from_bytes(vec![7; 5_000]);
    let (_, broadcast) = kept.store(Broadcast::new("t", "e", payload), None, 0, 0, 1);
    let weak = Arc::downgrade(&broadcast.unwrap());
    let first = Position { epoch: Epoch::from_seed(7), place: Default::default() };
    assert_eq!(asked(&mut kept, "t", first, 1), None);
    // Nothing has changed since, except that it is too old.
    sweeps(&mut kept, 300_001);
    assert!(weak.upgrade().is_none(), "only the last answer could have it");
}

#[test]
fn removed_messages_are_counted_by_reason() {
    let rule = HistoryRule {
        count: 3,
        bytes: 1_000,
        age: Duration::from_secs(20),
        ..HistoryRule::default()
    };
    let mut it = Node::with(scripted(standard), rule);
    let topic = it.here.clone();
    let (key, _) = it.joins(Wire::V2, &topic, "{}");
    let counts = |it: &Node| {
        let all = &it.test_shard.core.metrics();
        [
            &all.history_kept,
            &all.history_evicted_count,
            &all.history_evicted_bytes,
            &all.history_evicted_age,
            &all.history_evicted_evicted,
            &all.history_evicted_purged,
            &all.history_too_large,
        ]
        .map(|counter| counter.value())
    };
    for _ in 0..4 {
        it.sends(key, &topic, "bcast", "{}");
    }
    assert_eq!(counts(&it), [4, 1, 0, 0, 0, 0, 0]);
    let text = |len| format!("\"{}\"", "x".repeat(len));
    it.sends(key, &topic, "bcast", &text(700));
    it.sends(key, &topic, "bcast", &text(700));
    assert_eq!(counts(&it), [6, 3, 2, 0, 0, 0, 0]);
    it.sends(key, &topic, "bcast", &text(2_000));
    assert_eq!(counts(&it), [7, 3, 4, 0, 0, 0, 1]);
    it.sends(key, &topic, "bcast", "{}");
    it.advances(Duration::from_secs(30));
    it.advances(Duration::from_secs(5));
    assert_eq!(counts(&it), [8, 3, 4, 1, 0, 0, 1]);
    it.sends(key, &topic, "bcast", "{}");
    let forget = HistoryRequest::Forget(topic.as_str().into(), Box::new(|_| {}));
    it.test_shard.node.request_history(forget);
    it.settles();
    assert_eq!(counts(&it), [9, 3, 4, 1, 0, 1, 1]);
    let metrics = &it.test_shard.core.metrics();
    assert_eq!(metrics.history_topic_bytes.value(), 240 + topic.len() as u64);
    assert_eq!((metrics.history_bytes.value(), metrics.history_messages.value()), (0, 0));
}

#[test]
fn resumes_are_counted_by_result_and_duration() {
    let rule = HistoryRule { count: 2, ..HistoryRule::default() };
    let mut it = Node::with(scripted(standard), rule);
    for topic in [it.here.clone(), it.there.clone()] {
        let (_, first) = it.opts_in(&topic);
        let (speaker, _) = it.joins(Wire::V2, &topic, "{}");
        it.sends(speaker, &topic, "bcast", "{}");
        it.joins(Wire::V2, &topic, &since(&first));
        it.sends(speaker, &topic, "bcast", "{}");
        it.sends(speaker, &topic, "bcast", "{}");
        it.joins(Wire::V2, &topic, &since(&first));
        it.joins(Wire::V2, &topic, &since("k7ku80.1"));
        it.joins(Wire::V2, &topic, r#"{"simurgh":{"since":1}}"#);
    }
    let metrics = &it.test_shard.core.metrics();
    assert_eq!(metrics.resume_recovered.value(), 4);
    assert_eq!(metrics.resume_gap_overwritten.value(), 2);
    assert_eq!(metrics.resume_gap_epoch.value(), 2);
    assert_eq!(metrics.resume_messages.value(), 2 * (1 + 2 + 2));
    assert_eq!(metrics.resume_times.value().0.iter().sum::<u64>(), 8, "the refused one is none");
    let (topic, key) = (it.there.clone(), it.test_shard.opens(Wire::V2));
    let before = it.test_shard.core.metrics().resume_times.value();
    it.test_shard.sends(key, &format!(r#"["1","1","{topic}","phx_join",{OPTED_IN}]"#));
    let clock_ns = it.test_shard.out.clock_ns.get();
    it.test_shard.out.clock_ns.set(clock_ns + 3_000_000);
    it.settles();
    let after = it.test_shard.core.metrics().resume_times.value();
    let in_bucket: Vec<u64> = after.0.iter().zip(before.0).map(|(a, b)| a - b).collect();
    assert_eq!(in_bucket, [0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0], "2.5 to 10 ms");
    assert!((3_000_000..3_100_000).contains(&(after.1 - before.1)), "{after:?}");
}

#[test]
fn listing_shows_each_topic_once_with_its_position() {
    let rule = HistoryRule { count: 2, ..HistoryRule::default() };
    let mut it = Node::with(scripted(standard), rule);
    let topic = it.here.clone();
    let kept = it.test_shard.core.kept();
    assert!(kept.find(&topic).is_none() && kept.at(0).is_none());
    let (key, _) = it.joins(Wire::V2, &topic, "{}");
    for _ in 0..5 {
        it.sends(key, &topic, "bcast", "{}");
    }
    let core = &it.test_shard.core;
    let found = core.kept().find(&topic).unwrap();
    assert_eq!((found.name, found.messages, found.bytes), (&*topic, 2, 2 * 98));
    assert_eq!((found.head.place.seq, found.marks.floor.seq), (5, 3));
    assert_eq!(found.marks.reason, GapReason::Overwritten);
    assert!(it.other.kept().find(&topic).is_none(), "its home is the first shard");
    for n in 0..6 {
        store(&mut it.test_shard.core.parts().2.kept, &format!("more {n}"), 8, 0);
    }
    for places in [1, 3, 100] {
        let (mut cursor, mut names) = (0, Vec::new());
        loop {
            it.test_shard.core.kept().visit(&mut cursor, places, |place, topic| {
                assert_eq!(it.test_shard.core.kept().at(place).unwrap().name, topic.name);
                names.push(topic.name.to_owned());
            });
            if cursor == 0 {
                break;
            }
        }
        assert_eq!(names.len(), 7, "{names:?}");
        assert_eq!((&names[0], &*names[6]), (&topic, "more 5"));
    }
}

fn kept_bytes(it: &Node) -> [u64; 2] {
    let all = [&it.test_shard.core, &it.other];
    all.map(|core| core.histories().kept.counts().2)
}

#[test]
fn shard_with_the_largest_history_evicts_first() {
    // A message of two bytes is 98.
    let history = HistoryConfig { bytes_max: 980, ..HistoryConfig::default() };
    let config = || Config { history: history.clone(), ..Config::default() };
    let mut it = Node::on(config(), scripted(standard), HistoryRule::default());
    let [here, there] = [it.here.clone(), it.there.clone()];
    let sends = |it: &mut Node, topic: &str, count| {
        for _ in 0..count {
            it.test_shard
                .node
                .broadcast(Broadcast::new(topic, "e", Payload::EMPTY_OBJECT))
                .unwrap();
            it.settles();
        }
    };
    sends(&mut it, &here, 4);
    sends(&mut it, &there, 6);
    assert_eq!(kept_bytes(&it), [4 * 98, 6 * 98], "as much as may be");
    sends(&mut it, &here, 1);
    assert_eq!(kept_bytes(&it), [5 * 98, 3 * 98]);
    sends(&mut it, &here, 2);
    assert_eq!(kept_bytes(&it), [7 * 98, 3 * 98]);
    sends(&mut it, &there, 1);
    let [here_bytes, there_bytes] = kept_bytes(&it);
    assert_eq!(there_bytes, 4 * 98);
    assert!(here_bytes < 5 * 98, "{here_bytes}");
}

#[test]
fn each_shard_has_its_share_of_topic_memory() {
    let history = HistoryConfig { bytes_max: 1 << 20, ..HistoryConfig::default() };
    let config = Config { history, ..Config::default() };
    let mut it = Node::on(config, scripted(standard), HistoryRule::default());
    let topics = (0..).map(|n| format!("room {n}")).filter(|topic| home_shard(topic, 2) == 0);
    for topic in topics.take(3_000) {
        let broadcast = Broadcast::new(topic, "e", Payload::EMPTY_OBJECT);
        it.test_shard.node.broadcast(broadcast).unwrap();
        it.settles();
    }
    let own = it.test_shard.core.histories().kept.own_bytes;
    assert!((500_000..=1 << 19).contains(&own), "{own}");
}

fn store_by(kept: &mut KeptTopics, client: u64, topic: &str, now_ms: u64) {
    let payload = Payload::from_bytes(vec![7; 64]);
    kept.store(Broadcast::new(topic, "e", payload), None, 0, client, now_ms);
}

/// A user at an address.
fn client(user: u64, address: u64) -> u64 {
    user << 32 | address
}

/// Its topics are newer than all others, and it fills them under two names.
#[test]
fn client_that_fills_new_topics_evicts_only_its_own() {
    const OWN_BYTES_MAX: u64 = 1 << 20;
    let mut kept = kept(HistoryRule::default());
    for n in 0..100 {
        // Of one member each, and one that many use.
        store_by(&mut kept, client(1_000 + n, 2_000 + n), &format!("quiet:{n}"), 0);
        store_by(&mut kept, client(1_000 + n, 2_000 + n), "lobby", 0);
    }
    for n in 0..50_000 {
        store_by(&mut kept, client(1, 9), &format!("flood:{n}"), 1_000 + n);
        store_by(&mut kept, client(9, 9), &format!("flood:{n}"), 1_000 + n);
        kept.forget_over(OWN_BYTES_MAX);
    }
    assert!(kept.own_bytes <= OWN_BYTES_MAX);
    for n in 0..100 {
        assert!(kept.place(&format!("quiet:{n}")).is_some(), "quiet:{n}");
    }
    assert!(kept.place("lobby").is_some() && kept.is_of_all("lobby"));
    while kept.counts().2 > 50_000 {
        kept.evict();
    }
    for n in 0..100 {
        let at = kept.place(&format!("quiet:{n}")).unwrap() as usize;
        assert_eq!(kept.slots[at].as_ref().unwrap().topic.ring().len(), 1, "quiet:{n}");
    }
}
