//! `cargo xtask mutants`: do the tests notice when a line of the core is wrong?
//!
//! cargo-mutants changes one thing at a time (a function returns at once, a `<` becomes `<=`) in a
//! copy of the sources and runs the unit tests of the changed crates and those of the simulator.
//! `.cargo/mutants.toml` says which files are changed. A change that no test notices is a
//! survivor; docs/TESTING.md lists each with its reason.

use anyhow::{Result, bail};
use clap::Args;

use crate::process::Task;
use crate::provide::{self, Tool};

const TOOL: Tool = Tool { name: "cargo-mutants", version: "27.1.0", debug: false };
/// The crates whose tests are run.
const JUDGES: [&str; 6] = [
    "simurgh-channel",
    "simurgh-cluster",
    "simurgh-core",
    "simurgh-history",
    "simurgh-notices",
    "simurgh-sim",
];
const RUN_MINUTES: u64 = 600;

#[derive(Args)]
pub(crate) struct Options {
    /// Passed on to cargo-mutants: `--file 'crates/core/simurgh-core/src/fanout/**'`, `--shard 0/3`
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<String>,
}

pub(crate) fn run(options: &Options) -> Result<()> {
    let tool = provide::cargo_tool(&TOOL)?;
    // Without it only the default member of the workspace would be changed.
    let mut arguments = vec!["mutants", "--workspace", "--output", "target/mutants", "--jobs", "2"];
    arguments.extend(JUDGES.into_iter().flat_map(|judge| ["--test-package", judge]));
    arguments.extend(options.arguments.iter().map(String::as_str));
    let done = Task::new(&tool.display().to_string(), &arguments, RUN_MINUTES).run();
    match done.code {
        // 2: some were missed, 3: some took too long; both are in the report.
        Some(0 | 2 | 3) => Ok(()),
        _ => bail!("cargo-mutants: {}", done.reason()),
    }
}
