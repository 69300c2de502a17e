//! From a publisher to the broker, and back.

use std::sync::Mutex;

use super::*;

fn only_store(it: &mut Node) -> StoreRequest {
    it.looks();
    assert_eq!(it.stores.len(), 1);
    it.stores.pop_front().unwrap()
}

/// The broker stores the only message that it was sent.
fn keeps_only(it: &mut Node, engine: &mut Engine) -> (u64, StoredAt) {
    let store = only_store(it);
    (store.number, engine.keeps(0, store, false))
}

#[test]
fn effects_after_a_broadcast_wait_for_its_return() {
    for (topic, is_heard_first) in [(0, true), (0, false), (1, true), (1, false)] {
        let (mut it, mut engine) = (Node::running(talking()), Engine::new());
        let topic = it.topics()[topic].clone();
        let (key, _) = it.joins(&mut engine, &topic, OPTED_IN);
        it.says(key, &topic, "say", r#"{"n":1}"#);
        assert!(it.receives(key).is_empty() && it.test_shard.out.is_held(key), "nobody kept it");
        let store = only_store(&mut it);
        assert_eq!(store.age, Some(Duration::from_secs(300)));
        let number = store.number;
        let at = engine.keeps(0, store, false);
        if is_heard_first {
            it.is_told(&topic, engine.told(0, 0));
            assert_eq!(it.hears(key), ["news 1", "behind", "phx_reply ok"]);
            it.is_answered(number, Ok(at));
        } else {
            it.is_answered(number, Ok(at));
            assert!(it.receives(key).is_empty(), "its own broadcast comes first");
            it.is_told(&topic, engine.told(0, 0));
            assert_eq!(it.hears(key), ["news 1", "behind", "phx_reply ok"]);
        }
        assert!(it.receives(key).is_empty() && !it.test_shard.out.is_held(key));
        assert_eq!((it.charged(), it.other.history_waits()), ([0; 2], 0));
        it.advances(Duration::from_secs(30));
        assert!(it.receives(key).is_empty());
    }
}

#[test]
fn effects_after_a_refused_broadcast_are_dropped() {
    for (why, told) in [
        (NotKept::Refused("it has no room".into()), "not stored"),
        (NotKept::Full, "not stored"),
        (NotKept::Unconfirmed, "unconfirmed"),
    ] {
        for (mut it, mut engine, topic) in both() {
            let (key, _) = it.joins(&mut engine, &topic, OPTED_IN);
            it.says(key, &topic, "say", r#"{"n":1}"#);
            let store = only_store(&mut it);
            it.is_answered(store.number, Err(why.clone()));
            assert_eq!(it.hears(key), [format!("phx_reply {told}")]);
            assert!(!it.test_shard.out.is_held(key));
            assert_eq!(it.charged(), [0; 2]);
            // A kept broadcast is received all the same, and nothing else.
            engine.keeps(0, store, false);
            assert_eq!(it.is_told(&topic, engine.told(0, 0)).hears(key), ["news 1"]);
        }
    }
}

#[test]
fn stored_broadcast_that_does_not_return_is_answered_later() {
    let (mut it, mut engine) = (Node::running(talking()), Engine::new());
    for topic in it.topics() {
        let (key, _) = it.joins(&mut engine, &topic, OPTED_IN);
        it.says(key, &topic, "say", r#"{"n":1}"#);
        let (number, at) = keeps_only(&mut it, &mut engine);
        it.is_answered(number, Ok(at));
        it.advances(Duration::from_millis(1_900));
        assert!(it.receives(key).is_empty());
        it.advances(Duration::from_millis(200));
        assert_eq!(it.hears(key), ["behind", "phx_reply ok"]);
        assert_eq!(it.charged(), [0; 2]);
        it.hears_last(&engine);
        it.settles();
        assert_eq!(it.hears(key), ["news 1"]);
    }
}

#[test]
fn unanswered_store_times_out_and_is_no_longer_counted() {
    let (mut it, mut engine) = (Node::running(talking()), Engine::new());
    for topic in it.topics() {
        let (key, _) = it.joins(&mut engine, &topic, OPTED_IN);
        let answers: Arc<Mutex<Vec<Result<KeptAt, NotKept>>>> = Arc::default();
        let heard = Arc::clone(&answers);
        let answer: KeptCallback = Box::new(move |it| heard.lock().unwrap().push(it));
        let broadcast = Broadcast::new(&*topic, "news", Payload::EMPTY_OBJECT);
        it.test_shard.node.keep(broadcast, Some("once".into()), Some(answer)).unwrap();
        it.says(key, &topic, "say", r#"{"n":1}"#);
        assert!(it.charged().iter().any(|bytes| *bytes > 0), "it holds whoever publishes");
        it.advances(Duration::from_secs(8));
        assert!(it.receives(key).is_empty());
        it.advances(Duration::from_secs(2));
        assert_eq!(it.hears(key), ["phx_reply unconfirmed"]);
        assert!(answers.lock().unwrap().is_empty());
        it.advances(Duration::from_secs(12));
        assert_eq!(*answers.lock().unwrap(), [Err(NotKept::Unconfirmed)]);
        assert_eq!((it.charged(), it.other.history_waits()), ([0; 2], 0));
        it.looks();
        for store in std::mem::take(&mut it.stores) {
            let number = store.number;
            let at = engine.keeps(0, store, false);
            it.hears_last(&engine);
            it.test_shard.node.post_stored(number, Ok(at));
            it.test_shard.node.post_stored(number, Err(NotKept::Full));
        }
        it.settles();
        assert_eq!(answers.lock().unwrap().len(), 1);
        let mut heard = it.hears(key);
        heard.sort_unstable();
        assert_eq!(heard, ["news", "news 1"]);
        assert_eq!(it.charged(), [0; 2]);
        it.test_shard.disconnects(key);
    }
}

#[test]
fn answers_can_be_out_of_order_repeated_or_unknown() {
    let (mut it, mut engine) = (Node::running(talking()), Engine::new());
    let topic = it.there.clone();
    let keys: Vec<Key> = (0..3).map(|_| it.joins(&mut engine, &topic, OPTED_IN).0).collect();
    for (n, key) in keys.iter().enumerate() {
        it.writes(*key, &topic, "say", &format!(r#"{{"n":{n}}}"#));
    }
    it.settles();
    it.looks();
    let mut answers = Vec::new();
    for (n, store) in std::mem::take(&mut it.stores).into_iter().enumerate() {
        answers.push((store.number, engine.keeps(0, store, n > 0)));
    }
    for (number, at) in answers.iter().rev().chain(&answers) {
        it.test_shard.node.post_stored(*number, Ok(*at));
        it.test_shard.node.post_stored(number + (77 << 16), Ok(*at));
        it.test_shard.node.post_stored(u64::MAX, Err(NotKept::Full));
    }
    it.settles();
    assert!(keys.iter().all(|key| it.test_shard.out.is_held(*key)), "nothing was heard yet");
    (0..3).for_each(|at| _ = it.is_told(&topic, engine.told(0, at)));
    let heard: Vec<Vec<String>> = keys.iter().map(|key| it.receives(*key)).collect();
    // Of one envelope, each has its place.
    let places: Vec<&str> = heard[0].iter().filter_map(|it| try_position(it)).collect();
    assert_eq!(places, ["a000rs.17", "a000rs.17-1", "a000rs.17-2"]);
    for (n, heard) in heard.iter().enumerate() {
        let mut all = gist(heard);
        let own = all.iter().position(|it| *it == format!("news {n}")).unwrap();
        assert_eq!(all.drain(own + 1..own + 3).collect::<Vec<_>>(), ["behind", "phx_reply ok"]);
        assert_eq!(all, ["news 0", "news 1", "news 2"]);
    }
    (0..3).for_each(|at| _ = it.is_told(&topic, engine.told(0, at)));
    assert!(keys.iter().all(|key| it.receives(*key).is_empty()));
    assert_eq!(it.charged(), [0; 2]);
}

#[test]
fn publisher_faster_than_the_broker_is_refused() {
    let config = Config { mailbox_bytes_max: 2_000, ..Config::default() };
    let mut it = Node::on(config, talking(), HistoryRule::default());
    let mut engine = Engine::new();
    let topic = it.here.clone();
    let (key, _) = it.joins(&mut engine, &topic, OPTED_IN);
    let broadcast = || Broadcast::new(&*topic, "news", Payload::EMPTY_OBJECT);
    let taken = (0..100).take_while(|_| {
        let taken = it.test_shard.node.broadcast(broadcast()).is_ok();
        it.takes_turns();
        taken
    });
    let taken = taken.count();
    assert!((20..40).contains(&taken), "{taken} of 67 bytes and a little each");
    it.says(key, &topic, "say", r#"{"n":1}"#);
    it.looks();
    assert_eq!(it.stores.len(), taken + 1);
    it.test_shard.node.charge(0, 8_000);
    let speaker = it.joins(&mut engine, &topic, "{}").0;
    let _ = it.receives(key);
    it.test_shard.node.charge(0, 8_000);
    it.says(speaker, &topic, "say", r#"{"n":2}"#);
    assert_eq!(it.hears(speaker), ["phx_reply not stored"]);
    assert_eq!(it.charged(), [16_000, 0], "all that was kept meanwhile counts no longer");
}

#[test]
fn client_does_not_receive_its_own_broadcast_on_any_node() {
    for (mut it, mut engine, topic) in both() {
        let mut far = Node { number: 1, ..Node::running(talking()) };
        let (ann, joined) = it.joins(&mut engine, &topic, ANN);
        let first = position_of(&joined[1]);
        let (plain, _) = it.joins(&mut engine, &topic, "{}");
        // Its members have the same ids there.
        let (bob, _) = far.joins(&mut engine, &topic, OPTED_IN);
        let (eve, _) = far.joins(&mut engine, &topic, OPTED_IN);
        for (key, n) in [(ann, 1), (plain, 2)] {
            it.writes(key, &topic, "bcast_from", &format!(r#"{{"n":{n}}}"#));
            it.is_served(&mut engine);
            far.hears_last(&engine);
            far.settles();
        }
        assert_eq!(it.hears(ann), ["simurgh:at", "news 2"]);
        assert_eq!(it.hears(plain), ["news 1"]);
        assert_eq!(far.hears(bob), ["news 1", "news 2"]);
        assert_eq!(far.hears(eve), ["news 1", "news 2"]);
        let since = as_ann(&first);
        let (_, heard) = far.joins(&mut engine, &topic, &since);
        assert_eq!(gist(&heard[1..]), ["simurgh:resumed true", "news 2"]);
        assert!(heard[1].contains(r#""count":1"#), "{heard:?}");
    }
}

#[test]
fn broadcast_without_local_members_is_answered_when_stored() {
    let script = |ctx: &mut ShardContext<'_>, heard: ChannelCall<'_>| match heard {
        ChannelCall::In("to", payload) => {
            ctx.broadcast_to(&payload.parse::<String>().unwrap(), "news", Payload::EMPTY_OBJECT);
            Outcome::ok(Payload::EMPTY_OBJECT)
        }
        other => standard(ctx, other),
    };
    let (mut it, mut engine) = (Node::running(scripted(script)), Engine::new());
    let topic = it.here.clone();
    let (key, _) = it.joins(&mut engine, &topic, OPTED_IN);
    for other in ["elsewhere", "far", "away"] {
        it.says(key, &topic, "to", &format!("\"{other}\""));
        let store = only_store(&mut it);
        assert_eq!(store.broadcast.topic(), other);
        let number = store.number;
        let at = engine.keeps(0, store, false);
        assert_eq!(it.is_answered(number, Ok(at)).hears(key), ["phx_reply ok"]);
    }
}

/// Its first member broadcasts before the broker has sent what it has of the topic.
#[test]
fn broadcast_before_the_topic_begins_arrives_before_the_reply() {
    for topic in [0, 1] {
        for is_in_it in [true, false] {
            let (mut it, mut engine) = (Node::running(talking()), Engine::new());
            let topic = it.topics()[topic].clone();
            engine.receives(&topic, 1, false);
            let key = it.opens(Wire::V2);
            it.says(key, &topic, "phx_join", "{}");
            assert_eq!(it.hears(key), ["phx_reply ok"]);
            it.says(key, &topic, "say", r#"{"n":2}"#);
            let store = only_store(&mut it);
            let number = store.number;
            let before = engine.begun(0, &topic, 0);
            let at = engine.keeps(0, store, false);
            it.is_answered(number, Ok(at));
            assert!(it.receives(key).is_empty());
            match is_in_it {
                true => _ = it.is_told(&topic, engine.begun(0, &topic, 0)),
                false => {
                    it.is_told(&topic, before);
                    it.is_told(&topic, engine.told(0, 1));
                }
            }
            assert_eq!(it.hears(key), ["news 2", "behind", "phx_reply ok"]);
            assert_eq!(it.charged(), [0; 2]);
        }
    }
}

#[test]
fn stored_message_larger_than_its_topic_may_keep_is_counted() {
    let rule = HistoryRule { bytes: 100, ..HistoryRule::default() };
    let (mut it, mut engine) = (Node::on(Config::default(), talking(), rule), Engine::new());
    let topic = it.here.clone();
    it.joins(&mut engine, &topic, OPTED_IN);
    it.hears_of(&mut engine, &topic, 1);
    it.advances(Duration::from_secs(5));
    assert_eq!(it.test_shard.core.metrics().history_too_large.value(), 1);
}
