//! Broken links and restarted brokers: reports, losses, and messages sent again.

use std::time::Duration;

use simurgh_cluster::adapter::IN_FLIGHT_MAX;
use simurgh_cluster::{Interest, Space, Wanted};

use super::cluster::{TestCluster, TestMessage, exact, mates, no, once, whole, yes};
use super::{Fault, Harness, Tried};

/// Each is reported once; the other nodes notice nothing.
pub fn link_failure_and_repair_are_reported_once_each(harness: &mut dyn Harness) -> Tried {
    let mut it = TestCluster::new(harness, 3);
    for round in 1..=3 {
        let before = it.nodes[1].session;
        it.harness.inject(Fault::Cut(1))?;
        it.wait("down", |it| !it.nodes[1].is_up);
        it.pass(Duration::from_secs(3));
        assert!(!it.nodes[1].is_up, "up without a link");
        it.harness.inject(Fault::Mend(1))?;
        it.wait("up", |it| it.nodes[1].is_up);
        it.pass(Duration::from_secs(1));
        assert_eq!((it.nodes[1].downs, it.nodes[1].ups), (round, round + 1));
        assert!(it.nodes[1].session > before, "another session");
    }
    for node in [0, 2] {
        assert_eq!((it.nodes[node].downs, it.nodes[node].ups), (0, 1), "node {node}");
    }
    Ok(())
}

/// Interests of every kind: messages published once it is up are received, and no others.
pub fn interests_are_active_again_when_the_link_is_up(harness: &mut dyn Harness) -> Tried {
    let mut it = TestCluster::new(harness, 2);
    let presence = Interest::Exact(Space::Presence, "p".into());
    it.want(1, &[yes(exact("a")), yes(whole("b")), yes(presence), yes(Interest::Nodes)]);
    it.want(1, &[yes(exact("ended")), yes(whole("over"))]);
    it.want(1, &[no(exact("ended")), no(whole("over"))]);
    cut_until_down(&mut it, 1)?;
    it.harness.inject(Fault::Mend(1))?;
    it.wait("up", |it| it.nodes[1].is_up);
    for topic in ["ended", "a", "over", "b", "other"] {
        it.publish(0, topic, "x");
    }
    it.publish_in(0, Space::Presence, "p", "x");
    it.wait("three", |it| it.nodes[1].received.len() >= 3);
    it.quiet();
    let mut texts = it.texts(1);
    texts.sort();
    assert_eq!(texts, ["a x", "b x", "p x"]);
    Ok(())
}

/// As if it had been changed before; its generation is reported after that.
pub fn interest_changes_while_down_are_active_when_the_link_is_up(
    harness: &mut dyn Harness,
) -> Tried {
    let mut it = TestCluster::new(harness, 2);
    let topics = mates(2);
    it.want(1, &[yes(exact("a")), yes(exact("b")), yes(exact(&topics[0]))]);
    cut_until_down(&mut it, 1)?;
    it.nodes[1].change(&[no(exact("a")), yes(exact("c"))]);
    it.nodes[1].change(&[no(exact("c")), yes(exact("d"))]);
    let last = it.nodes[1].change(&[no(exact(&topics[0])), yes(whole(&topics[0]))]);
    it.pass(Duration::from_secs(1));
    assert!(it.nodes[1].in_force < Some(last), "in force without a link");
    it.harness.inject(Fault::Mend(1))?;
    it.wait("up", |it| it.nodes[1].is_up);
    for topic in ["a", "b", "c", "d", &topics[0], &topics[1]] {
        it.publish(0, topic, "x");
    }
    it.wait("in force", |it| it.nodes[1].in_force == Some(last));
    it.wait("four", |it| it.nodes[1].received.len() >= 4);
    it.quiet();
    let mut texts = it.texts(1);
    texts.sort();
    let mut expected = vec!["b x".into(), "d x".into()];
    expected.extend(topics.iter().map(|topic| format!("{topic} x")));
    expected.sort();
    assert_eq!(texts, expected);
    Ok(())
}

/// None of them was sent before, so none comes twice.
pub fn messages_published_while_down_arrive_in_order_after_up(harness: &mut dyn Harness) -> Tried {
    let mut it = TestCluster::new(harness, 2);
    it.want(1, &[yes(exact("a"))]);
    it.publish(0, "a", "before");
    it.wait("nothing under way", |it| it.nodes[0].in_flight() == 0);
    cut_until_down(&mut it, 0)?;
    for _ in 0..300 {
        assert!(it.try_publish(0, Space::Broadcast, "a", "down").is_ok(), "300 are not too many");
    }
    assert_eq!(it.nodes[0].in_flight(), 300);
    it.harness.inject(Fault::Mend(0))?;
    it.wait("up", |it| it.nodes[0].is_up);
    for _ in 0..300 {
        it.publish(0, "a", "after");
    }
    it.wait("all", |it| it.nodes[1].received.len() >= 601);
    it.wait("nothing under way", |it| it.nodes[0].in_flight() == 0);
    it.quiet();
    assert_eq!(it.numbers(1, 0, "a"), (1..=601).collect::<Vec<_>>());
    assert!(!it.nodes[1].was_warned(), "the listener's link stood");
    assert!(
        !it.nodes[1].received.iter().any(TestMessage::is_marked),
        "marked, and never sent before"
    );
    Ok(())
}

