//! Requests from outside of channels.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use simurgh_channel::{HistoryConfig, HistoryPage, HistoryRule, MissedRequest, Range, Requester};
use simurgh_data::Key;
use simurgh_history::{GapReason, Position, Since};
use simurgh_proto::message::Payload;
use simurgh_proto::topic::Pattern;

use super::Node;
use crate::history::kept_topics::KeptTopics;
use crate::testing::*;
use crate::*;

const ALL: Range = Range { since: None, limit: 1_000, is_reverse: false };

pub(super) fn kept(rule: HistoryRule) -> KeptTopics {
    let pattern: Pattern = Pattern::parse("*").unwrap();
    KeptTopics::new(vec![(pattern, rule)], simurgh_history::Epoch::from_seed(7), 0x5eed)
}

pub(super) fn store(kept: &mut KeptTopics, topic: &str, bytes: usize, now_ms: u64) -> Position {
    let payload = Payload::from_bytes(vec![7; bytes]);
    kept.store(Broadcast::new(topic, "e", payload), None, 0, 0, now_ms).0
}

/// What a joining client misses of the topic behind a position.
pub(super) fn missed_since(position: Position) -> MissedRequest {
    MissedRequest {
        topic: "t".into(),
        since: Since::After(position),
        partial: true,
        torn: false,
        is_away: false,
        shard: 0,
        client: 0,
        requester: Requester::Join(Key { slot: 0, generation: 0 }, 0),
    }
}

fn seqs(page: &HistoryPage) -> Vec<u64> {
    page.messages.iter().map(|it| it.position.place.seq).collect()
}

#[test]
fn page_starts_at_its_position_in_both_directions() {
    let mut kept = kept(HistoryRule { count: 5, ..HistoryRule::default() });
    let all: Vec<Position> = (1..=8).map(|n| store(&mut kept, "t", 1, n)).collect();
    let mut read = |since: Option<Position>, limit, is_reverse| {
        let page = kept.read("t", &Range { since, limit, is_reverse }, 10);
        assert_eq!((page.first, page.position), (Some(all[3]), all[7]));
        assert!(page.messages.iter().all(|it| it.at_ms == it.position.place.seq));
        (seqs(&page), page.gap)
    };
    assert_eq!(read(None, 9, false), (vec![4, 5, 6, 7, 8], None));
    assert_eq!(read(None, 2, true), (vec![8, 7], None));
    assert_eq!(read(Some(all[5]), 9, false), (vec![7, 8], None));
    assert_eq!(read(Some(all[5]), 9, true), (vec![5, 4], None));
    assert_eq!(read(Some(all[7]), 9, false), (vec![], None));
    assert_eq!(read(Some(all[3]), 9, true), (vec![], None));
    assert_eq!(read(Some(all[2]), 1, false), (vec![4], None), "nothing is missing");
    assert_eq!(read(Some(all[1]), 1, false), (vec![4], Some(GapReason::Overwritten)));
    let mut ahead = all[7];
    ahead.place.seq += 1;
    assert_eq!(read(Some(ahead), 2, false), (vec![4, 5], Some(GapReason::Epoch)));
    assert_eq!(read(Some(ahead), 2, true), (vec![8, 7], Some(GapReason::Epoch)));
}

#[test]
fn page_has_one_message_or_stays_below_its_limit() {
    let mut kept = kept(HistoryRule { bytes: 64 << 20, ..HistoryRule::default() });
    for bytes in [5 << 20, 1 << 20, 1 << 20, 3 << 20, 1] {
        store(&mut kept, "t", bytes, 1);
    }
    let (mut pages, mut range) = (Vec::new(), ALL);
    loop {
        let page = kept.read("t", &range, 1);
        let Some(last) = page.messages.last() else { break };
        range.since = Some(last.position);
        pages.push(seqs(&page));
    }
    assert_eq!(pages, [vec![1], vec![2, 3], vec![4, 5]]);
    let newest = kept.read("t", &Range { is_reverse: true, ..ALL }, 1);
    assert_eq!(seqs(&newest), [5, 4]);
}

#[test]
fn expired_messages_are_not_read_and_reading_does_not_protect() {
    let rule = HistoryRule { age: Duration::from_millis(100), ..HistoryRule::default() };
    let mut kept = kept(rule);
    store(&mut kept, "a", 1, 1_000);
    let b = store(&mut kept, "b", 1, 1_050);
    assert_eq!(seqs(&kept.read("a", &ALL, 1_099)), [1]);
    kept.evict();
    assert_eq!(kept.read("a", &ALL, 1_099).messages.len(), 0, "it was used least lately");
    assert_eq!(seqs(&kept.read("b", &ALL, 1_149)), [2]);
    let page = kept.read("b", &ALL, 1_150);
    assert_eq!((page.first, page.position, seqs(&page)), (None, b, vec![]));
    assert_eq!(kept.counts(), (2, 0, 0));
}

