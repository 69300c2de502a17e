//! Lost messages are reported before anything newer, only to members with positions.

use std::sync::Mutex;

use simurgh_history::ReplayLimits;

use super::*;

/// Members that receive no positions, on every wire.
struct Others {
    v1: Key,
    v2: Key,
    values: Key,
    listener: Arc<Mutex<Vec<String>>>,
}

impl Others {
    fn join(it: &mut Node, topic: &str) -> Self {
        let [v1, v2, values] = [Wire::V1, Wire::V2, Wire::Values].map(|wire| {
            let key = it.opens(wire);
            it.says(key, topic, "phx_join", "{}");
            it.receives(key);
            key
        });
        let listener: Arc<Mutex<Vec<String>>> = Arc::default();
        let heard = Arc::clone(&listener);
        let hear = move |it: &Arc<Broadcast>| {
            heard.lock().unwrap().push(it.payload().json().unwrap().to_owned());
        };
        let name = Listener::id(0, 1);
        let listens = Listener { name, on_broadcast: Box::new(hear) };
        it.shards
            .test_shard
            .core
            .mail(&mut it.shards.test_shard.out, Mail::Listen(topic.into(), listens));
        Self { v1, v2, values, listener }
    }

    /// They have received these, and nothing else.
    fn heard(&self, it: &mut Node, topic: &str, all: &[u64]) {
        let each = |text: &dyn Fn(u64) -> String| all.iter().map(|n| text(*n)).collect::<Vec<_>>();
        let v1 =
            |n| format!(r#"{{"topic":"{topic}","event":"news","payload":{{"n":{n}}},"ref":null}}"#);
        assert_eq!(it.receives(self.v1), each(&v1));
        let v2 = |n| format!(r#"[null,null,"{topic}","news",{{"n":{n}}}]"#);
        assert_eq!(it.receives(self.v2), each(&v2));
        assert_eq!(it.receives(self.values), each(&|n| format!(r#"{topic} news {{"n":{n}}}"#)));
        let heard = std::mem::take(&mut *self.listener.lock().unwrap());
        assert_eq!(heard, each(&|n| format!(r#"{{"n":{n}}}"#)));
    }
}

#[test]
fn gap_is_reported_before_newer_messages() {
    for (mut it, mut engine, topic) in both() {
        let (key, joined) = it.joins(&mut engine, &topic, OPTED_IN);
        let v1 = it.opens(Wire::V1);
        it.joins_as(&mut engine, v1, &topic, OPTED_IN);
        let others = Others::join(&mut it, &topic);
        (1..=3).for_each(|n| engine.receives(&topic, n, false));
        // Nothing was sent by the time of the gap.
        it.test_shard.node.post_kept(&topic, engine.told(0, 0));
        it.test_shard.node.post_kept(&topic, FromEngine::Gap { through: engine.log[1].seq });
        it.test_shard.node.post_kept(&topic, engine.told(0, 2));
        it.settles();
        let heard = it.receives(key);
        assert_eq!(gist(&heard), ["news 1", "simurgh:gap lost", "news 3"]);
        let gap = r#"{"recovered":false,"reason":"lost"}"#;
        let place = position_of(&heard[1]);
        assert_eq!(heard[1], format!(r#"[null,"{place}","{topic}","simurgh:gap",{gap}]"#));
        assert!(place > engine.position(1).to_string() && place < engine.position(2).to_string());
        let heard = it.receives(v1);
        assert_eq!(gist(&heard), ["news 1", "simurgh:gap lost", "news 3"]);
        others.heard(&mut it, &topic, &[1, 3]);
        // A client that was away receives the same; one that received the gap missed nothing else.
        assert_eq!(
            it.resumes(&mut engine, &topic, &position_of(&joined[1])),
            ["simurgh:resumed lost", "news 3"]
        );
        assert_eq!(it.resumes(&mut engine, &topic, &place), ["simurgh:resumed true", "news 3"]);
        let core = it.home_of(&topic);
        assert_eq!(core.metrics().history_gaps.value(), 1);
        assert_eq!((it.charged(), it.test_shard.core.metrics().errors_encode.value()), ([0; 2], 0));
    }
}

#[test]
fn new_epoch_of_the_broker_is_reported_without_old_messages() {
    for (mut it, mut engine, topic) in both() {
        let (key, joined) = it.joins(&mut engine, &topic, OPTED_IN);
        let others = Others::join(&mut it, &topic);
        assert_eq!(it.hears_of(&mut engine, &topic, 1).hears(key), ["news 1"]);
        engine.epoch += 1;
        engine.receives(&topic, 2, false);
        it.is_told(&topic, engine.begun(0, &topic, 0));
        it.hears_of(&mut engine, &topic, 3);
        let heard = it.receives(key);
        assert_eq!(gist(&heard), ["simurgh:gap epoch", "news 3"]);
        assert_eq!(position_of(&heard[0]), engine.position(1).to_string());
        others.heard(&mut it, &topic, &[1, 3]);
        assert_eq!(
            it.resumes(&mut engine, &topic, &position_of(&joined[1])),
            ["simurgh:resumed epoch", "news 1", "news 2", "news 3"]
        );
    }
}

/// The epoch is all that distinguishes this position from one before.
#[test]
fn join_of_a_quiet_topic_gets_the_current_epoch() {
    for shard in [0, 1] {
        let (mut it, mut engine) = (Node::running(talking()), Engine::new());
        let topic = it.topics()[shard].clone();
        let more =
            (0..).map(|n| format!("more {n}")).find(|it| home_shard(it, 2) == shard).unwrap();
        it.is_told(&more, engine.begun(0, &more, 0));
        let (key, before) = it.joins(&mut engine, &topic, OPTED_IN);
        engine.epoch += 1;
        it.is_told(&topic, engine.begun(0, &topic, 0));
        let (_, after) = it.joins(&mut engine, &topic, OPTED_IN);
        let [before, after] = [before, after].map(|it| position_of(&it[1]));
        assert_eq!((&*before, &*after), ("a000rs.10-9999", "a000rt.10-9999"));
        assert_eq!(position_of(&it.receives(key)[0]), after);
    }
}

#[test]
fn messages_missed_while_unknown_arrive_in_order_or_as_a_gap() {
    for (mut it, mut engine, topic) in both() {
        let (key, _) = it.joins(&mut engine, &topic, OPTED_IN);
        let others = Others::join(&mut it, &topic);
        it.hears_of(&mut engine, &topic, 1);
        it.is_told(&topic, FromEngine::Unknown);
        (2..=3).for_each(|n| engine.receives(&topic, n, false));
        it.is_told(&topic, engine.begun(0, &topic, engine.log[0].seq - 1));
        assert_eq!(it.hears(key), ["news 1", "news 2", "news 3"]);
        it.is_told(&topic, FromEngine::Unknown);
        (4..=6).for_each(|n| engine.receives(&topic, n, false));
        it.is_told(&topic, engine.begun(0, &topic, engine.log[3].seq));
        let heard = it.receives(key);
        assert_eq!(gist(&heard), ["simurgh:gap unavailable", "news 5", "news 6"]);
        others.heard(&mut it, &topic, &[1, 2, 3, 5, 6]);
        assert_eq!(
            it.resumes(&mut engine, &topic, &position_of(&heard[0])),
            ["simurgh:resumed true", "news 5", "news 6"]
        );
        let third = engine.position(2).to_string();
        assert_eq!(
            it.resumes(&mut engine, &topic, &third),
            ["simurgh:resumed expired", "news 5", "news 6"]
        );
    }
}

#[test]
fn node_that_did_not_follow_a_topic_knows_of_its_purge() {
    for (mut it, mut engine, topic) in both() {
        engine.receives(&topic, 1, false);
        engine.receives(&topic, 2, false);
        let first = engine.position(0).to_string();
        engine.purges(&topic, None);
        engine.receives(&topic, 4, false);
        assert_eq!(it.resumes(&mut engine, &topic, &first), ["simurgh:resumed purged", "news 4"]);
    }
}

#[test]
fn node_that_did_not_follow_a_topic_knows_why_its_oldest_are_removed() {
    for (count, reason) in [(3, "overwritten"), (4, "expired")] {
        let rule = HistoryRule { count, ..HistoryRule::default() };
        for (mut it, mut engine, topic) in both_on(&Config::default(), rule) {
            (1..=5).for_each(|n| engine.receives(&topic, n, false));
            let first = engine.position(0).to_string();
            // The broker has removed two. The other three are the whole history, or only a part.
            engine.floor = engine.log[1].seq;
            let (_, heard) = it.joins(&mut engine, &topic, &since(&first));
            let resumed = format!("simurgh:resumed {reason}");
            assert_eq!(gist(&heard)[1..], [&resumed, "news 3", "news 4", "news 5"]);
        }
    }
}

/// Publishers on other nodes cannot be held back from here.
#[test]
fn overflow_of_a_home_is_reported_as_a_gap_and_the_rest_is_delivered() {
    let config = Config { mailbox_bytes_max: 1_000, ..Config::default() };
    for (mut it, mut engine, topic) in both_on(&config, HistoryRule::default()) {
        let (key, _) = it.joins(&mut engine, &topic, OPTED_IN);
        for n in 1..=100 {
            engine.receives(&topic, n, false);
            it.test_shard.node.post_kept(&topic, engine.told(0, n as usize - 1));
        }
        assert!(it.charged().iter().sum::<usize>() < 5_000, "{:?}", it.charged());
        it.settles();
        it.hears_of(&mut engine, &topic, 101);
        let heard = it.hears(key);
        let news = heard.iter().take_while(|it| it.starts_with("news")).count();
        assert!((20..40).contains(&news), "{heard:?}");
        let (gaps, last) = heard[news..].split_at(heard.len() - news - 1);
        assert!(gaps.iter().all(|it| it == "simurgh:gap lost") && !gaps.is_empty(), "{heard:?}");
        assert_eq!(last, ["news 101"]);
        assert_eq!(it.charged(), [0; 2]);
    }
}

/// The parts are read from what is kept, which has the gap.
#[test]
fn gap_within_a_partial_replay_is_reported() {
    let mut config = Config::default();
    config.history.portion = ReplayLimits { count: 2, bytes: 64 << 10 };
    for (mut it, mut engine, topic) in both_on(&config, HistoryRule::default()) {
        let (_, joined) = it.joins(&mut engine, &topic, OPTED_IN);
        (1..=5).for_each(|n| _ = it.hears_of(&mut engine, &topic, n));
        let key = it.opens(Wire::V2);
        it.writes(key, &topic, "phx_join", &since(&position_of(&joined[1])));
        (0..3).for_each(|_| it.takes_turns());
        assert_eq!(it.hears(key)[2..], ["news 1", "news 2"]);
        engine.seq += 50;
        it.test_shard.node.post_kept(&topic, FromEngine::Gap { through: engine.seq });
        it.takes_turns();
        assert_eq!(it.hears_of(&mut engine, &topic, 6).hears(key), ["simurgh:gap lost", "news 6"]);
        assert!(!it.test_shard.out.is_held(key));
    }
}

/// A channel receives the broadcasts of a further topic without their positions.
#[test]
fn subscriber_of_a_further_topic_gets_no_gaps() {
    let (mut it, mut engine) = (Node::running(talking()), Engine::new());
    let [here, there] = it.topics();
    let (key, _) = it.joins(&mut engine, &here, OPTED_IN);
    it.writes(key, &here, "subscribe", &format!("\"{there}\""));
    it.is_served(&mut engine);
    it.hears_of(&mut engine, &there, 1);
    it.is_told(&there, FromEngine::Gap { through: engine.seq + 3 });
    engine.seq += 3;
    assert_eq!(it.hears_of(&mut engine, &there, 2).hears(key), ["news 1", "news 2"]);
}
