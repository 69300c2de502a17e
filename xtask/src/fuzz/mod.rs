//! `cargo xtask fuzz`: every target of `fuzz/`, guided by coverage.
//!
//! `build` makes the programs, a `round` runs one of them for some minutes, `corpus` has the
//! initial inputs and keeps finds.

mod build;
mod corpus;
mod round;

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use simurgh_text::format::grouped;

use crate::outcome::{Outcome, Skipped};
use crate::process::{self, cores, lock};
use round::Ran;

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
    /// Then adds to the corpus what reaches code that nothing in it reaches
    #[arg(long)]
    merge: bool,
}

pub(crate) fn run(options: &Options) -> Result<()> {
    process::end_on_ctrl_c()?;
    let targets = chosen(&build::targets(&crate::root())?, &options.only)?;
    let programs = match build::build(&targets, options.address) {
        Err(why) if why.is::<Skipped>() => {
            println!("SKIPPED: {why}");
            return Ok(());
        }
        built => built?,
    };
    let seconds = options.minutes.max(0.0) * 60.0;
    let time = Duration::try_from_secs_f64(seconds).context("--minutes")?;
    let jobs = options.jobs.unwrap_or_else(cores);
    let (_, failed) = run_targets(&programs, targets.clone(), time, jobs, None);
    if options.merge && !process::is_interrupted() {
        for target in &targets {
            corpus::merge(&programs, target)?;
        }
    }
    ensure!(failed.is_empty(), "{}", failed.join("\n"));
    Ok(())
}

/// Runs every target with the same inputs each time, for CI.
pub(crate) fn try_each() -> Result<Outcome> {
    let targets = build::targets(&crate::root())?;
    let programs = build::build(&targets, false)?;
    let count = targets.len() as u64;
    let (all, failed) = run_targets(&programs, targets, CI_TIME_MAX, cores(), Some(CI_RUNS));
    let runs: u64 = all.iter().map(|ran| ran.executions).sum();
    let note = match failed.is_empty() {
        true => format!("{} runs", grouped(runs)),
        false => failed.join("; "),
    };
    let failed = failed.len() as u64;
    let passed = count.saturating_sub(failed);
    Ok(Outcome { passed, failed, note, ..Outcome::default() })
}

/// Runs the targets, `jobs` at a time, each for `time`; or so many times, with the same inputs each
/// time. The second list says which targets failed, and at what.
fn run_targets(
    programs: &build::Programs,
    targets: Vec<String>,
    time: Duration,
    jobs: usize,
    runs: Option<u64>,
) -> (Vec<Ran>, Vec<String>) {
    let queue: Mutex<VecDeque<String>> = Mutex::new(targets.into());
    let ended: Mutex<(Vec<Ran>, Vec<String>)> = Mutex::default();
    let work = || {
        loop {
            let Some(target) = lock(&queue).pop_front() else { return };
            if time.is_zero() || process::is_interrupted() {
                continue;
            }
            let ran = round::run(programs, target.clone(), time, runs);
            let why = match &ran {
                Err(error) => Some(format!("{error:#}")),
                Ok(Ran { find: Some(find), .. }) => Some(format!("found {}", find.display())),
                Ok(Ran { executions: 0, .. }) => Some("did not run".to_owned()),
                Ok(_) => None,
            };
            let mut ended = lock(&ended);
            ended.1.extend(why.map(|why| format!("{target}: {why}")));
            ended.0.extend(ran.inspect(|ran| println!("{ran}")));
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
            + &read("crates/server/simurgh-hooks/src/answer/fuzz.rs")
            + &read("crates/data/simurgh-tls/src/record/fuzz.rs")
            + &read("crates/data/simurgh-tls/tests/it/fuzz_corpus.rs")
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
