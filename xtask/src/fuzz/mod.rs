//! `cargo xtask fuzz`: every target of `fuzz/`, guided by coverage.
//!
//! `build` makes the programs, a `round` runs one of them for some minutes, `corpus` has the
//! initial inputs and keeps finds, the `ledger` sums the running times. An interruption only loses
//! the unrecorded part of the current rounds.

mod build;
mod corpus;
mod ledger;
mod round;

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail, ensure};
use clap::Args;
use simurgh_text::format::grouped;

use crate::outcome::Outcome;
use crate::process::{self, cores, lock};
use build::Unbuilt;
use ledger::Line;

/// How long a target runs before the next one, so that each has had a share at any interruption.
const ROUND: Duration = Duration::from_secs(300);
/// Runs of a target in CI: a few seconds.
const CI_RUNS: u64 = 20_000;
/// Even on a slow machine that does other work.
const CI_TIME_MAX: Duration = Duration::from_secs(60);

#[derive(Args)]
pub(crate) struct Options {
    /// How long each target runs
    #[arg(long, value_name = "M", default_value_t = 1.0)]
    minutes: f64,
    /// These targets only (several with commas)
    #[arg(long, value_delimiter = ',', value_name = "TARGET")]
    only: Vec<String>,
    /// How many run at the same time [default: as many as there are cores]
    #[arg(long, value_name = "N")]
    jobs: Option<usize>,
    /// With AddressSanitizer, for the unsafe code of dependencies; needs a nightly compiler
    #[arg(long)]
    address: bool,
    /// Then adds to the corpus, within its bounds, what reaches code that nothing in it reaches
    #[arg(long)]
    merge: bool,
    /// Runs nothing: prints the totals, and puts them into docs/FUZZING.md
    #[arg(long)]
    table: bool,
}

pub(crate) fn run(options: &Options) -> Result<()> {
    if options.table {
        println!("{}", ledger::update_page(&crate::root())?);
        return Ok(());
    }
    process::end_on_ctrl_c()?;
    let targets = chosen(&build::targets(&crate::root())?, &options.only)?;
    let programs = match build::build(&targets, options.address) {
        Ok(programs) => programs,
        Err(Unbuilt::Lacking(what)) => {
            println!("SKIPPED: {what}");
            return Ok(());
        }
        Err(Unbuilt::Failed(why)) => return Err(anyhow!(why)),
    };
    let seconds = options.minutes.max(0.0) * 60.0;
    let time = Duration::try_from_secs_f64(seconds).context("--minutes")?;
    let jobs = options.jobs.unwrap_or_else(cores);
    let started = Started { sanitizer: options.address, is_kept: true, runs: None };
    let lines =
        run_targets(&programs, ledger::least_run_first(targets.clone()), time, jobs, &started);
    if options.merge && !process::is_interrupted() {
        for target in &targets {
            corpus::merge(&programs, target)?;
        }
    }
    let finds: usize = lines.iter().map(|line| line.finds.len()).sum();
    ensure!(finds == 0, "{finds} finds, each in the corpus of its target now");
    Ok(())
}

/// Runs every target with the same inputs each time, for CI; only finds are recorded.
pub(crate) fn try_each() -> Outcome {
    let programs = build::targets(&crate::root())
        .map_err(|error| Unbuilt::Failed(format!("{error:#}")))
        .and_then(|targets| Ok((build::build(&targets, false)?, targets)));
    let (programs, targets) = match programs {
        Ok(built) => built,
        Err(Unbuilt::Lacking(what)) => return Outcome::skipped(what),
        Err(Unbuilt::Failed(why)) => return Outcome::failed(why),
    };
    let started = Started { sanitizer: false, is_kept: false, runs: Some(CI_RUNS) };
    let lines = run_targets(&programs, targets.clone(), CI_TIME_MAX, cores(), &started);
    let idle: Vec<&str> = targets
        .iter()
        .filter(|target| !lines.iter().any(|line| line.target == **target && line.executions > 0))
        .map(String::as_str)
        .collect();
    let finds: Vec<String> = lines
        .iter()
        .flat_map(|line| line.finds.iter().map(|find| format!("{}/{find}", line.target)))
        .collect();
    let runs: u64 = lines.iter().map(|line| line.executions).sum();
    let mut note = format!("{} runs", grouped(runs));
    if !finds.is_empty() {
        note = format!("found: {}", finds.join(", "));
    } else if !idle.is_empty() {
        note = format!("did not run: {}", idle.join(", "));
    }
    let failed = lines.iter().filter(|line| !line.finds.is_empty()).count() + idle.len();
    let passed = targets.len().saturating_sub(failed);
    Outcome { passed: passed as u64, failed: failed as u64, skipped: 0, note }
}

