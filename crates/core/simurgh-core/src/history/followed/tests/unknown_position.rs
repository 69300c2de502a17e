//! Clients that are admitted before the position of their topic is known.

use super::joins::{asks, engine_position};
use super::*;

impl Node {
    /// A client that does not opt in joins; the broker does nothing.
    fn joins_unserved(&mut self, topic: &str) -> (Key, Vec<String>) {
        let key = asks(self, Wire::V2, topic, "{}");
        (key, self.receives(key))
    }
}

#[test]
fn join_without_a_known_history_continues_when_the_topic_begins() {
    for (mut it, mut engine, topic) in both() {
        let since = since(&engine_position());
        let keys = [OPTED_IN, &since].map(|params| asks(&mut it, Wire::V2, &topic, params));
        it.advances(Duration::from_millis(2_100));
        let positions = keys.map(|key| {
            let heard = it.receives(key);
            assert_eq!(gist(&heard), ["phx_reply ok", "simurgh:resumed unavailable"]);
            position_of(&heard[1])
        });
        assert!(!positions[0].starts_with("a000rs"), "it is not known");
        assert_eq!(positions[1], engine_position(), "it is where it was");
        let (plain, _) = it.joins_unserved(&topic);
        engine.receives(&topic, 1, false);
        it.begins(&engine, &topic);
        it.hears_of(&mut engine, &topic, 2);
        for key in keys {
            let heard = it.receives(key);
            assert_eq!(gist(&heard), ["simurgh:gap unavailable", "news 2"]);
            assert_eq!(position_of(&heard[0]), "a000rs.17");
        }
        assert_eq!(it.hears(plain), ["news 2"]);
    }
}

/// There were no messages, but those of the client's previous epoch are lost; who has a message of
/// this epoch has come to a copy that does not have it yet.
#[test]
fn clients_from_another_node_get_a_notice_when_the_topic_begins_empty() {
    let [epoch, other] = [1_000, 999].map(Epoch::from_seed);
    for (since, expected) in [
        (format!("{epoch}.0"), &["simurgh:at"][..]),
        (format!("{epoch}.12"), &["simurgh:gap unavailable"]),
        (format!("{other}.12"), &["simurgh:gap epoch"]),
    ] {
        let (mut it, engine) = (Node::running(talking()), Engine::new());
        let topic = it.topics()[0].clone();
        let key = asks(&mut it, Wire::V2, &topic, &self::since(&since));
        it.advances(Duration::from_millis(2_100));
        assert_eq!(it.hears(key)[1], "simurgh:resumed unavailable");
        assert_eq!(it.is_told(&topic, engine.begun(0, &topic, 0)).hears(key), expected);
    }
}

/// The first is of this epoch, so the topic alone would say that it missed nothing.
#[test]
fn clients_of_two_epochs_get_one_notice_for_both() {
    let (mut it, engine) = (Node::running(talking()), Engine::new());
    let topic = it.topics()[0].clone();
    let keys = [1_000, 999].map(|seed| {
        let since = since(&format!("{}.0", Epoch::from_seed(seed)));
        asks(&mut it, Wire::V2, &topic, &since)
    });
    it.advances(Duration::from_millis(2_100));
    for key in keys {
        assert_eq!(it.hears(key)[1], "simurgh:resumed unavailable");
    }
    it.is_told(&topic, engine.begun(0, &topic, 0));
    for key in keys {
        assert_eq!(it.hears(key), ["simurgh:gap unavailable"]);
    }
}

/// Its position stays valid elsewhere, and here when the topic has begun.
#[test]
fn leave_before_a_topic_begins_loses_nothing() {
    for (mut it, mut engine, topic) in both() {
        (1..=3).for_each(|n| engine.receives(&topic, n, false));
        let key = asks(&mut it, Wire::V2, &topic, &since(&engine.position(0).to_string()));
        it.advances(Duration::from_millis(2_100));
        let heard = it.receives(key);
        assert_eq!(gist(&heard)[1..], ["simurgh:resumed unavailable"]);
        it.test_shard.disconnects(key);
        it.begins(&engine, &topic);
        assert_eq!(
            it.resumes(&mut engine, &topic, &position_of(&heard[1])),
            ["simurgh:resumed true", "news 2", "news 3"]
        );
    }
}

/// The same on one connection: nothing was sent on it.
#[test]
fn rejoin_without_a_known_history_continues_at_its_position() {
    for (mut it, mut engine, topic) in both() {
        (1..=3).for_each(|n| engine.receives(&topic, n, false));
        let since = since(&engine.position(0).to_string());
        let key = asks(&mut it, Wire::V2, &topic, &since);
        it.advances(Duration::from_millis(2_100));
        assert_eq!(it.hears(key)[1..], ["simurgh:resumed unavailable"]);
        it.writes(key, &topic, "phx_leave", "{}");
        it.receives(key);
        it.begins(&engine, &topic);
        let heard = it.joins_as(&mut engine, key, &topic, &since);
        assert_eq!(gist(&heard)[1..], ["simurgh:resumed true", "news 2", "news 3"]);
    }
}

#[test]
fn empty_topic_has_no_gap_when_it_begins() {
    for (mut it, mut engine, topic) in both() {
        let key = asks(&mut it, Wire::V2, &topic, OPTED_IN);
        it.advances(Duration::from_millis(2_100));
        assert_eq!(it.hears(key)[1], "simurgh:resumed unavailable");
        it.begins(&engine, &topic);
        let heard = it.receives(key);
        assert_eq!(gist(&heard), ["simurgh:at"]);
        let place = position_of(&heard[0]);
        it.test_shard.disconnects(key);
        it.hears_of(&mut engine, &topic, 1);
        assert_eq!(it.resumes(&mut engine, &topic, &place), ["simurgh:resumed true", "news 1"]);
    }
}
