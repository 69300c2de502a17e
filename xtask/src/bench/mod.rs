//! `cargo xtask bench`: the benchmark crate, built for release as users build it; with `--all` all
//! measurements of a release, with `--instructions` the counts of CI.
//!
//! `parts` run tools through a `session` and `read` their files; a `record` keeps the measures,
//! `compare` compares it with the last one, `tables` update docs/BENCHMARKS.md.

mod all;
mod compare;
pub(crate) mod instructions;
mod parts;
mod read;
pub(crate) mod record;
mod session;
mod tables;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result, bail, ensure};
use clap::Parser;

use crate::engine;
use crate::process::Task;
use crate::provide::{self, VALGRIND};
use instructions::Verdict;

/// A full run has thousands of clients for minutes, several times.
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

pub(crate) fn run(arguments: &[String]) -> Result<ExitCode> {
    let has = |flag: &str| arguments.iter().any(|argument| argument == flag);
    let words = || ["bench".to_owned()].into_iter().chain(arguments.iter().cloned());
    if has("--all") {
        let command = format!("cargo xtask bench {}", arguments.join(" "));
        return all::run(&all::Options::parse_from(words()), &command);
    }
    if has("--instructions") {
        count(&CountOptions::parse_from(words()))?;
    } else if has("--tables") {
        tables::update(&crate::root(), None)?;
    } else {
        passed_on(arguments)?;
    }
    Ok(ExitCode::SUCCESS)
}

fn passed_on(arguments: &[String]) -> Result<()> {
    const TIMING: &str = "simurgh-bench-timing";
    let (package, arguments) = match arguments {
        [name, rest @ ..] if name == "timing" => (TIMING, rest),
        [only, name, rest @ ..] if only == "--only" && name == "timing" => (TIMING, rest),
        all => ("simurgh-bench", all),
    };
    let is_cluster = arguments.first().is_some_and(|name| name == "cluster");
    let mut programs = vec!["build", "--release", "--package", "simurgh-cli"];
    programs
        .extend(is_cluster.then_some(["--package", "simurgh-bench-peer"]).into_iter().flatten());
    Task::new("cargo", &programs, MINUTES_MAX).run().or_fail("cannot build the server")?;
    let mut all = vec!["run", "--release", "--package", package, "--"];
    all.extend(arguments.iter().map(String::as_str));
    let mut bench = Task::new("cargo", &all, MINUTES_MAX);
    if is_cluster {
        bench = bench.env(engine::VARIABLE, engine::installed().context("no engine")?);
    }
    bench.run().or_fail(package).map(drop)
}

fn count(options: &CountOptions) -> Result<()> {
    ensure!(provide::has(VALGRIND), "no {VALGRIND}: install Debian's valgrind");
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
        Verdict::Incomparable(why) => bail!("not compared: {why}"),
        Verdict::Worse(lines) => bail!("\n{}", lines.join("\n")),
    }
}

fn release_dir() -> PathBuf {
    let here = crate::bin_dir();
    here.parent().map_or_else(|| here.clone(), |target| target.join("release"))
}
