//! `cargo xtask scale`: the plan of docs/SCALE.md, built for release; all arguments are passed on.

use std::process::ExitCode;

use crate::process::Task;

/// The package, and its binary.
const NAME: &str = "simurgh-scale";
/// What is played through takes less than one.
const MINUTES_MAX: u64 = 15;

/// Builds it and runs it with these arguments.
pub(crate) fn run(arguments: &[String]) -> ExitCode {
    let cargo = ["run", "--release", "--quiet", "--package", NAME, "--"];
    let all: Vec<&str> = cargo.into_iter().chain(arguments.iter().map(String::as_str)).collect();
    let done = Task::new("cargo", &all, MINUTES_MAX).run();
    if done.ok() {
        return ExitCode::SUCCESS;
    }
    eprintln!("scale: {}", done.reason());
    ExitCode::FAILURE
}
