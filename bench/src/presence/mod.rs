//! The cost of presence: a crowd that joins one topic, one member that leaves it, a crowd whose
//! members only get the number, memory. README.md says how each figure comes about.

use simurgh_bench_kit::rounds::{Job, Suite, USUAL, table};

mod crowd;
mod server;
mod summary;

pub(crate) const SUITE: Suite = Suite {
    name: "presence",
    about: "The cost of presence in `simurgh serve`, beside the bare server",
    jobs: || {
        vec![
            Job::new("crowd", crowd::run),
            Job::new("leave", crowd::leave),
            Job::new("summary", summary::run),
            Job::new("memory", summary::memory),
        ]
    },
    recipes: |_| table::read(include_str!("table.txt"), &[]),
    ..USUAL
};
