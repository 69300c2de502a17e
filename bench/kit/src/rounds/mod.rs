//! A measurement of rows in repeated rounds: each row of a round starts its own servers and stores
//! its figures by name; a table defines their meaning and limits.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use serde::Serialize;

use self::table::Recipe;
use crate::flags::{Paths, at_least};
use crate::target::{CHAT, CLIENT_CORE, Server, Target};
use crate::{stats, sys};

pub mod table;

/// Options of a measurement.
#[derive(Args, Debug, Default, PartialEq)]
pub struct Options {
    /// Joined clients of the table of the server
    #[arg(long, value_name = "N", value_parser = at_least::<2>)]
    pub clients: Option<usize>,
    /// Some of the rows (several with commas)
    #[arg(long, value_name = "ROW", value_delimiter = ',')]
    pub only: Vec<String>,
    /// Rounds
    #[arg(long, value_name = "N", value_parser = at_least::<1>)]
    pub runs: Option<usize>,
    /// Fewer and shorter: to see whether all works, not for figures
    #[arg(long)]
    pub short: bool,
    /// How long each attack or row of `attacks`, `page` and `http-load` lasts, in seconds
    #[arg(long, value_name = "N")]
    pub seconds: Option<u64>,
    /// Where programs and figures are.
    #[command(flatten)]
    pub paths: Paths,
}

impl Options {
    /// Adds the suite's rows and rounds where none were given; an unknown row is an error.
    pub fn for_suite(mut self, suite: &Suite) -> Result<Self, String> {
        let all = suite.rows();
        if !self.only.iter().all(|row| all.contains(&row.as_str())) {
            return Err(format!("--only takes some of {}", all.join(",")));
        }
        if self.only.is_empty() {
            let jobs = (suite.jobs)();
            let usual = jobs.iter().filter(|job| job.is_usual);
            self.only = usual.map(|job| job.row.to_owned()).collect();
        }
        self.runs.get_or_insert(if self.short { 1 } else { suite.runs });
        Ok(self)
    }

    /// `full`, or `short`.
    pub fn size<T>(&self, full: T, short: T) -> T {
        if self.short { short } else { full }
    }

    /// Whether a row is to be measured.
    pub fn wants(&self, row: &str) -> bool {
        self.only.iter().any(|only| only == row)
    }
}

/// The figures of one row in one round.
#[derive(Debug, Default, Serialize)]
pub struct Sample {
    /// Number of the round, from 1.
    pub round: usize,
    /// The row.
    pub row: &'static str,
    /// Figures by name; the recipes define their meaning.
    pub figures: BTreeMap<String, f64>,
    /// Explanations of figures.
    pub notes: Vec<String>,
    /// Reasons why the figures are invalid.
    pub faults: Vec<String>,
    /// Further raw figures.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub raw: Vec<serde_json::Value>,
    /// How long the measurement took.
    pub seconds: f64,
    /// Waiting and running tasks of the machine before it (load average over a minute).
    pub load_average: f64,
}

impl Sample {
    /// Adds a figure.
    pub fn put(&mut self, name: impl Into<String>, value: f64) {
        self.figures.insert(name.into(), value);
    }

    /// Adds a figure, if there is one.
    pub fn put_some(&mut self, name: impl Into<String>, value: Option<f64>) {
        if let Some(value) = value {
            self.put(name, value);
        }
    }

    /// Adds a count.
    pub fn put_count(&mut self, name: impl Into<String>, count: usize) {
        self.put(name, stats::per(count, 1));
    }

    /// Adds the cost of something with a feature and without it, and the ratio of the two.
    pub fn put_both(&mut self, name: &str, unit: &str, (with, without): (f64, f64)) {
        self.put(format!("{name}_{unit}"), with);
        self.put(format!("{name}_without_{unit}"), without);
        self.put(format!("{name}_ratio"), with / without);
    }

    /// Adds an explanation of a figure.
    pub fn note(&mut self, note: impl Into<String>) {
        self.notes.push(note.into());
    }

