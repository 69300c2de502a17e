//! Clients that join or return: before the topic has begun, while it is unknown, from another node.

use super::*;

pub(super) fn asks(it: &mut Node, wire: Wire, topic: &str, params: &str) -> Key {
    let key = it.opens(wire);
    it.says(key, topic, "phx_join", params);
    key
}

#[test]
fn members_and_listeners_request_a_topic_from_the_cluster() {
    let rule = HistoryRule { count: 7, age: Duration::from_secs(9), ..HistoryRule::default() };
    let mut it = Node::on(Config::default(), talking(), rule);
    let topic = it.here.clone();
    let key = asks(&mut it, Wire::V2, &topic, "{}");
    assert_eq!(it.notes.take(), [format!("begins {topic} on 0: 7 of it for 9000 ms")]);
    assert!(it.test_shard.node.asked().is_empty(), "who does not opt in asks for nothing");
    it.test_shard.disconnects(key);
    assert_eq!(it.notes.take(), [format!("ends {topic} on 0")]);
    let listener = Listener { name: Listener::id(0, 1), on_broadcast: Box::new(|_| ()) };
    it.shards
        .test_shard
        .core
        .mail(&mut it.shards.test_shard.out, Mail::Listen("t7".into(), listener));
    assert_eq!(it.notes.take(), ["begins t7 on 0: 7 of it for 9000 ms"]);
    asks(&mut it, Wire::V2, &topic, OPTED_IN);
    let asked = it.test_shard.node.asked();
    let [ToCluster::Follow(of, wants)] = &asked[..] else { panic!("{asked:?}") };
    assert_eq!((&**of, wants.count, wants.bytes, wants.age_ms), (&*topic, 7, 1 << 20, 9_000));
}

