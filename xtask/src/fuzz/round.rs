//! Runs a fuzz target for some minutes and handles its finds.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::process::{self, Finished, Task};

use super::build::Programs;
use super::corpus;
use super::ledger::Line;

/// Longer inputs reach little more, and each takes longer.
const INPUT_BYTES_MAX: &str = "-max_len=4096";
/// An input that takes longer is a find, on an instrumented program and a busy machine.
const SECONDS_MAX: &str = "-timeout=5";
const MEMORY: &str = "-rss_limit_mb=2048";
/// Time for minimizing a find.
const SHRINKING: Duration = Duration::from_secs(30);
/// Time beside the run: reading the corpus, writing the last lines.
const SLACK: Duration = Duration::from_secs(120);
/// libFuzzer's message with the path of a find.
const WRITTEN: &str = "Test unit written to ";

/// Runs the target of `line` for `time` and adds the results; `true` if it is not to run again.
/// With `runs` only so many, of the same inputs each time.
pub(super) fn run(programs: &Programs, line: &mut Line, time: Duration, runs: Option<u64>) -> bool {
    let target = line.target.clone();
    let working = corpus::working(&target);
    let artifacts = corpus::artifacts(&target);
    for directory in [&working, &artifacts] {
        if let Err(error) = fs::create_dir_all(directory) {
            eprintln!("{}: {error}", directory.display());
            return true;
        }
    }
    let mut arguments = vec![
        format!("-max_total_time={}", time.as_secs().max(1)),
        INPUT_BYTES_MAX.to_owned(),
        SECONDS_MAX.to_owned(),
        MEMORY.to_owned(),
        "-print_final_stats=1".to_owned(),
        format!("-artifact_prefix={}/", artifacts.display()),
    ];
    let words = super::directory().join("dictionaries").join(&target);
    arguments.extend(words.exists().then(|| format!("-dict={}", words.display())));
    if let Some(runs) = runs {
        arguments.extend(["-seed=1".to_owned(), format!("-runs={runs}")]);
    }
    // New inputs go into the first directory.
    arguments.push(working.display().to_string());
    arguments.push(corpus::kept(&target).display().to_string());
    let start = Instant::now();
    let done = Task::new(&programs.path(&target), &arguments, 0).within(time + SLACK).quiet().run();
    let to_hundredths = |seconds: f64| (seconds * 100.0).round() / 100.0;
    line.seconds = to_hundredths(line.seconds + start.elapsed().as_secs_f64());
    line.cpu_seconds = to_hundredths(line.cpu_seconds + done.cpu_seconds);
    let seen = Seen::read(&done.output);
    line.executions += seen.executions;
    // The last round has the corpus's current coverage.
    if seen.edges > 0 {
        (line.edges, line.features, line.inputs) = (seen.edges, seen.features, seen.inputs);
    }
    if done.ok() || done.failure.is_some() {
        // An overrun may only mean that it was suspended: the next round is another try.
        return process::is_interrupted();
    }
    match seen.artifact {
        Some(artifact) => settle(programs, line, &artifact, &done.output),
        None => {
            println!("{}\n{target} does not run: {}", done.output, done.reason());
            true
        }
    }
}

/// The statistics in a program's output.
#[derive(Debug, Default, PartialEq)]
struct Seen {
    executions: u64,
    edges: u64,
    features: u64,
    inputs: u64,
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
                seen.features = after("ft:").unwrap_or(seen.features);
                seen.inputs = after("corp:").unwrap_or(seen.inputs);
            }
        }
        seen
    }
}

/// Puts a find into the corpus if it can be reproduced; returns whether it was.
fn settle(programs: &Programs, line: &mut Line, artifact: &Path, output: &str) -> bool {
    let again = replay(programs, &line.target, artifact);
    if again.ok() {
        // A machine that stops for some seconds looks like an input that takes long.
        println!("{}: {} does nothing wrong when it is alone", line.target, artifact.display());
        return false;
    }
    let shrunk = shrink(programs, &line.target, artifact);
    let smallest = shrunk.as_deref().unwrap_or(artifact);
    let said = what(&again.output).or_else(|| what(output)).unwrap_or("it says nothing");
    let name = corpus::name_of_find(artifact, said);
    println!("{}\n{}: {said}", again.output, line.target);
    match corpus::keep(&line.target, &name, smallest) {
        Ok(path) => println!(
            "kept as {}: name it after what is right, mend the cause, and say it in a unit test",
            path.display()
        ),
        Err(error) => eprintln!("{}: {error}", artifact.display()),
    }
    line.finds.push(name);
    true
}

fn replay(programs: &Programs, target: &str, input: &Path) -> Finished {
    let arguments = [SECONDS_MAX.to_owned(), MEMORY.to_owned(), input.display().to_string()];
    Task::new(&programs.path(target), &arguments, 1).quiet().run()
}

/// A smaller input at which the same program fails.
fn shrink(programs: &Programs, target: &str, input: &Path) -> Option<PathBuf> {
    let smaller = input.with_extension("smaller");
    let arguments = [
        "-minimize_crash=1".to_owned(),
        format!("-max_total_time={}", SHRINKING.as_secs()),
        SECONDS_MAX.to_owned(),
        MEMORY.to_owned(),
        format!("-exact_artifact_path={}", smaller.display()),
        input.display().to_string(),
    ];
    let limit = SHRINKING + SLACK;
    Task::new(&programs.path(target), &arguments, 0).within(limit).quiet().run();
    let is_find = smaller.exists() && !replay(programs, target, &smaller).ok();
    is_find.then_some(smaller)
}

/// The panic's message, or libFuzzer's last one.
fn what(output: &str) -> Option<&str> {
    let mut lines = output.lines();
    let panicked = lines.find(|line| line.contains("panicked at ")).and_then(|_| lines.next());
    let error = || output.lines().find_map(|line| line.split_once("ERROR: ").map(|(_, it)| it));
    panicked.or_else(error)
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
    fn what_a_program_says_is_read() {
        let seen = Seen::read(OUTPUT);
        let artifact = Some("fuzz/artifacts/origin/crash-0a1b".into());
        let wanted = Seen { executions: 262_345, edges: 323, features: 806, inputs: 98, artifact };
        assert_eq!(seen, wanted);
        assert_eq!(what(OUTPUT), Some("http://h.com for Own"));
        assert_eq!(what("==7== ERROR: libFuzzer: timeout\n"), Some("libFuzzer: timeout"));
        // A killed program has no message, only its last line.
        let cut = OUTPUT.split("thread").next().unwrap();
        assert_eq!(Seen::read(cut).executions, 262_200);
        assert_eq!(Seen::read(""), Seen::default());
    }
}
