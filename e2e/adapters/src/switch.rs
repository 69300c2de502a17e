//! Changes between single topics and their whole bucket while publishers continue.

use simurgh_cluster::{Interest, Wanted};

use super::cluster::{TestCluster, exact, mates, no, whole, yes};
use super::{Harness, Tried};

/// Nodes 0 and 2 publish on four topics of one bucket, of which node 1 wants three by name.
struct Stream<'a> {
    it: TestCluster<'a>,
    topics: Vec<String>,
    /// The numbers that each publisher published on each topic.
    sent: [[Vec<u64>; 4]; 2],
}

const PUBLISHERS: [usize; 2] = [0, 2];

impl<'a> Stream<'a> {
    fn new(harness: &'a mut dyn Harness) -> Self {
        Self { it: TestCluster::new(harness, 3), topics: mates(4), sent: Default::default() }
    }

    fn exact(&self, wanted: Wanted) -> Vec<(Interest, Wanted)> {
        self.topics[..3].iter().map(|topic| (exact(topic), wanted)).collect()
    }

    fn to_whole(&self) -> Vec<(Interest, Wanted)> {
        let mut changes = self.exact(Wanted::No);
        changes.push(yes(whole(&self.topics[0])));
        changes
    }

    fn to_exact(&self) -> Vec<(Interest, Wanted)> {
        let mut changes = vec![no(whole(&self.topics[0]))];
        changes.extend(self.exact(Wanted::Yes));
        changes
    }

    /// Publishes this many rounds of all publishers on all topics, with a short time after each.
    fn publish(&mut self, rounds: usize) {
        for _ in 0..rounds {
            for (at, from) in PUBLISHERS.into_iter().enumerate() {
                for topic in 0..self.topics.len() {
                    let name = self.topics[topic].clone();
                    let n = self.it.publish(from, &name, "x");
                    self.sent[at][topic].push(n);
                }
            }
            // Often, so that something is in flight at every moment of a change.
            self.it.turn(std::time::Duration::from_micros(20));
        }
    }

    /// Checks that the three topics were received without a gap, once, and in order.
    #[track_caller]
    fn check(&mut self) {
        let count: usize = self.sent.iter().flat_map(|of| &of[..3]).map(Vec::len).sum();
        self.it.wait("what was published", |it| it.nodes[1].received.len() >= count);
        self.it.quiet();
        for (at, from) in PUBLISHERS.into_iter().enumerate() {
            for topic in 0..3 {
                let received = self.it.numbers(1, from, &self.topics[topic]);
                assert_eq!(received, self.sent[at][topic], "of {from} on topic {topic}");
            }
        }
    }

    /// The received numbers of the fourth topic, by publisher: by the bucket alone.
    fn of_bucket(&self) -> [Vec<u64>; 2] {
        PUBLISHERS.map(|from| self.it.numbers(1, from, &self.topics[3]))
    }
}

/// Messages are published before, during and after the change.
pub fn change_from_exact_to_bucket_interest_loses_no_message(harness: &mut dyn Harness) -> Tried {
    let mut stream = Stream::new(harness);
    let wanted = stream.exact(Wanted::Yes);
    stream.it.want(1, &wanted);
    stream.publish(60);
    let changes = stream.to_whole();
    let generation = stream.it.nodes[1].change(&changes);
    stream.publish(60);
    stream.it.wait("the bucket in force", |it| it.nodes[1].in_force >= Some(generation));
    stream.publish(60);
    stream.check();
    for (received, sent) in stream.of_bucket().iter().zip(&stream.sent) {
        assert!(received.len() >= 60, "the fourth topic is of the bucket: {received:?}");
        assert!(sent[3].ends_with(received), "a run, to the end: {received:?}");
    }
    Ok(())
}

/// In the other direction.
pub fn change_from_bucket_to_exact_interest_loses_no_message(harness: &mut dyn Harness) -> Tried {
    let mut stream = Stream::new(harness);
    let bucket = whole(&stream.topics[0]);
    stream.it.want(1, &[yes(bucket)]);
    stream.publish(60);
    let changes = stream.to_exact();
    let generation = stream.it.nodes[1].change(&changes);
    stream.publish(60);
    stream.it.wait("the topics in force", |it| it.nodes[1].in_force >= Some(generation));
    let before = stream.of_bucket();
    stream.publish(60);
    stream.check();
    assert_eq!(stream.of_bucket(), before, "the fourth topic after its end was in force");
    for (received, sent) in before.iter().zip(&stream.sent) {
        assert!(sent[3].starts_with(received), "a run, from the first: {received:?}");
    }
    Ok(())
}

/// Twenty times, without waiting for the changes.
pub fn repeated_interest_changes_during_a_stream_lose_no_message(
    harness: &mut dyn Harness,
) -> Tried {
    let mut stream = Stream::new(harness);
    let wanted = stream.exact(Wanted::Yes);
    stream.it.want(1, &wanted);
    for round in 0..20 {
        let changes = if round % 2 == 0 { stream.to_whole() } else { stream.to_exact() };
        stream.it.nodes[1].change(&changes);
        stream.publish(1 + 7 * (round % 3));
    }
    stream.check();
    for (received, sent) in stream.of_bucket().iter().zip(&stream.sent) {
        let mut later = sent[3].iter();
        assert!(received.iter().all(|n| later.any(|it| it == n)), "once, in order: {received:?}");
    }
    Ok(())
}

/// Interests before and after a call hold throughout.
pub fn interest_ended_and_added_in_one_call_loses_no_message(harness: &mut dyn Harness) -> Tried {
    let mut stream = Stream::new(harness);
    let wanted = stream.exact(Wanted::Yes);
    stream.it.want(1, &wanted);
    for _ in 0..10 {
        let mut changes = stream.exact(Wanted::No);
        changes.extend(stream.exact(Wanted::Yes));
        stream.it.nodes[1].change(&changes);
        stream.publish(8);
    }
    stream.check();
    assert!(stream.of_bucket().iter().all(Vec::is_empty), "nobody wants the fourth");
    Ok(())
}
