//! The messages a broker stores: numbering and fetching.

use std::time::Duration;

use bytes::Bytes;
use simurgh_cluster::adapter::{Fetch, LAST_OF_MAX, NotStored, TICKET_SECONDS_MAX, TICKETS_MAX};
use simurgh_cluster::{Event, QueueFull, Received, Space, Subject};

use super::cluster::{TestCluster, TestMessage, exact, whole, yes};
use super::{Fault, Harness, Tried};

fn after(subject: Subject, seq: u64, count: u32, bytes: usize) -> Fetch {
    Fetch::After { subject, seq, count, bytes, from_leader: false }
}

/// The publisher receives it as well, and numbers grow.
pub fn stored_messages_reach_all_nodes_in_one_order(harness: &mut dyn Harness) -> Tried {
    let mut it = TestCluster::keeping(harness, 4)?;
    (0..3).for_each(|node| it.want(node, &[yes(exact("a"))]));
    it.want(3, &[yes(whole("a"))]);
    let mut tickets = Vec::new();
    for n in 0..40 {
        for node in 0..3 {
            let text = format!("{node}-{n}");
            tickets.push((node, text.clone(), it.store(node, "a", &text, &text)));
        }
    }
    it.wait("all", |it| it.nodes.iter().all(|node| node.received.len() >= 120));
    it.quiet();
    let order = it.nodes[0].received.clone();
    for node in 0..4 {
        assert_eq!(it.nodes[node].received, order, "node {node}");
        assert!(order.iter().all(|it| it.space == Some(Space::Broadcast)));
    }
    let seqs: Vec<u64> = order.iter().filter_map(|it| it.stored).map(|it| it.seq).collect();
    assert_eq!(seqs.len(), 120);
    assert!(seqs.is_sorted_by(|a, b| a < b), "{seqs:?}");
    for (node, text, ticket) in tickets {
        let answer = it.answer(node, ticket);
        let place = order.iter().position(|it| TestMessage::read(it).payload == text);
        let expected = Event::Stored { ticket, seq: seqs[place.unwrap_or(0)], is_duplicate: false };
        assert_eq!(answer, expected, "{text}");
    }
    Ok(())
}

/// By any node; it is not delivered again.
pub fn message_with_the_same_id_is_stored_once(harness: &mut dyn Harness) -> Tried {
    let mut it = TestCluster::keeping(harness, 2)?;
    it.want(1, &[yes(exact("a"))]);
    let first = it.stored(0, "a", "id", "one");
    for node in [0, 1, 0] {
        let ticket = it.store(node, "a", "id", "again");
        let expected = Event::Stored { ticket, seq: first, is_duplicate: true };
        assert_eq!(it.answer(node, ticket), expected);
    }
    // Also while the first one is in flight.
    let tickets = ["x", "y", "z"].map(|text| it.store(0, "a", "another", text));
    let answers = tickets.map(|ticket| it.answer(0, ticket));
    let are_duplicates = answers.map(|it| matches!(it, Event::Stored { is_duplicate: true, .. }));
    assert_eq!(are_duplicates, [false, true, true]);
    it.quiet();
    assert_eq!(it.texts(1), ["a one", "a x"]);
    let kept = it.after(1, "a", 0);
    assert_eq!(kept.iter().map(|it| &*it.1).collect::<Vec<_>>(), ["one", "x"]);
    assert_eq!(kept[0].0, first);
    Ok(())
}

/// On its own topic, whatever came on others: so a missing one is noticed.
pub fn each_stored_message_names_its_predecessor(harness: &mut dyn Harness) -> Tried {
    let mut it = TestCluster::keeping(harness, 2)?;
    let topics = ["a", "b", "c"];
    it.want(1, &topics.map(|topic| yes(exact(topic))));
    for n in 0..60 {
        it.store(n % 2, topics[n * 7 % 3], &format!("{n}"), "x");
    }
    it.wait("all", |it| it.nodes[1].received.len() >= 60);
    it.quiet();
    for topic in topics {
        let received =
            it.nodes[1].received.iter().filter(|it| TestMessage::read(it).topic == topic);
        let numbers: Vec<_> = received.filter_map(|it| it.stored).collect();
        assert_eq!(numbers.len(), 20);
        let mut last = 0;
        for number in numbers {
            assert_eq!(number.prev, last, "of {topic}");
            last = number.seq;
        }
    }
    Ok(())
}

