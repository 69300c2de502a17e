//! `cargo xtask scale`: the plan of docs/SCALE.md, built for release; all arguments are passed on.

use std::process::ExitCode;

use crate::process::Task;

/// The package, and its binary.
const NAME: &str = "simurgh-scale";
/// What is played through takes less than one.
const MINUTES_MAX: u64 = 15;

/// Builds it and runs it with these arguments.
pub(crate) fn run(arguments: &[String]) -> ExitCode {
    Task::release(NAME, arguments, MINUTES_MAX).run().exit_code("scale")
}
