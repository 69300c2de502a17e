//! A world of several nodes: each has the cores of its shards, and its part in a cluster by the
//! loopback adapter. Links, the engine and nodes break and come back; what members hear, who they
//! see present, and which sockets are closed is held against what was said anywhere.
//!
//! ```text
//!   client ⇄ shard ⇄ mailboxes ⇄ shard ⇄ client        a node: real cores,
//!                 door ⇅ local                          and a real `Cluster`
//!                 Cluster ⇄ watched Loopback ⇄ Network ⇄ … other nodes
//! ```
//!
//! It has an account of its own ([`account`]), as the world whose topics are kept. How shards and
//! the cluster reach each other is done here as the server does it (`simurgh::cluster`).

mod account;
mod app;
mod client;
mod disconnects;
mod faults;
mod kept;
mod live;
mod machine;
mod node;
mod plan;
mod presences;
mod rest;
#[cfg(test)]
mod tests;
mod time;
mod watched;
mod world;

use std::panic::{AssertUnwindSafe, catch_unwind};

use self::account::Tally;
use self::plan::{Op, Plan, operations};
use self::world::World;
use crate::model::Failure;
use crate::shrink::fewest;

/// What came of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Outcome {
    pub(crate) failure: Option<Failure>,
    pub(crate) tally: Tally,
    /// What happened, if somebody wanted to know.
    pub(crate) log: Vec<String>,
}

/// Runs operations, and has everybody go.
pub(crate) fn run(plan: &Plan, ops: &[Op], is_told: bool) -> Outcome {
    let run = || {
        let mut world = World::new(plan);
        world.shared.account().log = is_told.then(Vec::new);
        for op in ops {
            if world.has_failed() {
                break;
            }
            let now_ms = world.clock_ns / 1_000_000;
            world.shared.account().note(|| format!("{now_ms} ms: {op:?}"));
            world.run(*op);
        }
        world.ends();
        let mut account = world.shared.account();
        // They know their nodes, which know them.
        account.handles.clear();
        let (failure, tally) = (account.failure.clone(), account.tally.clone());
        Outcome { failure, tally, log: account.log.take().unwrap_or_default() }
    };
    catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(|it| (*it).to_owned()));
        let text = text.unwrap_or_else(|| "of another kind".to_owned());
        let failure = Some(Failure { rule: "panic", text, step: 0 });
        Outcome { failure, tally: Tally::default(), log: Vec::new() }
    })
}

/// Runs seeds, each with as many operations; prints what was met, and the story of the first that
/// fails. Whether none did.
pub(crate) fn run_seeds(seeds: impl Iterator<Item = (u64, u64)>, is_kept: bool) -> bool {
    let flag = if is_kept { "--cluster --history" } else { "--cluster" };
    let (mut count, mut all) = (0_u64, Tally::default());
    for (seed, steps) in seeds {
        let plan = if is_kept { Plan::kept(seed) } else { Plan::of(seed) };
        let ops = operations(&plan, usize::try_from(steps).unwrap_or(usize::MAX));
        let outcome = run(&plan, &ops, false);
        if let Some(failure) = outcome.failure {
            let at = format!("step {} of {steps}", failure.step);
            println!("FAILED: cluster, seed {seed}, {at}: {}", failure.rule);
            println!("  {}", failure.text);
            println!("  cargo xtask sim {flag} --seed {seed} --steps {steps}");
            let fails = |ops: &[Op]| {
                run(&plan, ops, false).failure.is_some_and(|it| it.rule == failure.rule)
            };
            let ops = fewest(ops, 3_000, fails);
            println!("shrunk to {} operations, of {plan:?}", ops.len());
            let told = run(&plan, &ops, true);
            told.log.iter().for_each(|line| println!("  {line}"));
            println!("{:?}", told.failure);
            return false;
        }
        count += 1;
        all.add(&outcome.tally);
    }
    println!("{count} seeds of {flag}: {all}");
    true
}
