//! What one client can take from the others: the server is attacked as in the rows of [`JOBS`], and
//! the table says what became of everybody else. README.md says how each figure comes about.
//!
//! That somebody is cut, or that the server ends, is a result; only a message that arrives and is
//! not what was sent, or a row that could not be run, is an error.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use serde::Serialize;

use self::server::{How, Served};
use crate::target::CLIENT_CORE;
use crate::{report, stats, sys};

mod bystander;
mod crowd;
mod cursors;
mod flood;
mod inbound;
mod long;
mod memory;
mod server;
mod silent;
mod suspended;
mod table;
mod talk;

/// What `--only` takes.
pub(crate) const ROWS: [&str; 6] =
    ["flood", "cursors", "never-reads", "inbound", "suspended", "long-message"];

/// Options of the measurement.
#[derive(Debug, PartialEq)]
pub(crate) struct Options {
    /// Some of [`ROWS`].
    pub(crate) only: Vec<String>,
    /// Rounds.
    pub(crate) runs: usize,
    /// Small and short.
    pub(crate) short: bool,
    /// The server under attack.
    pub(crate) server_bin: Option<PathBuf>,
    /// Where raw figures go.
    pub(crate) out: Option<PathBuf>,
}

impl Options {
    /// `full`, or `short`.
    fn size<T>(&self, full: T, short: T) -> T {
        if self.short { short } else { full }
    }
}

/// What one row showed in one round.
#[derive(Debug, Default, Serialize)]
struct Sample {
    round: usize,
    row: &'static str,
    /// Figures by name; [`table`] knows what they mean.
    figures: BTreeMap<String, f64>,
    /// What explains a figure.
    notes: Vec<String>,
    /// What makes the figures invalid.
    faults: Vec<String>,
    seconds: f64,
    /// Waiting and running tasks of the machine before it (load average of a minute).
    load_average: f64,
}

impl Sample {
    fn put(&mut self, name: impl Into<String>, value: f64) {
        self.figures.insert(name.into(), value);
    }

    fn put_some(&mut self, name: impl Into<String>, value: Option<f64>) {
        if let Some(value) = value {
            self.put(name, value);
        }
    }

    fn put_count(&mut self, name: impl Into<String>, count: usize) {
        self.put(name, stats::per(count, 1));
    }

    fn note(&mut self, note: impl Into<String>) {
        self.notes.push(note.into());
    }

    /// Messages that arrived and were not what was sent.
    fn hold_against(&mut self, what: &str, wrong: u64) {
        if wrong > 0 {
            self.faults.push(format!("{what}: {wrong} messages were not what was sent"));
        }
    }
}

/// What all rows need.
struct Bench<'a> {
    options: &'a Options,
    program: PathBuf,
    scratch: PathBuf,
}

impl Bench<'_> {
    /// A fresh server.
    fn serve(&self, how: How) -> Result<Served> {
        Served::start(&self.program, &self.scratch, how)
    }
}

type Job = fn(&Bench<'_>, &mut Sample) -> Result<()>;

/// The rows in their order.
const JOBS: [(&str, Job); 6] = [
    ("flood", flood::run),
    ("cursors", cursors::run),
    ("never-reads", silent::run),
    ("inbound", inbound::run),
    ("suspended", suspended::run),
    ("long-message", long::run),
];

/// Measures, prints and keeps it. A missed limit is only shown.
pub(crate) fn run(options: &Options) -> Result<()> {
    let limit = sys::raise_descriptor_limit()?.saturating_sub(sys::FD_RESERVE);
    let wanted = options.size(u64::try_from(suspended::CLIENTS)?, 1_200);
    ensure!(limit >= wanted, "{wanted} clients want as many descriptors; {limit} may be had");
    let cores = std::thread::available_parallelism()?.get();
    ensure!(cores > 1, "server and clients need a core each");
    sys::pin(CLIENT_CORE)?;
    let own = std::env::current_exe().context("own path")?;
    let program = options.server_bin.clone().unwrap_or_else(|| own.with_file_name("simurgh"));
    let scratch = std::env::temp_dir().join(format!("simurgh-bench-{}", std::process::id()));
    fs::create_dir_all(&scratch)?;
    let bench = Bench { options, program, scratch };
    let mut samples = Vec::new();
    for round in 1..=options.runs {
        for (row, job) in JOBS {
            if options.only.iter().any(|only| only == row) {
                samples.push(measured(&bench, round, row, job));
            }
        }
    }
    let rows = table::rows(options, &samples);
    println!("{}{}", table::text(&rows), table::remarks(&samples));
    let out = options.out.clone().unwrap_or_else(report::default_out);
    let path = table::write(&out, options, &samples, &rows)?;
    println!("raw runs: {}", path.display());
    let faults = samples.iter().map(|sample| sample.faults.len()).sum::<usize>();
    match faults {
        // What the servers logged is only worth keeping when something went wrong.
        0 => fs::remove_dir_all(&bench.scratch)?,
        _ => println!("what the servers logged: {}", bench.scratch.display()),
    }
    ensure!(faults == 0, "{faults} faults, see above: these figures are not valid");
    Ok(())
}

fn measured(bench: &Bench<'_>, round: usize, row: &'static str, job: Job) -> Sample {
    let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let load = load.split_whitespace().next().and_then(|load| load.parse().ok());
    let mut sample = Sample { round, row, ..Sample::default() };
    sample.load_average = load.unwrap_or(f64::NAN);
    eprintln!("round {round}, {row} …");
    let begun = Instant::now();
    if let Err(error) = job(bench, &mut sample) {
        sample.faults.push(format!("{error:#}"));
    }
    sample.seconds = begun.elapsed().as_secs_f64();
    for (name, value) in &sample.figures {
        eprintln!("    {name} {value:.2}");
    }
    for line in sample.notes.iter().chain(&sample.faults) {
        eprintln!("    {line}");
    }
    eprintln!("    {:.0} s", sample.seconds);
    sample
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_delivery_is_a_fault_and_a_cut_is_a_figure() {
        let mut sample = Sample::default();
        sample.put("flood_cut", 100.0);
        sample.hold_against("flood", 0);
        assert!(sample.faults.is_empty());
        sample.hold_against("flood", 2);
        assert_eq!(sample.faults.len(), 1);
        assert!(table::remarks(&[sample]).contains("FAULT"));
    }

    #[test]
    fn every_row_has_a_job() {
        assert_eq!(JOBS.map(|(row, _)| row), ROWS);
    }
}
