//! `cargo xtask bench`: the benchmark crate, built for release as users build it; with `--all` the
//! suites of a release one after the other, with `--instructions` the counts of CI.

pub(crate) mod instructions;

use std::process::ExitCode;

use anyhow::{Context, Result, bail, ensure};
use clap::Parser;
use clap::builder::PossibleValuesParser;

use crate::engine;
use crate::process::{self, Task};
use crate::provide::{self, VALGRIND};
use instructions::Verdict;

/// A full run has thousands of clients for minutes, several times.
const MINUTES_MAX: u64 = 120;

const PACKAGE: &str = "simurgh-bench";

/// The suites of `--all`, and the command of each; those that are likely to be interrupted last.
const SUITES: [(&str, &str); 12] = [
    ("server", "run"),
    ("fairness", "fairness"),
    ("attacks", "attacks"),
    ("presence", "presence"),
    ("history", "history"),
    ("cluster", "cluster"),
    ("hooks", "hooks"),
    ("timing", "timing"),
    ("driver", "driver"),
    ("page", "page"),
    ("load", "http-load"),
    ("road", "road"),
];
/// The suite of `--all` that is not a suite of `simurgh-bench`.
const INSTRUCTIONS: &str = "instructions";

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
}

/// Runs the suites that a release is judged by. Each prints a table with limits, and keeps it with
/// the raw figures below bench/runs.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask bench --all")]
struct AllOptions {
    /// (What this is.)
    #[arg(long, hide = true)]
    all: bool,
    /// Rounds of each suite [default: the suite's own]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=25))]
    runs: Option<u16>,
    /// Fewer clients and shorter times: to see whether all works, not for figures.
    #[arg(long)]
    short: bool,
    /// These suites only (several with commas): instructions, server, fairness, attacks, presence,
    /// history, cluster, hooks, timing, driver, page, load, road.
    #[arg(long, value_delimiter = ',', value_name = "SUITE", hide_possible_values = true,
          value_parser = PossibleValuesParser::new(suites()))]
    only: Vec<String>,
}

fn suites() -> impl Iterator<Item = &'static str> {
    [INSTRUCTIONS].into_iter().chain(SUITES.map(|(name, _)| name))
}

pub(crate) fn run(arguments: &[String]) -> Result<ExitCode> {
    let has = |flag: &str| arguments.iter().any(|argument| argument == flag);
    let words = || ["bench".to_owned()].into_iter().chain(arguments.iter().cloned());
    if has("--all") {
        all(&AllOptions::parse_from(words()))?;
    } else if has("--instructions") {
        count(&CountOptions::parse_from(words()))?;
    } else {
        passed_on(arguments)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// A suite that fails stops no other.
fn all(options: &AllOptions) -> Result<()> {
    process::end_on_ctrl_c()?;
    // The suites that need a missing package report it; the others run without it.
    if let Err(missing) = provide::debian_packages() {
        eprintln!("bench: {missing:#}");
    }
    let mut failed = Vec::new();
    for name in suites() {
        let is_chosen = options.only.is_empty() || options.only.iter().any(|only| only == name);
        if !is_chosen || process::is_interrupted() {
            continue;
        }
        println!("\n==> {name}");
        if let Err(why) = suite(name, options) {
            eprintln!("{name}: {why:#}");
            failed.push(name);
        }
    }
    ensure!(!process::is_interrupted(), "interrupted");
    ensure!(failed.is_empty(), "failed: {}", failed.join(", "));
    Ok(())
}

fn suite(name: &str, options: &AllOptions) -> Result<()> {
    let Some((_, command)) = SUITES.iter().find(|(suite, _)| *suite == name) else {
        return count(&CountOptions::parse_from(["bench"]));
    };
    let mut arguments = vec![(*command).to_owned()];
    arguments.extend(options.short.then(|| "--short".to_owned()));
    if let Some(runs) = options.runs.filter(|_| name != "timing") {
        arguments.extend(["--runs".to_owned(), runs.to_string()]);
    }
    passed_on(&arguments)
}

fn passed_on(arguments: &[String]) -> Result<()> {
    let named = arguments.first().map(String::as_str);
    let beside = match named {
        Some("cluster") => &["--package", "simurgh-bench-peer"][..],
        Some("page") => &["--package", "hello_page"],
        _ => &[],
    };
    let programs = [&["build", "--release", "--package", "simurgh-cli"], beside].concat();
    Task::new("cargo", &programs, MINUTES_MAX).run().or_fail("cannot build the server")?;
    let mut all = vec!["run", "--release", "--package", PACKAGE, "--"];
    all.extend(arguments.iter().map(String::as_str));
    let mut bench = Task::new("cargo", &all, MINUTES_MAX);
    if named == Some("cluster") {
        bench = bench.env(engine::VARIABLE, engine::installed().context("no engine")?);
    }
    bench.run().or_fail(PACKAGE).map(drop)
}

fn count(options: &CountOptions) -> Result<()> {
    ensure!(provide::has(VALGRIND), "no {VALGRIND}: install Debian's valgrind");
    let counts = instructions::count(&options.only)?;
    let baseline = instructions::baseline();
    println!("{}", instructions::table(baseline.as_ref().ok(), &counts));
    if options.accept {
        return instructions::accept(&counts);
    }
    match instructions::judge(&baseline?, &counts, options.only.is_empty()) {
        Verdict::Fine(_) => Ok(()),
        Verdict::Incomparable(why) => bail!("not compared: {why}"),
        Verdict::Worse(lines) => bail!("\n{}", lines.join("\n")),
    }
}
