//! A simulation of several nodes: each has the cores of its shards, and its part in a cluster by
//! the loopback adapter. Links, the engine and nodes break and come back; what members get, which
//! presences they see, and which sockets are closed is checked against what was sent anywhere.
//!
//! ```text
//!   client ⇄ shard ⇄ mailboxes ⇄ shard ⇄ client        a node: real cores,
//!              mailbox ⇅ local shards                    and a real `Cluster`
//!           Cluster ⇄ watched Loopback ⇄ Network ⇄ … other nodes
//! ```
//!
//! How shards and the cluster reach each other is done here as the server does it
//! (`simurgh::cluster`).

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

/// Runs seeds, each with so many operations, on topics that are kept or are not; prints what was
/// met, and the story of the first that fails. Returns whether none did.
pub fn run_seeds(seeds: impl Iterator<Item = (u64, usize)>, has_history: bool) -> bool {
    let (flags, plan): (_, fn(u64) -> ClusterPlan) = match has_history {
        true => ("--cluster --history", ClusterPlan::with_history),
        false => ("--cluster", ClusterPlan::of),
    };
    let seeds = seeds.map(|(seed, steps)| (seed, plan(seed), steps));
    run::run_seeds::<ClusterSimulation>(flags, seeds)
}
