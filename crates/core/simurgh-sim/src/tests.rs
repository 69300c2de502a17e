//! Tests of the simulator: equal seeds are equal runs, everything that it checks occurs, and each
//! planted fault is found.

use crate::cli::{run, shrink};
use crate::findings::{Counts, Fault, Findings};
use crate::world::{Plan, World};

/// Runs a seed, with a fault that happens after so many opportunities.
fn run_seed(world: World, seed: u64, steps: usize, fault: Option<(Fault, u32)>) -> Findings {
    let mut plan = Plan::new(world, seed, steps);
    plan.fault = fault;
    run(&plan, &plan.operations(steps), false)
}

/// Seeds without a fault pass, and all that is named here, each up to a semicolon, occurs in them;
/// `cargo xtask test --only sim` runs many more.
fn check_seeds(world: World, seeds: u64, steps: usize, met: &str) -> Counts {
    let mut all = Counts::default();
    for seed in 0..seeds {
        let findings = run_seed(world, seed, steps, None);
        assert_eq!(findings.failure.get(), None, "{world:?}, seed {seed}");
        if seed < 8 {
            let again = run_seed(world, seed, steps, None);
            assert_eq!(findings, again, "{world:?}, seed {seed} again");
        }
        for (what, more) in findings.counts.into_inner() {
            *all.entry(what).or_default() += more;
        }
    }
    for what in met.split("; ") {
        assert!(all.get(what) > Some(&0), "{world:?}, {what}: {all:?}");
    }
    all
}

#[test]
fn single_node_seeds_pass_and_cover_every_feature() {
    let met = "answers to polls lost; broadcasts by handles; channels joined again after one; \
        closes for that; received by listeners; heartbeats and leaves that pass although; holds; \
        of them overdue; over a limit; polls; restarts; sessions not polled; sightings; \
        sockets whose time was over; times of sockets set; values kept with sockets; works linked";
    let all = check_seeds(World::Node, 80, 2000, met);
    assert!(all["of them overdue"] < all["holds"], "most holds end otherwise");
    assert!(all["over a limit"] < all["messages"] / 4, "most are within: {all:?}");
    assert!(all["sockets whose time was over"] < all["times of sockets set"], "{all:?}");
    let hash = |seed| run_seed(World::Node, seed, 500, None).hash;
    assert_ne!(hash(1), hash(2), "another seed is another run");
}

#[test]
fn history_seeds_pass_and_cover_every_feature() {
    let met = "gaps: epoch; gaps: evicted; gaps: expired; gaps: lost; gaps: overwritten; \
        gaps: purged; gaps: too_many; over a limit; passed over; recovered; refused; replayed; \
        replies; restarts; unconfirmed";
    check_seeds(World::History, 120, 1500, met);
}

#[test]
fn cluster_seeds_pass_and_cover_every_feature() {
    let met = "certain; diffs; drained; gone; heard elsewhere; killed; lost and told; missing; \
        noticed in time; outcomes; rests; relayed; states; waited until heard";
    check_seeds(World::Cluster, 50, 700, met);
}

#[test]
fn cluster_history_seeds_pass_and_cover_every_feature() {
    let met = "complete; gaps: epoch; gaps: lost; gaps: overwritten; gaps: purged; \
        gaps: unavailable; heard; heard here only; heard without a place; known by their ids; \
        pages; recovered; replies; stored; unconfirmed";
    check_seeds(World::ClusterHistory, 60, 400, met);
}

/// A fault, the opportunities before it, and the rules by which it may be found.
type Row = (Fault, u32, &'static [&'static str]);

fn check_planted(world: World, seeds: u64, steps: usize, rows: &[Row]) {
    for &(fault, after, rules) in rows {
        let run = |seed| run_seed(world, seed, steps, Some((fault, after))).failure.into_inner();
        let found = (0..seeds).find_map(run).map(|it| it.rule);
        assert!(found.is_some_and(|it| rules.contains(&it)), "{world:?}, {fault:?}: {found:?}");
    }
}

/// Rules that find a limit which was not enforced.
const UNMET: &[&str] =
    &["callback", "metrics", "unexpected", "order", "presence", "reason", "close"];

