//! What presence costs: a crowd that comes to one topic, one of it that leaves, a crowd that is
//! told by its number, memory. README.md says how each figure comes about.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use serde::Serialize;

use self::server::{How, Served};
use crate::target::CLIENT_CORE;
use crate::{report, stats, sys};

mod clients;
mod crowd;
pub(crate) mod floor;
mod heads;
mod million;
mod server;
mod summary;
mod table;

/// What `--only` takes.
pub(crate) const ROWS: [&str; 5] = ["crowd", "leave", "summary", "memory", "million"];
/// What is measured without it: `million` wants memory for a million sockets and some minutes.
pub(crate) const USUAL_ROWS: [&str; 4] = ["crowd", "leave", "summary", "memory"];

/// Options of the measurement.
#[derive(Debug, PartialEq)]
pub(crate) struct Options {
    /// Some of [`ROWS`].
    pub(crate) only: Vec<String>,
    /// Rounds.
    pub(crate) runs: usize,
    /// Small.
    pub(crate) short: bool,
    /// The server under test.
    pub(crate) server_bin: Option<PathBuf>,
    /// Where raw figures go.
    pub(crate) out: Option<PathBuf>,
}

/// What one row showed in one round.
#[derive(Debug, Default, Serialize)]
struct Sample {
    round: usize,
    row: &'static str,
    /// Figures by name; [`table`] knows what they mean.
    figures: BTreeMap<String, f64>,
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

    fn put_count(&mut self, name: impl Into<String>, count: usize) {
        self.put(name, stats::per(count, 1));
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
const JOBS: [(&str, Job); 5] = [
    ("crowd", crowd::run),
    ("leave", crowd::leave),
    ("summary", summary::run),
    ("memory", summary::memory),
    ("million", million::run),
];

/// Measures, prints and keeps it. A missed limit is only shown.
pub(crate) fn run(options: &Options) -> Result<()> {
    let limit = sys::raise_descriptor_limit()?.saturating_sub(sys::FD_RESERVE);
    let wanted = if options.short { 3_000 } else { 18_000 };
    ensure!(limit >= wanted, "{wanted} clients want as many descriptors; {limit} may be had");
    let cores = std::thread::available_parallelism()?.get();
    ensure!(cores > 1, "server and clients need a core each");
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
    // The driven sockets of `million` and their server are one process, on all cores.
    let pinned = if row == "million" { Ok(()) } else { sys::pin(CLIENT_CORE) };
    if let Err(error) = pinned.and_then(|()| job(bench, &mut sample)) {
        sample.faults.push(format!("{error:#}"));
    }
    sample.seconds = begun.elapsed().as_secs_f64();
    for (name, value) in &sample.figures {
        eprintln!("    {name} {value:.3}");
    }
    for line in &sample.faults {
        eprintln!("    {line}");
    }
    eprintln!("    {:.0} s", sample.seconds);
    sample
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_has_a_job() {
        assert_eq!(JOBS.map(|(row, _)| row), ROWS);
        assert!(USUAL_ROWS.iter().all(|row| ROWS.contains(row)));
    }
}
