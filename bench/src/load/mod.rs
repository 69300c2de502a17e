//! The benchmark of the load generator: `simurgh load`, Tsung and a bare client do the same in
//! turn, and the table shows them side by side. README.md says how each figure comes about.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use clap::builder::ArgPredicate;
use serde::Serialize;
use serde_json::Value;

use self::tools::{Kit, Tool};
use simurgh_bench_kit::flags::{Paths, at_least, number};
use simurgh_bench_kit::rounds::{check_machine, leave, program, scratch};
use simurgh_bench_kit::sys::{self, Kernel};
use simurgh_bench_kit::target::Target;

pub(crate) use self::bare::Bare;

pub(crate) mod bare;
mod broadcasts;
mod process;
mod scenario;
mod table;
mod timing;
mod tools;
mod users;

/// Values of `--only`.
pub(crate) const ROWS: [&str; 8] =
    ["connect", "memory", "idle", "broadcast", "stamp", "arrivals", "stall", "start"];

/// Options of the measurement.
#[derive(clap::Args, Debug, PartialEq)]
pub(crate) struct Options {
    /// Some of the rows (several with commas)
    #[arg(long, value_name = "ROW", value_delimiter = ',', value_parser = ROWS,
        default_values = ROWS, hide_default_value = true)]
    pub(crate) only: Vec<String>,
    /// Rounds
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = at_least::<1>,
        default_value_if("quick", ArgPredicate::IsPresent, "1"))]
    pub(crate) runs: usize,
    /// Users of `connect`, `memory` and `idle`
    #[arg(long, value_name = "N", default_value_t = 15_000, value_parser = at_least::<2>,
        default_value_if("quick", ArgPredicate::IsPresent, "1500"))]
    pub(crate) users: usize,
    /// Users per second of `connect`
    #[arg(long, value_name = "N", default_value_t = 40_000, value_parser = number::<u32>)]
    pub(crate) rate: u32,
    /// The program, or `off`
    #[arg(long, value_name = "PATH|off", default_value = "/usr/bin/tsung")]
    pub(crate) tsung: String,
    /// A tenth of the users and of the time: to see whether all works, not for figures
    #[arg(long)]
    pub(crate) quick: bool,
    /// The binary under test is also the server.
    #[command(flatten)]
    pub(crate) paths: Paths,
}

impl Options {
    fn wants(&self, row: &str) -> bool {
        self.only.iter().any(|only| only == row)
    }

    /// `full`, or `quick`.
    fn size<T>(&self, full: T, quick: T) -> T {
        if self.quick { quick } else { full }
    }
}

/// The figures of one load generator in one run of some rows.
#[derive(Debug, Serialize)]
struct Sample {
    tool: Tool,
    round: usize,
    job: &'static str,
    /// Figures by name; [`table`] defines their meaning.
    figures: BTreeMap<String, f64>,
    /// Reasons to doubt a figure.
    notes: Vec<String>,
    /// Why it was aborted.
    fault: Option<String>,
    /// Waiting and running tasks of the machine before it (load average over a minute).
    load_average: f64,
    reports: Vec<Value>,
}

impl Sample {
    fn put(&mut self, name: impl Into<String>, value: f64) {
        self.figures.insert(name.into(), value);
    }

    fn note(&mut self, note: impl Into<String>) {
        self.notes.push(note.into());
    }

    fn note_vanished(&mut self, threads: usize) {
        if threads > 0 {
            self.note(format!("{threads} threads ended meanwhile: CPU understated"));
        }
    }
}

struct Bench<'a> {
    options: &'a Options,
    kit: Kit,
    /// The server of most rows.
    server: Target,
    log: PathBuf,
}

type Job = fn(&Bench<'_>, &mut Sample) -> Result<()>;

/// The jobs in their order: the rows that each is for, and the tools that can do it.
const JOBS: [(&str, &[&str], &[Tool], Job); 9] = [
    ("start", &["start"], &Tool::ALL, timing::start),
    ("connect", &["connect"], &Tool::ALL, users::connect),
    ("memory", &["memory"], &Tool::ALL, users::memory),
    ("idle", &["idle"], &[Tool::Tsung, Tool::Simurgh], users::idle),
    ("broadcast", &["broadcast"], &Tool::ALL, broadcasts::broadcast),
    ("stamp-rooms", &["stamp"], &[Tool::Simurgh], broadcasts::stamp_rooms),
    ("stamp-room", &["stamp"], &[Tool::Simurgh], broadcasts::stamp_room),
    ("arrivals", &["arrivals"], &Tool::ALL, timing::arrivals),
    ("stall", &["stall"], &[Tool::Tsung, Tool::Simurgh], timing::stall),
];

/// Measures, prints and keeps the results. A missed limit is only shown, an aborted run an error.
pub(crate) fn run(options: &Options) -> Result<()> {
    check_machine(options.users)?;
    let simurgh = program(options.paths.server_bin.as_deref(), "simurgh")?;
    let tsung = (options.tsung != "off").then(|| PathBuf::from(&options.tsung));
    if let Some(tsung) = &tsung {
        ensure!(tsung.is_file(), "{} is not there; --tsung off does without", tsung.display());
    }
    let scratch = scratch()?;
    let bench = Bench {
        options,
        server: Target::simurgh(&simurgh, 1)?,
        log: scratch.join("server-log"),
        kit: Kit { simurgh, tsung, scratch: scratch.clone() },
    };
    let mut samples = Vec::new();
    for round in 1..=options.runs {
        for (name, rows, tools, job) in JOBS {
            if !rows.iter().any(|row| options.wants(row)) {
                continue;
            }
            for tool in tools.iter().copied().filter(|tool| bench.kit.has(*tool)) {
                samples.push(measured(&bench, round, name, tool, job));
            }
        }
    }
    table::publish(options, &samples)?;
    let faults = samples.iter().filter(|sample| sample.fault.is_some()).count();
    leave(&scratch, faults)?;
    // A failure of Tsung is a result.
    let ours = |sample: &&Sample| sample.fault.is_some() && sample.tool != Tool::Tsung;
    ensure!(samples.iter().find(ours).is_none(), "a run broke off or counted wrongly, see above");
    Ok(())
}

fn measured(bench: &Bench<'_>, round: usize, name: &'static str, tool: Tool, job: Job) -> Sample {
    let mut sample = Sample {
        tool,
        round,
        job: name,
        figures: BTreeMap::new(),
        notes: Vec::new(),
        fault: None,
        load_average: sys::load_average(),
        reports: Vec::new(),
    };
    eprint!("round {round}, {name}, {} …", tool.name());
    let begun = Instant::now();
    if let Err(error) = quiet().and_then(|()| job(bench, &mut sample)) {
        sample.fault = Some(format!("{error:#}"));
    }
    let figures: Vec<String> =
        sample.figures.iter().map(|(name, value)| format!("{name} {value:.3}")).collect();
    eprintln!(" {:.0} s: {}", begun.elapsed().as_secs_f64(), figures.join(", "));
    for line in sample.notes.iter().chain(&sample.fault) {
        eprintln!("    {line}");
    }
    sample
}

/// Waits until the sockets of the run before are closed. Sockets that only wait for late segments
/// do not matter: each run has a server with another port.
fn quiet() -> Result<()> {
    let deadline = Instant::now() + Duration::from_secs(10);
    while Kernel::now()?.tcp_inuse >= 500 && Instant::now() < deadline {
        thread::sleep(Duration::from_millis(100));
    }
    Ok(())
}