/// Also by a node that did not receive it; after the last there is nothing.
pub fn fetch_returns_the_messages_after_a_number(harness: &mut dyn Harness) -> Tried {
    let mut it = TestCluster::keeping(harness, 2)?;
    let mut stored = Vec::new();
    for n in 0..10 {
        let text = format!("{n}");
        stored.push((it.stored(0, "a", &text, &text), text));
        it.stored(0, "b", &format!("other {n}"), "other");
    }
    for (at, (seq, _)) in stored.iter().enumerate() {
        assert_eq!(it.after(1, "a", *seq), stored[at + 1..]);
        assert_eq!(it.after(1, "a", *seq - 1), stored[at..]);
    }
    assert_eq!(it.after(1, "a", 0), stored);
    assert_eq!(it.after(1, "never", 0), []);
    assert_eq!(it.after(1, "a", u64::MAX / 2), []);
    let subject = it.prefix.topic(Space::Store, "a");
    let what = after(subject, stored[3].0, 3, 1 << 20);
    let fetched = it.fetch(1, what).unwrap_or_default().messages;
    assert!(fetched.iter().all(|it| it.space == Some(Space::Store)));
    let numbers: Vec<_> = fetched.iter().filter_map(|it| it.stored).collect();
    let prevs: Vec<u64> = numbers.iter().map(|it| it.prev).collect();
    assert_eq!(prevs, [0, numbers[0].seq, numbers[1].seq], "each in this answer");
    Ok(())
}

/// At whichever comes first, but not before the first envelope.
pub fn fetch_ends_at_its_count_or_byte_limit(harness: &mut dyn Harness) -> Tried {
    let mut it = TestCluster::keeping(harness, 1)?;
    let payload = "x".repeat(977);
    for n in 0..10 {
        it.stored(0, "a", &format!("{n}"), &payload);
    }
    let subject = it.prefix.topic(Space::Store, "a");
    for (count, bytes, expected) in [
        (3, 1 << 20, 3..=3),
        (100, 1 << 20, 10..=10),
        (1, 1, 1..=1),
        (100, 1, 1..=1),
        // A broker may count headers, too.
        (100, 3_500, 2..=3),
        (2, 3_500, 2..=2),
    ] {
        let fetched = it.fetch(0, after(subject.clone(), 0, count, bytes)).unwrap_or_default();
        let (found, is_all) = (fetched.messages.len(), fetched.is_all);
        assert!(expected.contains(&found), "{found} of {count}, {bytes} B");
        assert_eq!(is_all, found == 10, "{found} of {count}, {bytes} B");
    }
    Ok(())
}

/// Oldest first; subjects without messages are left out.
pub fn last_messages_of_many_subjects_are_fetched(harness: &mut dyn Harness) -> Tried {
    let mut it = TestCluster::keeping(harness, 2)?;
    let mut last = Vec::new();
    for n in 0..50 {
        it.stored(0, &format!("t:{n}"), &format!("first {n}"), "first");
    }
    for n in (0..50).rev() {
        let text = format!("last {n}");
        last.push((it.stored(0, &format!("t:{n}"), &text, &text), text));
    }
    // As many subjects as allowed; most have no messages.
    let subjects =
        (0..LAST_OF_MAX).map(|n| it.prefix.topic(Space::Store, &format!("t:{n}"))).collect();
    let fetched = it.fetch(1, Fetch::LastOf { subjects }).unwrap_or_default();
    assert!(fetched.is_all);
    assert_eq!(Some(fetched.head), last.last().map(|it| it.0), "of the last of all");
    let fetched = fetched.messages;
    let seqs = fetched.iter().filter_map(|it| it.stored).map(|it| it.seq);
    let texts = fetched.iter().map(|it| TestMessage::read(it).payload.to_owned());
    assert_eq!(seqs.zip(texts).collect::<Vec<_>>(), last);
    let none = it.fetch(1, Fetch::LastOf { subjects: vec![] });
    assert_eq!(none.map(|it| it.messages), Some(vec![]));
    Ok(())
}

