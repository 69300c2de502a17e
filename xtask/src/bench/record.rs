//! The result of a run of the whole table: `run.json`, from which the comparison and the tables of
//! docs/BENCHMARKS.md are made. The tools' raw files are beside it.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
use simurgh_bench_kit::machine::Machine;

use crate::files;

/// Where runs are kept, from the repository's root.
pub(crate) const RUNS: &str = "bench/runs";
/// The name of a run's directory, within the one of its day and machine.
pub(crate) const STEM: &str = "all";
/// The file of a run with all compared measures.
pub(crate) const FILE: &str = "run.json";

/// A run of the whole table, complete or not.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Record {
    /// `yyyy-mm-dd`, UTC.
    pub(crate) date: String,
    pub(crate) unix_seconds: u64,
    /// The commit of the measured sources.
    pub(crate) commit: String,
    pub(crate) machine: Machine,
    pub(crate) command: String,
    /// Fewer and smaller runs, which are only compared with other short ones.
    pub(crate) short: bool,
    pub(crate) parts: Vec<Part>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Part {
    pub(crate) name: String,
    /// Why it failed, was left out or was interrupted; `None` if it is complete.
    pub(crate) failure: Option<String>,
    pub(crate) seconds: f64,
    /// The commands, without the paths of one machine.
    pub(crate) commands: Vec<String>,
    /// Raw files, by their names beside this one.
    pub(crate) files: Vec<String>,
    pub(crate) measures: Vec<Measure>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Better {
    #[default]
    Lower,
    Higher,
}

/// One measure: a value of each run, beside the floor's.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Measure {
    pub(crate) name: String,
    /// The unit of `values` and `floor`.
    pub(crate) unit: String,
    pub(crate) better: Better,
    /// The size it was measured at. Only measures of equal size are compared.
    pub(crate) size: String,
    pub(crate) values: Vec<f64>,
    /// The floor's values in the same run; may have another number of runs.
    pub(crate) floor: Vec<f64>,
    /// Each run ÷ the floor beside it; empty without a floor.
    pub(crate) ratios: Vec<f64>,
    /// The limit of the median: of the ratios if there are any, else of the values.
    pub(crate) limit: Option<f64>,
    /// Whether it is independent of the machine's current speed: bytes, counts.
    pub(crate) steady: bool,
}

impl Measure {
    /// The values that are compared from day to day: ratios if there are any.
    pub(crate) fn compared(&self) -> &[f64] {
        if self.ratios.is_empty() { &self.values } else { &self.ratios }
    }

    /// Divides each run by the run of the floor with the same number.
    pub(crate) fn over_floor(mut self, floor: Vec<f64>) -> Self {
        let pairs = self.values.iter().zip(&floor).filter(|(_, floor)| **floor > 0.0);
        self.ratios = pairs.map(|(value, floor)| value / floor).collect();
        self.floor = floor;
        self
    }
}

impl Record {
    pub(crate) fn read(path: &Path) -> Result<Self> {
        serde_json::from_str(&files::text(path)?).with_context(|| path.display().to_string())
    }

    /// Writes it into `directory`, over the state before.
    pub(crate) fn write(&self, directory: &Path) -> Result<()> {
        files::replace(&directory.join(FILE), &(serde_json::to_string_pretty(self)? + "\n"))
    }

    pub(crate) fn measures(&self) -> impl Iterator<Item = (&str, &Measure)> {
        self.parts
            .iter()
            .flat_map(|part| part.measures.iter().map(|measure| (part.name.as_str(), measure)))
    }
}

/// Makes the directory of a new run: `RUNS/DATE-MACHINE/all`, `all-2` and so on.
pub(crate) fn new_directory(runs: &Path, day_and_machine: &str) -> Result<PathBuf> {
    let day = runs.join(day_and_machine);
    fs::create_dir_all(&day).with_context(|| day.display().to_string())?;
    for number in 1..1000 {
        let name = if number == 1 { STEM.to_owned() } else { format!("{STEM}-{number}") };
        let directory = day.join(name);
        match fs::create_dir(&directory) {
            Ok(()) => return Ok(directory),
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error).with_context(|| directory.display().to_string()),
        }
    }
    bail!("a thousand runs in one day")
}

