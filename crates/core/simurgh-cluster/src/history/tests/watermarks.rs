//! Watermarks: from which number on a topic is complete for a node that begins to follow it late.

use std::time::Duration;

use super::engine::{Node, Scenario, TOPICS, WANTS};
use super::topics::{scenario, short};
use super::*;

const A: &str = TOPICS[0];

/// Messages removed for their age or for the count are below the reported number, which is not
/// above one that a client may have received last elsewhere.
#[test]
fn late_follower_gets_a_floor_only_above_possibly_missing_messages() {
    let mut it = scenario(2);
    it.skip(7);
    it.store_many(0, 1);
    it.advance(200 * SECOND, SECOND);
    it.skip(2);
    it.follow(1, A);
    // 8 is removed after 300 s.
    assert_eq!(it.take_texts(1), ["0<1<=10"]);
    it.end(1, A);
    it.advance(90 * SECOND, SECOND);
    assert_eq!(it.follow(1, A).take_texts(1), ["ended", "7<1<=10"], "it may go every moment");
    it.end(1, A);
    it.advance(20 * SECOND, SECOND);
    assert_eq!(it.follow(1, A).take_texts(1), ["ended", "8<<=10"]);
    it.wants.count = 3;
    for expected in ["8<2,3<=12", "10<2,3,4<=13"] {
        it.store_many(0, if expected.contains('4') { 1 } else { 2 });
        it.end(1, A);
        it.take_events(1, A);
        assert_eq!(it.follow(1, A).take_texts(1), [expected]);
    }
    it.forget(0, A);
    it.run();
    it.end(1, A);
    it.take_events(1, A);
    assert_eq!(it.follow(1, A).take_texts(1), ["14<<=14"]);
}

#[test]
fn watermark_is_requested_once_for_all_topics_and_renewed_in_time() {
    let mut it = scenario(1);
    let topics: Vec<String> = (0..400).map(|n| format!("t:{n}")).collect();
    let alike: Vec<&String> =
        topics.iter().filter(|it| super::super::topic::stream_of(it) == 3).take(12).collect();
    let asks = |it: &mut Scenario, topics: &[&String]| -> (usize, usize) {
        let (mut since, mut after) = (Vec::new(), Vec::new());
        for topic in topics {
            let keeping = &mut it.nodes[0].keeping;
            let id = keeping.follows.begin(topic, WANTS).unwrap();
            keeping.follows.in_force(id);
        }
        while let Some(Next::Fetch(ticket, fetch)) = it.nodes[0].keeping.next(&mut 0, it.now_ns) {
            match fetch {
                Fetch::Since { age, .. } => {
                    assert_eq!(age, Duration::from_secs(240), "a minute younger than 300 s");
                    since.push(ticket);
                }
                _ => after.push(ticket),
            }
        }
        assert!(since.is_empty() || after.is_empty(), "what is to begin waits");
        let (time, counts) = (it.time(), (since.len(), after.len()));
        let Node { keeping, sink, .. } = &mut it.nodes[0];
        since
            .into_iter()
            .for_each(|ticket| keeping.follows.watermark_answered(ticket, Some(5), time));
        let fetched = || Some(Fetched { messages: vec![], head: 9, is_all: true });
        after.into_iter().for_each(|ticket| keeping.fetched(ticket, fetched(), time, sink));
        counts
    };
    let begun = |it: &Scenario, topic: &str| short(&it.nodes[0].sink.events[topic]);
    assert_eq!(asks(&mut it, &alike[..2]), (1, 0));
    assert_eq!(asks(&mut it, &alike[2..4]), (0, 4));
    it.now_ns += 29 * SECOND;
    assert_eq!(asks(&mut it, &alike[4..6]), (0, 2));
    it.now_ns += SECOND;
    assert_eq!(asks(&mut it, &alike[6..7]), (1, 0));
    assert_eq!(asks(&mut it, &[]), (0, 1));
    for topic in &alike[..7] {
        assert_eq!(begun(&it, topic), ["5<<=9"]);
    }
}

/// Nor if the broker does not respond.
#[test]
fn topic_start_waits_only_briefly_for_a_missing_watermark() {
    let mut it = scenario(1);
    it.skip(9);
    it.knows_since = false;
    assert_eq!(it.follow(0, A).take_texts(0), ["9<<=9"]);
    it.end(0, A);
    it.take_events(0, A);
    it.advance(11 * SECOND, SECOND);
    (it.knows_since, it.delay_ns) = (true, 400 * MILLISECOND);
    it.follow(0, A);
    assert_eq!(it.advance(2 * SECOND, 100 * MILLISECOND).take_texts(0), ["0<<=9"]);
    it.end(0, A);
    it.take_events(0, A);
    it.advance(31 * SECOND, SECOND);
    it.delay_ns = 700 * MILLISECOND;
    it.follow(0, A);
    it.advance(1_100 * MILLISECOND, 100 * MILLISECOND);
    assert_eq!(it.take_texts(0), Vec::<String>::new());
    it.advance(200 * MILLISECOND, 100 * MILLISECOND);
    assert_eq!(it.take_texts(0), ["0<<=9"], "half a second later than without");
}