/// This many of each; each of them still names the one before it.
pub fn only_the_newest_messages_of_each_subject_stay_stored(harness: &mut dyn Harness) -> Tried {
    let max = harness.kept_max();
    let mut it = TestCluster::keeping(harness, 1)?;
    it.want(0, &[yes(exact("a"))]);
    let few = it.stored(0, "b", "few", "few");
    for n in 0..max + 25 {
        it.store(0, "a", &format!("{n}"), &format!("{n}"));
    }
    it.wait("all", |it| it.nodes[0].received.len() >= max + 25);
    let kept = it.after(0, "a", 0);
    let texts: Vec<String> = kept.iter().map(|it| it.1.clone()).collect();
    let expected: Vec<String> = (25..max + 25).map(|n| format!("{n}")).collect();
    assert_eq!(texts, expected);
    assert_eq!(it.after(0, "b", 0), [(few, "few".to_owned())]);
    let numbers: Vec<_> = it.nodes[0].received.iter().filter_map(|it| it.stored).collect();
    assert!(numbers.windows(2).all(|pair| pair[1].prev == pair[0].seq), "{numbers:?}");
    Ok(())
}

/// Only on its subject; the next one names no predecessor.
pub fn purge_removes_messages_and_numbers_continue(harness: &mut dyn Harness) -> Tried {
    let mut it = TestCluster::keeping(harness, 2)?;
    it.want(1, &[yes(exact("a"))]);
    for n in 0..5 {
        it.stored(0, "a", &format!("a{n}"), "x");
    }
    let other = it.stored(0, "b", "b", "other");
    it.purge(1, "a", u64::MAX / 2);
    assert_eq!(it.after(1, "a", 0), []);
    assert_eq!(it.after(1, "b", 0), [(other, "other".to_owned())]);
    let next = it.stored(0, "a", "next", "next");
    assert!(next > other, "{next} after {other}");
    assert_eq!(it.after(1, "a", 0), [(next, "next".to_owned())]);
    assert_eq!(it.after(1, "a", 3), [(next, "next".to_owned())], "across the purge");
    it.wait("the last", |it| it.nodes[1].received.len() == 6);
    let number = it.nodes[1].received.last().and_then(|it| it.stored);
    assert_eq!(number.map(|it| (it.seq, it.prev)), Some((next, 0)));
    Ok(())
}

/// The message with this number and newer ones stay, and still name their predecessors.
pub fn purge_before_a_number_retains_later_messages(harness: &mut dyn Harness) -> Tried {
    let mut it = TestCluster::keeping(harness, 2)?;
    it.want(1, &[yes(exact("a"))]);
    let seqs: Vec<u64> =
        (0..6).map(|n| it.stored(0, "a", &format!("a{n}"), &format!("{n}"))).collect();
    let other = it.stored(0, "b", "b", "other");
    it.purge(1, "a", seqs[4]);
    let left = [(seqs[4], "4".to_owned()), (seqs[5], "5".to_owned())];
    assert_eq!(it.after(0, "a", 0), left);
    assert_eq!(it.after(0, "b", 0), [(other, "other".to_owned())], "of its subject alone");
    // Purging purged or missing messages changes nothing.
    it.purge(0, "a", seqs[2]);
    it.purge(0, "a", 0);
    it.purge(0, "never", seqs[5]);
    assert_eq!(it.after(0, "a", 0), left);
    it.stored(0, "a", "next", "next");
    it.wait("the last", |it| it.nodes[1].received.len() == 7);
    let number = it.nodes[1].received.last().and_then(|it| it.stored);
    assert_eq!(number.map(|it| it.prev), Some(seqs[5]));
    Ok(())
}

