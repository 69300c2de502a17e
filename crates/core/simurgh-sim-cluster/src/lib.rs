//! A simulation of several nodes: each has the cores of its shards, and its part in a cluster by
//! the loopback adapter. Links, the engine and nodes fail and return. What members receive, which
//! presences they see, and which sockets are closed is compared with what was sent on all nodes.
//!
//! ```text
//!   client ⇄ shard ⇄ mailboxes ⇄ shard ⇄ client        a node: real cores,
//!              mailbox ⇅ local shards                    and a real `Cluster`
//!           Cluster ⇄ watched Loopback ⇄ Network ⇄ … other nodes
//! ```
//!
//! Shards and the cluster reach each other as they do in the server (`simurgh::cluster`).

mod app;
mod client;
mod ledger;
mod plan;
mod running;
mod shared;
mod simulation;
#[cfg(test)]
mod tests;
mod thread;
mod watched;

use simurgh_sim_kit::run;

use crate::plan::ClusterPlan;
use crate::simulation::ClusterSimulation;

/// Runs seeds, each with this many operations, on topics with or without a history; prints the
/// counts, and the story of the first that fails. Returns whether all passed.
pub fn run_seeds(seeds: impl Iterator<Item = (u64, usize)>, has_history: bool) -> bool {
    let (flags, plan): (_, fn(u64) -> ClusterPlan) = match has_history {
        true => ("--cluster --history", ClusterPlan::with_history),
        false => ("--cluster", ClusterPlan::of),
    };
    let seeds = seeds.map(|(seed, steps)| (seed, plan(seed), steps));
    run::run_seeds::<ClusterSimulation>(flags, seeds)
}
