//! When interests begin and end.

use simurgh_cluster::{Bucket, Generation, Interest, Wanted};

use super::cluster::{TestCluster, exact, mates, no, whole, yes};
use super::{Harness, Tried};

/// Its topics need not be named.
pub fn bucket_interest_receives_its_topics_and_no_others(harness: &mut dyn Harness) -> Tried {
    let mut it = TestCluster::new(harness, 2);
    let topics = mates(4);
    let next = Bucket::new(Bucket::of("rooms:0").number() as u16 + 1);
    let mut others = (0u32..).map(|it| format!("rooms:{it}"));
    let other = others.find(|it| Bucket::of(it) == next).unwrap_or_default();
    it.want(1, &[yes(whole("rooms:0"))]);
    for topic in topics.iter().chain([&other]) {
        it.publish(0, topic, "x");
    }
    it.wait("the bucket", |it| it.nodes[1].received.len() >= 4);
    it.quiet();
    let expected: Vec<String> = topics.iter().map(|topic| format!("{topic} x")).collect();
    assert_eq!(it.texts(1), expected);
    Ok(())
}

/// Once the end is in force; before that it may receive messages, in order.
pub fn ended_interest_receives_nothing(harness: &mut dyn Harness) -> Tried {
    let mut it = TestCluster::new(harness, 2);
    for (interest, topic) in [(exact("a"), "a"), (whole("b"), "b")] {
        it.forget();
        let first = it.nodes[0].n + 1;
        it.want(1, &[yes(interest.clone())]);
        for _ in 0..100 {
            it.publish(0, topic, "before");
        }
        it.wait("the first", |it| !it.nodes[1].received.is_empty());
        let generation = it.nodes[1].change(&[no(interest)]);
        for _ in 0..100 {
            it.publish(0, topic, "meanwhile");
        }
        // Events are polled one by one: no message comes after it.
        it.wait("the end in force", |it| it.nodes[1].in_force >= Some(generation));
        let received = it.numbers(1, 0, topic);
        let run: Vec<u64> = (first..).take(received.len()).collect();
        assert_eq!(received, run, "a run from the first");
        it.publish(0, topic, "after");
        it.quiet();
        assert_eq!(it.numbers(1, 0, topic), run, "{topic} came after its end was in force");
    }
    Ok(())
}

/// Interests are a set: one end ends an interest, and an end without an interest changes nothing.
pub fn interest_added_twice_ends_with_one_removal(harness: &mut dyn Harness) -> Tried {
    let mut it = TestCluster::new(harness, 2);
    it.want(1, &[no(exact("a")), no(whole("b"))]);
    it.want(1, &[yes(exact("a")), yes(exact("a")), yes(whole("b"))]);
    it.want(1, &[yes(whole("b")), yes(exact("a"))]);
    it.publish(0, "a", "1");
    it.publish(0, "b", "1");
    it.quiet();
    let mut texts = it.texts(1);
    texts.sort();
    assert_eq!(texts, ["a 1", "b 1"]);
    it.want(1, &[no(exact("a"))]);
    it.want(1, &[no(whole("b")), no(exact("c"))]);
    it.publish(0, "a", "2");
    it.publish(0, "b", "2");
    it.quiet();
    assert_eq!(it.nodes[1].received.len(), 2, "{:?}", it.texts(1));
    Ok(())
}

/// A topic and all of its bucket: when one ends, the other continues.
pub fn exact_and_bucket_interest_together_receive_once(harness: &mut dyn Harness) -> Tried {
    let mut it = TestCluster::new(harness, 2);
    let topics = mates(2);
    let (named, unnamed) = (&topics[0], &topics[1]);
    let both = [yes(exact(named)), yes(whole(named))];
    for (ended, hears) in [(exact(named), &[true, true]), (whole(named), &[true, false])] {
        it.forget();
        it.want(1, &both);
        let first = it.nodes[0].n + 1;
        for _ in 0..50 {
            it.publish(0, named, "x");
            it.publish(0, unnamed, "x");
        }
        it.wait("both", |it| it.nodes[1].received.len() >= 100);
        it.quiet();
        let of = |start: u64| (start..first + 100).step_by(2).collect::<Vec<u64>>();
        assert_eq!(it.numbers(1, 0, named), of(first));
        assert_eq!(it.numbers(1, 0, unnamed), of(first + 1));
        it.want(1, &[no(ended)]);
        it.forget();
        for (topic, hears) in topics.iter().zip(hears) {
            it.publish(0, topic, "y");
            it.quiet();
            let texts = if *hears { vec![format!("{topic} y")] } else { vec![] };
            assert_eq!(it.texts(1), texts);
            it.forget();
        }
        it.want(1, &[no(exact(named)), no(whole(named))]);
    }
    Ok(())
}