/// B47: whatever the limits of histories are. Nodes receive nothing of it by themselves.
pub fn log_of_notices_retains_everything_until_it_is_purged(harness: &mut dyn Harness) -> Tried {
    let count = harness.kept_max() + 25;
    let mut it = TestCluster::keeping(harness, 2)?;
    assert!(it.nodes[1].log.is_some(), "an epoch of the log");
    it.want(1, &[yes(exact("3")), yes(whole("3"))]);
    let (log, other) = (it.prefix.log(3), it.prefix.log(4));
    let envelope = Bytes::from_static(b"record");
    let store = |it: &mut TestCluster<'_>, to: &Subject, id: &str| {
        let ticket = it.store_to(0, to, (id, None), &envelope);
        match it.answer(0, ticket) {
            Event::Stored { seq, .. } => seq,
            other => unreachable!("not stored: {other:?}"),
        }
    };
    let seqs: Vec<u64> = (0..count).map(|n| store(&mut it, &log, &format!("{n}"))).collect();
    let last = store(&mut it, &other, "other");
    let read = |it: &mut TestCluster<'_>, of: &Subject, from_leader| -> Vec<u64> {
        let (subject, count, bytes) = (of.clone(), 1_000, 1 << 20);
        let what = Fetch::After { subject, seq: 0, count, bytes, from_leader };
        let fetched = it.fetch(1, what).unwrap_or_default();
        assert!(fetched.is_all && fetched.messages.iter().all(|it| it.envelope == envelope));
        fetched.messages.iter().filter_map(|it| it.stored).map(|it| it.seq).collect()
    };
    for from_leader in [false, true] {
        assert_eq!(read(&mut it, &log, from_leader), seqs);
        assert_eq!(read(&mut it, &other, from_leader), [last]);
    }
    let ticket = it.ticket();
    assert_eq!(it.nodes[1].adapter().purge(&log, seqs[count - 2], ticket), Ok(()));
    it.nodes[1].unanswered.insert(ticket);
    assert_eq!(it.answer(1, ticket), Event::Purged { ticket, why: None });
    assert_eq!(read(&mut it, &log, false), seqs[count - 2..]);
    assert_eq!(read(&mut it, &other, false), [last]);
    it.quiet();
    assert_eq!(it.nodes[1].received, []);
    Ok(())
}

/// A message without an age stays.
pub fn messages_older_than_their_age_are_removed(harness: &mut dyn Harness) -> Tried {
    let mut it = TestCluster::keeping(harness, 1)?;
    let young = Some(Duration::from_millis(1));
    let old = Some(Duration::from_secs(100));
    let kept = [("none", None), ("second", young), ("minute", old), ("again", young)];
    for (id, age) in kept {
        let ticket = it.store_for(0, "a", (id, age), id);
        assert!(matches!(it.answer(0, ticket), Event::Stored { .. }), "{id}");
    }
    let texts = |it: &mut TestCluster<'_>| -> Vec<String> {
        it.after(0, "a", 0).into_iter().map(|it| it.1).collect()
    };
    assert_eq!(texts(&mut it), ["none", "second", "minute", "again"], "a second at least");
    it.pass(Duration::from_millis(3_500));
    assert_eq!(texts(&mut it), ["none", "minute"]);
    Ok(())
}

/// By the broker's clock, the same when it is received and when it is fetched.
pub fn stored_message_has_the_time_of_the_broker(harness: &mut dyn Harness) -> Tried {
    let mut it = TestCluster::keeping(harness, 2)?;
    it.want(1, &[yes(exact("a"))]);
    it.publish(0, "a", "not stored");
    it.stored(0, "a", "first", "first");
    it.pass(Duration::from_millis(50));
    it.stored(0, "a", "second", "second");
    it.wait("all", |it| it.nodes[1].received.len() == 3);
    let subject = it.prefix.topic(Space::Store, "a");
    let fetched = it.fetch(1, after(subject.clone(), 0, 9, 1_000)).unwrap_or_default().messages;
    let (count, bytes, from_leader) = (9, 1_000, true);
    let of_leader = Fetch::After { subject, seq: 0, count, bytes, from_leader };
    let of_leader = it.fetch(1, of_leader).unwrap_or_default().messages;
    let times = |of: &[Received], is_stored: bool| -> Vec<u64> {
        let of = of.iter().filter(|it| it.stored.is_some() == is_stored);
        of.map(|it| it.at_ms).collect()
    };
    let received = times(&it.nodes[1].received, true);
    assert_eq!(
        [times(&fetched, true), times(&of_leader, true)],
        [received.clone(), received.clone()]
    );
    assert_eq!(times(&it.nodes[1].received, false), [0]);
    let [first, second] = received[..] else { unreachable!("two were stored: {received:?}") };
    // The years 2020 and 2100.
    assert!((1_577_836_800_000..4_102_444_800_000).contains(&first), "{first}");
    assert!((40..20_000).contains(&(second - first)), "{first}, {second}");
    Ok(())
}

