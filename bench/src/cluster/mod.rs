//! What it costs to be one of several nodes, beside a bare async-nats client and beside one node;
//! what is left of broadcasts and presences when the engine or a node goes; and what it costs, and
//! is worth, that the engine keeps broadcasts. README.md says how
//! each figure comes about.

use simurgh_bench_kit::rounds::{Job, Suite, USUAL, table};

mod checked;
mod client;
pub(crate) mod crowd;
mod delay;
mod drops;
mod engine;
mod fanout;
mod frozen;
mod helper;
mod kept;
mod killed;
mod nodes;
mod presences;
mod publish;
mod receive;
mod stored;
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
        Job::new("kept", kept::run),
        Job::new("stored", stored::run),
        Job::new("checked", checked::run),
        Job::new("drops", drops::run),
    ],
    // `drops` takes two minutes.
    usual: &[
        "receive",
        "publish",
        "delay",
        "fanout",
        "topics",
        "frozen",
        "killed",
        "presences",
        "kept",
        "stored",
        "checked",
    ],
    recipes: |_| table::read(include_str!("table.txt"), &[]),
    ..USUAL
};
