//! Messages in flight, and the behaviour when there are too many.

use std::time::Duration;

use simurgh_cluster::Space;
use simurgh_cluster::adapter::{IN_FLIGHT_BYTES_MAX, IN_FLIGHT_MAX};

use super::cluster::{TestCluster, exact, once, yes};
use super::{Fault, Harness, Tried};

/// As many as allowed are taken, no call blocks, and all arrive once the broker continues.
pub fn publishing_to_a_frozen_broker_fills_up_and_never_blocks(harness: &mut dyn Harness) -> Tried {
    let mut it = TestCluster::new(harness, 2);
    it.want(1, &[yes(exact("a"))]);
    it.harness.inject(Fault::Freeze)?;
    let taken = fill(&mut it, "x");
    assert!(taken >= IN_FLIGHT_MAX / 2, "full at {taken}");
    for _ in 0..3 {
        it.turn(Duration::from_millis(300));
        assert!(it.try_publish(0, Space::Broadcast, "a", "x").is_err(), "more than may be");
    }
    assert_eq!(it.nodes[0].in_flight(), taken);
    it.harness.inject(Fault::Thaw)?;
    it.wait("all of them", |it| it.nodes[1].received.len() >= taken);
    it.wait("room", |it| it.nodes[0].rooms == 1);
    it.publish(0, "a", "x");
    it.quiet();
    assert_eq!(it.numbers(1, 0, "a"), (1..=taken as u64 + 1).collect::<Vec<_>>());
    assert!(it.nodes.iter().all(|node| !node.was_warned()), "nothing was to be told");
    Ok(())
}

/// Fewer large ones are taken, but at least one.
pub fn large_envelopes_are_limited_by_bytes(harness: &mut dyn Harness) -> Tried {
    let mut it = TestCluster::new(harness, 2);
    it.want(1, &[yes(exact("a"))]);
    it.harness.inject(Fault::Freeze)?;
    let payload = "x".repeat(100_000);
    let taken = fill(&mut it, &payload);
    assert!(taken >= 1, "the first is taken");
    assert!(taken <= IN_FLIGHT_BYTES_MAX / 100_000, "{taken} of 100 kB");
    it.harness.inject(Fault::Thaw)?;
    it.wait("all of them", |it| it.nodes[1].received.len() >= taken);
    it.wait("room", |it| it.nodes[0].rooms == 1);
    it.wait("nothing under way", |it| it.nodes[0].in_flight() == 0);
    // An envelope that alone is more than allowed, then a small one.
    it.publish(0, "a", &"x".repeat(IN_FLIGHT_BYTES_MAX - 2_000));
    it.publish(0, "a", "x");
    it.wait("both", |it| it.nodes[1].received.len() >= taken + 2);
    assert_eq!(it.numbers(1, 0, "a"), (1..=taken as u64 + 2).collect::<Vec<_>>());
    Ok(())
}

/// `Room` is reported once each time that it was full, and only then.
pub fn room_is_reported_once_after_each_full(harness: &mut dyn Harness) -> Tried {
    let mut it = TestCluster::new(harness, 2);
    for round in 1..=5 {
        it.harness.inject(Fault::Freeze)?;
        fill(&mut it, "x");
        assert!(it.try_publish(0, Space::Broadcast, "a", "x").is_err(), "a second time");
        it.harness.inject(Fault::Thaw)?;
        it.wait("room", |it| it.nodes[0].rooms == round);
        assert!(it.try_publish(0, Space::Broadcast, "a", "x").is_ok(), "there is room");
        it.wait("nothing under way", |it| it.nodes[0].in_flight() == 0);
        it.quiet();
        assert_eq!(it.nodes[0].rooms, round);
    }
    Ok(())
}

/// Whether or not any node receives it, and even if no further message is published.
pub fn messages_in_flight_return_to_zero(harness: &mut dyn Harness) -> Tried {
    let mut it = TestCluster::new(harness, 2);
    it.want(1, &[yes(exact("a"))]);
    assert_eq!(it.nodes[0].in_flight(), 0);
    for (count, topic) in [(1, "a"), (1, "b"), (100, "a"), (1_500, "b")] {
        for _ in 0..count {
            it.publish(0, topic, "x");
        }
        it.wait("nothing under way", |it| it.nodes[0].in_flight() == 0);
    }
    assert_eq!(it.nodes[1].in_flight(), 0);
    Ok(())
}

/// So long that its links count as dead: messages that the broker has may come twice, in order.
pub fn broker_frozen_for_long_loses_no_message_unreported(harness: &mut dyn Harness) -> Tried {
    let mut it = TestCluster::new(harness, 2);
    it.want(1, &[yes(exact("a"))]);
    it.harness.inject(Fault::Freeze)?;
    for _ in 0..200 {
        it.publish(0, "a", "x");
    }
    it.wait("both to be down", |it| it.nodes.iter().all(|node| !node.is_up));
    for _ in 0..200 {
        it.publish(0, "a", "x");
    }
    it.pass(Duration::from_secs(2));
    it.harness.inject(Fault::Thaw)?;
    it.wait("both to be up", |it| it.nodes.iter().all(|node| node.is_up));
    it.wait("nothing under way", |it| it.nodes[0].in_flight() == 0);
    let last = it.publish(0, "a", "x");
    it.wait("the last", |it| it.numbers(1, 0, "a").contains(&last));
    it.quiet();
    // The listener was notified that messages may be lost: so only the order of the others counts.
    let received = once(&it.numbers(1, 0, "a"));
    assert_eq!(received.last(), Some(&last));
    assert!(it.nodes[1].was_warned(), "its link had ended");
    Ok(())
}

/// Publishes until it is full. Returns how many were taken.
#[track_caller]
fn fill(it: &mut TestCluster<'_>, payload: &str) -> usize {
    let mut taken = 0;
    while it.try_publish(0, Space::Broadcast, "a", payload).is_ok() {
        taken += 1;
        assert!(taken <= IN_FLIGHT_MAX, "{taken} were taken");
    }
    taken
}
