//! What history costs: a kept message, a member that opted in, a broadcast, a hop, and a storm of
//! clients that reconnect. README.md says how each figure comes about.

use anyhow::Result;

use simurgh_bench_kit::rounds::{Job, Suite, USUAL, table};
use simurgh_bench_kit::stats;

mod broadcast;
mod drops;
mod hop;
mod memory;
mod server;
mod storm;

pub(crate) const SUITE: Suite = Suite {
    name: "history",
    about: "The cost of stored broadcasts and of resuming, beside a server without history",
    jobs: || {
        vec![
            Job::new("kept", memory::kept),
            Job::new("members", memory::members),
            Job::new("broadcast", broadcast::run),
            Job::new("hop", hop::run),
            Job::new("storm", storm::one_topic),
            Job::new("topics", storm::topics),
            // Its clients start their server.
            // They need Node and the packages of e2e.
            Job::on_all_cores("drops", drops::on_one).if_named(),
            Job::on_all_cores("drops-nodes", drops::on_nodes).if_named(),
        ]
    },
    recipes: |_| table::read(include_str!("table.txt"), &[]),
    ..USUAL
};

/// Figures of two variants, each measured in turn, so that drift affects both.
#[derive(Default)]
struct Pair {
    with: Vec<f64>,
    without: Vec<f64>,
}

impl Pair {
    fn push(&mut self, with: bool, value: f64) {
        if with { self.with.push(value) } else { self.without.push(value) }
    }

    fn medians(&self) -> Result<(f64, f64)> {
        Ok((stats::middle(&self.with)?, stats::middle(&self.without)?))
    }
}

/// The order of the two variants: without, with, with, without, or the other way round.
fn order(round: usize) -> [bool; 4] {
    let first = round.is_multiple_of(2);
    [first, !first, !first, first]
}
