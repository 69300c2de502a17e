//! The tests of Rust: compiled in one go, with the binaries and examples that they start, and run
//! some programs at a time, since most of them wait more than they compute.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

use crate::engine;
use crate::outcome::{self, Outcome, Timed};
use crate::process::{self, Finished, Task, lock};

/// From nothing, on two slow cores with other work beside it.
const COMPILE_MINUTES_MAX: u64 = 30;
/// A single program.
const MINUTES_MAX: u64 = 15;
/// Tests that run at once in one program, of which one for each core runs.
const THREADS: &str = "5";
/// Property tests have the same inputs each time.
const SEED: &str = "1";
/// Runs, too, the tests that need a program or a right that a machine may lack.
pub(crate) const ALL: &str = "--include-ignored";

/// A compiled test program.
#[derive(Debug, PartialEq)]
pub(crate) struct Program {
    /// Its package and target.
    name: String,
    path: PathBuf,
    /// Where cargo would start it: the package's own.
    directory: PathBuf,
    is_integration: bool,
}

/// Compiles all that `cargo test` would, and all binaries and examples. An error if something does
/// not compile.
pub(crate) fn compile() -> Result<Vec<Program>> {
    let words = ["build", "--workspace", "--bins", "--examples"];
    Task::new("cargo", &words, COMPILE_MINUTES_MAX).run().or_fail("the binaries do not compile")?;
    let words = ["test", "--workspace", "--no-run", "--message-format=json-render-diagnostics"];
    let output = Task::new("cargo", &words, COMPILE_MINUTES_MAX).only_errors().run();
    let mut programs = programs(&output.or_fail("the tests do not compile")?)?;
    ensure!(!programs.is_empty(), "cargo names no test program");
    // They take longest, and so begin first.
    programs.sort_by_key(|program| !program.is_integration);
    Ok(programs)
}

/// Reads the messages of cargo, of which each is a line of JSON.
fn programs(output: &str) -> Result<Vec<Program>> {
    #[derive(Deserialize)]
    struct Artifact {
        manifest_path: PathBuf,
        target: Target,
        profile: Profile,
        executable: Option<PathBuf>,
    }
    #[derive(Deserialize)]
    struct Target {
        name: String,
        kind: Vec<String>,
    }
    #[derive(Deserialize)]
    struct Profile {
        test: bool,
    }
    let artifacts = output.lines().filter(|line| line.contains("\"compiler-artifact\""));
    let mut found = Vec::new();
    for line in artifacts {
        let artifact: Artifact = serde_json::from_str(line).context("a message of cargo")?;
        let Some(path) = artifact.executable.filter(|_| artifact.profile.test) else { continue };
        let directory = artifact.manifest_path.parent().unwrap_or(Path::new(".")).to_owned();
        let package = directory.file_name().unwrap_or_default().to_string_lossy();
        let is_integration = artifact.target.kind.iter().any(|kind| kind == "test");
        let unit =
            if is_integration { artifact.target.name } else { artifact.target.kind.join("") };
        found.push(Program { name: format!("{package} {unit}"), path, directory, is_integration });
    }
    Ok(found)
}

/// Runs the programs, then the tests in documentation. What a program prints is shown at its end.
/// Each has the `flags` and learns of the broker, `engine`. Adds the time of each to `times`.
pub(crate) fn run(
    programs: &[Program],
    flags: &[&str],
    engine: Option<&Path>,
    times: &mut Vec<Timed>,
) -> Outcome {
    let queue: Mutex<VecDeque<&Program>> = Mutex::new(programs.iter().collect());
    let ended: Mutex<Vec<(Timed, Outcome)>> = Mutex::default();
    let work = || {
        loop {
            let Some(program) = lock(&queue).pop_front() else { break };
            let start = Instant::now();
            let done = started(program, flags, engine).run();
            let took = start.elapsed();
            println!(
                "\n==> {} ({:.1} s)\n{}",
                program.name,
                took.as_secs_f64(),
                done.output.trim()
            );
            let outcome = of_program(program, &done);
            lock(&ended).push(((program.name.clone(), took), outcome));
        }
    };
    process::at_once(process::cores(), work);
    let mut sum = Outcome::default();
    for (timed, outcome) in ended.into_inner().unwrap_or_default() {
        times.push(timed);
        sum.add(outcome);
    }
    let start = Instant::now();
    let documents = Task::new("cargo", &["test", "--workspace", "--doc", "--no-fail-fast"], 20);
    let done = documents.run();
    times.push(("tests in documentation".to_owned(), start.elapsed()));
    sum.add(outcome::counted(outcome::of_cargo_test(&done.output), &done));
    sum
}

fn started(program: &Program, flags: &[&str], engine: Option<&Path>) -> Task {
    let path = program.path.display().to_string();
    let mut task = Task::new(&path, flags, MINUTES_MAX).directory(&program.directory).quiet();
    task = task.env("CARGO_MANIFEST_DIR", &program.directory);
    task = task.env("RUST_TEST_THREADS", THREADS).env("PROPTEST_RNG_SEED", SEED);
    // Others run them, and would find them replaced.
    task = task.env("WIRE_TESTS_PREBUILT", "1");
    match engine {
        Some(path) => task.env(engine::VARIABLE, path),
        None => task,
    }
}

/// A program may have no test.
fn of_program(program: &Program, done: &Finished) -> Outcome {
    let mut outcome = outcome::of_cargo_test(&done.output);
    if !done.ok() && outcome.failed == 0 {
        outcome = Outcome::failed(format!("{}: {}", program.name, done.reason()));
    }
    outcome
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_programs_are_found_in_cargo_messages() {
        let message = |kind: &str, name: &str, test: bool, executable: &str| {
            format!(
                "{{\"reason\":\"compiler-artifact\",\"manifest_path\":\"/r/crates/a/Cargo.toml\",\
                 \"target\":{{\"kind\":[\"{kind}\"],\"name\":\"{name}\"}},\
                 \"profile\":{{\"test\":{test}}},\"executable\":{executable}}}\n"
            )
        };
        let output = message("lib", "a", false, "null")
            + &message("bin", "tool", false, "\"/r/target/debug/tool\"")
            + &message("lib", "a", true, "\"/r/target/debug/deps/a-1\"")
            + "   Compiling b v0.1.0\n"
            + &message("test", "it", true, "\"/r/target/debug/deps/it-1\"");
        let found = programs(&output).unwrap();
        let names: Vec<_> = found.iter().map(|program| program.name.as_str()).collect();
        assert_eq!(names, ["a lib", "a it"]);
        assert_eq!(found[1].path, Path::new("/r/target/debug/deps/it-1"));
        assert_eq!(found[1].directory, Path::new("/r/crates/a"));
        assert!(found[1].is_integration && !found[0].is_integration);
        assert!(programs("{\"reason\":\"compiler-artifact\"}").is_err());
    }
}
