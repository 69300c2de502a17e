//! Runs: from a seed, or from a list of operations.

use simurgh_sim_kit::fault::Fault;
use simurgh_sim_kit::findings;

use crate::op::{Op, Source};
use crate::profile::Profile;
use crate::world::{Result, World};

/// What a run is of.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) profile: Profile,
    pub(crate) fault: Option<(Fault, u32)>,
}

/// What a seed makes has grown: seeds that found something are run as they were.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Era {
    /// Before there were extras.
    Early,
    /// Before handlers waited.
    Middle,
    /// Before there was presence.
    Late,
    /// Before there were limits, and times that end.
    Unlimited,
    #[default]
    Now,
}

impl Plan {
    pub(crate) fn of(seed: u64) -> Self {
        Self { profile: Profile::of(seed), fault: None }
    }

    /// A seed as it was in another era.
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

/// Runs a seed for so many steps; also returns how many operations that took.
pub(crate) fn seeded(plan: &Plan, steps: u64) -> (Result, usize) {
    let mut source = Source::new(&plan.profile);
    let mut ops = 0;
    let result = guarded(|| {
        let mut world = World::new(&plan.profile, plan.fault);
        loop {
            let model = world.stage.model();
            let is_over = model.failure.is_some() || model.counts.steps >= steps;
            drop(model);
            if is_over || ops as u64 > steps * 8 {
                break;
            }
            ops += 1;
            world.run(source.next());
        }
        world.finish()
    });
    (result, ops)
}

/// The operations of a seed.
pub(crate) fn operations(plan: &Plan, count: usize) -> Vec<Op> {
    let mut source = Source::new(&plan.profile);
    (0..count).map(|_| source.next()).collect()
}

/// Runs a list of operations.
pub(crate) fn listed(plan: &Plan, ops: &[Op]) -> Result {
    guarded(|| {
        let mut world = World::new(&plan.profile, plan.fault);
        for op in ops {
            if world.has_failed() {
                break;
            }
            world.run(*op);
        }
        world.finish()
    })
}

/// The same as a story, a line an operation; what came of it last.
pub(crate) fn told(plan: &Plan, ops: &[Op]) -> (Vec<String>, Result) {
    let mut lines = Vec::new();
    let result = guarded(|| {
        let mut world = World::new(&plan.profile, plan.fault);
        for (number, op) in ops.iter().enumerate() {
            if world.has_failed() {
                break;
            }
            world.story = Some(String::new());
            world.stage.model().log = Some(Vec::new());
            world.run(*op);
            let step = world.stage.model().step;
            lines.push(format!(
                "{number:5}  {} [step {step}]",
                world.story.take().unwrap_or_default()
            ));
            let log = world.stage.model().log.take().unwrap_or_default();
            lines.extend(log.into_iter().map(|it| format!("    {it}")));
        }
        world.stage.model().log = Some(Vec::new());
        let stage = std::sync::Arc::clone(&world.stage);
        let result = world.finish();
        lines.push("       everybody goes".to_owned());
        let log = stage.model().log.take().unwrap_or_default();
        lines.extend(log.into_iter().map(|it| format!("    {it}")));
        result
    });
    (lines, result)
}

/// A panic outside the application is a failure like another.
fn guarded(run: impl FnOnce() -> Result) -> Result {
    findings::guarded(run).unwrap_or_else(|failure| Result {
        failure: Some(failure),
        counts: Default::default(),
        hash: 0,
    })
}
