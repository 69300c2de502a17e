//! The total running time of each target and its results: `fuzz/runs/<target>.jsonl` has a line for
//! each call of `cargo xtask fuzz`, docs/FUZZING.md has the sums.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use crate::pages::with_fresh_tables;
use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
use simurgh_bench_kit::machine::{commit, date, unix_seconds};
use simurgh_text::format::grouped;

use crate::files;

use super::build::{self, Programs};

const PAGE: &str = "docs/FUZZING.md";
/// The source of the page's table.
const SOURCE: &str = "fuzz/runs";

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Line {
    pub(super) target: String,
    /// `yyyy-mm-dd`, UTC.
    date: String,
    /// The start of the call, which identifies it.
    unix_seconds: u64,
    commit: String,
    compiler: String,
    address_sanitizer: bool,
    pub(super) seconds: f64,
    /// Processor time, which does not depend on other work of the machine.
    pub(super) cpu_seconds: f64,
    pub(super) executions: u64,
    /// Edges of the program that the whole corpus reaches; with the counts and comparisons that
    /// libFuzzer distinguishes they are features.
    pub(super) edges: u64,
    pub(super) features: u64,
    /// Inputs that reach all that, including those outside of the committed corpus.
    pub(super) inputs: u64,
    /// Names of inputs at which the target failed, as they were first kept.
    pub(super) finds: Vec<String>,
}

impl Line {
    pub(super) fn begin(target: &str, programs: &Programs, address_sanitizer: bool) -> Self {
        Self {
            target: target.to_owned(),
            date: date(),
            unix_seconds: unix_seconds(),
            commit: commit(),
            compiler: programs.compiler.clone(),
            address_sanitizer,
            ..Self::default()
        }
    }
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:14} {:>6.0} s of {:>6.0} s  {:>13} runs, {:>7} a second  {:>6} edges {:>6} features",
            self.target,
            self.cpu_seconds,
            self.seconds,
            grouped(self.executions),
            grouped(a_second(self.executions, self.cpu_seconds)),
            grouped(self.edges),
            grouped(self.features),
        )?;
        self.finds.iter().try_for_each(|find| write!(f, "  FOUND {find}"))
    }
}

/// Writes a line, replacing the one of the same call, and the table made of all lines.
pub(super) fn note(root: &Path, line: &Line) -> Result<()> {
    // Several targets run at a time.
    static PAGE_IS_WRITTEN: Mutex<()> = Mutex::new(());
    let _alone = PAGE_IS_WRITTEN.lock().unwrap_or_else(PoisonError::into_inner);
    keep(root, line)?;
    update_page(root).map(drop)
}

fn keep(root: &Path, line: &Line) -> Result<()> {
    let path = file(root, &line.target);
    let mut lines = read(root, &line.target)?;
    match lines.iter_mut().find(|known| known.unix_seconds == line.unix_seconds) {
        Some(known) => known.clone_from(line),
        None => lines.push(line.clone()),
    }
    let mut text = String::new();
    for line in &lines {
        text += &(serde_json::to_string(line)? + "\n");
    }
    files::directory(&root.join(SOURCE))?;
    files::replace(&path, &text)
}

/// All lines of a target; empty if it never ran.
fn read(root: &Path, target: &str) -> Result<Vec<Line>> {
    let path = file(root, target);
    if !path.exists() {
        return Ok(Vec::new());
    }
    let lines = files::text(&path)?;
    let read = lines.lines().map(serde_json::from_str).collect::<Result<_, _>>();
    read.with_context(|| path.display().to_string())
}

fn file(root: &Path, target: &str) -> PathBuf {
    root.join(SOURCE).join(format!("{target}.jsonl"))
}

