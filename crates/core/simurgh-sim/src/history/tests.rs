//! Tests of the ledger of histories: equal seeds are equal runs, and planted faults are found.

use simurgh_sim_kit::fault::Fault;
use simurgh_sim_kit::findings::{Counts, Findings};
use simurgh_sim_kit::run::{Simulation, run};

use super::{HistorySimulation, Plan};

fn findings(seed: u64, fault: Option<(Fault, u32)>, count: usize) -> Findings {
    let mut plan = Plan::of(seed);
    plan.fault = fault;
    run::<HistorySimulation>(&plan, &HistorySimulation::operations(&plan, count), false)
}

#[test]
fn clients_hear_everything_once_or_are_told() {
    let mut all = Counts::default();
    for seed in 0..80 {
        let findings = findings(seed, None, 1500);
        assert_eq!(findings.failure, None, "seed {seed}");
        all.add(&findings.counts);
    }
    for reason in ["epoch", "evicted", "expired", "lost", "overwritten", "purged", "too_many"] {
        assert!(all.of(&format!("gaps: {reason}")) > 0, "{reason}: {all}");
    }
    let others = [
        "over a limit",
        "restarts",
        "refused",
        "recovered",
        "replayed",
        "unconfirmed",
        "passed over",
    ];
    for what in others.into_iter().chain(["said behind"]) {
        assert!(all.of(what) > 0, "{what}: {all}");
    }
}

#[test]
fn the_same_seed_is_the_same_run() {
    for seed in 0..10 {
        assert_eq!(findings(seed, None, 800), findings(seed, None, 800));
    }
}

fn notices(fault: Fault, rules: &[&str]) {
    notices_after(fault, 5, rules);
}

/// As `notices`, with a fault that starts after this many opportunities.
fn notices_after(fault: Fault, times: u32, rules: &[&str]) {
    let found = (0..200).find_map(|seed| findings(seed, Some((fault, times)), 800).failure);
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
fn channel_that_handles_more_than_its_limit_is_noticed() {
    notices_after(Fault::Unlimit, 0, &["limit"]);
}

#[test]
fn a_server_that_starts_again_without_what_it_had_is_noticed() {
    notices_after(Fault::Amnesia, 0, &["resumed", "stored"]);
}

#[test]
fn who_is_given_what_is_from_before_its_first_join_is_noticed() {
    notices_after(Fault::Believe, 0, &["resumed"]);
}
