//! Cases that the properties reach rarely or never: bounds, moved places, error texts, samples.
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

use super::*;
use crate::delta::{Applied, Delta};
use crate::meta::Extra;
use crate::phx_ref::PhxRefs;

const HERE: Owner = Owner(1);
const THERE: Owner = Owner(2);

fn meta(n: u32) -> Meta {
    Meta::parse(format!("{{\"n\":{n}}}")).unwrap()
}

/// Members of `there`, each with its own delta.
fn deltas(count: u32) -> (Table<u32>, Vec<Delta>) {
    let mut there = Table::new(THERE, 5);
    let mut refs = PhxRefs::new(THERE);
    let deltas = (0..count).map(|n| {
        there.track(n, &n.to_string(), meta(n), refs.next(1)).unwrap();
        there.take_delta().unwrap()
    });
    let deltas = deltas.collect();
    (there, deltas)
}

fn list(table: &Table<u32>) -> BTreeMap<String, (Vec<PhxRef>, Option<String>)> {
    let one = |it: Presence<'_, u32>| {
        let refs = it.metas().map(|meta| meta.phx_ref).collect();
        (it.key().to_string(), (refs, it.extra().map(|it| it.as_str().to_string())))
    };
    table.iter().map(one).collect()
}

#[test]
fn early_deltas_wait_and_the_newest_beyond_the_limit_are_dropped() {
    let (there, deltas) = deltas(80);
    let mut here: Table<u32> = Table::new(HERE, 9);
    let ask = |known| Applied::Missing { owner: THERE, known };
    for delta in &deltas[1..] {
        assert_eq!(here.learn(delta.clone()), ask(0));
        assert_eq!(here.learn(delta.clone()), ask(0), "asks are lost as well");
    }
    assert_eq!(here.len(), 0);
    // The missing one comes late: the queued ones follow at once.
    assert_eq!(here.learn(deltas[0].clone()), Applied::Applied);
    assert_eq!((here.len(), here.known(THERE)), (1 + QUEUED_DELTAS_MAX, 65));
    assert_eq!(here.learn(deltas[3].clone()), Applied::AlreadyKnown);
    // The next delta, or a repeat, finds that deltas were dropped.
    assert_eq!(here.learn(there.repeat_delta()), ask(65));
    assert_eq!(here.answer(there.snapshot()), Applied::Applied);
    assert_eq!((here.len(), here.known(THERE)), (80, 80));
    assert_eq!(here.learn(there.repeat_delta()), Applied::AlreadyKnown);
    assert_eq!(here.answer(there.snapshot()), Applied::AlreadyKnown);
}

#[test]
fn snapshot_taken_between_two_deltas_is_requested_again() {
    let mut refs = PhxRefs::new(THERE);
    let (mut there, deltas) = deltas(1);
    let mut here: Table<u32> = Table::new(HERE, 9);
    there.track(7, "a", meta(7), refs.next(2)).unwrap();
    // The snapshot has "a", which is removed before any delta has it.
    assert_eq!(here.answer(there.snapshot()), Applied::Applied);
    assert!(there.untrack(7, "a"));
    let delta = there.take_delta().unwrap();
    assert_eq!((delta.from, delta.to, delta.joins.len() + delta.leaves.len()), (1, 3, 0));
    assert_eq!(here.learn(deltas[0].clone()), Applied::AlreadyKnown);
    assert_eq!(here.learn(delta), Applied::Missing { owner: THERE, known: 2 });
    assert_eq!(here.answer(there.snapshot()), Applied::Applied);
    assert!(here.get("a").is_none() && here.get("0").is_some());
}

#[test]
fn own_or_invalid_deltas_change_nothing() {
    let mut table: Table<u32> = Table::new(HERE, 9);
    let nonsense =
        |owner, from, to| Delta { owner, from, to, joins: Vec::new(), leaves: Vec::new() };
    assert_eq!(table.learn(nonsense(HERE, 0, 9)), Applied::AlreadyKnown);
    assert_eq!(table.learn(nonsense(THERE, 9, 3)), Applied::AlreadyKnown);
    assert_eq!(table.learn(nonsense(THERE, 0, 0)), Applied::AlreadyKnown);
    assert!(table.entries.slots() == 0 && table.keys.slots() == 0 && table.aside.is_none());
}

#[test]
fn table_without_other_nodes_collects_no_deltas() {
    let mut table = Table::alone(HERE, 9);
    table.track(1, "a", meta(1), PhxRef::from_bytes([1; 12])).unwrap();
    assert_eq!((table.take_delta(), table.version()), (None, 1));
    assert_eq!(table.take_diff().unwrap().joins.len(), 1);
    assert!(table.aside.is_none());
}

#[test]
fn shrinking_table_compacts_remaining_entries_with_their_extras() {
    let (mut table, mut refs) = (Table::new(HERE, 9), PhxRefs::new(HERE));
    for n in 0..1000u32 {
        // Each member has two keys, one of which others have, too.
        table.track(n, &n.to_string(), meta(n), refs.next(1)).unwrap();
        table.track(n, &format!("x{}", n % 10), meta(n), refs.next(1)).unwrap();
    }
    assert!(table.enrich("991", Extra::parse(r#"{"name":"last"}"#).unwrap()));
    let full = table.keys.slots();
    table.take_diff().unwrap();
    for n in 0..990 {
        assert_eq!(table.untrack_all(n), 2);
    }
    let before = list(&table);
    assert_eq!(before["991"].1.as_deref(), Some(r#"{"name":"last"}"#));
    table.take_diff().unwrap();
    assert_eq!(table.keys.slots(), full, "places stay while a delta names them");
    table.take_delta().unwrap();
    assert!(table.keys.slots() < 40 && table.entries.slots() < 40);
    assert_eq!((table.len(), table.keys()), (20, 20));
    assert_eq!(list(&table), before);
    assert_eq!(table.track(995, "995", meta(0), refs.next(1)), Err(AlreadyTracked));
    assert_eq!(table.update(995, "996", meta(0), refs.next(1)), Err(NotTracked));
    for n in 990..1000 {
        assert_eq!(table.untrack_all(n), 2);
    }
    assert!(table.is_empty());
}

#[test]
fn samples_contain_present_keys_and_differ_by_seed() {
    let (mut table, mut refs) = (Table::new(HERE, 9), PhxRefs::new(HERE));
    for n in 0..500u32 {
        table.track(n, &n.to_string(), meta(n), refs.next(1)).unwrap();
    }
    for n in 0..250 {
        assert!(table.untrack(n * 2, &(n * 2).to_string()));
    }
    let keys = |n, seed| -> BTreeSet<String> {
        table.sample(n, seed).iter().map(|it| it.key().to_string()).collect()
    };
    let mut seen = BTreeSet::new();
    for seed in 0..100 {
        let some = keys(20, seed);
        assert_eq!((some.len(), &some), (20, &keys(20, seed)));
        assert!(some.iter().all(|key| table.get(key).is_some()));
        seen.extend(some);
    }
    assert!(seen.len() > 240, "{} of 250", seen.len());
    assert_eq!((keys(249, 1).len(), keys(250, 1).len(), keys(9999, 1).len()), (249, 250, 250));
}
