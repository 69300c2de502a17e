//! Whatever is lost, doubled, late or removed: a follower receives what was stored, in order, or a
//! gap before anything newer.

use proptest::prelude::*;

use super::engine::{Scenario, TOPICS};
use super::log::SeenEvent;
use super::*;
use crate::envelope::Draft;

#[derive(Clone, Debug)]
enum Op {
    Store(usize, usize, usize),
    Forget(usize, usize),
    Pass(u64),
    /// How many messages to a node are lost, and whether that is reported.
    Lose(usize, usize, bool),
    SayLost(usize, bool),
    Down(usize),
    Up(usize),
    Double(usize, usize),
    Lag(u64),
    Delay(u64),
    Head(bool),
    Answers(bool),
    Page(usize),
    Topic(usize, usize),
    End(usize, usize),
    Skip(u64),
    /// A malformed envelope is stored under the topic's subject.
    Stranger(usize, bool),
    Remade,
}

const NODES: usize = 3;

/// Operations by which the broker forgets nothing.
fn harmless() -> impl Strategy<Value = Op> {
    let (node, topic) = (|| 0..NODES, || 0..TOPICS.len());
    prop_oneof![
        8 => (node(), topic(), 1..4_usize).prop_map(|(at, of, count)| Op::Store(at, of, count)),
        6 => (0..3_000_u64).prop_map(Op::Pass),
        3 => (node(), 1..6_usize, any::<bool>()).prop_map(|(at, n, it)| Op::Lose(at, n, it)),
        1 => (node(), any::<bool>()).prop_map(|(at, is_any)| Op::SayLost(at, is_any)),
        1 => node().prop_map(Op::Down),
        2 => node().prop_map(Op::Up),
        1 => (node(), 0..8_usize).prop_map(|(at, back)| Op::Double(at, back)),
        1 => prop_oneof![Just(0), 0..2_000_u64].prop_map(Op::Lag),
        1 => prop_oneof![Just(0), 0..2_000_u64].prop_map(Op::Delay),
        1 => any::<bool>().prop_map(Op::Head),
        1 => prop::bool::weighted(0.8).prop_map(Op::Answers),
        1 => (node(), topic()).prop_map(|(at, of)| Op::Topic(at, of)),
        1 => (node(), topic()).prop_map(|(at, of)| Op::End(at, of)),
        1 => (1..50_u64).prop_map(Op::Skip),
        1 => (topic(), any::<bool>()).prop_map(|(of, is_other)| Op::Stranger(of, is_other)),
    ]
}

fn anything() -> impl Strategy<Value = Op> {
    prop_oneof![
        40 => harmless(),
        1 => (0..NODES, 0..TOPICS.len()).prop_map(|(at, of)| Op::Forget(at, of)),
        1 => (10_000..200_000_u64).prop_map(Op::Pass),
        1 => (1..9_usize).prop_map(Op::Page),
        1 => Just(Op::Remade),
    ]
}

/// Topics that are not followed for long, while much is stored and removed.
fn late() -> impl Strategy<Value = Op> {
    let (node, topic) = (|| 0..NODES, || 0..TOPICS.len());
    prop_oneof![
        8 => (node(), topic(), 1..6_usize).prop_map(|(at, of, count)| Op::Store(at, of, count)),
        6 => (node(), topic()).prop_map(|(at, of)| Op::Topic(at, of)),
        6 => (node(), topic()).prop_map(|(at, of)| Op::End(at, of)),
        4 => prop_oneof![0..3_000_u64, 1_000..200_000_u64].prop_map(Op::Pass),
        1 => (node(), topic()).prop_map(|(at, of)| Op::Forget(at, of)),
        1 => (1..50_u64).prop_map(Op::Skip),
        1 => (1..9_usize).prop_map(Op::Page),
        1 => prop::bool::weighted(0.8).prop_map(Op::Answers),
        1 => Just(Op::Remade),
    ]
}