/// Up to that number no message after the fetched ones is missing.
pub fn fetch_reports_the_number_up_to_which_it_is_complete(harness: &mut dyn Harness) -> Tried {
    let mut it = TestCluster::keeping(harness, 1)?;
    let seqs: Vec<u64> = (0..5).map(|n| it.stored(0, "a", &format!("{n}"), "x")).collect();
    let subject = it.prefix.topic(Space::Store, "a");
    for from_leader in [false, true] {
        let mut fetch = |seq, count| {
            let subject = subject.clone();
            let what = Fetch::After { subject, seq, count, bytes: 1_000, from_leader };
            it.fetch(0, what).unwrap_or_default()
        };
        let all = fetch(0, 100);
        assert_eq!((all.messages.len(), all.is_all), (5, true));
        assert!(all.head >= seqs[4], "{} is below {}", all.head, seqs[4]);
        let some = fetch(0, 2);
        assert_eq!((some.messages.len(), some.is_all), (2, false));
        assert!(some.head == 0 || some.head >= seqs[1], "{}", some.head);
        let none = fetch(seqs[4], 100);
        assert_eq!((none.messages.len(), none.is_all), (0, true));
        assert!(!from_leader || none.head >= seqs[4], "{}", none.head);
    }
    Ok(())
}

/// On any subject: no older message has a higher number, and no younger one a lower.
pub fn fetch_by_age_returns_the_number_before_younger_messages(harness: &mut dyn Harness) -> Tried {
    let mut it = TestCluster::keeping(harness, 2)?;
    let subject = it.prefix.topic(Space::Store, "never");
    let since = |it: &mut TestCluster<'_>, ms| {
        let (subject, age) = (subject.clone(), Duration::from_millis(ms));
        let ticket = it.ask(1, Fetch::Since { subject, age });
        match it.answer(1, ticket) {
            Event::Since { behind, .. } => behind,
            other => unreachable!("{other:?}"),
        }
    };
    assert_eq!(since(&mut it, 60_000), Some(0), "nothing was ever stored");
    let first = it.stored(0, "a", "first", "first");
    let old = it.stored(0, "b", "old", "old");
    assert_eq!(since(&mut it, 60_000), Some(first - 1));
    it.pass(Duration::from_millis(2_500));
    assert_eq!(since(&mut it, 60_000), Some(first - 1));
    assert_eq!(since(&mut it, 1_000), Some(old), "nothing was stored since then");
    let young = it.stored(0, "a", "young", "young");
    assert_eq!(since(&mut it, 2_000), Some(young - 1));
    assert_eq!(since(&mut it, 60_000), Some(first - 1));
    // Removed messages may be of any time.
    it.purge(0, "a", u64::MAX / 2);
    let behind = since(&mut it, 60_000);
    assert!(behind.is_some_and(|it| it < old), "{behind:?}");
    let behind = since(&mut it, 2_000);
    assert!(behind.is_some_and(|it| (old..=young).contains(&it)), "{behind:?}");
    // No broker of these tests keeps messages for so long.
    assert_eq!(since(&mut it, 1_000_000_000_000), None);
    Ok(())
}

