//! Shrinking: the shortest list that fails alike, with the fewest clients, shards and features.

use simurgh_sim_kit::shrink::fewest;

use crate::features::Features;
use crate::op::Op;
use crate::profile::Profile;
use crate::run::{self, Plan};

const RUNS_MAX: usize = 20_000;
const CHANGES: [fn(&mut Profile); 21] = [
    |it| it.shards = 1,
    |it| it.shards = it.shards.min(2),
    |it| it.clients = it.clients.div_ceil(2),
    |it| it.topics = 1,
    |it| it.panics = 0,
    |it| it.stops = 0,
    |it| it.intercepts = 0,
    |it| it.later = 0,
    |it| (it.binary, it.long) = (0, 0),
    |it| it.effects_max = it.effects_max.saturating_sub(1),
    |it| it.features = Features { permits: it.features.permits, ..Features::default() },
    |it| it.features.permits = None,
    |it| it.features.prepare_above = 0,
    |it| it.features.long_names = 0,
    |it| it.features.has_odd_refs = false,
    |it| it.features.restarts = false,
    |it| it.features.waits = 0,
    |it| it.features.reaches = false,
    |it| it.features.is_present = false,
    |it| it.features.is_limited = false,
    |it| it.features.expires = false,
];

/// Shrinks a list of operations that fails by this rule.
pub(crate) fn shrink(plan: &Plan, mut ops: Vec<Op>, rule: &str) -> (Plan, Vec<Op>) {
    let fails =
        |plan: &Plan, ops: &[Op]| run::listed(plan, ops).failure.is_some_and(|it| it.rule == rule);
    let (mut plan, mut runs_left) = (plan.clone(), RUNS_MAX);
    loop {
        let before = ops.len();
        ops = fewest(ops, &mut runs_left, |ops| fails(&plan, ops));
        let mut is_less = ops.len() < before;
        for change in CHANGES {
            let mut simpler = plan.clone();
            change(&mut simpler.profile);
            if simpler.profile.line() == plan.profile.line() || runs_left == 0 {
                continue;
            }
            runs_left -= 1;
            if fails(&simpler, &ops) {
                (plan, is_less) = (simpler, true);
            }
        }
        if !is_less || runs_left == 0 {
            return (plan, ops);
        }
    }
}
