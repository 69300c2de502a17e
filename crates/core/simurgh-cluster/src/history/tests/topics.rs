//! Followed topics: how they begin, and what is missing, fetched or removed.

use simurgh_history::{NotKept, StoredAt};

use simurgh_channel::ChannelId;

use super::engine::{Scenario, TOPICS, WANTS};
use super::log::{Message, SeenEvent};
use super::*;
use crate::envelope::Draft;

const A: &str = TOPICS[0];

pub(super) fn scenario(nodes: usize) -> Scenario {
    Scenario::new(nodes, &HistoryConfig::default())
}

/// Two nodes, of which the second follows a topic with one message of the first.
fn followed() -> Scenario {
    let mut it = scenario(2);
    it.follow(1, A);
    it.store_many(0, 1);
    it
}

pub(super) fn short(said: &[SeenEvent]) -> Vec<String> {
    let texts = |all: &[Message]| {
        let texts: Vec<&str> = all.iter().map(|it| &*it.text).collect();
        texts.join(",")
    };
    let one = |it: &SeenEvent| match it {
        SeenEvent::Begun { floor, head, messages, .. } => {
            format!("{floor}<{}<={head}", texts(messages))
        }
        SeenEvent::Next(message) => message.text.clone(),
        SeenEvent::Gap(through) => format!("gap {through}"),
        SeenEvent::Purged(at) => format!("purged {}", at.seq),
        SeenEvent::Unknown => "unknown".into(),
        SeenEvent::Unavailable => "unavailable".into(),
        SeenEvent::Known => "known".into(),
        SeenEvent::Ended => "ended".into(),
    };
    said.iter().map(one).collect()
}

impl Scenario {
    pub(super) fn take_texts(&mut self, at: usize) -> Vec<String> {
        self.run();
        short(&self.take_events(at, A))
    }

    pub(super) fn store_many(&mut self, at: usize, count: usize) -> &mut Self {
        for _ in 0..count {
            self.store(at, A);
            self.run();
        }
        self
    }
}

#[test]
fn topic_starts_with_the_brokers_messages_and_continues_in_order() {
    let mut it = scenario(2);
    it.skip(40);
    it.store_many(0, 2);
    it.skip(10);
    assert_eq!(it.follow(1, A).take_texts(1), ["0<1,2<=52"]);
    assert_eq!(it.store_many(0, 2).take_texts(1), ["3", "4"]);
    it.end(1, A);
    assert_eq!(it.store_many(0, 1).take_texts(1), ["ended"]);
    assert_eq!(it.follow(1, A).take_texts(1), ["0<1,2,3,4,5<=55"]);
}

#[test]
fn topic_starts_with_the_newest_messages_within_its_limits() {
    for page in [1, 3, usize::MAX] {
        let mut it = scenario(2);
        it.wants.count = 3;
        it.page = page;
        it.store_many(0, 8);
        assert_eq!(it.follow(1, A).take_texts(1), ["5<6,7,8<=8"]);
        it.wants = Retention { count: 100, bytes: 70, ..WANTS };
        it.follow(0, A);
        assert_eq!(it.take_texts(0), ["6<7,8<=8"], "as many bytes");
    }
}

#[test]
fn topic_without_messages_starts_at_the_log_position() {
    let mut it = scenario(1);
    it.skip(500);
    assert_eq!(it.follow(0, A).take_texts(0), ["0<<=500"]);
    assert_eq!(it.store_many(0, 1).take_texts(0), ["1"]);
}

/// Otherwise a position of another node, with a removed message behind it, is above the floor.
#[test]
fn highest_known_position_is_used_if_the_broker_reports_none() {
    let mut it = scenario(1);
    (it.knows_head, it.knows_since) = (false, false);
    it.follow(0, "rooms:lobby");
    assert_eq!(it.follow(0, A).take_texts(0), ["0<<=0"]);
    let stream = |topic: &str| super::super::topic::stream_of(topic);
    assert!(stream(A) != stream("rooms:lobby"));
    it.store_many(0, 3);
    it.remove(A, 100);
    it.end(0, A);
    assert_eq!(it.take_texts(0), ["1", "2", "3", "ended"]);
    assert_eq!(it.follow(0, A).take_texts(0), ["3<<=3"]);
}

