//! Tests of the simulator: equal seeds are equal runs, and a fault is found for each rule.

use simurgh_sim_kit::fault::Fault;

use simurgh_sim_kit::findings::{Counts, Findings};
use simurgh_sim_kit::run;

use crate::run::Plan;
use crate::simulation::NodeSimulation;

fn run_plan(plan: &Plan) -> Findings {
    run::run::<NodeSimulation>(plan, &plan.operations(plan.steps), false)
}

fn run_seed(seed: u64, steps: usize) -> Findings {
    run_plan(&Plan::of(seed, steps))
}

fn notices(fault: Fault, rules: &[&str]) {
    notices_after(fault, 3, rules);
}

/// As `notices`, with a fault that starts after this many opportunities.
fn notices_after(fault: Fault, times: u32, rules: &[&str]) {
    let found = (0..400).find_map(|seed| {
        let plan = Plan { fault: Some((fault, times)), ..Plan::of(seed, 400) };
        run_plan(&plan).failure
    });
    let failure = found.expect("it is noticed");
    assert!(rules.contains(&failure.rule), "{failure:?}");
}

#[test]
fn the_same_seed_is_the_same_run() {
    for seed in 0..20 {
        let one = run_seed(seed, 500);
        assert_eq!(one.failure, None, "seed {seed}");
        assert_eq!(one, run_seed(seed, 500));
    }
}

/// What must occur in the first seeds; `cargo xtask test --only sim` runs many more.
const MET: [&str; 18] = [
    "answers to polls lost",
    "broadcasts by handles",
    "channels joined again after one",
    "closes for that",
    "handlers that waited",
    "heard by listeners",
    "heartbeats and leaves that pass although",
    "holds",
    "messages behind one that ended",
    "of them overdue",
    "over a limit",
    "polls",
    "restarts",
    "sessions not polled",
    "sockets whose time was over",
    "times of sockets set",
    "values kept with sockets",
    "works linked",
];

#[test]
fn seeds_pass_and_meet_every_feature() {
    let mut all = Counts::default();
    for seed in 0..80 {
        let findings = run_seed(seed, 2000);
        assert_eq!(findings.failure, None, "seed {seed}");
        all.add(&findings.counts);
    }
    for what in MET {
        assert!(all.of(what) > 0, "{what}: {all}");
    }
    assert!(all.of("of them overdue") < all.of("holds"), "most holds end otherwise");
    assert!(all.of("over a limit") < all.of("messages") / 4, "most are within: {all}");
    assert!(all.of("sockets whose time was over") < all.of("times of sockets set"), "{all}");
}

/// Rules that find a limit which was not enforced.
const UNMET: [&str; 5] = ["callback", "metrics", "unexpected", "order", "presence"];

#[test]
fn a_bucket_that_holds_one_more_is_noticed() {
    notices_after(Fault::Overfill, 0, &UNMET);
}

#[test]
fn a_limit_that_drops_what_it_is_to_answer_is_noticed() {
    notices_after(Fault::Silence, 0, &["lost", "order", "unexpected"]);
}

#[test]
fn a_limit_that_is_not_kept_is_noticed() {
    notices_after(Fault::Unlimit, 0, &UNMET);
}

#[test]
fn a_socket_that_outstays_its_time_is_noticed() {
    notices(Fault::Outstay, &["expiry"]);
}

#[test]
fn another_seed_is_another_run() {
    assert_ne!(run_seed(1, 500).hash, run_seed(2, 500).hash);
}

#[test]
fn what_was_planted_shrinks_to_a_few_operations() {
    let mut plans =
        (0..100).map(|seed| Plan { fault: Some((Fault::Lose, 2)), ..Plan::of(seed, 400) });
    let found = plans.find_map(|plan| {
        let failure = run_plan(&plan).failure?;
        Some((plan, failure))
    });
    let (plan, failure) = found.expect("one of them loses something");
    let ops = plan.operations(400);
    let (simpler, ops) = run::shrink::<NodeSimulation>(plan.clone(), ops, failure.rule);
    assert!(ops.len() < 12, "{}", ops.len());
    assert_ne!(format!("{simpler:?}"), format!("{plan:?}"), "some features are not needed");
    let findings = run::run::<NodeSimulation>(&simpler, &ops, true);
    assert_eq!(findings.failure.map(|it| it.rule), Some(failure.rule));
    let story = findings.log.unwrap_or_default();
    assert!(story.iter().any(|line| line.contains("connects")), "{story:?}");
}

#[test]
fn what_is_lost_is_noticed() {
    notices(Fault::Lose, &["lost", "order", "close", "unexpected"]);
}

#[test]
fn what_comes_twice_is_noticed() {
    notices(Fault::Double, &["unexpected", "said after close"]);
}

#[test]
fn what_changes_places_is_noticed() {
    notices(Fault::Swap, &["order", "lost", "said after close"]);
}

#[test]
fn other_bytes_are_noticed() {
    notices(Fault::Garble, &["payload"]);
}

#[test]
fn a_mail_that_is_lost_is_noticed() {
    notices(Fault::LoseMail, &["rest", "left"]);
}

#[test]
fn a_permit_that_is_lost_is_noticed() {
    notices_after(Fault::LosePermit, 0, &["permits"]);
}

#[test]
fn a_broadcast_taken_twice_is_noticed() {
    notices(Fault::DoubleMail, &["bytes"]);
}

#[test]
fn bytes_that_are_not_given_back_are_noticed() {
    notices(Fault::Forget, &["rest", "left"]);
}

#[test]
fn a_mail_that_nobody_charges_is_noticed() {
    notices(Fault::Free, &["bytes"]);
}

#[test]
fn a_call_of_presence_that_its_topic_does_not_count_is_noticed() {
    notices(Fault::Uncharged, &["bytes"]);
}

#[test]
fn a_fan_out_that_goes_on_after_its_time_is_noticed() {
    notices_after(Fault::Freeze, 40, &["slice"]);
}

#[test]
fn a_census_that_misses_one_is_noticed() {
    notices(Fault::Miscount, &["census"]);
}

#[test]
fn a_seat_that_stays_taken_is_noticed() {
    notices(Fault::Seat, &["seats"]);
}

#[test]
fn an_application_that_does_more_than_it_says_is_noticed() {
    notices(Fault::Lie, &["unexpected", "order"]);
}

#[test]
fn a_listener_that_misses_one_is_noticed() {
    notices(Fault::Deafen, &["listener"]);
}

#[test]
fn a_message_that_is_read_while_its_socket_waits_is_noticed() {
    notices(Fault::Hasten, &["held"]);
}

#[test]
fn linked_work_that_is_not_told_its_end_is_noticed() {
    notices(Fault::Unlink, &["linked"]);
}

#[test]
fn a_message_handled_twice_is_noticed() {
    notices(Fault::Repeat, &["callback", "reason", "unexpected", "order", "metrics"]);
}
