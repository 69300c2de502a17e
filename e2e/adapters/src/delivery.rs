//! Which nodes receive which messages, and in which order.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use bytes::Bytes;
use simurgh_cluster::{Bucket, ENVELOPE_BYTES_MAX, Event, Interest, Space};

use super::cluster::{TestCluster, exact, prefix, whole, yes};
use super::{Harness, Tried};

/// Without an interest nothing is received.
pub fn node_without_an_interest_receives_nothing(harness: &mut dyn Harness) -> Tried {
    let mut it = TestCluster::new(harness, 3);
    it.want(1, &[yes(exact("rooms:1"))]);
    for topic in ["rooms:1", "rooms:2", "rooms:1", "rooms:12", "rooms"] {
        it.publish(0, topic, "x");
    }
    it.quiet();
    assert_eq!(it.texts(1), ["rooms:1 x", "rooms:1 x"]);
    assert_eq!(it.texts(2), [""; 0]);
    Ok(())
}

/// All nodes except the publisher receive it, by exact and by whole interests.
pub fn all_interested_nodes_receive_a_message(harness: &mut dyn Harness) -> Tried {
    let mut it = TestCluster::new(harness, 5);
    for node in 0..4 {
        it.want(node, &[yes(if node % 2 == 0 { exact("a") } else { whole("a") })]);
    }
    for node in 0..5 {
        it.publish(node, "a", &format!("of {node}"));
    }
    it.wait("the others", |it| (0..4).all(|node| it.nodes[node].received.len() >= 4));
    it.quiet();
    for node in 0..4 {
        let mut texts = it.texts(node);
        texts.sort();
        let others = (0..5).filter(|it| *it != node).map(|it| format!("a of {it}"));
        assert_eq!(texts, others.collect::<Vec<_>>());
    }
    assert_eq!(it.texts(4), [""; 0]);
    Ok(())
}

/// By any kind of interest.
pub fn publisher_does_not_receive_its_own_message(harness: &mut dyn Harness) -> Tried {
    let mut it = TestCluster::new(harness, 2);
    let own = Interest::Node(it.nodes[0].id);
    it.want(0, &[yes(exact("a")), yes(whole("b")), yes(Interest::Nodes), yes(own)]);
    it.want(1, &[yes(exact("a"))]);
    it.publish(0, "b", "x");
    it.publish(0, "a", "x");
    let (all, one) = (it.prefix.nodes(), it.prefix.node(it.nodes[0].id));
    assert_eq!(it.nodes[0].publish(&all, &Bytes::from_static(b"all")), Ok(()));
    assert_eq!(it.nodes[0].publish(&one, &Bytes::from_static(b"one")), Ok(()));
    it.wait("the other one", |it| it.texts(1) == ["a x"]);
    it.quiet();
    assert_eq!(it.nodes[0].received, []);
    Ok(())
}

/// One topic in both spaces is wanted in one of them, or by its bucket in one of them.
pub fn broadcast_and_presence_interests_are_separate(harness: &mut dyn Harness) -> Tried {
    let mut it = TestCluster::new(harness, 5);
    it.want(1, &[yes(exact("a"))]);
    it.want(2, &[yes(Interest::Exact(Space::Presence, "a".into()))]);
    it.want(3, &[yes(whole("a"))]);
    it.want(4, &[yes(Interest::Whole(Space::Presence, Bucket::of("a")))]);
    it.publish(0, "a", "b");
    it.publish_in(0, Space::Presence, "a", "p");
    it.wait("all", |it| (1..5).all(|node| !it.nodes[node].received.is_empty()));
    it.quiet();
    for (node, text, space) in [
        (1, "a b", Space::Broadcast),
        (2, "a p", Space::Presence),
        (3, "a b", Space::Broadcast),
        (4, "a p", Space::Presence),
    ] {
        assert_eq!(it.texts(node), [text], "node {node}");
        assert_eq!(it.nodes[node].received[0].space, Some(space), "node {node}");
        assert_eq!(it.nodes[node].received[0].stored, None, "node {node}");
    }
    Ok(())
}

