//! Runs: operations, seeds, and reports of those that fail.

use std::fmt::Debug;

use crate::findings::{Counts, Findings, guarded};
use crate::operation::Op;
use crate::shrink::fewest;

/// A bound on how often a failing run is tried again, to shrink it.
const RUNS_MAX: usize = 6_000;

/// A simulation.
pub trait Simulation {
    /// What a seed decides before the run.
    type Plan: Debug;
    /// Kinds of operations.
    type Kind: Copy + Debug;

    /// The initial state.
    fn new(plan: &Self::Plan) -> Self;

    /// Draws this many operations of its seed.
    fn operations(plan: &Self::Plan, count: usize) -> Vec<Op<Self::Kind>>;

    /// Carries out an operation, if that is possible now.
    fn run(&mut self, op: Op<Self::Kind>);

    /// Ends the run: all clients leave, and nothing must be left.
    fn end(&mut self);

    /// Gives access to the findings.
    fn findings<T>(&self, with: impl FnOnce(&mut Findings) -> T) -> T;

    /// The time since its beginning.
    fn clock_ns(&self) -> u64;
}

/// Runs operations to the end; with a log if `is_told`.
pub fn run<S: Simulation>(plan: &S::Plan, ops: &[Op<S::Kind>], is_told: bool) -> Findings {
    let run = || {
        let mut it = S::new(plan);
        it.findings(|it| it.log = is_told.then(Vec::new));
        for op in ops {
            if it.findings(|it| it.failure.is_some()) {
                break;
            }
            let now_ms = it.clock_ns() / 1_000_000;
            it.findings(|it| it.note(|| format!("{now_ms} ms: {op:?}")));
            it.run(*op);
        }
        it.end();
        it.findings(std::mem::take)
    };
    guarded(run).unwrap_or_else(|it| Findings { failure: Some(it), ..Findings::default() })
}

/// Runs the operations of a seed.
pub fn run_seed<S: Simulation>(plan: &S::Plan, count: usize) -> Findings {
    run::<S>(plan, &S::operations(plan, count), false)
}

/// Runs seeds, each with a plan and a number of operations; prints the counts, and the story of
/// the first that fails. `flags` select this simulation on the command line. Returns whether all
/// passed.
pub fn run_seeds<S: Simulation>(
    flags: &str,
    seeds: impl Iterator<Item = (u64, S::Plan, usize)>,
) -> bool {
    let (mut count, mut all) = (0_u64, Counts::default());
    for (seed, plan, steps) in seeds {
        let ops = S::operations(&plan, steps);
        let Findings { failure, counts, .. } = run::<S>(&plan, &ops, false);
        count += 1;
        all.add(&counts);
        let Some(failure) = failure else { continue };
        println!("FAILED: seed {seed}, step {} of {steps}: {}", failure.step, failure.rule);
        println!("  {}", failure.text);
        println!("  cargo xtask sim {flags} --seed {seed} --steps {steps}");
        let fails = |ops: &[Op<S::Kind>]| {
            run::<S>(&plan, ops, false).failure.is_some_and(|it| it.rule == failure.rule)
        };
        let ops = fewest(ops, &mut RUNS_MAX.clone(), fails);
        println!("shrunk to {} operations, of {plan:?}", ops.len());
        let Findings { failure, log, .. } = run::<S>(&plan, &ops, true);
        log.iter().flatten().for_each(|line| println!("  {line}"));
        println!("{failure:?}");
        return false;
    }
    println!("{count} seeds of {flags}: {all}");
    true
}
