//! Histories over a planned restart, with another number of shards.

use std::convert::Infallible;

use super::*;

fn encoded(saved: impl IntoIterator<Item = SavedHistory>) -> Vec<u8> {
    let mut bytes = Vec::new();
    let written = SavedHistory::encode(saved, |part| {
        bytes.extend_from_slice(part);
        Ok::<_, Infallible>(())
    });
    assert!(written.is_ok());
    bytes
}

#[test]
fn history_survives_a_restart_and_numbering_continues() {
    let mut it = Node::running(scripted(standard));
    let topics = [it.here.clone(), it.there.clone()];
    let mut firsts = Vec::new();
    for topic in &topics {
        let (key, joined) = it.joins(Wire::V2, topic, OPTED_IN);
        firsts.push(position_of(&joined[1]));
        it.says(key, topic, 1..4);
    }
    let saved = [it.test_shard.core.take_history(), it.other.take_history()];
    assert_eq!(saved.iter().map(SavedHistory::topics).collect::<Vec<_>>(), [1, 1]);
    let bytes = encoded(saved);
    for cut in 0..bytes.len() {
        assert!(SavedHistory::decode(&bytes[..cut], 2, 1).is_err(), "cut at {cut}");
    }
    let user_sockets = vec![keeping(scripted(standard), HistoryRule::default())];
    let mut next = TestShard::with_node(TestNode::new(1, Config::default(), user_sockets));
    let mut decoded = SavedHistory::decode(&bytes, 1, 1).unwrap();
    next.core.restore_history(decoded.remove(0), 0);
    assert_eq!(next.core.metrics().history_messages.value(), 6);
    for (n, (topic, first)) in (0..).zip(topics.iter().zip(&firsts)) {
        let key = next.opens(Wire::V2);
        next.sends(key, &format!(r#"["1","1","{topic}","phx_join",{}]"#, since(first)));
        let heard = next.receives(key);
        assert!(heard[1].contains(r#"{"recovered":true,"count":3}"#), "{heard:?}");
        assert_eq!(positions(&heard[2..]).0, [1, 2, 3]);
        next.sends(key, &format!(r#"["1","2","{topic}","bcast",{{"n":4}}]"#));
        next.fans_out();
        let heard = next.receives(key);
        assert_eq!(positions(&heard).0, [4 + n], "behind all that were given");
        assert!(position_of(&heard[0]).starts_with(&first[..6]), "the same epoch");
    }
}

#[test]
fn saved_topics_without_a_declaration_are_dropped() {
    let mut it = Node::running(scripted(standard));
    let topic = it.here.clone();
    let (key, _) = it.joins(Wire::V2, &topic, OPTED_IN);
    it.sends(key, &topic, "bcast", "{}");
    let bytes = encoded([it.test_shard.core.take_history()]);
    let mut without = TestShard::running(scripted(standard));
    let decoded = SavedHistory::decode(&bytes, 1, 1).unwrap().remove(0);
    without.core.restore_history(decoded, 0);
    assert_eq!(without.core.metrics().history_messages.value(), 0);
}