/// Sorts the targets by their running time, the shortest first.
pub(super) fn least_run_first(mut targets: Vec<String>) -> Vec<String> {
    let root = crate::root();
    let ran = |target: &String| {
        let lines = read(&root, target).unwrap_or_default();
        lines.iter().map(|line| line.cpu_seconds).sum::<f64>() as u64
    };
    targets.sort_by_cached_key(ran);
    targets
}

pub(super) fn update_page(root: &Path) -> Result<String> {
    let path = root.join(PAGE);
    let text = fs::read_to_string(&path).context(PAGE)?;
    let fresh = page(root, &text)?;
    fs::write(&path, fresh).context(PAGE)?;
    table(root)
}

fn page(root: &Path, text: &str) -> Result<String> {
    with_fresh_tables(text, |source| match source.as_str() {
        SOURCE => table(root),
        _ => bail!("{PAGE} wants a table of {source:?}, which there is not"),
    })
}

fn table(root: &Path) -> Result<String> {
    let mut text = "| target | processor time | runs | a second | edges | features | finds |\n\
                    |---|---:|---:|---:|---:|---:|---:|\n"
        .to_owned();
    for target in build::targets(root)? {
        text += &row(&target, &read(root, &target)?);
    }
    Ok(text)
}

fn row(target: &str, lines: &[Line]) -> String {
    let seconds = lines.iter().fold(0.0, |sum, line| sum + line.cpu_seconds);
    let runs = lines.iter().map(|line| line.executions).sum();
    // Reached edges depend on the current code: take the last call that counted them.
    let last = lines.iter().rev().find(|line| line.edges > 0);
    let (edges, features) = last.map_or((0, 0), |line| (line.edges, line.features));
    format!(
        "| `{target}` | {:.0} min | {} | {} | {} | {} | {} |\n",
        seconds / 60.0,
        grouped(runs),
        grouped(a_second(runs, seconds)),
        grouped(edges),
        grouped(features),
        lines.iter().map(|line| line.finds.len()).sum::<usize>(),
    )
}

fn a_second(runs: u64, seconds: f64) -> u64 {
    if seconds > 0.0 { (runs as f64 / seconds).round() as u64 } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::record::tests::Scratch;

    fn line(unix_seconds: u64, executions: u64) -> Line {
        let target = "x".to_owned();
        let edges = executions / 10;
        Line { target, unix_seconds, executions, cpu_seconds: 60.0, edges, ..Line::default() }
    }

    #[test]
    fn rounds_of_one_call_are_one_line_and_calls_add_up() {
        let root = Scratch::new("fuzz-ledger");
        for line in [line(1, 100), line(2, 1000), line(1, 2000), line(3, 0)] {
            keep(&root.0, &line).unwrap();
        }
        let lines = read(&root.0, "x").unwrap();
        assert_eq!(lines, [line(1, 2000), line(2, 1000), line(3, 0)]);
        assert_eq!(row("x", &lines), "| `x` | 3 min | 3,000 | 17 | 100 | 0 | 0 |\n");
        assert_eq!(read(&root.0, "y").unwrap(), []);
        assert_eq!(row("y", &[]), "| `y` | 0 min | 0 | 0 | 0 | 0 | 0 |\n");
    }

    #[test]
    fn a_damaged_file_is_not_written_over() {
        let root = Scratch::new("fuzz-ledger-damaged");
        keep(&root.0, &line(1, 100)).unwrap();
        fs::write(file(&root.0, "x"), "{\"target\": ").unwrap();
        assert!(keep(&root.0, &line(2, 100)).is_err());
        assert_eq!(fs::read_to_string(file(&root.0, "x")).unwrap(), "{\"target\": ");
    }

    #[test]
    fn the_table_of_the_page_is_that_of_the_runs() {
        let root = crate::root();
        let text = fs::read_to_string(root.join(PAGE)).unwrap();
        assert!(text.contains(&format!("table: {SOURCE}")), "{PAGE} has lost its table");
        assert!(page(&root, &text).unwrap() == text, "{PAGE}: cargo xtask fuzz --table");
    }
}