/// Also empty changes, many at once, and changes before there is a link.
pub fn every_interest_change_takes_effect(harness: &mut dyn Harness) -> Tried {
    let mut it = TestCluster::empty(harness);
    it.add();
    for expected in 1..=3 {
        assert_eq!(it.nodes[0].change(&[yes(exact("a"))]), Generation(expected));
    }
    it.wait("the third", |it| it.nodes[0].in_force == Some(Generation(3)));
    assert!(it.nodes[0].is_up, "in force, and not up");
    it.want(0, &[]);
    it.want(0, &[no(exact("never wanted"))]);
    for round in 0..500 {
        it.nodes[0].change(&[(exact("b"), [Wanted::Yes, Wanted::No][round % 2])]);
        if round % 50 == 0 {
            it.turn(std::time::Duration::from_millis(1));
        }
    }
    it.wait("the last", |it| it.nodes[0].in_force == Some(Generation(505)));
    it.quiet();
    assert_eq!(it.nodes[0].in_force, Some(Generation(505)));
    Ok(())
}

/// At once, from every other node, for every kind of interest.
pub fn messages_published_after_an_interest_took_effect_arrive(harness: &mut dyn Harness) -> Tried {
    let mut it = TestCluster::new(harness, 3);
    for round in 0..40 {
        let topic = format!("t:{round}");
        it.want(1, &[yes(if round % 2 == 0 { exact(&topic) } else { whole(&topic) })]);
        it.publish(0, &topic, "x");
        it.publish(2, &topic, "x");
        it.wait("what was published then", |it| {
            [0, 2].iter().all(|from| it.numbers(1, *from, &topic).len() == 1)
        });
    }
    Ok(())
}

/// They begin in one call and end in one call, and each message comes once.
pub fn each_of_ten_thousand_interests_receives_its_message(harness: &mut dyn Harness) -> Tried {
    const COUNT: usize = 10_000;
    let mut it = TestCluster::new(harness, 2);
    let topics: Vec<String> = (0..COUNT).map(|it| format!("topic:{it}")).collect();
    let all = |wanted| -> Vec<(Interest, Wanted)> {
        topics.iter().map(|topic| (exact(topic), wanted)).collect()
    };
    it.want(1, &all(Wanted::Yes));
    it.publish_each(0, topics.iter(), "x");
    it.wait("all", |it| it.nodes[1].received.len() >= COUNT);
    it.quiet();
    let mut texts = it.texts(1);
    texts.sort();
    let mut expected: Vec<String> = topics.iter().map(|topic| format!("{topic} x")).collect();
    expected.sort();
    assert!(texts == expected, "not each once");
    it.want(1, &all(Wanted::No));
    it.forget();
    it.publish_each(0, topics.iter().step_by(100), "y");
    it.quiet();
    assert_eq!(it.nodes[1].received, []);
    Ok(())
}

/// Of several changes in one call.
pub fn last_change_of_an_interest_in_one_call_counts(harness: &mut dyn Harness) -> Tried {
    let mut it = TestCluster::new(harness, 2);
    it.want(1, &[yes(exact("a")), no(exact("a")), no(exact("b")), yes(exact("b"))]);
    it.want(1, &[yes(whole("c")), no(whole("c")), yes(whole("c"))]);
    for topic in ["a", "b", "c"] {
        it.publish(0, topic, "x");
    }
    it.quiet();
    let mut texts = it.texts(1);
    texts.sort();
    assert_eq!(texts, ["b x", "c x"]);
    Ok(())
}