/// It is full, and has room once there is a link.
pub fn publishing_without_a_link_fills_up_and_all_arrive_later(harness: &mut dyn Harness) -> Tried {
    let mut it = TestCluster::new(harness, 2);
    it.want(1, &[yes(exact("a"))]);
    cut_until_down(&mut it, 0)?;
    let mut taken = 0;
    while it.try_publish(0, Space::Broadcast, "a", "x").is_ok() {
        taken += 1;
        assert!(taken <= IN_FLIGHT_MAX as u64, "{taken} were taken");
    }
    it.pass(Duration::from_secs(1));
    assert_eq!(it.nodes[0].rooms, 0, "room without a link");
    it.harness.inject(Fault::Mend(0))?;
    it.wait("room", |it| it.nodes[0].rooms > 0);
    assert!(it.nodes[0].is_up, "room without a link");
    it.wait("all", |it| it.nodes[1].received.len() as u64 >= taken);
    it.quiet();
    assert_eq!(it.numbers(1, 0, "a"), (1..=taken).collect::<Vec<_>>());
    assert_eq!(it.nodes[0].rooms, 1);
    Ok(())
}

/// The cut is noticed late. Messages published meanwhile are not lost, as no other link ended.
pub fn messages_a_publisher_lost_in_a_link_failure_are_sent_again(
    harness: &mut dyn Harness,
) -> Tried {
    let mut it = TestCluster::new(harness, 3);
    it.want(1, &[yes(exact("a"))]);
    it.want(2, &[yes(whole("a"))]);
    for _ in 0..50 {
        it.publish(0, "a", "before");
    }
    // Some are in flight while it is cut.
    it.harness.inject(Fault::Cut(0))?;
    for _ in 0..50 {
        it.publish(0, "a", "unnoticed");
        it.turn(Duration::from_millis(20));
    }
    it.wait("down", |it| !it.nodes[0].is_up);
    for _ in 0..50 {
        it.publish(0, "a", "down");
    }
    it.harness.inject(Fault::Mend(0))?;
    it.wait("up", |it| it.nodes[0].is_up);
    for _ in 0..50 {
        it.publish(0, "a", "after");
    }
    it.wait("nothing under way", |it| it.nodes[0].in_flight() == 0);
    it.quiet();
    for node in [1, 2] {
        check_resent(&it.numbers(node, 0, "a"), 200, 1);
        assert!(!it.nodes[node].was_warned(), "its link stood");
    }
    Ok(())
}

/// A listener's link is cut: it may miss messages, since it is up again after it was down. It
/// receives all messages that are published once it is up.
pub fn node_that_missed_messages_is_notified(harness: &mut dyn Harness) -> Tried {
    let mut it = TestCluster::new(harness, 3);
    it.want(1, &[yes(exact("a"))]);
    it.want(2, &[yes(exact("a"))]);
    let publish = |it: &mut TestCluster<'_>, count: usize| {
        for _ in 0..count {
            it.publish(0, "a", "x");
            it.turn(Duration::from_millis(5));
        }
    };
    publish(&mut it, 50);
    it.wait("the first", |it| it.nodes[1].received.len() == 50);
    it.harness.inject(Fault::Cut(1))?;
    publish(&mut it, 50);
    it.wait("down", |it| !it.nodes[1].is_up);
    publish(&mut it, 50);
    it.harness.inject(Fault::Mend(1))?;
    it.wait("up", |it| it.nodes[1].is_up);
    publish(&mut it, 50);
    it.wait("the last", |it| it.numbers(1, 0, "a").last() == Some(&200));
    it.quiet();
    let received = it.numbers(1, 0, "a");
    assert_eq!(received, once(&received), "its publisher's link stood: once, in order");
    assert!(received.starts_with(&(1..=50).collect::<Vec<_>>()), "before the cut: {received:?}");
    assert!(received.ends_with(&(151..=200).collect::<Vec<_>>()), "after up: {received:?}");
    assert_eq!(it.numbers(2, 0, "a"), (1..=200).collect::<Vec<_>>(), "whose link stood");
    Ok(())
}

