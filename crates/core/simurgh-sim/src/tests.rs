//! Tests of the simulator: equal seeds are equal runs, and a fault is found for each rule.

use simurgh_sim_kit::fault::Fault;

use crate::counts::Counts;
use crate::profile::Profile;
use crate::run::{self, Plan};
use crate::shrink::shrink;

fn notices(fault: Fault, rules: &[&str]) {
    notices_after(fault, 3, rules);
}

/// As `notices`, with a fault that starts after this many opportunities.
fn notices_after(fault: Fault, times: u32, rules: &[&str]) {
    let mut found = None;
    for seed in 0..400 {
        let mut plan = Plan::of(seed);
        plan.fault = Some((fault, times));
        if let Some(failure) = run::seeded(&plan, 400).0.failure {
            found = Some(failure);
            break;
        }
    }
    let failure = found.expect("it is noticed");
    assert!(rules.contains(&failure.rule), "{failure:?}");
}

#[test]
fn the_same_seed_is_the_same_run() {
    for seed in 0..40 {
        let plan = Plan::of(seed);
        let ((one, ops), (two, _)) = (run::seeded(&plan, 500), run::seeded(&plan, 500));
        assert_eq!(one.failure, None, "seed {seed}");
        assert_eq!((one.hash, one.counts.to_string()), (two.hash, two.counts.to_string()));
        let listed = run::listed(&plan, &run::operations(&plan, ops));
        assert_eq!(listed.hash, one.hash, "a list of its operations does the same");
    }
}

#[test]
fn servers_start_again() {
    let results: Vec<_> = (0..60).map(|seed| run::seeded(&Plan::of(seed), 2000).0).collect();
    assert!(results.iter().all(|it| it.failure.is_none()), "{results:?}");
    let returns: u64 = results.iter().map(|it| it.counts.returns).sum();
    assert!(returns > 0, "somebody comes back");
}

/// Holds end by a message, by the end of their channel, or because they are overdue.
#[test]
fn what_waits_goes_on_or_is_given_up() {
    let mut all = Counts::default();
    for seed in 0..120 {
        let (result, _) = run::seeded(&Plan::of(seed), 2000);
        assert_eq!(result.failure, None, "seed {seed}");
        all.add(&result.counts);
    }
    let Counts { handled, given_up, holds, overdue, spoken, linked, listened, assigned, .. } = all;
    let counts = [handled, given_up, holds, overdue, spoken, linked, listened, assigned];
    assert!(counts.iter().all(|it| *it > 0), "{counts:?}");
    assert!(overdue < holds, "most holds end otherwise");
}

/// Rules that find a limit which was not enforced.
const UNMET: [&str; 5] = ["callback", "metrics", "unexpected", "order", "presence"];

/// Some messages exceed limits and close sockets, most do not; some lifetimes end or change.
#[test]
fn what_is_limited_is_met() {
    let mut all = Counts::default();
    for seed in 0..120 {
        let (result, _) = run::seeded(&Plan::of(seed), 2000);
        assert_eq!(result.failure, None, "seed {seed}");
        all.add(&result.counts);
    }
    let Counts { limited, limited_closes, let_pass, lifetimes, lapsed, messages, .. } = all;
    let counts = [limited, limited_closes, let_pass, lifetimes, lapsed];
    assert!(counts.iter().all(|it| *it > 0), "{counts:?}");
    assert!(limited < messages / 4 && lapsed < lifetimes, "most are within: {counts:?}");
}

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
    let hash = |seed| run::seeded(&Plan::of(seed), 500).0.hash;
    assert_ne!(hash(1), hash(2));
}

#[test]
fn nothing_is_found_wrong_with_fixed_seeds() {
    for seed in 1000..1200 {
        let (result, _) = run::seeded(&Plan::of(seed), 500);
        assert_eq!(result.failure, None, "seed {seed}");
    }
}

#[test]
fn what_was_planted_shrinks_to_a_few_operations() {
    let mut plan = Plan::of(0);
    plan.fault = Some((Fault::Lose, 2));
    let mut seeds = (0..100).map(|seed| Plan { profile: profile(seed), ..plan.clone() });
    let (plan, ops, failure) = seeds
        .find_map(|plan| {
            let (result, ops) = run::seeded(&plan, 400);
            Some((plan, ops, result.failure?))
        })
        .expect("one of them loses something");
    let list = run::operations(&plan, ops);
    let (plan, shrunk) = shrink(&plan, list, failure.rule);
    assert!(shrunk.len() < 12, "{} of {ops}", shrunk.len());
    let (story, result) = run::told(&plan, &shrunk);
    assert_eq!(result.failure.map(|it| it.rule), Some(failure.rule));
    assert!(story.iter().any(|line| line.contains("connects")), "{story:?}");
}

fn profile(seed: u64) -> Profile {
    Profile::of(seed)
}

#[test]
fn a_profile_is_read_as_it_was_written() {
    let mut it = profile(5);
    (it.shards, it.panics, it.features.permits) = (1, 0, Some(2));
    let read = Profile::from_line(&it.line()).expect("it is one");
    assert_eq!(read.line(), it.line());
    assert!(Profile::from_line("seed 5 1").is_none());
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
    notices(Fault::LosePermit, &["permits"]);
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