#[test]
fn lost_messages_are_fetched_when_the_next_one_arrives() {
    let mut it = followed();
    it.nodes[1].loses = 3;
    assert_eq!(it.store_many(0, 3).take_texts(1), ["0<<=0", "1"]);
    assert_eq!(it.store_many(0, 2).take_texts(1), ["2", "3", "4", "5", "6"]);
    let counts = &it.nodes[1].keeping.counts;
    assert_eq!((counts.holes_filled, counts.gaps), (1, 0));
}

#[test]
fn removed_messages_are_reported_as_a_gap_before_newer_ones() {
    let mut it = followed();
    it.nodes[1].loses = 5;
    it.store_many(0, 5);
    it.remove(A, 5);
    assert_eq!(it.store_many(0, 1).take_texts(1), ["0<<=0", "1", "gap 4", "5", "6", "7"]);
    assert_eq!(it.nodes[1].keeping.counts.gaps, 1);
    assert_eq!(it.nodes[1].keeping.counts.holes_filled, 0);
    it.nodes[1].loses = 2;
    it.store_many(0, 2);
    let next = it.store(0, A);
    it.run();
    assert_eq!((next, it.take_texts(1)), (10, vec!["8".into(), "9".into(), "10".into()]));
    it.nodes[1].loses = 2;
    it.store_many(0, 2);
    it.delay_ns = SECOND;
    it.store_many(0, 1);
    it.remove(A, 13);
    assert_eq!(it.advance(3 * SECOND, SECOND).take_texts(1), ["gap 12", "13"]);
}

/// Single messages were removed, while the last known one is still there.
#[test]
fn gap_of_removed_messages_is_reported_before_waiting_messages() {
    let mut it = followed();
    it.nodes[1].loses = 1;
    it.delay_ns = SECOND;
    it.store_many(0, 2);
    for entry in &mut it.log[1..] {
        entry.gone_ns = Some(it.now_ns);
    }
    assert_eq!(it.advance(5 * SECOND, SECOND).take_texts(1), ["0<<=0", "1", "gap 2", "3"]);
    assert_eq!(it.nodes[1].keeping.follows.jobs, 0);
}

/// Otherwise the messages between would be reported as a gap.
#[test]
fn topic_starts_only_with_messages_before_the_first_waiting_one() {
    let mut it = scenario(2);
    it.store_many(0, 1);
    it.advance(100 * SECOND, 10 * SECOND);
    it.store_many(0, 1);
    (it.lag_ns, it.delay_ns) = (50 * SECOND, SECOND);
    it.follow(1, A);
    it.store_many(0, 1);
    it.advance(10 * SECOND, SECOND / 10);
    assert_eq!(it.take_texts(1), ["0<1,2<=2", "3"], "members who were here before hear the last");
}

/// Messages missing in a copy are not a gap; the leader is asked last.
#[test]
fn lagging_replica_is_asked_again_and_the_leader_last() {
    let mut it = followed();
    it.lag_ns = 100 * SECOND;
    it.nodes[1].loses = 1;
    it.store_many(0, 2);
    let before = (it.take_texts(1), it.asked);
    assert_eq!(before.0, ["0<<=0", "1"]);
    let mut times = Vec::new();
    let start_ns = it.now_ns;
    let mut asked = before.1;
    while it.take_events(1, A).is_empty() {
        it.advance(10 * MILLISECOND, 10 * MILLISECOND);
        if it.asked > asked {
            asked = it.asked;
            times.push((it.now_ns - start_ns) / MILLISECOND);
        }
        assert!(it.now_ns < start_ns + 10 * SECOND, "never");
    }
    assert_eq!(times, [50, 250, 1250]);
}