/// `Interest::Nodes` and `Interest::Node` are apart from each other, and from topics.
pub fn messages_to_all_nodes_or_to_one_reach_only_those_nodes(harness: &mut dyn Harness) -> Tried {
    let mut it = TestCluster::new(harness, 4);
    let ids = [0, 1, 2, 3].map(|node| it.nodes[node].id);
    it.want(1, &[yes(Interest::Nodes), yes(Interest::Node(ids[1]))]);
    it.want(2, &[yes(Interest::Node(ids[2]))]);
    it.want(3, &[yes(Interest::Nodes)]);
    let to_all = it.prefix.nodes();
    let mut sent = vec![(to_all, "all")];
    for (id, text) in [(ids[1], "one"), (ids[2], "two"), (ids[3], "three")] {
        sent.push((it.prefix.node(id), text));
    }
    for (to, text) in &sent {
        assert_eq!(it.nodes[0].publish(to, &Bytes::from_static(text.as_bytes())), Ok(()));
    }
    it.wait("four", |it| it.nodes.iter().map(|node| node.received.len()).sum::<usize>() >= 4);
    it.quiet();
    for (node, texts) in [(1, &["all", "one"][..]), (2, &["two"]), (3, &["all"])] {
        let mut received: Vec<&[u8]> =
            it.nodes[node].received.iter().map(|it| &it.envelope[..]).collect();
        received.sort_unstable();
        let texts: Vec<&[u8]> = texts.iter().map(|it| it.as_bytes()).collect();
        assert_eq!(received, texts, "node {node}");
        assert!(it.nodes[node].received.iter().all(|it| it.space.is_none()), "node {node}");
    }
    Ok(())
}

/// 100,000 are far more than may be in flight; on three topics.
pub fn hundred_thousand_messages_arrive_in_order(harness: &mut dyn Harness) -> Tried {
    const COUNT: u64 = 100_000;
    let mut it = TestCluster::new(harness, 2);
    it.want(1, &[yes(exact("a")), yes(exact("b")), yes(whole("c"))]);
    for n in 0..COUNT {
        it.publish(0, ["a", "b", "c"][(n % 3) as usize], "x");
    }
    it.wait("all", |it| it.nodes[1].received.len() as u64 >= COUNT);
    it.quiet();
    for (topic, first) in [("a", 1), ("b", 2), ("c", 3)] {
        let expected: Vec<u64> = (first..=COUNT).step_by(3).collect();
        assert!(it.numbers(1, 0, topic) == expected, "of {topic} some are not in order");
    }
    assert_eq!(it.nodes[1].received.len() as u64, COUNT);
    Ok(())
}

/// There is no order between publishers, but each has its own.
pub fn messages_of_each_publisher_arrive_in_order(harness: &mut dyn Harness) -> Tried {
    let mut it = TestCluster::new(harness, 5);
    for node in 0..5 {
        it.want(node, &[yes(exact("a")), yes(exact("b"))]);
    }
    for round in 0..100 {
        for node in 0..5 {
            for topic in ["a", "b", "a"] {
                it.publish(node, topic, "x");
            }
        }
        if round % 10 == 0 {
            it.turn(std::time::Duration::from_millis(1));
        }
    }
    it.wait("all", |it| it.nodes.iter().all(|node| node.received.len() >= 4 * 300));
    it.quiet();
    for (node, from) in (0..5).flat_map(|node| (0..5).map(move |from| (node, from))) {
        let of_a: Vec<u64> = (1..=300).filter(|n| n % 3 != 2).collect();
        let of_b: Vec<u64> = (1..=300).filter(|n| n % 3 == 2).collect();
        let (of_a, of_b) = if node == from { (vec![], vec![]) } else { (of_a, of_b) };
        assert_eq!(it.numbers(node, from, "a"), of_a, "{from} at {node}");
        assert_eq!(it.numbers(node, from, "b"), of_b, "{from} at {node}");
    }
    Ok(())
}

