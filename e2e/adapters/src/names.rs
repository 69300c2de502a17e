//! Topics with unusual names, as clients may choose them.

use simurgh_cluster::{Bucket, Interest, TOKEN_BYTES_MAX, TOPIC_BYTES_MAX, Wanted};

use super::cluster::{TestCluster, TestMessage, exact, no, whole, yes};
use super::{Harness, Tried};

/// Two names of one bucket that differ only in case: the bucket must not be what separates them.
fn case_mates() -> Vec<String> {
    let lower = "abcdefghijklmnop";
    let upper = |mask: u32| -> String {
        let chars = lower.chars().enumerate();
        chars
            .map(|(at, it)| if mask >> at & 1 == 1 { it.to_ascii_uppercase() } else { it })
            .collect()
    };
    let mut others = (1..1 << 16).map(upper);
    let mate = others.find(|it| Bucket::of(it) == Bucket::of(lower));
    assert!(mate.is_some(), "of 65,535 about 16 are in its bucket");
    mate.into_iter().chain([lower.to_owned()]).collect()
}

fn odd_topics() -> Vec<String> {
    let mut topics: Vec<String> = SHORT.iter().map(|it| (*it).into()).collect();
    let max = TOKEN_BYTES_MAX;
    for (unit, count) in
        [("x", max - 1), ("x", max), ("x", max + 1), ("X", max + 1), ("x", 5_000), ("é", 27)]
    {
        topics.push(unit.repeat(count));
    }
    // Hashed ones, which differ in one byte at the end and at the beginning.
    topics.push(format!("{}y", "x".repeat(max)));
    topics.push(format!("y{}", "x".repeat(max)));
    // 53 are written out, 54 are hashed.
    topics.extend([".".repeat(53), ".".repeat(54), "\u{1f426}".repeat(14)]);
    topics.extend(case_mates());
    topics.extend(["z".repeat(TOPIC_BYTES_MAX), "z".repeat(TOPIC_BYTES_MAX - 1)]);
    topics
}

/// One node wants every second topic, another one the rest.
pub fn unusual_topics_reach_only_nodes_with_an_exact_interest(harness: &mut dyn Harness) -> Tried {
    let mut it = TestCluster::new(harness, 3);
    let topics = odd_topics();
    let wanted = |node: usize, wanted: Wanted| -> Vec<(Interest, Wanted)> {
        let own = topics.iter().skip(node - 1).step_by(2);
        own.map(|topic| (exact(topic), wanted)).collect()
    };
    for node in [1, 2] {
        it.want(node, &wanted(node, Wanted::Yes));
    }
    for topic in &topics {
        it.publish(0, topic, "x");
    }
    it.wait("all", |it| it.nodes[1].received.len() + it.nodes[2].received.len() >= topics.len());
    it.quiet();
    for node in [1, 2] {
        let mut received: Vec<&str> =
            it.nodes[node].received.iter().map(|it| TestMessage::read(it).topic).collect();
        let mut own: Vec<&str> = topics.iter().skip(node - 1).step_by(2).map(|it| &**it).collect();
        received.sort_unstable();
        own.sort_unstable();
        assert!(received == own, "node {node}: {received:?}\n instead of {own:?}");
    }
    // After the interests end no more messages come.
    it.want(1, &wanted(1, Wanted::No));
    it.forget();
    for topic in &topics {
        it.publish(0, topic, "y");
    }
    it.quiet();
    assert_eq!(it.nodes[1].received.len(), 0, "{:?}", it.texts(1));
    assert_eq!(it.nodes[2].received.len(), topics.len() / 2);
    Ok(())
}

/// By interests in whole buckets.
pub fn unusual_topics_reach_nodes_with_an_interest_in_their_bucket(
    harness: &mut dyn Harness,
) -> Tried {
    let mut it = TestCluster::new(harness, 2);
    let topics = odd_topics();
    let buckets: Vec<_> = topics.iter().map(|topic| yes(whole(topic))).collect();
    it.want(1, &buckets);
    for topic in &topics {
        it.publish(0, topic, "x");
    }
    it.wait("all", |it| it.nodes[1].received.len() >= topics.len());
    it.quiet();
    let mut received: Vec<&str> =
        it.nodes[1].received.iter().map(|it| TestMessage::read(it).topic).collect();
    let mut all: Vec<&str> = topics.iter().map(|it| &**it).collect();
    received.sort_unstable();
    all.sort_unstable();
    assert!(received == all, "{received:?}\n instead of {all:?}");
    let ended: Vec<_> = buckets.into_iter().map(|(it, _)| no(it)).collect();
    it.want(1, &ended);
    it.forget();
    it.publish_each(0, topics.iter(), "y");
    it.quiet();
    assert_eq!(it.nodes[1].received.len(), 0);
    Ok(())
}

/// Names that are written out.
const SHORT: &[&str] = &[
    "",
    " ",
    "  ",
    ".",
    "..",
    ".a",
    "a.",
    "a.b",
    "a..b",
    "*",
    ">",
    "a.*",
    "a.>",
    "*.b",
    "a*",
    "$SYS",
    "$SYS.>",
    "$JS.API.>",
    "_INBOX.x",
    "\n",
    "\r\n",
    "a\r\nPUB b 0\r\n",
    "\t",
    "\0",
    "a\0b",
    "a",
    "=",
    "=0",
    "=2E",
    "=~",
    "==",
    "a=",
    "%20",
    "%",
    "+",
    "#",
    "a/b",
    "a:b",
    "a@b",
    "a b",
    "room",
    "Room",
    "ROOM",
    "ß",
    "SS",
    "é",
    "e\u{301}",
    "\u{1f426}",
    "\u{1f426}\u{1f525}",
    "\u{feff}a",
    "\u{202e}a",
    "\u{10ffff}",
    "\u{7f}",
    "\u{80}",
    "\"",
    "'",
    "\\",
    "{}",
    "null",
];