    /// Counts messages that arrived and differ from what was sent: a fault, if there are any.
    pub fn check_wrong(&mut self, what: &str, wrong: u64) {
        if wrong > 0 {
            self.faults.push(format!("{what}: {wrong} messages were not what was sent"));
        }
    }
}

/// The common input of all rows.
pub struct Bench<'a> {
    /// The options given.
    pub options: &'a Options,
    /// The server under test.
    pub program: PathBuf,
    /// A directory for temporary files.
    pub scratch: PathBuf,
}

impl Bench<'_> {
    /// The same with a channel `rooms:*` that has these lines: all of a room get a `new:msg`.
    pub fn serve_rooms(&self, settings: &str, lines: &str, shards: u32) -> Result<Server> {
        let rooms = "[[channel]]\ntopic = \"rooms:*\"\njoin_reply = {}\n";
        let event = "[[channel.event]]\nname = \"new:msg\"\nbroadcast = \"all\"\nreply = {}\n";
        self.serve(&format!("{settings}\n{rooms}{lines}\n{event}"), shards)
    }

    /// A new process with these settings and this many shards, all on one core.
    pub fn serve(&self, settings: &str, shards: u32) -> Result<Server> {
        let file = self.scratch.join("simurgh.toml");
        fs::write(&file, settings)?;
        let target = Target::simurgh(&self.program, shards)?.with_settings(&file);
        target.start(&self.scratch.join("server-log"))
    }

    /// A file with the settings of the chat without history.
    pub fn chat(&self) -> Result<PathBuf> {
        let file = self.scratch.join("chat.toml");
        fs::write(&file, CHAT)?;
        Ok(file)
    }

    /// The number of clients of a large topic.
    pub fn many_clients(&self) -> usize {
        self.options.size(18_000, 3_000)
    }
}

/// A row and its measurement.
pub struct Job {
    /// Its name.
    pub row: &'static str,
    /// Measures it.
    pub run: fn(&Bench<'_>, &mut Sample) -> Result<()>,
    /// Whether it may use all cores; otherwise it is pinned to the clients' core.
    pub is_on_all_cores: bool,
    /// Whether it is measured unless others are named.
    pub is_usual: bool,
}

impl Job {
    /// A row that is measured on the clients' core.
    pub const fn new(row: &'static str, run: fn(&Bench<'_>, &mut Sample) -> Result<()>) -> Self {
        Self { row, run, is_on_all_cores: false, is_usual: true }
    }

