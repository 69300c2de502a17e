//! The account of histories held against itself: the same seed is the same run, all that it looks
//! at happens, and what is wrong is noticed.

use super::{Plan, Tally, operations, run};
use crate::stage::Fault;

fn outcome(seed: u64, fault: Option<(Fault, u32)>, count: usize) -> super::Outcome {
    let plan = Plan { fault, ..Plan::of(seed) };
    run(&plan, &operations(&plan, count), false)
}

#[test]
fn clients_hear_everything_once_or_are_told() {
    let mut all = Tally::default();
    for seed in 0..150 {
        let outcome = outcome(seed, None, 1500);
        assert_eq!(outcome.failure, None, "seed {seed}");
        all.add(&outcome.tally);
    }
    let met: Vec<&str> = all.gaps.keys().map(String::as_str).collect();
    for reason in ["epoch", "evicted", "expired", "lost", "overwritten", "purged", "too_many"] {
        assert!(met.contains(&reason), "{reason}: {met:?}");
    }
    assert!(all.restarts > 0 && all.refused > 0);
    let counts = [all.recovered, all.replayed, all.unconfirmed, all.passed_over, all.behind];
    assert!(counts.iter().all(|it| *it > 0), "{counts:?}");
}

#[test]
fn the_same_seed_is_the_same_run() {
    for seed in 0..10 {
        assert_eq!(outcome(seed, None, 800), outcome(seed, None, 800));
    }
}

/// Seeds until this fault is noticed, by one of these rules.
fn notices(fault: Fault, rules: &[&str]) {
    notices_after(fault, 5, rules);
}

/// The same of one that happens when it can for so many times.
fn notices_after(fault: Fault, times: u32, rules: &[&str]) {
    let found = (0..200).find_map(|seed| outcome(seed, Some((fault, times)), 800).failure);
    let failure = found.expect("it is noticed");
    assert!(rules.contains(&failure.rule), "{failure:?}");
}

#[test]
fn what_is_lost_is_noticed() {
    notices(Fault::Lose, &["lost", "live", "rest", "resumed", "own"]);
}

#[test]
fn what_comes_twice_is_noticed() {
    notices(Fault::Double, &["twice", "live", "resumed"]);
}

#[test]
fn what_shards_do_not_hear_is_noticed() {
    notices(Fault::LoseMail, &["stored", "kept", "rest", "lost", "live", "resumed"]);
    notices(Fault::DoubleMail, &["stored", "twice", "bytes"]);
}

#[test]
fn a_server_that_starts_again_without_what_it_had_is_noticed() {
    notices_after(Fault::Amnesia, 0, &["resumed", "stored"]);
}

#[test]
fn who_is_given_what_is_from_before_its_first_join_is_noticed() {
    notices_after(Fault::Believe, 0, &["resumed"]);
}
