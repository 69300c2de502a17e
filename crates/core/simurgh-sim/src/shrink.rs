//! The shortest list of operations that still fails in the same manner: chunks are left out, then
//! single ones, for as long as that gets anywhere; then fewer clients, shards and features.

use crate::extras::Extras;
use crate::op::Op;
use crate::profile::Profile;
use crate::run::{self, Plan};

/// What a failing run was shrunk to.
pub(crate) struct Shrunk {
    pub(crate) plan: Plan,
    pub(crate) ops: Vec<Op>,
}

/// How often it is tried at most.
const RUNS_MAX: usize = 20_000;

struct Shrinking<'a> {
    rule: &'a str,
    runs: usize,
}

impl Shrinking<'_> {
    fn fails(&mut self, plan: &Plan, ops: &[Op]) -> bool {
        self.runs += 1;
        run::listed(plan, ops).failure.is_some_and(|it| it.rule == self.rule)
    }

    fn is_over(&self) -> bool {
        self.runs >= RUNS_MAX
    }

    /// Leaves operations out, so many at once, and half as many then.
    fn fewer(&mut self, plan: &Plan, ops: &mut Vec<Op>) -> bool {
        let (before, mut size) = (ops.len(), (ops.len() / 2).max(1));
        loop {
            let mut at = 0;
            while at < ops.len() && !self.is_over() {
                let end = (at + size).min(ops.len());
                let mut rest = ops.get(..at).unwrap_or_default().to_vec();
                rest.extend_from_slice(ops.get(end..).unwrap_or_default());
                if self.fails(plan, &rest) {
                    *ops = rest;
                } else {
                    at = end;
                }
            }
            if size == 1 || self.is_over() {
                return ops.len() < before;
            }
            size = size.div_ceil(2).min(size - 1);
        }
    }

    /// A smaller world, if it fails there as well.
    fn simpler(&mut self, plan: &mut Plan, ops: &[Op]) -> bool {
        let changes: [fn(&mut Profile); 21] = [
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
            |it| it.extras = Extras { permits: it.extras.permits, ..Extras::default() },
            |it| it.extras.permits = None,
            |it| it.extras.prepare_above = 0,
            |it| it.extras.long_names = 0,
            |it| it.extras.has_odd_refs = false,
            |it| it.extras.restarts = false,
            |it| it.extras.waits = 0,
            |it| it.extras.reaches = false,
            |it| it.extras.is_present = false,
            |it| it.extras.is_limited = false,
            |it| it.extras.expires = false,
        ];
        let mut is_simpler = false;
        for change in changes {
            let mut smaller = plan.clone();
            change(&mut smaller.profile);
            let differs = smaller.profile.line() != plan.profile.line();
            if differs && !self.is_over() && self.fails(&smaller, ops) {
                *plan = smaller;
                is_simpler = true;
            }
        }
        is_simpler
    }
}

/// Shrinks a list of operations that fails by this rule.
pub(crate) fn shrink(plan: &Plan, ops: Vec<Op>, rule: &str) -> Shrunk {
    let (mut plan, mut ops) = (plan.clone(), ops);
    let mut shrinking = Shrinking { rule, runs: 0 };
    loop {
        let is_less = shrinking.fewer(&plan, &mut ops) | shrinking.simpler(&mut plan, &ops);
        if !is_less || shrinking.is_over() {
            return Shrunk { plan, ops };
        }
    }
}

/// Leaves out what a failure does not need, in so many runs at most: so many operations at once,
/// then half as many.
pub(crate) fn fewest<O: Copy>(
    mut ops: Vec<O>,
    runs_max: usize,
    fails: impl Fn(&[O]) -> bool,
) -> Vec<O> {
    let (mut size, mut runs) = ((ops.len() / 2).max(1), 0);
    loop {
        let (mut at, before) = (0, ops.len());
        while at < ops.len() && runs < runs_max {
            let end = (at + size).min(ops.len());
            let mut rest = ops.get(..at).unwrap_or_default().to_vec();
            rest.extend_from_slice(ops.get(end..).unwrap_or_default());
            runs += 1;
            match fails(&rest) {
                true => ops = rest,
                false => at = end,
            }
        }
        if runs >= runs_max || (size == 1 && ops.len() == before) {
            return ops;
        }
        size = (size / 2).max(1);
    }
}
