//! Keys, reports, records, elections and back-off by themselves.

use proptest::prelude::*;
use simurgh_presence::PhxRef;
use simurgh_proto::topic::Pattern;

use super::*;
use crate::key::SECOND;
use crate::reporter::ENDS_NS;

#[test]
fn partition_is_the_first_hex_digit_of_the_crc_of_its_topic() {
    // crc32("123456789") is cbf43926.
    for key in
        [Key::member("123456789", "a"), Key::topic_of("123456789"), Key::user_of("123456789")]
    {
        assert_eq!(key.partition(), 0xc);
    }
    let key = Key::member("é:1", "ü");
    assert_eq!((key.topic(), key.user(), key.kind()), ("é:1", "ü", Kind::Member));
    assert_ne!(Key::member("a", "bc"), Key::member("ab", "c"));
}

fn hook(kind: Kind, is_end: bool, topics: &[&str]) -> HookRule {
    let topics = topics.iter().map(|topic| Pattern::parse(topic).unwrap()).collect();
    HookRule { topics, ..HookRule::new("app", HookRule::bit(kind, is_end)) }
}

#[test]
fn settings_want_a_kind_if_one_of_their_hooks_does() {
    let hooks = vec![
        hook(Kind::Topic, true, &["a:*", "b"]),
        hook(Kind::Member, false, &["a:1"]),
        hook(Kind::User, true, &["c"]),
    ];
    let mut settings = Settings { hooks, ..Settings::default() };
    let topics = ["a:1", "a:2", "b", "c"];
    for (kind, wanted) in [
        (Kind::Topic, [true, true, true, false]),
        (Kind::Member, [true, false, false, false]),
        (Kind::User, [true; 4]),
    ] {
        assert_eq!(topics.map(|topic| settings.wants(kind, topic)), wanted, "{kind:?}");
    }
    settings.hooks = vec![hook(Kind::Member, true, &[])];
    assert!(settings.wants(Kind::Member, "c") && !settings.wants(Kind::User, "c"));
}

fn keys() -> impl Strategy<Value = Key> {
    ("[a-c]{0,3}", "[a-c]{0,3}", 1..=3_u8).prop_map(|(topic, user, kind)| match kind {
        1 => Key::member(&topic, &user),
        2 => Key::topic_of(&topic),
        _ => Key::user_of(&user),
    })
}

fn reasons() -> impl Strategy<Value = Reason> {
    (1..=7_u8).prop_map(|it| Reason::from_repr(it).unwrap())
}

fn ends() -> impl Strategy<Value = Option<(u64, Reason)>> {
    proptest::option::of((any::<u64>(), reasons()))
}

fn notices() -> impl Strategy<Value = Arc<Notice>> {
    (any::<u64>(), any::<[u8; 12]>(), keys(), any::<u64>(), "[a-c]{0,3}", ends()).prop_map(
        |(n, id, key, since_ms, node, end)| {
            let stay = Stay { id: PhxRef::from_bytes(id), key, since_ms };
            Arc::new(Notice { n, stay, node: node.into(), end })
        },
    )
}

fn records() -> impl Strategy<Value = Record> {
    (0..5_u8, notices(), any::<u64>(), any::<bool>(), any::<u16>()).prop_map(
        |(kind, notice, n, is_again, status)| match kind {
            0 => Record::Take { epoch: Epoch::from_seed(n), n, is_again },
            1 => Record::Notice(notice),
            2 => Record::Delivered { hook: "app".into(), n },
            3 => Record::Cleared { hook: "app".into(), n },
            _ => {
                let letter = DeadLetter { notice, status, body: "no".into() };
                Record::Dead { hook: "app".into(), letter }
            }
        },
    )
}

proptest! {
    #[test]
    fn b47_record_is_read_back_and_every_truncation_is_refused(
        record in records(), count in any::<u64>(), node in any::<u64>(),
    ) {
        let entry = Entry { term: Term { count, node }, record };
        let mut bytes = Vec::new();
        entry.encode(&mut bytes);
        prop_assert_eq!(Entry::decode(&bytes), Ok(entry));
        for cut in 0..bytes.len() {
            prop_assert_eq!(Entry::decode(&bytes[..cut]), Err(Malformed));
        }
    }

    #[test]
    fn b45_report_is_read_back(
        keys in proptest::collection::vec((keys(), any::<u64>(), ends()), 0..5),
        from in any::<u64>(), to in any::<u64>(),
    ) {
        let partition = keys.first().map_or(0, |it| it.0.partition());
        let of_it = keys.into_iter().filter(|it| it.0.partition() == partition);
        let changes: Vec<Change> =
            of_it.map(|(key, began_ms, ended)| Change { key, began_ms, ended }).collect();
        let report = Report { partition, from, to, changes };
        prop_assert_eq!(Report::decode(&report.encode()), Ok(report));
    }

    #[test]
    fn any_bytes_are_read_without_a_panic(bytes in proptest::collection::vec(0..8_u8, 0..80)) {
        drop(Entry::decode(&bytes));
        drop(Report::decode(&bytes));
    }
}