#[test]
fn lost_last_message_is_found_by_the_slow_check() {
    let mut it = followed();
    it.nodes[1].loses = 1;
    it.store_many(0, 1);
    assert_eq!(it.advance(32 * SECOND, SECOND).take_texts(1), ["0<<=0", "1", "2"]);
    assert_eq!(it.nodes[1].keeping.counts.behind, 1);
}

#[test]
fn own_stored_message_not_received_is_fetched_after_one_second() {
    let mut it = scenario(1);
    it.follow(0, A);
    it.store_many(0, 1);
    it.nodes[0].loses = 1;
    it.store_many(0, 1);
    assert_eq!(it.advance(999 * MILLISECOND, MILLISECOND).take_texts(0), ["0<<=0", "1"]);
    it.advance(MILLISECOND, MILLISECOND);
    let said = it.take_events(0, A);
    let [SeenEvent::Next(message)] = said.as_slice() else { panic!("{said:?}") };
    assert_eq!((&*message.text, message.mine), ("2", Some(2)));
    assert_eq!(it.nodes[0].keeping.sent.len(), 0, "nothing is remembered of it");
}

#[test]
fn node_recognizes_only_its_own_messages_in_any_order() {
    let mut it = scenario(2);
    (0..2).for_each(|at| _ = it.follow(at, A));
    for at in [0, 1, 0, 0, 1, 0] {
        it.store_many(at, 1);
    }
    for at in 0..2 {
        let said = it.take_events(at, A);
        let mine = said.iter().filter_map(|it| match it {
            SeenEvent::Next(message) => Some(message.mine),
            _ => None,
        });
        let own = |number: u64| ([0, 1, 0, 0, 1, 0][number as usize - 1] == at).then_some(number);
        assert_eq!(mine.collect::<Vec<_>>(), (1..=6).map(own).collect::<Vec<_>>());
        assert_eq!(it.nodes[at].keeping.sent.len(), 0);
    }
}

#[test]
fn broker_that_does_not_answer_is_asked_until_it_does() {
    let mut it = scenario(1);
    it.store_many(0, 1);
    it.answers = false;
    it.follow(0, A);
    assert_eq!(it.advance(30 * SECOND, SECOND).take_texts(0), ["unknown"]);
    assert!((6..=12).contains(&it.nodes[0].keeping.ticket), "{}", it.nodes[0].keeping.ticket);
    it.answers = true;
    assert_eq!(it.advance(8 * SECOND, SECOND).take_texts(0), ["0<1<=1"]);
    it.answers = false;
    assert_eq!(it.advance(40 * SECOND, SECOND).take_texts(0), ["unknown"]);
    it.answers = true;
    assert_eq!(it.advance(2 * SECOND, SECOND).take_texts(0), ["known"]);
}

/// No slow check runs while the request is in flight, so the request shows the loss alone.
#[test]
fn messages_that_expire_while_the_broker_is_silent_become_a_gap() {
    let mut it = scenario(2);
    (it.age_ns, it.wants.age_ms) = (20 * SECOND, 20_000);
    assert_eq!(it.follow(1, A).take_texts(1), ["0<<=0"]);
    it.answers = false;
    it.nodes[1].keeping.follows.check_at_leader(A);
    it.run();
    it.nodes[1].loses = 4;
    it.store_many(0, 3);
    it.advance(12 * SECOND, SECOND);
    it.store_many(0, 1);
    it.advance(10 * SECOND, SECOND);
    it.answers = true;
    assert_eq!(it.advance(9 * SECOND, SECOND).take_texts(1), ["unknown", "gap 3", "4", "known"]);
}

#[test]
fn topic_started_without_a_link_is_unknown_until_the_next_link() {
    let mut it = scenario(1);
    it.down(0);
    assert_eq!(it.follow(0, A).take_texts(0), ["unknown"]);
    it.up(0);
    it.run();
    assert_eq!(it.store_many(0, 1).take_texts(0), ["0<<=0", "1"]);
}

