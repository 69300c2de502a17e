//! The simulator of whole servers as a step of the tests: seeds that once failed, fixed ones, and
//! fresh ones, half a minute each for one node, kept topics, several nodes, and both.

use crate::outcome::Outcome;
use crate::process::Task;

pub(crate) const NAME: &str = "simurgh-sim";
/// Seeds that once failed.
const SEEDS: &str = "crates/core/simurgh-sim/seeds.txt";
/// Those of topics that are kept.
const HISTORIES: &str = "crates/core/simurgh-sim/histories.txt";
/// Those of several nodes.
const CLUSTERS: &str = "crates/core/simurgh-sim/clusters.txt";
/// Those of both.
const KEPT: &str = "crates/core/simurgh-sim/cluster-histories.txt";

/// Stops at the first seed that fails.
pub(crate) fn try_out() -> Outcome {
    let runs: [&[&str]; 12] = [
        &["--list", SEEDS],
        &["--seeds", "0..2000", "--steps", "2000"],
        &["--history", "--list", HISTORIES],
        &["--history", "--seeds", "0..2000", "--steps", "1500"],
        &["--history", "--minutes", "0.5", "--steps", "1500"],
        &["--cluster", "--list", CLUSTERS],
        &["--cluster", "--seeds", "0..2000", "--steps", "1000"],
        &["--cluster", "--minutes", "0.5", "--steps", "1000"],
        &["--cluster", "--history", "--list", KEPT],
        &["--cluster", "--history", "--seeds", "0..1000", "--steps", "400"],
        &["--cluster", "--history", "--minutes", "0.5", "--steps", "400"],
        &["--minutes", "0.5", "--steps", "2000", "--jobs", "2"],
    ];
    let mut passed = 0;
    for arguments in runs {
        let arguments: Vec<String> = arguments.iter().map(|it| (*it).to_owned()).collect();
        let done = Task::release(NAME, &arguments, 15).run();
        if !done.ok() {
            // The line names the seed, and the command to run it again.
            let line = done.output.lines().find(|line| line.starts_with("FAILED"));
            return Outcome::failed(line.map_or_else(|| done.reason(), str::to_owned));
        }
        passed += 1;
    }
    Outcome::passed(passed)
}