/// Both links work again before the cut is noticed: all arrives, or a loss is reported.
pub fn short_link_failure_loses_no_message_unreported(harness: &mut dyn Harness) -> Tried {
    let mut it = TestCluster::new(harness, 2);
    it.want(1, &[yes(exact("a"))]);
    for cut in [1, 0, 1, 0] {
        for is_cut in [true, false] {
            if is_cut {
                it.harness.inject(Fault::Cut(cut))?
            } else {
                it.harness.inject(Fault::Mend(cut))?
            }
            for _ in 0..50 {
                it.publish(0, "a", "x");
                it.turn(Duration::from_millis(10));
            }
        }
    }
    it.wait("both up", |it| it.nodes.iter().all(|node| node.is_up));
    it.wait("nothing under way", |it| it.nodes[0].in_flight() == 0);
    it.pass(Duration::from_secs(2));
    let (received, ups) = (it.numbers(1, 0, "a"), it.nodes[0].ups - 1);
    if !it.nodes[1].was_warned() {
        check_resent(&received, 400, ups);
    }
    assert_eq!(once(&received).last(), Some(&400));
    Ok(())
}

/// Ten times, and only the publisher's link.
pub fn publisher_whose_link_ends_in_a_stream_loses_no_message(harness: &mut dyn Harness) -> Tried {
    let mut it = TestCluster::new(harness, 3);
    it.want(1, &[yes(exact("a"))]);
    it.want(2, &[yes(whole("a"))]);
    for round in 1..=10 {
        for burst in 0..10 {
            for _ in 0..50 {
                it.publish(0, "a", "x");
            }
            if burst == 5 {
                it.harness.inject(Fault::Reset(0))?;
            }
            it.turn(Duration::from_micros(50));
        }
        it.wait("up again", |it| it.nodes[0].ups > round && it.nodes[0].is_up);
    }
    it.wait("nothing under way", |it| it.nodes[0].in_flight() == 0);
    it.quiet();
    assert_eq!((it.nodes[0].downs, it.nodes[0].ups), (10, 11));
    for node in [1, 2] {
        check_resent(&it.numbers(node, 0, "a"), 5_000, 10);
        assert!(!it.nodes[node].was_warned(), "its link stood");
    }
    Ok(())
}

/// Each link is down once and up once; interests are in force, and streams continue in order.
pub fn all_links_are_up_again_after_the_broker_was_killed(harness: &mut dyn Harness) -> Tried {
    let mut it = TestCluster::new(harness, 3);
    for node in 0..3 {
        it.want(node, &[yes(exact("a")), yes(whole("b"))]);
    }
    for round in 1..=3 {
        for node in 0..3 {
            it.publish_each(node, vec!["a"; 100], "x");
        }
        it.turn(Duration::from_micros(100));
        it.harness.inject(Fault::Kill)?;
        it.wait("all down", |it| it.nodes.iter().all(|node| !node.is_up));
        for node in 0..3 {
            it.publish_each(node, vec!["a"; 100], "x");
        }
        it.pass(Duration::from_secs(1));
        it.harness.inject(Fault::Restart)?;
        it.wait("all up", |it| it.nodes.iter().all(|node| node.is_up));
        it.wait("nothing under way", |it| it.nodes.iter().all(|node| node.in_flight() == 0));
        let last = [0, 1, 2].map(|node| it.publish(node, "a", "x"));
        it.wait("the last", |it| {
            let others = |node: usize| (0..3).filter(move |from| *from != node);
            let has = |node, from: usize| it.numbers(node, from, "a").contains(&last[from]);
            (0..3).all(|node| others(node).all(|from| has(node, from)))
        });
        it.publish(0, "b", "x");
        it.wait("the bucket", |it| {
            (1..3).all(|node| once(&it.numbers(node, 0, "b")).len() == round)
        });
        // A message of the bucket that is sent again would look like a gap in the topic.
        it.wait("nothing under way", |it| it.nodes.iter().all(|node| node.in_flight() == 0));
        for node in &it.nodes {
            assert_eq!((node.downs, node.ups), (round, round + 1));
        }
    }
    it.quiet();
    for (node, from) in (0..3).flat_map(|node| (0..3).map(move |from| (node, from))) {
        let received = it.numbers(node, from, "a");
        assert_eq!(received.is_empty(), node == from, "{from} at {node}");
        check_steps_back(&received, 3);
    }
    Ok(())
}

