//! The simulator of whole servers as a step of the tests: seeds that once failed, and fixed ones.
//! Fresh seeds are for `cargo xtask sim --minutes N`: a gate must not fail by chance.

use crate::outcome::Outcome;
use crate::process::Task;

pub(crate) const NAME: &str = "simurgh-sim";
/// That of the counts of instructions, for one compilation less.
const PROFILE: &str = "instructions";
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
    let runs: [&[&str]; 8] = [
        &["--list", SEEDS],
        &["--seeds", "0..2000", "--steps", "2000"],
        &["--history", "--list", HISTORIES],
        &["--history", "--seeds", "0..2000", "--steps", "1500"],
        &["--cluster", "--list", CLUSTERS],
        &["--cluster", "--seeds", "0..2000", "--steps", "1000"],
        &["--cluster", "--history", "--list", KEPT],
        &["--cluster", "--history", "--seeds", "0..1000", "--steps", "400"],
    ];
    let mut passed = 0;
    for arguments in runs {
        let arguments: Vec<String> = arguments.iter().map(|it| (*it).to_owned()).collect();
        let done = Task::binary(PROFILE, NAME, &arguments, 15).run();
        if !done.ok() {
            // The line names the seed, and the command to run it again.
            let line = done.output.lines().find(|line| line.starts_with("FAILED"));
            return Outcome::failed(line.map_or_else(|| done.reason(), str::to_owned));
        }
        passed += 1;
    }
    Outcome::passed(passed)
}