#[test]
fn join_waits_for_the_topic_and_gets_each_missed_message_once() {
    for (topic, wire) in [(0, Wire::V2), (1, Wire::V2), (0, Wire::V1), (1, Wire::V1)] {
        let (mut it, mut engine) = (Node::running(talking()), Engine::new());
        let topic = it.topics()[topic].clone();
        (1..=3).for_each(|n| engine.receives(&topic, n, n > 1));
        let key = asks(&mut it, wire, &topic, &since(&engine.position(0).to_string()));
        assert!(it.receives(key).is_empty() && it.test_shard.out.is_held(key));
        it.looks();
        assert_eq!(it.follows, [&*topic]);
        it.test_shard.node.post_kept(&topic, engine.begun(0, &topic, 0));
        engine.receives(&topic, 4, false);
        it.test_shard.node.post_kept(&topic, engine.told(0, 3));
        it.settles();
        let heard = it.receives(key);
        let expected = ["phx_reply ok", "simurgh:resumed true", "news 2", "news 3", "news 4"];
        assert_eq!(gist(&heard), expected);
        let positions: Vec<&str> = heard[2..].iter().filter_map(|it| try_position(it)).collect();
        assert_eq!(positions, ["a000rs.17-1", "a000rs.17-2", "a000rs.24"]);
        let frame = match wire {
            Wire::V1 => format!(
                r#"{{"topic":"{topic}","event":"news","payload":{{"n":2}},"ref":"a000rs.17-1"}}"#
            ),
            _ => format!(r#"[null,"a000rs.17-1","{topic}","news",{{"n":2}}]"#),
        };
        assert_eq!(heard[2], frame);
        assert_eq!(it.charged(), [0; 2]);
    }
}

#[test]
fn join_waits_while_the_history_is_unknown() {
    for (mut it, mut engine, topic) in both() {
        let (live, first) = it.opts_in(&mut engine, &topic);
        it.hears_of(&mut engine, &topic, 1);
        it.receives(live);
        it.is_told(&topic, FromEngine::Unknown);
        // A join without a position begins at the current one.
        let new = asks(&mut it, Wire::V2, &topic, OPTED_IN);
        assert_eq!(it.hears(new), ["phx_reply ok", "simurgh:resumed true"]);
        let key = asks(&mut it, Wire::V2, &topic, &since(&first));
        it.advances(Duration::from_millis(1_500));
        assert!(it.receives(key).is_empty());
        it.hears_of(&mut engine, &topic, 2);
        it.is_told(&topic, FromEngine::Known);
        let all = ["phx_reply ok", "simurgh:resumed true", "news 1", "news 2"];
        assert_eq!(it.hears(key), all);
        assert_eq!(it.hears_of(&mut engine, &topic, 3).hears(key), ["news 3"]);
        assert_eq!(it.hears(new), ["news 2", "news 3"]);
        assert_eq!(it.hears(live), ["news 2", "news 3"]);
    }
}

#[test]
fn join_that_waited_long_enough_gets_a_gap_and_later_the_missed_messages() {
    for (partial, expected) in [(true, &["news 1"][..]), (false, &[])] {
        for (mut it, mut engine, topic) in both() {
            let (_, first) = it.opts_in(&mut engine, &topic);
            it.hears_of(&mut engine, &topic, 1);
            it.is_told(&topic, FromEngine::Unknown);
            let params = format!(r#"{{"simurgh":{{"since":"{first}","partial":{partial}}}}}"#);
            let key = asks(&mut it, Wire::V2, &topic, &params);
            it.advances(Duration::from_millis(2_100));
            let heard = it.hears(key);
            assert_eq!(heard[..2], ["phx_reply ok", "simurgh:resumed unavailable"]);
            assert_eq!(&heard[2..], expected);
            // Nothing was missing: it receives nothing, and so do others with the same request.
            it.is_told(&topic, FromEngine::Known);
            assert!(it.receives(key).is_empty());
            let other = asks(&mut it, Wire::V2, &topic, &params);
            assert_eq!(it.hears(other)[1..], ["simurgh:resumed true", "news 1"]);
            assert_eq!(it.hears_of(&mut engine, &topic, 2).hears(key), ["news 2"]);
        }
    }
}

#[test]
fn engine_that_stores_nothing_delays_no_join() {
    for (mut it, mut engine, topic) in both() {
        let waiting = asks(&mut it, Wire::V2, &topic, &since(&engine_position()));
        assert!(it.receives(waiting).is_empty());
        it.is_told(&topic, FromEngine::Unavailable);
        let unavailable = ["phx_reply ok", "simurgh:resumed unavailable"];
        assert_eq!(it.hears(waiting), unavailable);
        for params in [OPTED_IN.to_owned(), since(&engine_position())] {
            let key = asks(&mut it, Wire::V2, &topic, &params);
            assert_eq!(it.hears(key), unavailable);
        }
        // It stores again.
        it.test_shard.node.post_kept(&topic, engine.begun(0, &topic, 0));
        it.settles();
        let (_, joined) = it.joins(&mut engine, &topic, OPTED_IN);
        it.hears_of(&mut engine, &topic, 1);
        it.is_told(&topic, FromEngine::Unavailable);
        let since = since(&position_of(&joined[1]));
        let key = asks(&mut it, Wire::V2, &topic, &since);
        assert_eq!(it.hears(key), [unavailable[0], unavailable[1], "news 1"]);
        it.is_told(&topic, FromEngine::Known);
        let key = asks(&mut it, Wire::V2, &topic, &since);
        assert_eq!(it.hears(key)[1..], ["simurgh:resumed true", "news 1"]);
    }
}

pub(super) fn engine_position() -> String {
    format!("{}.12", Epoch::from_seed(1_000))
}

#[test]
fn client_ahead_of_this_node_joins_when_the_node_caught_up() {
    for (mut it, mut engine, topic) in both() {
        it.joins(&mut engine, &topic, OPTED_IN);
        (1..=3).for_each(|n| engine.receives(&topic, n, false));
        let key = asks(&mut it, Wire::V2, &topic, &since(&engine.position(1).to_string()));
        it.is_told(&topic, engine.told(0, 0));
        it.advances(Duration::from_secs(1));
        assert!(it.receives(key).is_empty(), "it has heard the second");
        it.looks();
        assert_eq!(it.looked_at, [&*topic], "a copy may have been asked that lags behind");
        it.is_told(&topic, engine.told(0, 1));
        assert_eq!(it.hears(key), ["phx_reply ok", "simurgh:resumed true"]);
        assert_eq!(it.is_told(&topic, engine.told(0, 2)).hears(key), ["news 3"]);
        let far = format!("{}.999999", Epoch::from_seed(1_000));
        let key = asks(&mut it, Wire::V2, &topic, &since(&far));
        it.advances(Duration::from_secs(1));
        assert!(it.receives(key).is_empty());
        it.advances(Duration::from_millis(1_100));
        assert_eq!(it.hears(key)[1], "simurgh:resumed epoch");
    }
}

/// Each node reports the broker's last number at its time as the position of a quiet topic.
#[test]
fn client_from_another_node_joins_a_quiet_topic_without_waiting() {
    for (mut it, mut engine, topic) in both() {
        let mut far = Node { number: 1, ..Node::running(talking()) };
        let (_, early) = it.joins(&mut engine, &topic, OPTED_IN);
        engine.seq += 500;
        let (_, late) = far.joins(&mut engine, &topic, OPTED_IN);
        let [early, late] = [early, late].map(|it| position_of(&it[1]));
        assert_ne!(early, late);
        let mut heard = Vec::new();
        for (node, since) in [(&mut it, &late), (&mut far, &early)] {
            let key = asks(node, Wire::V2, &topic, &super::since(since));
            assert_eq!(node.hears(key), ["phx_reply ok", "simurgh:resumed true"]);
            heard.push(key);
        }
        engine.receives(&topic, 1, false);
        for (node, key) in [(&mut it, heard[0]), (&mut far, heard[1])] {
            node.hears_last(&engine);
            node.settles();
            assert_eq!(node.hears(key), ["news 1"]);
        }
        let page = far.reads(&topic, Some(Position::parse(&early).unwrap()));
        assert_eq!((page.gap, page.messages.len()), (None, 1));
    }
}

#[test]
fn join_while_a_topic_ends_is_answered_when_it_begins_again() {
    for (mut it, mut engine, topic) in both() {
        let (key, joined) = it.joins(&mut engine, &topic, OPTED_IN);
        it.hears_of(&mut engine, &topic, 1);
        it.test_shard.disconnects(key);
        it.is_told(&topic, FromEngine::Unknown);
        let key = asks(&mut it, Wire::V2, &topic, &since(&position_of(&joined[1])));
        it.looks();
        it.follows.clear();
        it.is_told(&topic, FromEngine::Ended);
        it.looks();
        assert_eq!(it.follows, [&*topic], "it is wanted all the same");
        assert!(it.receives(key).is_empty());
        it.is_told(&topic, engine.begun(0, &topic, 0));
        assert_eq!(it.hears(key), ["phx_reply ok", "simurgh:resumed true", "news 1"]);
        // Without members nothing is left.
        it.test_shard.disconnects(key);
        it.advances(Duration::from_secs(20));
        it.is_told(&topic, FromEngine::Ended);
        let core = it.home_of(&topic);
        assert_eq!(core.histories().kept.counts(), (0, 0, 0));
        assert!(core.histories().followed.as_ref().unwrap().topics.is_empty());
        assert_eq!(it.waits(), 0);
    }
}

/// It was admitted a moment before, and does not know that the topic has ended.
#[test]
fn join_while_a_topic_ends_loses_nothing_or_gets_a_gap() {
    for (mut it, mut engine, topic) in both() {
        engine.receives(&topic, 1, false);
        let (key, _) = it.joins(&mut engine, &topic, OPTED_IN);
        it.is_told(&topic, FromEngine::Ended);
        engine.receives(&topic, 2, false);
        it.is_told(&topic, engine.begun(0, &topic, 0));
        assert_eq!(it.hears_of(&mut engine, &topic, 3).hears(key), ["news 2", "news 3"]);
        for (floor, heard) in [(0, &["news 4"][..]), (1, &["simurgh:gap unavailable", "news 4"])] {
            let (key, _) = it.joins(&mut engine, &topic, OPTED_IN);
            it.is_told(&topic, FromEngine::Ended);
            engine.seq += floor;
            it.is_told(&topic, engine.begun(0, &topic, floor * engine.seq));
            assert_eq!(it.hears_of(&mut engine, &topic, 4).hears(key), heard);
        }
    }
}

/// The answer to its join came late, as its node stood still: by then its position was forgotten.
#[test]
fn member_that_joined_long_before_its_topic_began_again_gets_a_gap() {
    for (mut it, mut engine, topic) in both() {
        engine.receives(&topic, 1, false);
        let (key, _) = it.joins(&mut engine, &topic, OPTED_IN);
        it.advances(Duration::from_secs(9));
        it.is_told(&topic, FromEngine::Ended);
        engine.receives(&topic, 2, false);
        it.is_told(&topic, engine.begun(0, &topic, 0));
        let heard = it.hears_of(&mut engine, &topic, 3).hears(key);
        assert_eq!(heard, ["simurgh:gap unavailable", "news 3"]);
    }
}

/// The copy that is asked when the topic begins again may lag behind.
#[test]
fn messages_of_an_ended_topic_are_neither_repeated_nor_skipped() {
    for (mut it, mut engine, topic) in both() {
        let (key, first) = it.opts_in(&mut engine, &topic);
        it.hears_of(&mut engine, &topic, 1);
        let older = [engine.begun(0, &topic, 0), engine.begun(0, &topic, 0)];
        it.hears_of(&mut engine, &topic, 2);
        it.is_told(&topic, FromEngine::Ended);
        for older in older {
            it.is_told(&topic, older);
        }
        it.is_told(&topic, engine.told(0, 1));
        assert_eq!(it.hears_of(&mut engine, &topic, 3).hears(key), ["news 1", "news 2", "news 3"]);
        assert_eq!(it.resumes(&mut engine, &topic, &first), ["simurgh:resumed expired", "news 3"]);
    }
}

#[test]
fn client_without_proof_of_a_first_join_gets_no_messages() {
    let rule = HistoryRule { only_own: true, ..HistoryRule::default() };
    for (mut it, mut engine, topic) in both_on(&Config::default(), rule) {
        engine.receives(&topic, 1, false);
        let key = asks(&mut it, Wire::V2, &topic, OPTED_IN);
        it.advances(Duration::from_millis(2_100));
        let heard = it.receives(key);
        assert_eq!(gist(&heard)[1], "simurgh:resumed unavailable");
        assert!(!heard[1].contains("key"), "{heard:?}");
        it.begins(&engine, &topic);
        let (key, heard) = it.joins(&mut engine, &topic, &since(&engine_position()));
        assert!(heard[1].contains(r#""reason":"epoch","count":0"#), "{heard:?}");
        let (first, proof) = (position_of(&heard[1]), heard[1].split(r#""key":""#).nth(1));
        let proof = proof.unwrap().split('"').next().unwrap();
        it.hears_of(&mut engine, &topic, 2);
        it.test_shard.disconnects(key);
        let own = |since: &str| format!(r#"{{"simurgh":{{"since":"{since}","key":"{proof}"}}}}"#);
        for since in [&first, &engine_position()] {
            let (_, heard) = it.joins(&mut engine, &topic, &own(since));
            assert_eq!(gist(&heard)[1..], ["simurgh:resumed true", "news 2"]);
        }
    }
}

/// It left before it could receive the gap, and its join shows that.
#[test]
fn rejoin_before_a_gap_was_received_reports_the_gap() {
    for (mut it, mut engine, topic) in both() {
        let (key, _) = it.joins(&mut engine, &topic, OPTED_IN);
        it.hears_of(&mut engine, &topic, 1);
        let before = engine.position(0).to_string();
        it.is_told(&topic, FromEngine::Gap { through: engine.seq + 3 });
        engine.seq += 3;
        it.hears_of(&mut engine, &topic, 2);
        let heard = it.receives(key);
        assert_eq!(gist(&heard), ["news 1", "simurgh:gap lost", "news 2"]);
        let (other, _) = it.joins(&mut engine, &topic, &since(&before));
        let gap = position_of(&heard[1]);
        for (key, place, expected) in [(key, &before, "lost"), (other, &gap, "true")] {
            let heard = it.joins_as(&mut engine, key, &topic, &since(place));
            let resumed = format!("simurgh:resumed {expected}");
            assert!(gist(&heard).contains(&resumed), "{place}: {heard:?}");
        }
    }
}
