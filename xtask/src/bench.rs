//! `cargo xtask bench`: the benchmark crate, built for release as users build it.

use std::process::ExitCode;

use crate::process::Task;

/// A full run holds thousands of clients for minutes, several times over.
const MINUTES_MAX: u64 = 120;

pub(crate) fn run(arguments: &[String]) -> ExitCode {
    let server = ["build", "--release", "--package", "simurgh-cli"];
    let built = Task::new("cargo", &server, MINUTES_MAX).run();
    if !built.ok() {
        eprintln!("bench: cannot build the server: {}", built.reason());
        return ExitCode::FAILURE;
    }
    let mut all = vec!["run", "--release", "--package", "simurgh-bench", "--"];
    all.extend(arguments.iter().map(String::as_str));
    let done = Task::new("cargo", &all, MINUTES_MAX).run();
    if !done.ok() {
        eprintln!("bench: {}", done.reason());
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}
