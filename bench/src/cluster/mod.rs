//! What it costs to be one of several nodes, beside a bare async-nats client and beside one node;
//! and what is left of broadcasts and presences when the engine or a node goes. README.md says how
//! each figure comes about.

use crate::rounds::{Job, Suite};

pub(crate) mod crowd;
mod delay;
mod engine;
mod fanout;
mod frozen;
mod helper;
mod killed;
mod line;
mod presences;
mod publish;
mod receive;
mod recipes;
mod servers;
mod topics;

/// The measurement.
pub(crate) const SUITE: Suite = Suite {
    name: "cluster",
    jobs: &[
        Job::new("receive", receive::run),
        Job::new("publish", publish::run),
        Job::new("delay", delay::run),
        Job::new("fanout", fanout::run),
        Job::new("topics", topics::run),
        Job::new("frozen", frozen::run),
        Job::new("killed", killed::run),
        Job::new("presences", presences::run),
    ],
    usual: &["receive", "publish", "delay", "fanout", "topics", "frozen", "killed", "presences"],
    recipes: recipes::RECIPES,
};