/// Each of 256 bytes, all of them, and none: envelopes need not be valid.
pub fn envelopes_of_any_bytes_and_empty_ones_arrive_unchanged(harness: &mut dyn Harness) -> Tried {
    let mut it = TestCluster::new(harness, 2);
    it.want(1, &[yes(exact("a"))]);
    let to = it.prefix.topic(Space::Broadcast, "a");
    let mut sent: Vec<Bytes> = (0..=255).map(|byte: u8| Bytes::from(vec![byte])).collect();
    sent.push((0..=255).collect());
    sent.push(Bytes::new());
    sent.push(Bytes::from_static(b"\r\nPUB a 1\r\n+OK\r\n"));
    sent.push(Bytes::new());
    for envelope in &sent {
        assert_eq!(it.nodes[0].publish(&to, envelope), Ok(()));
    }
    it.wait("all", |it| it.nodes[1].received.len() >= sent.len());
    it.quiet();
    let received: Vec<Bytes> = it.nodes[1].received.iter().map(|it| it.envelope.clone()).collect();
    assert_eq!(received, sent);
    Ok(())
}

/// Three of a megabyte less 1 kB.
pub fn the_largest_envelope_arrives(harness: &mut dyn Harness) -> Tried {
    let mut it = TestCluster::new(harness, 2);
    it.want(1, &[yes(exact("a"))]);
    let payload = "x".repeat(ENVELOPE_BYTES_MAX - 23);
    for _ in 0..3 {
        it.publish(0, "a", &payload);
    }
    it.publish(0, "a", "small");
    it.wait("all", |it| it.nodes[1].received.len() >= 4);
    assert_eq!(it.numbers(1, 0, "a"), [1, 2, 3, 4]);
    let sizes: Vec<usize> = it.nodes[1].received.iter().map(|it| it.envelope.len()).collect();
    assert_eq!(sizes, [ENVELOPE_BYTES_MAX, ENVELOPE_BYTES_MAX, ENVELOPE_BYTES_MAX, 28]);
    Ok(())
}

/// `a` and `ab` are on one broker, with everything wanted in both.
pub fn similar_prefixes_are_isolated(harness: &mut dyn Harness) -> Tried {
    let mut it = TestCluster::empty(harness);
    for name in ["a", "a", "ab", "ab"] {
        it.prefix = prefix(name);
        it.add();
    }
    it.wait("all to be up", |it| it.nodes.iter().all(|node| node.is_up));
    for node in 0..4 {
        let own = Interest::Node(it.nodes[node].id);
        it.want(node, &[yes(exact("t")), yes(whole("u")), yes(Interest::Nodes), yes(own)]);
    }
    for (from, to, name) in [(0, 1, "a"), (2, 3, "ab")] {
        it.prefix = prefix(name);
        it.publish(from, "t", name);
        it.publish(from, "u", name);
        // Nodes of the other cluster would receive this, if any.
        let subjects = [it.prefix.nodes(), it.prefix.node(it.nodes[to].id)];
        for subject in subjects {
            assert_eq!(it.nodes[from].publish(&subject, &Bytes::from_static(b"n")), Ok(()));
        }
        it.wait("its own", |it| it.nodes[to].received.len() >= 4);
        it.quiet();
        let counts: Vec<usize> = it.nodes.iter().map(|node| node.received.len()).collect();
        let mut expected = [0; 4];
        expected[to] = 4;
        assert_eq!(counts, expected, "published with {name}");
        it.forget();
    }
    Ok(())
}

/// An idle node may sleep until then.
pub fn the_waker_is_woken(harness: &mut dyn Harness) -> Tried {
    let mut it = TestCluster::new(harness, 2);
    it.want(1, &[yes(exact("a"))]);
    it.quiet();
    let woken = Arc::new(Count::default());
    let waker = Waker::from(Arc::clone(&woken));
    let mut context = Context::from_waker(&waker);
    it.not_polled = Some(1);
    for n in 1..=3 {
        assert_eq!(it.nodes[1].adapter().poll_event(&mut context), Poll::Pending);
        let mut before = woken.0.load(Ordering::SeqCst);
        it.publish(0, "a", "x");
        // It may be woken without reason, but it is polled only when it was woken.
        let event = loop {
            it.wait("being woken", |_| woken.0.load(Ordering::SeqCst) > before);
            before = woken.0.load(Ordering::SeqCst);
            if let Poll::Ready(event) = it.nodes[1].adapter().poll_event(&mut context) {
                break event;
            }
        };
        assert!(matches!(event, Event::Received(_)), "{n}: {event:?}");
    }
    Ok(())
}

#[derive(Default)]
struct Count(AtomicUsize);

impl Wake for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}