/// At the moment of the answer, for every node, and with its head.
pub fn leader_has_all_confirmed_messages(harness: &mut dyn Harness) -> Tried {
    let mut it = TestCluster::keeping(harness, 2)?;
    let subject = it.prefix.topic(Space::Store, "a");
    let mut last = 0;
    for n in 0..30 {
        let text = format!("{n}");
        let seq = it.stored(n % 2, "a", &text, &text);
        let (subject, count, bytes, from_leader) = (subject.clone(), 10, 1_000, true);
        let what = Fetch::After { subject, seq: last, count, bytes, from_leader };
        let fetched = it.fetch(1 - n % 2, what).unwrap_or_default();
        let found: Vec<_> =
            fetched.messages.iter().map(|it| TestMessage::read(it).payload).collect();
        assert_eq!((&found[..], fetched.is_all), (&[&*text][..], true));
        assert!(fetched.head >= seq, "{} is below {seq}", fetched.head);
        last = seq;
    }
    Ok(())
}

/// However often its link ends, all are stored in the end, each once.
pub fn message_lost_with_a_link_is_stored_once(harness: &mut dyn Harness) -> Tried {
    let mut it = TestCluster::keeping(harness, 2)?;
    let mut tickets = Vec::new();
    for n in 0..60 {
        let text = format!("{n}");
        tickets.push(it.store(0, "a", &text, &text));
        if n % 20 == 10 {
            it.harness.inject(Fault::Reset(0))?;
        }
        it.turn(Duration::from_micros(100));
    }
    let mut stored = Vec::new();
    for (n, ticket) in tickets.into_iter().enumerate() {
        match it.answer(0, ticket) {
            Event::Stored { seq, .. } => stored.push((seq, format!("{n}"))),
            other => unreachable!("not stored: {other:?}"),
        }
    }
    stored.sort();
    assert_eq!(it.after(1, "a", 0), stored);
    assert!(it.nodes[0].downs > 0, "no link ended");
    Ok(())
}

/// Each once, in time, including those from before the broker ended.
pub fn every_ticket_is_answered_without_a_broker(harness: &mut dyn Harness) -> Tried {
    let mut it = TestCluster::keeping(harness, 1)?;
    let subject = it.prefix.topic(Space::Store, "a");
    let fetch = |it: &mut TestCluster<'_>| {
        let subject = subject.clone();
        it.ask(0, after(subject, 0, 10, 1_000))
    };
    let since = |it: &mut TestCluster<'_>| {
        let (subject, age) = (subject.clone(), Duration::from_secs(60));
        it.ask(0, Fetch::Since { subject, age })
    };
    it.harness.inject(Fault::Freeze)?;
    let mut stores = vec![it.store(0, "a", "frozen", "x")];
    let mut fetches = vec![fetch(&mut it)];
    let mut sinces = vec![since(&mut it)];
    let mut purges = vec![it.ask_purge(0, "a", 7)];
    it.harness.inject(Fault::Thaw)?;
    it.harness.inject(Fault::Kill)?;
    it.wait("down", |it| !it.nodes[0].is_up);
    for n in 0..5 {
        stores.push(it.store(0, "a", &format!("{n}"), "x"));
        fetches.push(fetch(&mut it));
        sinces.push(since(&mut it));
        purges.push(it.ask_purge(0, "a", 7));
    }
    let asked = it.passed();
    let all: Vec<_> =
        [&stores, &fetches, &sinces, &purges].into_iter().flatten().copied().collect();
    it.wait("answers", |it| all.iter().all(|ticket| it.nodes[0].is_answered(*ticket)));
    let took = it.passed() - asked;
    assert!(took <= Duration::from_secs(TICKET_SECONDS_MAX + 1), "after {took:?}");
    for ticket in &stores[1..] {
        assert!(it.nodes[0].is_unconfirmed(*ticket), "{:?}", it.answer(0, *ticket));
    }
    for ticket in fetches.split_off(1) {
        assert_eq!(it.answer(0, ticket), Event::Fetched { ticket, kept: None });
    }
    for ticket in sinces.split_off(1) {
        assert_eq!(it.answer(0, ticket), Event::Since { ticket, behind: None });
    }
    for ticket in purges.split_off(1) {
        let why = Some(NotStored::Unconfirmed);
        assert_eq!(it.answer(0, ticket), Event::Purged { ticket, why });
    }
    Ok(())
}

