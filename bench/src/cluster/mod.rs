//! The costs of being one of several nodes, compared with a bare async-nats client and with one
//! node; the broadcasts and presences left when the broker or a node is lost; and costs and
//! benefits of a broker that keeps broadcasts. README.md says how each figure comes about.

use simurgh_bench_kit::rounds::{Job, Suite, USUAL, table};

mod broker;
mod checked;
mod client;
pub(crate) mod crowd;
mod delay;
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

pub(crate) const SUITE: Suite = Suite {
    name: "cluster",
    about: "The cost of several nodes, and what is lost when the broker or a node dies; \
            SIMURGH_NATS_SERVER names the broker",
    jobs: || {
        vec![
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
        ]
    },
    recipes: |_| table::read(include_str!("table.txt"), &[]),
    ..USUAL
};