#[test]
fn planted_faults_of_one_node_are_detected() {
    let rows: &[Row] = &[
        (Fault::Absent, 3, &["presence", "rest"]),
        (Fault::Deafen, 3, &["listener"]),
        (Fault::Double, 3, &["unexpected", "after close"]),
        (Fault::DoubleMail, 3, &["bytes"]),
        (Fault::Forget, 3, &["rest", "left"]),
        (Fault::Free, 3, &["bytes"]),
        (Fault::Freeze, 10, &["slice"]),
        (Fault::Garble, 3, &["payload", "frame"]),
        (Fault::Hasten, 3, &["held"]),
        (Fault::Lie, 3, &["unexpected", "order"]),
        (Fault::Lose, 3, &["lost", "order", "close", "unexpected"]),
        (Fault::LoseMail, 3, &["rest", "left"]),
        (Fault::LosePermit, 0, &["permits"]),
        (Fault::Miscount, 3, &["census"]),
        (Fault::Misref, 3, &["unexpected", "order"]),
        (Fault::Outstay, 3, &["expiry"]),
        (Fault::Overfill, 0, UNMET),
        (Fault::Overlook, 3, &["sightings"]),
        (Fault::Recode, 3, &["close code"]),
        (Fault::Repeat, 3, &["callback", "reason", "unexpected", "order", "metrics"]),
        (Fault::Seat, 3, &["seats"]),
        (Fault::Silence, 0, &["lost", "order", "unexpected"]),
        (Fault::Swap, 3, &["order", "lost", "after close"]),
        (Fault::Uncharged, 3, &["bytes"]),
        (Fault::Unlimit, 0, UNMET),
        (Fault::Unlink, 3, &["linked"]),
        (Fault::Untold, 3, &["rest", "presence"]),
    ];
    check_planted(World::Node, 1000, 400, rows);
}

#[test]
fn planted_faults_of_history_are_detected() {
    let rows: &[Row] = &[
        (Fault::Amnesia, 0, &["resumed", "stored"]),
        (Fault::Believe, 0, &["resumed"]),
        (Fault::Double, 5, &["twice", "live", "resumed", "unexpected"]),
        (Fault::DoubleMail, 5, &["stored", "twice", "bytes"]),
        (Fault::Lose, 5, &["lost", "live", "order", "rest", "resumed", "own"]),
        (Fault::LoseMail, 5, &["stored", "kept", "rest", "lost", "live", "resumed"]),
        (Fault::Unlimit, 0, UNMET),
    ];
    check_planted(World::History, 200, 800, rows);
}

#[test]
fn planted_faults_of_a_cluster_are_detected() {
    let own = &["own", "lost", "present", "left", "disconnect", "rest", "interests"];
    let rows: &[Row] = &[
        (Fault::DoubleMail, 3, &["order", "bytes", "diff", "presence"]),
        (Fault::Lose, 3, &["order", "lost", "unexpected", "present", "diff"]),
        (Fault::LoseEnvelope, 3, &["lost"]),
        (Fault::LoseMail, 3, own),
        (Fault::SwapEnvelopes, 3, &["order", "lost"]),
    ];
    check_planted(World::Cluster, 60, 400, rows);
}

#[test]
fn planted_faults_of_cluster_history_are_detected() {
    let rows: &[Row] = &[
        (Fault::Double, 3, &["twice", "resumed", "present", "diff", "reply", "unexpected"]),
        (Fault::HideGap, 3, &["lost", "page", "rest", "resumed", "read"]),
        (Fault::Lose, 3, &["lost", "rest", "resumed", "present", "diff"]),
        (Fault::LoseKept, 3, &["lost", "page", "rest", "resumed", "read"]),
        (Fault::LoseMail, 3, &["lost", "rest", "resumed", "page", "left", "reply", "present"]),
        (Fault::Promise, 3, &["reply", "answer", "log"]),
    ];
    check_planted(World::ClusterHistory, 600, 400, rows);
}

#[test]
fn planted_fault_shrinks_to_a_few_operations() {
    let mut plan = Plan::default();
    let failing = (0..100).find_map(|seed| {
        plan = Plan::new(World::Node, seed, 400);
        plan.fault = Some((Fault::Lose, 2));
        let ops = plan.operations(400);
        run(&plan, &ops, false).failure.get().map(|failure| (ops, failure.rule))
    });
    let (ops, rule) = failing.expect("one of them loses something");
    let (simpler, ops) = shrink(plan.clone(), ops, rule);
    assert!(ops.len() < 12, "{}", ops.len());
    assert_ne!(format!("{simpler:?}"), format!("{plan:?}"), "some features are not needed");
    let findings = run(&simpler, &ops, true);
    assert_eq!(findings.failure.get().map(|it| it.rule), Some(rule));
    let story = findings.log.unwrap_or_default().into_inner();
    assert!(story.iter().any(|line| line.contains("connects")), "{story:?}");
}