#[test]
fn broker_without_storage_is_reported_once() {
    let mut it = scenario(1);
    it.follow(0, A);
    it.run();
    for _ in 0..2 {
        it.down(0);
        it.nodes[0].keeping.up(None, it.now_ns);
    }
    assert_eq!(it.take_texts(0), ["0<<=0", "unavailable"]);
    assert_eq!(it.nodes[0].keeping.notices.pop_front(), Some(HistoryNotice::Nothing));
    assert_eq!(it.nodes[0].keeping.notices.pop_front(), None);
}

#[test]
fn new_epoch_restarts_every_topic() {
    let mut it = scenario(2);
    it.follow(1, A);
    it.store_many(0, 3);
    it.take_texts(1);
    it.remade();
    let said = it.take_events(1, A);
    it.run();
    let [SeenEvent::Begun { epoch: 2, floor: 0, head: 0, .. }] = &it.take_events(1, A)[..] else {
        panic!("{said:?}")
    };
    assert_eq!(it.store_many(0, 1).take_texts(1), ["4"]);
    assert_eq!(it.nodes[1].keeping.notices.pop_front(), Some(HistoryNotice::Remade));
    it.check(true);
}

/// Its last message was removed long ago: that alone is not a loss.
#[test]
fn quiet_topic_has_no_gap_after_a_new_link() {
    let mut it = followed();
    it.advance(400 * SECOND, 10 * SECOND);
    it.down(1);
    it.advance(20 * SECOND, SECOND);
    it.up(1);
    assert_eq!(it.store_many(0, 1).take_texts(1), ["0<<=0", "1", "unknown", "2", "known"]);
    it.check(true);
}

#[test]
fn messages_possibly_stored_and_removed_without_a_link_are_a_gap() {
    let mut it = followed();
    it.down(1);
    it.store_many(0, 1);
    it.advance(400 * SECOND, 10 * SECOND);
    it.up(1);
    assert_eq!(it.take_texts(1), ["0<<=0", "1", "unknown", "gap 2", "known"]);
    assert_eq!(it.store_many(0, 1).take_texts(1), ["3"]);
    it.down(1);
    it.store_many(0, 1);
    it.advance(400 * SECOND, 10 * SECOND);
    it.knows_head = false;
    it.up(1);
    assert_eq!(it.advance(2 * SECOND, SECOND / 10).take_texts(1), ["unknown", "known"]);
    assert_eq!(it.store_many(0, 1).take_texts(1), ["gap 4", "5"]);
    it.check(true);
}

/// If too many were stored, those left are as many as are kept.
#[test]
fn messages_displaced_by_newer_ones_are_reported_as_a_gap() {
    let mut it = scenario(2);
    (it.count_max, it.wants.count) = (5, 5);
    it.follow(1, A);
    it.store_many(0, 2);
    for (count, expected) in [(4, &["3", "4", "5", "6"][..]), (6, &["gap 7", "8", "9"])] {
        it.down(1);
        it.store_many(0, count);
        it.up(1);
        let said = it.take_texts(1);
        let start = said.iter().position(|it| it == "unknown").unwrap() + 1;
        assert_eq!(said[start..][..expected.len()], *expected);
        assert_eq!(said.last().unwrap(), "known");
    }
    it.check(true);
}

#[test]
fn purge_is_delivered_in_order_and_older_messages_are_not_fetched() {
    let mut it = scenario(3);
    it.follow(1, A);
    it.store_many(0, 2);
    let wish = it.forget(0, A);
    it.run();
    assert_eq!(it.store_many(0, 1).take_texts(1), ["0<<=0", "1", "2", "purged 3", "4"]);
    assert!(matches!(it.nodes[0].sink.stored[&wish], Ok(StoredAt { seq: 3, index: 0, .. })));
    it.follow(0, A);
    it.run();
    let said = it.take_events(0, A);
    assert_eq!(short(&said), ["3<4<=4"]);
    assert!(matches!(said[..], [SeenEvent::Begun { purged: 3, .. }]), "{said:?}");
    let left = it.log.iter().filter(|it| it.number.seq < 3);
    assert_eq!(left.count(), 2, "the engine has forgotten it");
    it.check(true);
}

