//! The simulator of whole servers as a step of the tests, with fixed seeds: one node, kept topics,
//! several nodes, and both. Fresh seeds are for `cargo xtask sim --minutes N`: a gate must not fail
//! by chance.

use anyhow::{Result, bail};

use crate::outcome::Outcome;
use crate::process::Task;

pub(crate) const NAME: &str = "simurgh-sim";
/// That of the counts of instructions, for one compilation less.
const PROFILE: &str = "instructions";

/// Stops at the first seed that fails.
pub(crate) fn try_out() -> Result<Outcome> {
    let runs: [&[&str]; 4] = [
        &["--seeds", "0..2000", "--steps", "2000"],
        &["--history", "--seeds", "0..2000", "--steps", "1500"],
        &["--cluster", "--seeds", "0..2000", "--steps", "1000"],
        &["--cluster", "--history", "--seeds", "0..1000", "--steps", "400"],
    ];
    let mut passed = 0;
    for arguments in runs {
        let arguments = arguments.iter().chain(&["--jobs", "2"]);
        let arguments: Vec<String> = arguments.map(|it| (*it).to_owned()).collect();
        let done = Task::binary(PROFILE, NAME, &arguments, 15).run();
        if !done.ok() {
            // The line names the seed, and the command to run it again.
            let line = done.output.lines().find(|line| line.starts_with("FAILED"));
            bail!(line.map_or_else(|| done.reason(), str::to_owned));
        }
        passed += 1;
    }
    Ok(Outcome::passed(passed))
}
