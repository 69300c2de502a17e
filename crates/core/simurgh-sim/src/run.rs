//! Runs: from a seed, or from a list of operations.

use std::sync::Arc;

use fastrand::Rng;
use simurgh_sim_kit::fault::Fault;
use simurgh_sim_kit::findings;

use crate::op::{Kind, Op};
use crate::profile::Profile;
use crate::simulation::{NodeSimulation, Result};

#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) profile: Profile,
    pub(crate) fault: Option<(Fault, u32)>,
}

/// Seeds make more than they once did. A seed that failed in an earlier era is run as it was then.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Era {
    /// Before features.
    Early,
    /// Before handlers waited.
    Middle,
    /// Before presence.
    Late,
    /// Before limits and lifetimes.
    Unlimited,
    #[default]
    Now,
}

impl Plan {
    pub(crate) fn of(seed: u64) -> Self {
        Self { profile: Profile::of(seed), fault: None }
    }

    pub(crate) fn of_era(seed: u64, era: Era) -> Self {
        let profile = match era {
            Era::Early => Profile::early(seed),
            Era::Middle => Profile::middle(seed),
            Era::Late => Profile::late(seed),
            Era::Unlimited => Profile::unlimited(seed),
            Era::Now => Profile::of(seed),
        };
        Self { profile, fault: None }
    }
}

pub(crate) struct Source {
    rng: Rng,
    sums: Vec<u32>,
    /// Drains in 40,000 operations.
    drains: u32,
}

impl Source {
    pub(crate) fn new(profile: &Profile) -> Self {
        let mut sum = 0;
        let weigh = |((kind, _, weight), factor): (&(Kind, &str, u32), &u16)| {
            // Without these operations nothing happens at all.
            let factor = match kind {
                Kind::Connect | Kind::Join | Kind::Read | Kind::Turn | Kind::Mail => {
                    (*factor).max(4)
                }
                _ => *factor,
            };
            sum += weight * u32::from(factor);
            sum
        };
        let sums = Kind::ALL.iter().zip(&profile.weights).map(weigh).collect();
        let drains = if profile.features.restarts { 80 } else { 8 };
        Self { rng: Rng::with_seed(profile.seed), sums, drains }
    }
}

impl Iterator for Source {
    type Item = Op;

    fn next(&mut self) -> Option<Op> {
        let (rng, drains) = (&mut self.rng, self.drains);
        // Rare operations, independent of the weights.
        let kind = match rng.u32(..40_000) {
            it if it < drains => Kind::Drain,
            it if it < drains + 52 => Kind::Rest,
            _ => {
                let at = rng.u32(..self.sums.last().copied().unwrap_or(1));
                let place = self.sums.partition_point(|sum| *sum <= at);
                Kind::ALL.get(place).map_or(Kind::Turn, |(kind, ..)| *kind)
            }
        };
        Some(Op::draw(kind, rng))
    }
}

pub(crate) fn seeded(plan: &Plan, steps: u64) -> (Result, usize) {
    let ops = Source::new(&plan.profile).take(steps as usize * 8 + 1);
    run(plan, ops, steps, None)
}

pub(crate) fn operations(plan: &Plan, count: usize) -> Vec<Op> {
    Source::new(&plan.profile).take(count).collect()
}

pub(crate) fn listed(plan: &Plan, ops: &[Op]) -> Result {
    run(plan, ops.iter().copied(), u64::MAX, None).0
}

/// Runs a list and returns a story, one line per operation, and the result.
pub(crate) fn told(plan: &Plan, ops: &[Op]) -> (Vec<String>, Result) {
    let mut lines = Vec::new();
    let (result, _) = run(plan, ops.iter().copied(), u64::MAX, Some(&mut lines));
    (lines, result)
}

/// Runs operations for this many steps. A panic outside the application is a failure as well.
fn run(
    plan: &Plan,
    ops: impl Iterator<Item = Op>,
    steps: u64,
    mut story: Option<&mut Vec<String>>,
) -> (Result, usize) {
    let mut count = 0;
    let result = findings::guarded(|| {
        let mut it = NodeSimulation::new(&plan.profile, plan.fault);
        let shared = Arc::clone(&it.shared);
        shared.model().log = story.is_some().then(Vec::new);
        let mut tell = |head: &dyn Fn() -> String| {
            let Some(lines) = &mut story else { return };
            let log = shared.model().log.replace(Vec::new()).unwrap_or_default();
            lines.push(head());
            lines.extend(log.into_iter().map(|it| format!("    {it}")));
        };
        for op in ops {
            let model = shared.model();
            let is_over = model.failure.is_some() || model.counts.steps >= steps;
            drop(model);
            if is_over {
                break;
            }
            count += 1;
            it.story = shared.model().log.is_some().then(String::new);
            it.run(op);
            let (step, text) = (shared.model().step, it.story.take().unwrap_or_default());
            tell(&|| format!("{:5}  {text} [step {step}]", count - 1));
        }
        let result = it.finish();
        tell(&|| "       everybody goes".to_owned());
        result
    });
    let panicked = |it| Result { failure: Some(it), counts: Default::default(), hash: 0 };
    (result.unwrap_or_else(panicked), count)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::op::{from_line, line};

    #[test]
    fn an_operation_is_read_as_it_was_written() {
        for op in Source::new(&Profile::of(7)).take(1000) {
            assert_eq!(from_line(&line(&op)), Ok(op));
        }
        assert!(from_line("push 1").is_err());
    }
}