/// The common state of all targets of one call.
struct Started {
    sanitizer: bool,
    is_kept: bool,
    /// So many runs of the same inputs each time, instead of other ones for some time.
    runs: Option<u64>,
}

/// Runs the targets in turn, `jobs` at a time, each for `time`; a target with a find is not run
/// again, since it would find the same.
fn run_targets(
    programs: &build::Programs,
    targets: Vec<String>,
    time: Duration,
    jobs: usize,
    started: &Started,
) -> Vec<Line> {
    let new = |target: String| (Line::begin(&target, programs, started.sanitizer), time);
    let queue: Mutex<VecDeque<(Line, Duration)>> =
        Mutex::new(targets.into_iter().map(new).collect());
    let ended: Mutex<Vec<Line>> = Mutex::default();
    let next = || lock(&queue).pop_front();
    let work = || {
        while let Some((mut line, left)) = next() {
            let turn = left.min(ROUND);
            if turn.is_zero() || process::is_interrupted() {
                lock(&ended).push(line);
                continue;
            }
            let is_over = round::run(programs, &mut line, turn, started.runs);
            println!("{line}");
            if started.is_kept
                && let Err(error) = ledger::note(&crate::root(), &line)
            {
                eprintln!("fuzz: not written down: {error:#}");
            }
            let is_over = is_over || started.runs.is_some();
            let left = if is_over { Duration::ZERO } else { left.saturating_sub(turn) };
            lock(&queue).push_back((line, left));
        }
    };
    process::at_once(jobs, work);
    ended.into_inner().unwrap_or_else(PoisonError::into_inner)
}

/// The requested targets; all of them if none was named.
fn chosen(targets: &[String], only: &[String]) -> Result<Vec<String>> {
    if let Some(name) = only.iter().find(|name| !targets.contains(name)) {
        bail!("there is no target \"{name}\": {}", targets.join(", "));
    }
    let is_asked = |target: &&String| only.is_empty() || only.contains(target);
    Ok(targets.iter().filter(is_asked).cloned().collect())
}

fn directory() -> PathBuf {
    crate::root().join("fuzz")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_chosen_by_name() {
        let all = ["a".to_owned(), "b".to_owned()];
        assert_eq!(chosen(&all, &[]).unwrap(), all);
        assert_eq!(chosen(&all, &["b".to_owned()]).unwrap(), ["b"]);
        let error = chosen(&all, &["c".to_owned()]).unwrap_err().to_string();
        assert!(error.contains("\"c\"") && error.contains("a, b"), "{error}");
    }

    #[test]
    fn every_target_has_a_body_a_corpus_and_a_test() {
        let root = crate::root();
        let read = |path: &str| std::fs::read_to_string(root.join(path)).unwrap();
        let tests = read("crates/ground/simurgh-proto/tests/it/fuzz_corpus.rs")
            + &read("crates/load/simurgh-load/tests/it/fuzz_corpus.rs")
            + &read("crates/core/simurgh-history/tests/it/fuzz_corpus.rs")
            + &read("crates/core/simurgh-presence/tests/it/fuzz_corpus.rs")
            + &read("crates/core/simurgh-cluster/tests/it/fuzz_corpus.rs")
            + &read("crates/server/simurgh-token/tests/it/fuzz_corpus.rs")
            + &read("crates/server/simurgh-nats/src/wire/tests.rs")
            + &read("crates/core/simurgh-core/src/registry/tests.rs")
            + &read("crates/core/simurgh-sim/src/fuzz.rs");
        let targets = build::targets(&root).unwrap();
        assert!(targets.len() >= 11, "{targets:?}");
        for target in targets {
            let entry = read(&format!("fuzz/fuzz_targets/{target}.rs"));
            assert!(entry.contains("fuzz_target!"), "{target}");
            assert!(tests.contains(&format!("run(\"{target}\", ")), "no test runs {target}");
            let inputs = corpus::inputs(&corpus::kept(&target));
            assert!(inputs.len() <= corpus::INPUTS_MAX, "{target}: {} inputs", inputs.len());
        }
    }
}