#[test]
fn b45_report_has_each_key_once_with_its_newest_state() {
    let (mut reporter, key) = (Reporter::new(1), Key::member("a", "b"));
    let partition = key.partition();
    reporter.set_leader(partition, Some(9));
    let (to, call, state) = reporter.next_report(at(0)).unwrap();
    assert_eq!((to, state.from, state.changes.len()), (9, 0, 0));
    for ms in 0..5 {
        reporter.begin(key.clone(), at(ms));
        reporter.end(&key, Reason::Left, at(ms));
    }
    assert_eq!(reporter.next_report(at(5)), None, "one is in flight");
    reporter.answered(partition, call, Some(Verdict::Taken), at(5));
    let (_, call, delta) = reporter.next_report(at(10)).unwrap();
    assert_eq!((delta.from, delta.changes.len()), (state.to, 1));
    assert_eq!(delta.changes[0].ended, Some((6, Reason::Left)));
    // The answer is lost: the same again, with what has changed.
    reporter.answered(partition, call + 9, None, at(10));
    assert_eq!(reporter.next_report(at(20_000)), None, "the answer is that of another report");
    reporter.answered(partition, call, None, at(10));
    reporter.begin(key, at(11));
    assert_eq!(reporter.next_report(at(11)), None, "it waits");
    let (_, _, again) = reporter.next_report(at(600)).unwrap();
    assert_eq!((again.from, again.changes.len()), (state.to, 1));
    assert_eq!(again.changes[0].ended, None);
}

#[test]
fn b45_end_that_is_too_old_for_a_state_is_told_by_its_absence() {
    let (mut reporter, key) = (Reporter::new(1), Key::member("a", "b"));
    let partition = key.partition();
    reporter.set_leader(partition, Some(9));
    reporter.begin(key.clone(), at(0));
    let (_, call, _) = reporter.next_report(at(0)).unwrap();
    reporter.answered(partition, call, Some(Verdict::Taken), at(0));
    reporter.end(&key, Reason::Left, at(1));
    let (_, call, _) = reporter.next_report(at(1)).unwrap();
    reporter.tick(Time { ns: at(1).ns + ENDS_NS, unix_ms: 0 });
    assert!(reporter.is_empty());
    reporter.answered(partition, call, Some(Verdict::Taken), at(90_000));
    let (_, _, state) = reporter.next_report(at(90_000)).unwrap();
    assert_eq!((state.from, state.changes.len()), (0, 0));
}

#[test]
fn b46_lost_coordinator_is_replaced_at_once_and_an_outranked_one_later() {
    let mut election = Election::new();
    election.set_candidates(&[1, 2]);
    assert_eq!((election.tick(0).len(), election.leader(0)), (0, None));
    assert_eq!(election.tick(OUTRANKED_NS).len(), 16);
    let leaders = |election: &Election| (0..16).map(|it| election.leader(it)).collect::<Vec<_>>();
    let of_two = leaders(&election);
    assert!(of_two.contains(&Some(1)) && of_two.contains(&Some(2)));
    election.set_candidates(&[1, 2, 3]);
    let now_ns = OUTRANKED_NS + 1;
    assert_eq!(election.tick(now_ns).len(), 0);
    assert_eq!(election.next_ns(), Some(now_ns + OUTRANKED_NS));
    let moved = election.tick(now_ns + OUTRANKED_NS);
    assert!(!moved.is_empty() && moved.iter().all(|it| election.leader(*it) == Some(3)));
    election.set_candidates(&[1, 2]);
    assert_eq!(election.tick(now_ns + OUTRANKED_NS + 1), moved);
    assert_eq!(leaders(&election), of_two);
}

#[test]
fn b55_pauses_of_a_hook_grow_and_are_spread() {
    let mut backoff = Backoff::default();
    let mut now_ns = 0;
    for (random, pause_ms) in [(0, 800), (40, 6_000), (20, 30_000), (20, 120_000), (20, 300_000)] {
        // Batches of several partitions fail at one attempt.
        (0..16).for_each(|_| backoff.failed(None, random, now_ns));
        now_ns += pause_ms * MILLISECOND;
        assert!(!backoff.may_send(now_ns - 1) && backoff.may_send(now_ns), "{pause_ms} ms");
    }
    backoff.failed(Some(7_200 * SECOND), 20, now_ns);
    assert_eq!(backoff.next_ns(), Some(now_ns + 3_600 * SECOND));
    backoff.accepted();
    assert!(backoff.may_send(now_ns));
    backoff.stop();
    assert!(!backoff.may_send(u64::MAX) && backoff.next_ns().is_none());
    backoff = Backoff::default();
    assert!(backoff.may_send(0));
}