    /// A row that may use all cores.
    pub const fn on_all_cores(
        row: &'static str,
        run: fn(&Bench<'_>, &mut Sample) -> Result<()>,
    ) -> Self {
        Self { is_on_all_cores: true, ..Self::new(row, run) }
    }

    /// The row is measured only if it is named.
    pub const fn if_named(self) -> Self {
        Self { is_usual: false, ..self }
    }
}

/// A measurement.
pub struct Suite {
    /// How its files' names begin.
    pub name: &'static str,
    /// The subject of the measurement, for `--help`.
    pub about: &'static str,
    /// The rows in their order.
    pub jobs: fn() -> Vec<Job>,
    /// Rounds, unless another number is given.
    pub runs: usize,
    /// Descriptors that the clients of a row need, in a full run and in a short one.
    pub clients: (usize, usize),
    /// The order in which things are measured, for the raw file.
    pub order: &'static str,
    /// Whether every limit must hold in each round. Otherwise only limits of counts (0) do, and all
    /// others must hold for the median.
    pub is_each_judged: bool,
    /// Measures all rounds.
    pub measure: fn(&Suite, &Bench<'_>) -> Result<Vec<Sample>>,
    /// The lines of the table.
    pub recipes: fn(&Options) -> Result<Vec<Recipe>>,
}

impl Suite {
    /// All rows in their order.
    pub fn rows(&self) -> Vec<&'static str> {
        (self.jobs)().iter().map(|job| job.row).collect()
    }
}

/// The defaults of a suite.
pub const USUAL: Suite = Suite {
    name: "",
    about: "",
    jobs: Vec::new,
    runs: 3,
    clients: (18_000, 3_000),
    order: "a fresh server for each part of each row; ratios within a row of a round",
    is_each_judged: false,
    measure: each_row,
    recipes: |_| Ok(Vec::new()),
};

/// Raises the descriptor limit for `clients` connections in this process; an error if that is not
/// possible or if server and clients would share a core.
fn check_machine(clients: usize) -> Result<()> {
    let limit = sys::raise_descriptor_limit()?.saturating_sub(sys::FD_RESERVE);
    ensure!(
        u64::try_from(clients)? <= limit,
        "one process may hold {limit} connections here (RLIMIT_NOFILE), {clients} are wanted"
    );
    let cores = std::thread::available_parallelism()?.get();
    ensure!(cores > 1, "server and clients need a core each");
    Ok(())
}

/// Which of two variants is measured at turn `nth`: 0, 1, 1, 0, so that drift affects both.
pub fn turn(nth: usize) -> usize {
    usize::from(nth % 4 == 1 || nth % 4 == 2)
}

/// Measures kinds in turn, block by block; returns the medians of each kind's figures. The first
/// block of each kind warms up.
pub fn in_turn<const KINDS: usize, const FIGURES: usize>(
    blocks: usize,
    order: fn(usize) -> usize,
    mut measure: impl FnMut(usize) -> Result<[f64; FIGURES]>,
) -> Result<[[f64; FIGURES]; KINDS]> {
    let mut all = vec![Vec::new(); KINDS];
    for block in 0..blocks {
        let kind = order(block);
        let figures = measure(kind)?;
        all.get_mut(kind).context("no such kind")?.push(figures);
    }
    let mut medians = [[0.0; FIGURES]; KINDS];
    for (medians, blocks) in medians.iter_mut().zip(&all) {
        for (at, median) in medians.iter_mut().enumerate() {
            let values: Vec<f64> = blocks.iter().skip(1).map(|figures| figures[at]).collect();
            *median = stats::middle(&values)?;
        }
    }
    Ok(medians)
}

/// Measures, prints and keeps the results. A missed limit is only shown.
pub fn run(suite: &Suite, options: &Options) -> Result<()> {
    let clients = options.size(suite.clients.0, suite.clients.1);
    check_machine(options.clients.unwrap_or(clients))?;
    let program = match &options.paths.server_bin {
        Some(path) => path.clone(),
        None => std::env::current_exe().context("own path")?.with_file_name("simurgh"),
    };
    let scratch = std::env::temp_dir().join(format!("simurgh-bench-{}", std::process::id()));
    fs::create_dir_all(&scratch)?;
    let bench = Bench { options, program, scratch };
    let samples = (suite.measure)(suite, &bench)?;
    table::publish(suite, options, &samples)?;
    let faults = samples.iter().map(|sample| sample.faults.len()).sum::<usize>();
    if faults > 0 {
        bail!(
            "{faults} faults, see above: these figures are not valid; what the programs logged: {}",
            bench.scratch.display()
        );
    }
    Ok(fs::remove_dir_all(&bench.scratch)?)
}

/// One row after the other, in each round.
fn each_row(suite: &Suite, bench: &Bench<'_>) -> Result<Vec<Sample>> {
    let jobs = (suite.jobs)();
    let rows = || jobs.iter().filter(|job| bench.options.wants(job.row));
    let rounds = 1..=bench.options.runs.unwrap_or(suite.runs);
    Ok(rounds.flat_map(|round| rows().map(move |job| measured(bench, round, job))).collect())
}

fn measured(bench: &Bench<'_>, round: usize, job: &Job) -> Sample {
    let row = job.row;
    let load_average = sys::load_average();
    let mut sample = Sample { round, row, load_average, ..Sample::default() };
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
    for line in sample.notes.iter().chain(&sample.faults) {
        eprintln!("    {line}");
    }
    eprintln!("    {:.0} s", sample.seconds);
    sample
}
