//! Runs a fuzz target for some minutes and handles its finds.

use std::fmt;
use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use simurgh_text::format::grouped;

use crate::process::Task;

use super::build::Programs;
use super::corpus;

/// Longer inputs reach little more, and each takes longer.
const INPUT_BYTES_MAX: &str = "-max_len=4096";
/// An input that takes longer is a find, on an instrumented program and a busy machine.
const SECONDS_MAX: &str = "-timeout=5";
const MEMORY: &str = "-rss_limit_mb=2048";
/// Time beside the run: reading the corpus, writing the last lines.
const SLACK: Duration = Duration::from_secs(120);
/// libFuzzer's message with the path of a find.
const WRITTEN: &str = "Test unit written to ";

/// The run of a target, and its results.
pub(super) struct Ran {
    pub(super) target: String,
    seconds: f64,
    pub(super) executions: u64,
    /// Edges of the program that the whole corpus reaches.
    edges: u64,
    /// An input at which the target failed, in the corpus.
    pub(super) find: Option<PathBuf>,
}

impl fmt::Display for Ran {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let a_second = (self.executions as f64 / self.seconds.max(0.01)).round() as u64;
        write!(
            f,
            "{:14} {:>6.0} s  {:>13} runs, {:>7} a second  {:>6} edges",
            self.target,
            self.seconds,
            grouped(self.executions),
            grouped(a_second),
            grouped(self.edges),
        )?;
        self.find.iter().try_for_each(|find| write!(f, "  FOUND {}", find.display()))
    }
}

/// Runs a target for `time`. With `runs` only so many, of the same inputs each time.
pub(super) fn run(
    programs: &Programs,
    target: String,
    time: Duration,
    runs: Option<u64>,
) -> Result<Ran> {
    let working = corpus::working(&target);
    fs::create_dir_all(&working).with_context(|| working.display().to_string())?;
    let kept = corpus::kept(&target).display().to_string();
    let mut arguments = vec![
        format!("-max_total_time={}", time.as_secs().max(1)),
        INPUT_BYTES_MAX.to_owned(),
        SECONDS_MAX.to_owned(),
        MEMORY.to_owned(),
        "-print_final_stats=1".to_owned(),
        // The tests run through a find from then on.
        format!("-artifact_prefix={kept}/"),
    ];
    let words = super::directory().join("dictionaries").join(&target);
    arguments.extend(words.exists().then(|| format!("-dict={}", words.display())));
    if let Some(runs) = runs {
        arguments.extend(["-seed=1".to_owned(), format!("-runs={runs}")]);
    }
    // New inputs go into the first directory.
    arguments.push(working.display().to_string());
    arguments.push(kept);
    let start = Instant::now();
    let done = Task::new(&programs.path(&target), &arguments, 0).within(time + SLACK).quiet().run();
    let seen = Seen::read(&done.output);
    let Seen { executions, edges, artifact } = seen;
    let seconds = start.elapsed().as_secs_f64();
    let mut ran = Ran { target, seconds, executions, edges, find: None };
    // An overrun may only mean that it was suspended.
    if done.ok() || done.failure.is_some() {
        return Ok(ran);
    }
    let artifact =
        artifact.with_context(|| format!("{}\nit does not run: {}", done.output, done.reason()))?;
    let alone = [SECONDS_MAX.to_owned(), MEMORY.to_owned(), artifact.display().to_string()];
    let again = Task::new(&programs.path(&ran.target), &alone, 1).quiet().run();
    if again.ok() {
        // A machine that stops for some seconds looks like an input that takes long.
        println!("{}: {} does nothing wrong when it is alone", ran.target, artifact.display());
        fs::remove_file(&artifact)?;
    } else {
        println!("{}", again.output);
        ran.find = Some(artifact);
    }
    Ok(ran)
}

/// The statistics in a program's output.
#[derive(Debug, Default, PartialEq)]
struct Seen {
    executions: u64,
    edges: u64,
    artifact: Option<PathBuf>,
}

impl Seen {
    fn read(output: &str) -> Self {
        let mut seen = Self::default();
        for line in output.lines() {
            if let Some(rest) = line.strip_prefix("stat::number_of_executed_units:") {
                seen.executions = rest.trim().parse().unwrap_or(seen.executions);
            } else if let Some((_, path)) = line.split_once(WRITTEN) {
                seen.artifact = Some(PathBuf::from(path.trim()));
            } else if let Some(rest) = line.strip_prefix('#') {
                let words: Vec<&str> = rest.split_ascii_whitespace().collect();
                let after = |name: &str| {
                    let at = words.iter().position(|word| *word == name)?;
                    words.get(at + 1)?.split('/').next()?.parse().ok()
                };
                let number = words.first().and_then(|word| word.parse().ok());
                let (Some(runs), Some(edges)) = (number, after("cov:")) else { continue };
                (seen.executions, seen.edges) = (runs, edges);
            }
        }
        seen
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OUTPUT: &str = "INFO: seed corpus: files: 17 min: 1b max: 245b total: 1713b rss: 35Mb
#18\tINITED cov: 310 ft: 500 corp: 15/1542b exec/s: 0 rss: 36Mb
#262144\tpulse  cov: 322 ft: 805 corp: 97/6Kb lim: 241 exec/s: 131072 rss: 210Mb
#262200\tREDUCE cov: 323 ft: 806 corp: 98/6Kb lim: 241 exec/s: 131072 rss: 210Mb L: 5/9 MS: 1 X-
thread '<unnamed>' (7) panicked at fuzz/src/origin.rs:30:9:
http://h.com for Own
stack backtrace:
==7== ERROR: libFuzzer: deadly signal
stat::number_of_executed_units: 262345
artifact_prefix='x/'; Test unit written to fuzz/artifacts/origin/crash-0a1b
";

    #[test]
    fn fuzzer_output_is_parsed() {
        let seen = Seen::read(OUTPUT);
        let artifact = Some("fuzz/artifacts/origin/crash-0a1b".into());
        let wanted = Seen { executions: 262_345, edges: 323, artifact };
        assert_eq!(seen, wanted);
        // A killed program has no message, only its last line.
        let cut = OUTPUT.split("thread").next().unwrap();
        assert_eq!(Seen::read(cut).executions, 262_200);
        assert_eq!(Seen::read(""), Seen::default());
    }
}
