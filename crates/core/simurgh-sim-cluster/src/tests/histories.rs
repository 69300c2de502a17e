//! Tests of the simulation of kept topics on several nodes: the same seed is the same run, every
//! outcome that it checks occurs, and planted faults are found.

use simurgh_sim_kit::fault::Fault;
use simurgh_sim_kit::findings::{Counts, Findings};

use super::findings;
use crate::plan::ClusterPlan;

fn outcome(seed: u64, fault: Option<(Fault, u32)>, count: usize) -> Findings {
    findings(ClusterPlan::with_history(seed), fault, count)
}

#[test]
fn what_is_kept_is_heard_once_and_in_order_on_any_node_or_a_gap_is_told() {
    let mut all = Counts::default();
    for seed in 0..60 {
        let outcome = outcome(seed, None, 400);
        assert_eq!(outcome.failure, None, "seed {seed}");
        all.add(&outcome.counts);
    }
    let met = [
        "complete",
        "gaps of epochs",
        "gaps of limits",
        "gaps of purges",
        "gaps of what is lost",
        "gaps without an engine",
        "heard",
        "heard here only",
        "heard without a place",
        "known by their ids",
        "pages",
        "recovered",
        "replies",
        "stored",
        "unconfirmed",
    ];
    for what in met {
        assert!(all.of(what) > 0, "{what}: {all}");
    }
}

/// Seeds outside of the fixed range that once failed, with their operations.
const FOUND: [(u64, usize); 9] = [
    // What is lost behind a message that waits is not told.
    (9766, 400),
    // A node that stood still passes on a message before it knows that.
    (62_137, 400),
    // A live message goes before one that waits for what is missing.
    (14_400, 400),
    // A purge of a lost engine's numbers is asked of the next.
    (10_007, 400),
    // What comes before a link is up is taken for the former epoch's.
    (10_750, 400),
    // Messages expire without a gap while a parted engine does not answer.
    (1_795_755_566_456_916, 400),
    // A presence delta that is sent before a requested state is lost, and never repeated.
    (1_795_776_644_593_309, 2000),
    (1_795_776_644_594_643, 2000),
    // A client comes to a copy that does not have its message yet, and receives it twice.
    (1_795_787_683_819_653, 2000),
];

#[test]
fn seeds_that_once_failed_pass() {
    for (seed, count) in FOUND {
        assert_eq!(outcome(seed, None, count).failure, None, "seed {seed}");
    }
}

#[test]
fn the_same_seed_is_the_same_run() {
    for seed in 0..6 {
        assert_eq!(outcome(seed, None, 400), outcome(seed, None, 400));
    }
}

fn notices(fault: Fault, rules: &[&str]) {
    let found = (0..200).find_map(|seed| outcome(seed, Some((fault, 3)), 400).failure);
    let failure = found.expect("it is noticed");
    assert!(rules.contains(&failure.rule), "{failure:?}");
}

#[test]
fn what_the_engine_has_kept_and_a_home_does_not_hear_is_noticed() {
    notices(Fault::LoseKept, &["lost", "page", "rest", "resumed", "read"]);
}

#[test]
fn a_gap_that_nobody_is_told_is_noticed() {
    notices(Fault::HideGap, &["lost", "page", "rest", "resumed", "read"]);
}

#[test]
fn what_is_said_to_be_kept_and_is_not_is_noticed() {
    notices(Fault::Promise, &["reply", "answer", "log"]);
}

#[test]
fn what_a_client_does_not_get_is_noticed() {
    notices(Fault::Lose, &["lost", "rest", "resumed", "present", "diff"]);
}

#[test]
fn what_a_client_gets_twice_is_noticed() {
    notices(Fault::Double, &["twice", "resumed", "present", "diff", "reply"]);
}

#[test]
fn what_a_shard_does_not_hear_is_noticed() {
    notices(Fault::LoseMail, &["lost", "rest", "resumed", "page", "left", "reply", "present"]);
}