fn apply(it: &mut Scenario, op: Op) {
    match op {
        Op::Store(at, of, count) => {
            for _ in 0..count {
                it.store(at, TOPICS[of]);
            }
            it.run();
        }
        Op::Forget(at, of) => {
            it.forget(at, TOPICS[of]);
            it.run();
        }
        Op::Pass(ms) => _ = it.advance(ms * MILLISECOND, (ms / 20).max(10) * MILLISECOND),
        Op::Lose(at, count, is_said) => {
            it.nodes[at].loses += count;
            if is_said {
                it.run();
                it.report_lost(at, false);
            }
        }
        Op::SayLost(at, is_any) => it.report_lost(at, is_any),
        Op::Down(at) => it.down(at),
        Op::Up(at) => {
            it.down(at);
            it.up(at);
        }
        Op::Double(at, back) => it.send_again(at, back),
        Op::Lag(ms) => it.lag_ns = ms * MILLISECOND,
        Op::Delay(ms) => it.delay_ns = ms * MILLISECOND,
        Op::Head(says) => it.knows_head = says,
        Op::Answers(answers) => it.answers = answers,
        Op::Page(count) => it.page = count,
        Op::Topic(at, of) => _ = it.follow(at, TOPICS[of]),
        Op::End(at, of) => it.end(at, TOPICS[of]),
        Op::Skip(by) => it.skip(by),
        Op::Stranger(of, is_other) => {
            let envelope = match is_other {
                true => Draft::broadcast(NodeId(99), "y", &item("1")).unwrap().numbered(1),
                false => Bytes::from_static(b"\x01\x01nothing that can be read"),
            };
            it.keep(TOPICS[of], envelope);
            it.run();
        }
        Op::Remade => it.remade(),
    }
}

/// Everything works again, for as long as it takes to find unreported losses.
fn heal(it: &mut Scenario) {
    for at in 0..NODES {
        it.nodes[at].loses = 0;
        if !it.nodes[at].has_link {
            it.up(at);
        }
    }
    (it.lag_ns, it.delay_ns, it.answers, it.knows_head) = (0, 0, true, true);
    it.advance(90 * SECOND, SECOND);
}

/// Nodes that want `count` messages of each topic follow all; `room`: how many messages the broker
/// stores, if it has a bound.
fn begin(count: u32, room: Option<usize>) -> Scenario {
    let config = HistoryConfig { queue_count: 12, ..HistoryConfig::default() };
    let mut it = Scenario::new(NODES, &config);
    (it.wants.count, it.room) = (count, room);
    for at in 0..NODES {
        TOPICS.iter().for_each(|topic| _ = it.follow(at, topic));
    }
    it.run();
    it
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn delivered_messages_are_the_stored_ones_or_follow_a_gap(
        count_max in prop_oneof![Just(1_000_usize), 1..12_usize],
        ops in prop::collection::vec(anything(), 1..60),
    ) {
        // Of each topic a broker stores as many as any node wants, or more.
        let mut it = begin(count_max.min(20) as u32, None);
        it.count_max = count_max;
        for op in ops {
            apply(&mut it, op);
            it.check(false);
        }
        heal(&mut it);
        it.check(true);
        prop_assert!(it.nodes.iter().all(|node| node.keeping.stores.is_empty()));
        prop_assert!(it.nodes.iter().all(|node| node.keeping.stores.bytes() == 0));
    }

    /// Whatever the broker has removed, and for whatever reason.
    #[test]
    fn late_follower_has_every_message_above_its_reported_floor(
        count_max in prop_oneof![Just(1_000_usize), 1..12_usize],
        room in prop_oneof![2 => Just(None), 1 => (1..12_usize).prop_map(Some)],
        ops in prop::collection::vec(late(), 1..80),
    ) {
        let mut it = begin(count_max.min(20) as u32, room);
        it.count_max = count_max;
        for op in ops {
            apply(&mut it, op);
            it.check(false);
        }
    }

    /// No gap is reported that does not exist.
    #[test]
    fn no_gap_is_reported_while_the_broker_has_every_message(
        ops in prop::collection::vec(harmless(), 1..60),
    ) {
        let mut it = begin(1_000, None);
        for op in ops {
            apply(&mut it, op);
        }
        heal(&mut it);
        let checked = it.check(true);
        let said = || it.nodes.iter().map(|node| &node.sink.events).collect::<Vec<_>>();
        prop_assert_eq!(checked.gaps, 0, "{:#?}", said());
        // Each node recognizes only its own.
        for node in &it.nodes {
            let told = node.sink.events.values().flatten();
            for message in told.flat_map(messages) {
                let number: u64 = message.text.parse().unwrap();
                let is_own = node.sink.stored.contains_key(&number);
                prop_assert!(message.mine.is_none_or(|it| is_own && it == number));
            }
        }
    }
}

fn messages(said: &SeenEvent) -> &[super::log::Message] {
    match said {
        SeenEvent::Begun { messages, .. } => messages,
        SeenEvent::Next(message) => std::slice::from_ref(message),
        _ => &[],
    }
}