/// Runs of the same machine before this one, the newest first. Unreadable ones are reported and
/// skipped: a damaged old file must not lose a new run.
pub(crate) fn earlier(runs: &Path, record: &Record) -> Vec<(PathBuf, Record)> {
    let days =
        fs::read_dir(runs).into_iter().flatten().filter_map(|entry| Some(entry.ok()?.path()));
    let directories = days.flat_map(|day| fs::read_dir(day).into_iter().flatten());
    let mut found: Vec<(PathBuf, Record)> = directories
        .filter_map(|entry| Some(entry.ok()?.path().join(FILE)))
        .filter(|path| path.is_file())
        .filter_map(|path| match Record::read(&path) {
            Ok(earlier) => Some((path, earlier)),
            Err(error) => {
                eprintln!("passed over: {error:#}");
                None
            }
        })
        .filter(|(_, earlier)| {
            earlier.unix_seconds < record.unix_seconds
                && earlier.short == record.short
                && earlier.machine.is_same(&record.machine)
        })
        .collect();
    found.sort_by_key(|(_, earlier)| std::cmp::Reverse(earlier.unix_seconds));
    found
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn record(unix_seconds: u64, measures: Vec<Measure>) -> Record {
        let part = Part { name: "server".into(), measures, ..Part::default() };
        Record { unix_seconds, parts: vec![part], ..Record::default() }
    }

    pub(crate) fn ratios(name: &str, ratios: &[f64]) -> Measure {
        let (name, ratios) = (name.to_owned(), ratios.to_vec());
        Measure { name, values: ratios.clone(), ratios, ..Measure::default() }
    }

    /// A directory of one test, removed on drop.
    pub(crate) struct Scratch(pub(crate) PathBuf);

    impl Scratch {
        pub(crate) fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("xtask-{name}-{}", std::process::id()));
            let _ = fs::remove_dir_all(&path);
            fs::create_dir_all(&path).unwrap();
            Self(path)
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn nothing_is_written_over() {
        let runs = Scratch::new("new-directory");
        let first = new_directory(&runs.0, "2026-01-02-box").unwrap();
        let second = new_directory(&runs.0, "2026-01-02-box").unwrap();
        assert!(first.ends_with("2026-01-02-box/all"), "{}", first.display());
        assert!(second.ends_with("2026-01-02-box/all-2"), "{}", second.display());
    }

    #[test]
    fn what_is_compared_is_the_newest_run_of_this_machine_and_kind() {
        let runs = Scratch::new("earlier");
        let mut all: Vec<Record> = (1..=5).map(|at| record(at, vec![])).collect();
        all[2].machine.processor = "another".into();
        all[3].short = true;
        for record in &all {
            let directory = new_directory(&runs.0, &format!("day-{}", record.unix_seconds));
            record.write(&directory.unwrap()).unwrap();
        }
        let damaged = new_directory(&runs.0, "day-9").unwrap();
        fs::write(damaged.join(FILE), "{\"date\": ").unwrap();
        let found = earlier(&runs.0, &all[4]);
        let seconds: Vec<u64> = found.iter().map(|(_, record)| record.unix_seconds).collect();
        assert_eq!(seconds, [2, 1]);
    }

    #[test]
    fn a_record_is_read_as_it_was_written() {
        let scratch = Scratch::new("record");
        let measure = Measure { limit: Some(1.1), ..ratios("x", &[1.0, 0.1 + 0.2]) };
        let mut written = record(7, vec![measure.over_floor(vec![2.0, 0.0])]);
        written.parts[0].failure = Some("interrupted".into());
        written.write(&scratch.0).unwrap();
        assert_eq!(Record::read(&scratch.0.join(FILE)).unwrap(), written);
        assert_eq!(written.parts[0].measures[0].ratios, [0.5], "a floor of 0 divides nothing");
    }
}