#[test]
fn purged_messages_are_freed() {
    let mut kept = kept(HistoryRule::default());
    store(&mut kept, "other", 5_000, 1);
    let payload = Payload::from_bytes(vec![7; 5_000]);
    let (first, broadcast) = kept.store(Broadcast::new("t", "e", payload), None, 0, 0, 1);
    let weak = Arc::downgrade(&broadcast.unwrap());
    let ask = missed_since(Position { place: Default::default(), ..first });
    assert_eq!(kept.missed(&ask, &HistoryConfig::default(), 1).0.messages.len(), 1);
    assert!(weak.upgrade().is_some());
    assert_eq!(kept.purge("t", 2), first);
    assert!(weak.upgrade().is_none());
    let (topics, messages, bytes) = kept.counts();
    assert_eq!((topics, messages), (2, 1));
    assert!((5_000..6_000).contains(&bytes), "{bytes}");
    let (missed, _) = kept.missed(&ask, &HistoryConfig::default(), 3);
    assert_eq!((missed.gap, missed.messages.len()), (Some(GapReason::Purged), 0));
    assert_eq!(store(&mut kept, "t", 1, 4).place.seq, 3);
}

#[test]
fn topics_are_listed_in_pages() {
    let rule = HistoryRule { age: Duration::from_millis(10), ..HistoryRule::default() };
    let mut kept = kept(rule);
    for n in 0..10 {
        store(&mut kept, &format!("{n}"), 1, if n % 2 == 0 { 1_000 } else { 1 });
    }
    kept.sweep(100, 1_000);
    let list = |from, limit, places| {
        let some = kept.list(from, limit, places);
        let names: Vec<String> = some.topics.iter().map(|it| it.name.to_string()).collect();
        assert!(some.topics.iter().all(|it| it.messages == 1 && it.position.place.seq >= 1));
        (names.join(" "), some.next)
    };
    assert_eq!(list(0, 100, 100), ("0 2 4 6 8".to_owned(), None));
    assert_eq!(list(0, 2, 100), ("0 2".to_owned(), Some(4)));
    assert_eq!(list(4, 2, 100), ("4 6".to_owned(), Some(8)));
    assert_eq!(list(8, 2, 100), ("8".to_owned(), None));
    assert_eq!(list(1, 2, 1), (String::new(), Some(2)), "it goes on behind an empty place");
    assert_eq!(list(9, 2, 100), (String::new(), None));
    assert_eq!(list(u32::MAX, 2, 100), (String::new(), None));
}

/// The home of a topic answers, whichever shard that is; one that has ended does not.
#[test]
fn home_shard_answers_reads() {
    let mut it = Node::running(scripted(standard));
    for topic in [it.here.clone(), it.there.clone()] {
        let (speaker, _) = it.joins(crate::wire::Wire::V2, &topic, "{}");
        it.sends(speaker, &topic, "bcast", r#"{"n":1}"#);
        let heard: Arc<Mutex<Vec<String>>> = Arc::default();
        let note = || {
            let heard = Arc::clone(&heard);
            move |text: String| heard.lock().unwrap().push(text)
        };
        let (read, forgot, listed) = (note(), note(), note());
        let node = Arc::clone(&it.test_shard.node);
        let told = move |page: HistoryPage| {
            let it = &page.messages[0];
            read(format!("{} {:?}", it.event(), it.payload().json()));
        };
        let shard = u16::from(topic == it.there);
        node.request_history(HistoryRequest::Read(topic.as_str().into(), ALL, Box::new(told)));
        node.request_history(HistoryRequest::Forget(
            topic.as_str().into(),
            Box::new(move |position| forgot(position.unwrap().place.seq.to_string())),
        ));
        node.request_history(HistoryRequest::Topics(
            shard,
            0,
            9,
            Box::new(move |some| {
                let topic = &some.topics[0];
                listed(format!("{} {} {}", topic.name, topic.messages, topic.bytes));
            }),
        ));
        it.settles();
        let expected = [r#"news Some("{\"n\":1}")"#, "1", &format!("{topic} 0 0")];
        assert_eq!(*heard.lock().unwrap(), expected);

        it.test_shard.node.log().ended.push(usize::from(shard));
        let alive = Arc::new(());
        let gone = Arc::downgrade(&alive);
        let never = move |_: Result<Position, NotKept>| drop(alive);
        node.request_history(HistoryRequest::Forget(topic.as_str().into(), Box::new(never)));
        assert!(gone.upgrade().is_none(), "the question is dropped");
        it.test_shard.node.log().ended.clear();
    }
}
