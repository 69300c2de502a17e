//! What one client can take from the others: each row of [`SUITE`] attacks the server, and the
//! table shows the effect on all other clients. README.md says how each figure comes about.
//!
//! A cut client, or an ended server, is a result; only a message that arrives changed, or a row
//! that could not be run, is an error.

use simurgh_bench_kit::rounds::{Bench, Job, Sample, Suite, USUAL};

mod clients;
mod cursors;
mod field;
mod flood;
mod inbound;
mod long;
mod messages;
pub(crate) mod probe;
mod silent;
mod suspended;
mod table;

pub(crate) const SUITE: Suite = Suite {
    name: "fairness",
    about: "What one client can take from the others",
    jobs: || {
        vec![
            Job::new("flood", flood::run),
            Job::new("cursors", cursors::run),
            Job::new("never-reads", silent::run),
            Job::new("inbound", inbound::run),
            Job::new("suspended", suspended::run),
            Job::new("long-message", long::run),
        ]
    },
    runs: 1,
    clients: (suspended::CLIENTS, 1_200),
    order: "a fresh server for each attack; a limit holds for the worst round",
    is_each_judged: true,
    recipes: table::recipes,
    ..USUAL
};