/// A node that starts before its broker is down, accepts interests and envelopes, and then is up.
pub fn node_started_before_its_broker_is_down_and_then_up(harness: &mut dyn Harness) -> Tried {
    harness.inject(Fault::Kill)?;
    let mut it = TestCluster::empty(harness);
    it.add();
    it.add();
    it.nodes[1].change(&[yes(exact("a"))]);
    it.pass(Duration::from_secs(2));
    for node in &it.nodes {
        assert_eq!((node.is_up, node.ups, node.in_force), (false, 0, None));
        assert!(node.has_reported_down(), "no link, and that is not reported");
    }
    it.harness.inject(Fault::Restart)?;
    it.wait("both up", |it| it.nodes.iter().all(|node| node.is_up));
    it.wait("in force", |it| it.nodes[1].in_force.is_some());
    it.publish(0, "a", "x");
    it.wait("it", |it| it.texts(1) == ["a x"]);
    Ok(())
}

/// A node that does not poll loses messages and is notified; it receives later ones.
pub fn slow_node_is_notified_of_lost_messages(harness: &mut dyn Harness) -> Tried {
    let count = harness.overrun()? as u64;
    let mut it = TestCluster::new(harness, 3);
    let payload = "x".repeat(100 - 23);
    it.want(1, &[yes(exact("a")), yes(exact("b"))]);
    it.want(2, &[yes(exact("a"))]);
    it.not_polled = Some(1);
    for _ in 0..count {
        it.publish(0, "a", &payload);
    }
    it.wait("nothing under way", |it| it.nodes[0].in_flight() == 0);
    it.wait("the other one", |it| it.nodes[2].received.len() as u64 >= count);
    it.quiet();
    it.not_polled = None;
    it.wait("being told", |it| it.nodes[1].was_warned());
    it.wait("a link", |it| it.nodes[1].is_up);
    it.quiet();
    let received = it.numbers(1, 0, "a");
    assert!(received.len() < count as usize, "nothing was lost");
    assert_eq!(received, once(&received), "in order, and once");
    if it.nodes[1].downs == 0 {
        assert!(it.nodes[1].lost.contains(&exact("a")), "{:?}", it.nodes[1].lost);
        assert!(!it.nodes[1].lost.contains(&exact("b")), "of that nothing was lost");
    }
    it.forget();
    for _ in 0..100 {
        it.publish(0, "a", "after");
    }
    it.wait("what came later", |it| it.nodes[1].received.len() >= 100);
    assert_eq!(it.numbers(1, 0, "a"), (count + 1..=count + 100).collect::<Vec<_>>());
    Ok(())
}

/// The other nodes continue, and another node takes its place.
pub fn removed_node_does_not_disturb_other_nodes(harness: &mut dyn Harness) -> Tried {
    let mut it = TestCluster::new(harness, 3);
    let all: Vec<(Interest, Wanted)> = vec![yes(exact("a")), yes(whole("b"))];
    (0..3).for_each(|node| it.want(node, &all));
    it.publish(1, "a", "before");
    it.wait("the first", |it| [0, 2].iter().all(|node| it.nodes[*node].received.len() == 1));
    it.nodes[1].adapter = None;
    for _ in 0..100 {
        it.publish(0, "a", "x");
    }
    it.wait("them", |it| it.nodes[2].received.len() == 101);
    let new = it.add();
    it.wait("the new one", |it| it.nodes[new].is_up);
    it.want(new, &all);
    it.publish(new, "a", "new");
    it.publish(0, "b", "x");
    it.wait("both", |it| it.nodes[2].received.len() == 103 && !it.nodes[new].received.is_empty());
    it.quiet();
    assert_eq!(it.texts(new), ["b x"]);
    assert!(it.nodes.iter().all(|node| !node.was_warned()), "nothing was to be told");
    Ok(())
}

fn cut_until_down(it: &mut TestCluster<'_>, node: usize) -> Tried {
    it.harness.inject(Fault::Cut(node))?;
    it.wait("down", |it| !it.nodes[node].is_up);
    Ok(())
}

/// Checks that all came, though after each of this many links some may have come again.
#[track_caller]
fn check_resent(numbers: &[u64], count: u64, links: usize) {
    assert_eq!(once(numbers), (1..=count).collect::<Vec<_>>(), "some are lost");
    check_steps_back(numbers, links);
}

/// Checks that numbers grow, except at most this many times, where they go back by a bounded number
/// and then skip none until there is a new one.
#[track_caller]
fn check_steps_back(numbers: &[u64], links: usize) {
    let (mut highest, mut steps) = (0, 0);
    for pair in numbers.windows(2) {
        let (last, next) = (pair[0], pair[1]);
        highest = highest.max(last);
        if next <= last {
            steps += 1;
            assert!(next + IN_FLIGHT_MAX as u64 > highest, "{next} comes again after {highest}");
        } else {
            assert!(next == last + 1 || last == highest, "{next} after {last}, of {highest}");
        }
    }
    assert!(steps <= links, "{steps} times some came again, after {links} links");
}
