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
    jobs: &[
        Job::new("kept", memory::kept),
        Job::new("members", memory::members),
        Job::new("broadcast", broadcast::run),
        Job::new("hop", hop::run),
        Job::new("storm", storm::one_topic),
        Job::new("topics", storm::topics),
        // Its clients start their server.
        Job { row: "drops", run: drops::on_one, is_on_all_cores: true },
        Job { row: "drops-nodes", run: drops::on_nodes, is_on_all_cores: true },
    ],
    // The other two need Node and the packages of e2e.
    usual: &["kept", "members", "broadcast", "hop", "storm", "topics"],
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neither_way_is_always_measured_first() {
        for round in [1, 2] {
            let order = order(round);
            let firsts: Vec<usize> = (0..4).filter(|&at| order[at]).collect();
            assert!(firsts == [0, 3] || firsts == [1, 2], "{firsts:?}");
        }
        assert_ne!(order(1), order(2));
    }
}