/// All confirmed messages; those stored meanwhile are confirmed, too, or answered as unconfirmed.
pub fn killed_broker_has_all_confirmed_messages(harness: &mut dyn Harness) -> Tried {
    let mut it = TestCluster::keeping(harness, 2)?;
    let epoch = it.nodes[0].kept;
    assert!(epoch.is_some(), "it keeps something");
    let tickets: Vec<_> =
        (0..60).map(|n| (n, it.store(0, "a", &format!("{n}"), &format!("{n}")))).collect();
    it.turn(Duration::from_millis(1));
    it.harness.inject(Fault::Kill)?;
    it.wait("down", |it| it.nodes.iter().all(|node| !node.is_up));
    it.harness.inject(Fault::Restart)?;
    it.wait("up", |it| it.nodes.iter().all(|node| node.is_up));
    assert_eq!([it.nodes[0].kept, it.nodes[1].kept], [epoch; 2], "what is kept is the same");
    let answers: Vec<_> = tickets.iter().map(|(n, it)| (*n, *it)).collect();
    let mut confirmed = Vec::new();
    for (n, ticket) in answers {
        if let Event::Stored { seq, .. } = it.answer(0, ticket) {
            confirmed.push((seq, format!("{n}")));
        }
    }
    confirmed.sort();
    let kept = it.after(1, "a", 0);
    assert!(confirmed.iter().all(|it| kept.contains(it)), "{confirmed:?}\n are not in {kept:?}");
    let mut texts: Vec<&str> = kept.iter().map(|it| &*it.1).collect();
    texts.sort_unstable();
    texts.dedup();
    assert_eq!(texts.len(), kept.len(), "none twice");
    let next = it.stored(1, "a", "next", "next");
    assert!(kept.iter().all(|it| it.0 < next), "numbers go on");
    Ok(())
}

/// The epoch stays until the data is lost again; numbers may begin at 1 again.
pub fn broker_without_its_data_has_a_new_epoch(harness: &mut dyn Harness) -> Tried {
    let mut it = TestCluster::keeping(harness, 2)?;
    let epochs_of = |it: &TestCluster<'_>, at: usize| [it.nodes[at].kept, it.nodes[at].log];
    let mut epochs = epochs_of(&it, 0).to_vec();
    for round in 0..2 {
        it.stored(0, "a", &format!("{round}"), "x");
        it.harness.inject(Fault::Kill)?;
        it.wait("down", |it| it.nodes.iter().all(|node| !node.is_up));
        it.harness.inject(Fault::RestartEmpty)?;
        it.wait("up", |it| it.nodes.iter().all(|node| node.is_up));
        let new = epochs_of(&it, 0);
        assert_eq!(new, epochs_of(&it, 1));
        assert!(new.iter().all(|epoch| !epochs.contains(epoch)), "an epoch came again");
        epochs.extend(new);
        assert_eq!(it.after(0, "a", 0), []);
    }
    // An id is forgotten together with its message.
    let ticket = it.store(0, "a", "0", "x");
    assert!(matches!(it.answer(0, ticket), Event::Stored { is_duplicate: false, .. }));
    Ok(())
}

/// Too many at once are refused, and `Room` is reported.
pub fn number_of_open_tickets_is_limited(harness: &mut dyn Harness) -> Tried {
    let mut it = TestCluster::keeping(harness, 1)?;
    it.harness.inject(Fault::Freeze)?;
    let subject = it.prefix.topic(Space::Store, "a");
    let mut count = 0;
    loop {
        let ticket = it.ticket();
        let id = format!("{count}");
        let stored = it.nodes[0].store(&subject, &id, ticket);
        if stored == Err(QueueFull) {
            break;
        }
        count += 1;
        assert!(count <= TICKETS_MAX, "never full");
    }
    it.harness.inject(Fault::Thaw)?;
    it.wait("room", |it| it.nodes[0].rooms == 1);
    it.wait("all answers", |it| it.nodes[0].answers.len() == count);
    it.stored(0, "a", "one more", "x");
    Ok(())
}
