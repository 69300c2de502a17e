//! Histories whose rules a reload changes.

use super::*;

impl Node {
    /// Both shards continue with another rule.
    fn reloads(&mut self, rule: Option<HistoryRule>) {
        let user_socket = match rule {
            Some(rule) => keeping(scripted(standard), rule),
            None => scripted(standard).user_socket(),
        };
        self.test_shard.reloads(Config::default(), vec![user_socket]);
        self.other.reload(&mut self.out, &self.test_shard.node);
    }
}

#[test]
fn smaller_history_keeps_the_newest_and_a_larger_one_all() {
    for (mut it, topic) in both(scripted(standard)) {
        let (speaker, first) = it.opts_in(&topic);
        it.says(speaker, &topic, 1..7);
        it.reloads(Some(HistoryRule { count: 3, ..HistoryRule::default() }));
        it.misses(&topic, &since(&first), "overwritten", 3);
        let (_, position) = it.opts_in(&topic);
        it.reloads(Some(HistoryRule { count: 9, ..HistoryRule::default() }));
        it.says(speaker, &topic, 1..7);
        it.recovers(&topic, &since(&position), 6);
    }
}

/// Messages were sent meanwhile that nobody has kept.
#[test]
fn history_that_was_off_for_a_while_gives_a_gap() {
    for (mut it, topic) in both(scripted(standard)) {
        let (speaker, first) = it.opts_in(&topic);
        let last = position_of(it.broadcasts(speaker, &topic, 1).last().unwrap());
        it.reloads(None);
        let heard = it.broadcasts(speaker, &topic, 2);
        assert!(heard.iter().any(|text| text.contains(r#"{"n":2}"#)), "{heard:?}");
        it.reloads(Some(HistoryRule::default()));
        for position in [&first, &last] {
            let (_, heard) = it.joins(Wire::V2, &topic, &since(position));
            assert!(heard[1].contains(r#""recovered":false"#), "{heard:?}");
        }
        let next = it.broadcasts(speaker, &topic, 3);
        it.recovers(&topic, &since(&position_of(next.last().unwrap())), 0);
    }
}

/// Its mail was on the way to the home when that had no rule any more.
#[test]
fn broadcast_on_its_way_during_a_reload_is_delivered() {
    for (mut it, topic) in both(scripted(standard)) {
        let (speaker, _) = it.opts_in(&topic);
        it.writes(speaker, &topic, "bcast", r#"{"n":1}"#);
        it.reloads(None);
        it.settles();
        let heard = it.receives(speaker);
        assert!(heard.iter().any(|text| text.contains(r#"{"n":1}"#)), "{heard:?}");
    }
}
