//! `cargo xtask bench`: the benchmark crate, built for release as users build it; with `--all`
//! everything a release is judged by, with `--instructions` what CI counts.
//!
//! `parts` run tools through a `session` and `read` what they wrote; a `record` keeps it, `compare`
//! holds it beside the one before by `statistics`, `tables` put it into docs/BENCHMARKS.md.

mod all;
mod compare;
pub(crate) mod instructions;
pub(crate) mod machine;
mod parts;
mod read;
pub(crate) mod record;
mod session;
mod statistics;
mod sweep;
pub(crate) mod tables;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Parser;

use crate::process::Task;
use instructions::Verdict;

/// A full run holds thousands of clients for minutes, several times over.
const MINUTES_MAX: u64 = 120;

/// Counts instructions of fixed pieces of work and holds them against the baseline.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask bench --instructions")]
struct CountOptions {
    /// (What this is.)
    #[arg(long, hide = true)]
    instructions: bool,
    /// Makes what was counted the new baseline.
    #[arg(long, conflicts_with = "only")]
    accept: bool,
    /// Items whose names contain one of these (several with commas).
    #[arg(long, value_delimiter = ',', value_name = "NAME")]
    only: Vec<String>,
    /// How often each is counted; the table then shows by how much the counts differ.
    #[arg(long, value_name = "N", default_value_t = 1,
          value_parser = clap::value_parser!(u16).range(1..=25))]
    runs: u16,
}

pub(crate) fn run(arguments: &[String]) -> ExitCode {
    let has = |flag: &str| arguments.iter().any(|argument| argument == flag);
    let words = || ["bench".to_owned()].into_iter().chain(arguments.iter().cloned());
    if has("--all") {
        let command = format!("cargo xtask bench {}", arguments.join(" "));
        all::run(&all::Options::parse_from(words()), &command)
    } else if has("--instructions") {
        count(&CountOptions::parse_from(words()))
    } else if has("--tables") {
        by_result(tables::update(&crate::root(), None))
    } else {
        passed_on(arguments)
    }
}

fn by_result(result: Result<(), String>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bench: {error}");
            ExitCode::FAILURE
        }
    }
}

/// The arguments are those of `simurgh-bench`.
fn passed_on(arguments: &[String]) -> ExitCode {
    let is_cluster = arguments.first().is_some_and(|name| name == "cluster");
    let mut programs = vec!["build", "--release", "--package", "simurgh-cli"];
    programs
        .extend(is_cluster.then_some(["--package", "simurgh-bench-peer"]).into_iter().flatten());
    let built = Task::new("cargo", &programs, MINUTES_MAX).run();
    if !built.ok() {
        return by_result(Err(format!("cannot build the server: {}", built.reason())));
    }
    let mut all = vec!["run", "--release", "--package", "simurgh-bench", "--"];
    all.extend(arguments.iter().map(String::as_str));
    let mut bench = Task::new("cargo", &all, MINUTES_MAX);
    if is_cluster {
        match crate::engine::installed() {
            Ok(engine) => bench = bench.env(crate::engine::VARIABLE, engine),
            Err(why) => return by_result(Err(format!("no engine: {why}"))),
        }
    }
    let done = bench.run();
    by_result(if done.ok() { Ok(()) } else { Err(done.reason()) })
}

fn count(options: &CountOptions) -> ExitCode {
    by_result(counted(options))
}

fn counted(options: &CountOptions) -> Result<(), String> {
    if !Path::new(instructions::VALGRIND).exists() {
        return Err(format!("no {}: install Debian's valgrind", instructions::VALGRIND));
    }
    let runs = instructions::count(&options.only, usize::from(options.runs))?;
    let baseline = instructions::baseline();
    println!("{}", instructions::table(baseline.as_ref().ok(), &runs));
    let Some(first) = runs.first() else { return Ok(()) };
    if options.accept {
        instructions::accept(first)?;
        return tables::update(&crate::root(), None);
    }
    match instructions::judge(&baseline?, first, options.only.is_empty()) {
        Verdict::Fine(_) => Ok(()),
        Verdict::Incomparable(why) => Err(format!("not compared: {why}")),
        Verdict::Worse(lines) => Err(format!("\n{}", lines.join("\n"))),
    }
}

/// Where cargo puts what it builds for release.
fn release_dir() -> PathBuf {
    let here = crate::bin_dir();
    here.parent().map_or_else(|| here.clone(), |target| target.join("release"))
}