/// The broker may not be allowed to remove it.
#[test]
fn purged_messages_still_in_the_broker_are_not_delivered() {
    let mut it = scenario(2);
    it.store_many(0, 2);
    let forget = Draft::forget(NodeId(9), A).unwrap().numbered(1);
    it.keep(A, forget);
    it.store_many(0, 1);
    assert_eq!(it.follow(1, A).take_texts(1), ["3<3<=4"]);
}

#[test]
fn foreign_stored_data_is_skipped_and_counted() {
    let mut it = scenario(2);
    it.keep(A, Bytes::from_static(b"garbage"));
    it.follow(1, A);
    it.store_many(0, 1);
    it.keep(A, Bytes::from_static(b"garbage"));
    let other = Draft::broadcast(NodeId(9), "another", &item("1")).unwrap().numbered(1);
    it.keep(A, other);
    let bye = Draft::bye(NodeId(9)).unwrap().numbered(1);
    it.keep(A, bye);
    assert_eq!(it.store_many(0, 1).take_texts(1), ["0<<=1", "1", "2"]);
    let counts = &it.nodes[1].keeping.counts;
    assert_eq!((counts.broken, counts.gaps), (4, 0));
    it.check(true);
}

#[test]
fn excluded_member_is_reported_to_the_publishing_node_only() {
    #[derive(Default)]
    struct RecordingSink(Vec<Option<ChannelId>>, Vec<Option<u64>>);
    impl HistorySink for RecordingSink {
        fn history(&mut self, _: &str, what: HistoryEvent<'_>) {
            if let HistoryEvent::Next(HistoryItem { item, .. }) = what {
                self.0.push(item.except);
                self.1.push(item.exclusion);
            }
        }

        fn stored(&mut self, _: &str, _: u64, _: Result<StoredAt, NotKept>) {}
    }
    let except = Some(ChannelId { shard: 1, membership: 2, generation: 3 });
    let said = Item { except, exclusion: Some(7), ..item("1") };
    let mut it = History::new(HistoryConfig::default(), NodeId(1), &super::engine::prefix(), 7);
    it.up(Some(1), 0);
    let id = it.follows.begin(A, WANTS).unwrap();
    it.follows.in_force(id);
    let mut sink = RecordingSink::default();
    let mut asks = || match it.next(&mut 0, 0) {
        Some(Next::Fetch(ticket, fetch)) => (ticket, fetch),
        _ => panic!("it asks"),
    };
    let (since, Fetch::Since { .. }) = asks() else { panic!("it asks what is young first") };
    it.follows.watermark_answered(since, None, Time::default());
    let Some(Next::Fetch(ticket, _)) = it.next(&mut 0, 0) else { panic!("it asks") };
    let empty = Fetched { messages: Vec::new(), head: 5, is_all: true };
    it.fetched(ticket, Some(empty), Time::default(), &mut sink);
    for (origin, seq, prev) in [(1, 6, 0), (2, 7, 6)] {
        let bytes = Draft::broadcast(NodeId(origin), A, &said).unwrap().numbered(1);
        let envelope = Envelope::decode(&bytes).unwrap();
        let number = Number { seq, prev };
        assert!(it.receive(&envelope, (&bytes, number, 0), Time::default(), &mut sink));
    }
    assert_eq!((sink.0, sink.1), (vec![except, None], vec![Some(7); 2]));
}

#[test]
fn live_messages_have_node_time_and_fetched_ones_broker_time() {
    let mut it = scenario(2);
    it.store_many(0, 1);
    it.advance(10 * SECOND, SECOND);
    it.follow(1, A);
    it.store_many(0, 1);
    let now_ms = it.time().unix_ms;
    let said = it.take_events(1, A);
    let [SeenEvent::Begun { messages, .. }, SeenEvent::Next(next)] = &said[..] else {
        panic!("{said:?}")
    };
    assert_eq!((messages[0].at_ms, next.at_ms), (now_ms - 10_000, now_ms));
}
