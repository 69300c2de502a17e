//! Very many topics: each turn is short, and thousands are requested at once.

use simurgh_history::{NotKept, StoredAt};

use super::engine::WANTS;
use super::*;
use crate::adapter::Received;
use crate::envelope::Draft;

const MANY: usize = 100_000;

#[derive(Default)]
struct CountingSink {
    unknown: usize,
    known: usize,
    begun: usize,
}

impl HistorySink for CountingSink {
    fn history(&mut self, _: &str, what: HistoryEvent<'_>) {
        match what {
            HistoryEvent::Unknown => self.unknown += 1,
            HistoryEvent::Known => self.known += 1,
            HistoryEvent::Begun { .. } => self.begun += 1,
            _ => {}
        }
    }

    fn stored(&mut self, _: &str, _: u64, _: Result<StoredAt, NotKept>) {}
}

/// Answers every request, with one message in every tenth topic. Returns how many there were.
fn answers(it: &mut History, sink: &mut CountingSink, time: Time) -> (usize, usize) {
    let (mut after, mut last) = (0, 0);
    let mut asked = Vec::new();
    while let Some(next) = it.next(&mut 0, time.ns) {
        let Next::Fetch(ticket, fetch) = next else { panic!("nothing is stored") };
        asked.push((ticket, fetch));
    }
    assert!(asked.len() <= 36, "{} are under way", asked.len());
    for (ticket, fetch) in asked {
        let messages = match fetch {
            Fetch::Since { .. } => {
                it.follows.watermark_answered(ticket, Some(0), time);
                continue;
            }
            Fetch::After { .. } => {
                after += 1;
                Vec::new()
            }
            Fetch::LastOf { subjects } => {
                assert!(subjects.len() <= 1_000);
                last += 1;
                subjects.iter().filter_map(message).collect()
            }
        };
        let fetched = Fetched { messages, head: 1_000_000, is_all: true };
        it.fetched(ticket, Some(fetched), time, sink);
    }
    (after, last)
}

/// The last message of a topic, if it has any.
fn message(subject: &Subject) -> Option<Received> {
    let number: u64 = subject.as_str().rsplit_once('.').unwrap().1.parse().unwrap();
    let topic = number.to_string();
    let envelope = Draft::broadcast(NodeId(9), &topic, &item("1")).unwrap().numbered(1);
    let stored = Some(Number { seq: number + 1, prev: 0 });
    let received = Received { space: Some(Space::Store), envelope, stored, at_ms: 0 };
    number.is_multiple_of(10).then_some(received)
}

#[test]
fn lost_link_is_reported_to_many_topics_in_batches() {
    let mut it = History::new(HistoryConfig::default(), NodeId(1), &super::engine::prefix(), 7);
    let (mut sink, time) = (CountingSink::default(), Time { ns: SECOND, unix_ms: 1 });
    for number in 0..MANY {
        let id = it.follows.begin(&number.to_string(), WANTS).unwrap();
        it.follows.in_force(id);
    }
    let mut turns = 0;
    while sink.unknown < MANY {
        it.tick(time, &mut sink);
        turns += 1;
        assert!(sink.unknown <= turns * 4_096, "a turn is short");
        assert!(it.next_ns(true) == Some(0) || sink.unknown == MANY);
    }
    // Over the first link all begin, those without messages by the thousand.
    it.up(Some(1), SECOND);
    let (mut after, mut last) = (0, 0);
    for turn in 0.. {
        let asked = answers(&mut it, &mut sink, time);
        (after, last) = (after + asked.0, last + asked.1);
        if sink.begun == MANY {
            break;
        }
        assert!(turn < 1_000, "{} have begun", sink.begun);
    }
    // For the first thousands the watermark is not known yet: those are requested one by one.
    assert!((MANY / 10..MANY / 10 + 4_000).contains(&after), "{after}");
    assert_eq!(last, MANY / 1_000);
    // Over the next link, to the same broker: only the last numbers are requested.
    it.follows.down(false, SECOND);
    while it.next_ns(true) == Some(0) {
        it.tick(time, &mut sink);
    }
    assert_eq!(sink.unknown, 2 * MANY);
    it.up(Some(1), SECOND);
    let mut rounds = 0;
    while sink.known < MANY {
        assert!(rounds < 100, "{} are known", sink.known);
        assert_eq!(answers(&mut it, &mut sink, time).0, 0);
        rounds += 1;
    }
    assert_eq!(rounds, MANY / 4_000);
    assert_eq!(answers(&mut it, &mut sink, time), (0, 0));
    assert_eq!(it.counts.gaps, 0);
}

#[test]
fn slow_check_covers_every_topic_at_a_bounded_rate() {
    for (topics, seconds) in [(1, 30), (10, 30), (3_000, 30), (MANY, 50)] {
        let mut it = History::new(HistoryConfig::default(), NodeId(1), &super::engine::prefix(), 7);
        let (mut sink, mut time) = (CountingSink::default(), Time { ns: 0, unix_ms: 1 });
        it.up(Some(1), 0);
        for number in 0..topics {
            let id = it.follows.begin(&(10 * number + 1).to_string(), WANTS).unwrap();
            it.follows.in_force(id);
        }
        while sink.begun < topics {
            answers(&mut it, &mut sink, time);
        }
        it.follows.slow_ns = 0;
        let before = it.counts.checked;
        for _ in 0..seconds {
            let second = it.counts.checked;
            it.tick(time, &mut sink);
            answers(&mut it, &mut sink, time);
            assert!(it.counts.checked - second <= 2_000);
            time.ns += SECOND;
        }
        let checked = (it.counts.checked - before) as usize;
        assert!((topics..=topics * 21 / 20 + 64).contains(&checked), "{checked} of {topics}");
    }
}
