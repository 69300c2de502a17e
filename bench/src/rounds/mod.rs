//! A measurement of rows, again and again in rounds: each row of a round starts its own servers and
//! puts its figures under names; a table says what they mean and what they must reach.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use serde::Serialize;

use crate::target::CLIENT_CORE;
use crate::{report, stats, sys};

pub(crate) mod served;
pub(crate) mod table;

/// Options of a measurement.
#[derive(Debug, PartialEq)]
pub(crate) struct Options {
    /// Some of the rows.
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
pub(crate) struct Sample {
    pub(crate) round: usize,
    pub(crate) row: &'static str,
    /// Figures by name; the recipes know what they mean.
    pub(crate) figures: BTreeMap<String, f64>,
    /// What makes the figures invalid.
    pub(crate) faults: Vec<String>,
    seconds: f64,
    /// Waiting and running tasks of the machine before it (load average of a minute).
    pub(crate) load_average: f64,
}

impl Sample {
    pub(crate) fn put(&mut self, name: impl Into<String>, value: f64) {
        self.figures.insert(name.into(), value);
    }

    pub(crate) fn put_count(&mut self, name: impl Into<String>, count: usize) {
        self.put(name, stats::per(count, 1));
    }
}

/// What all rows need.
pub(crate) struct Bench<'a> {
    pub(crate) options: &'a Options,
    pub(crate) program: PathBuf,
    pub(crate) scratch: PathBuf,
}

impl Bench<'_> {
    /// Clients of a large crowd.
    pub(crate) fn crowd(&self) -> usize {
        crowd(self.options)
    }
}

fn crowd(options: &Options) -> usize {
    if options.short { 3_000 } else { 18_000 }
}

/// A row, and what measures it.
pub(crate) struct Job {
    pub(crate) row: &'static str,
    pub(crate) run: fn(&Bench<'_>, &mut Sample) -> Result<()>,
    /// Not only on the clients' core, because its server is within the clients' process.
    pub(crate) is_on_all_cores: bool,
}

impl Job {
    pub(crate) const fn new(
        row: &'static str,
        run: fn(&Bench<'_>, &mut Sample) -> Result<()>,
    ) -> Self {
        Self { row, run, is_on_all_cores: false }
    }
}

/// A measurement.
pub(crate) struct Suite {
    /// The command, and how its files begin.
    pub(crate) name: &'static str,
    /// The rows in their order.
    pub(crate) jobs: &'static [Job],
    /// Those that are measured unless others are named.
    pub(crate) usual: &'static [&'static str],
    /// The lines of the table.
    pub(crate) recipes: &'static [table::Recipe],
}

/// Measures, prints and keeps it. A missed limit is only shown.
pub(crate) fn run(suite: &Suite, options: &Options) -> Result<()> {
    let limit = sys::raise_descriptor_limit()?.saturating_sub(sys::FD_RESERVE);
    let wanted = crowd(options);
    ensure!(
        limit >= u64::try_from(wanted)?,
        "{wanted} clients want as many descriptors; {limit} may be had"
    );
    let cores = std::thread::available_parallelism()?.get();
    ensure!(cores > 1, "server and clients need a core each");
    let own = std::env::current_exe().context("own path")?;
    let program = options.server_bin.clone().unwrap_or_else(|| own.with_file_name("simurgh"));
    let scratch = std::env::temp_dir().join(format!("simurgh-bench-{}", std::process::id()));
    fs::create_dir_all(&scratch)?;
    let bench = Bench { options, program, scratch };
    let mut samples = Vec::new();
    for round in 1..=options.runs {
        for job in suite.jobs {
            if options.only.iter().any(|only| only == job.row) {
                samples.push(measured(&bench, round, job));
            }
        }
    }
    let rows = table::rows(suite, options, &samples);
    println!("{}{}", table::text(&rows), table::remarks(&samples));
    let out = options.out.clone().unwrap_or_else(report::default_out);
    let path = table::write(&out, suite, options, &samples, &rows)?;
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

fn measured(bench: &Bench<'_>, round: usize, job: &Job) -> Sample {
    let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let load = load.split_whitespace().next().and_then(|load| load.parse().ok());
    let row = job.row;
    let mut sample = Sample { round, row, ..Sample::default() };
    sample.load_average = load.unwrap_or(f64::NAN);
    eprintln!("round {round}, {row} …");
    let begun = Instant::now();
    let pinned = if job.is_on_all_cores { Ok(()) } else { sys::pin(CLIENT_CORE) };
    if let Err(error) = pinned.and_then(|()| (job.run)(bench, &mut sample)) {
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
