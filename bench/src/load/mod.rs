//! The benchmark of the load generator: `simurgh load` and a bare client do the same in turn, and
//! the table shows them side by side. README.md says how each figure comes about.

use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use self::tools::{Kit, Tool};
use simurgh_bench_kit::rounds::table::{Recipe, read};
use simurgh_bench_kit::rounds::{self, Job, Options, Sample, Suite, USUAL};
use simurgh_bench_kit::sys::Kernel;
use simurgh_bench_kit::target::Target;

pub(crate) use self::bare::Bare;

pub(crate) mod bare;
mod broadcasts;
mod scenario;
mod timing;
mod tools;
mod users;

pub(crate) const SUITE: Suite = Suite {
    name: "load",
    about: "`simurgh load` beside the bare client",
    // The load generators are pinned, not this process.
    jobs: || {
        vec![
            Job::on_all_cores("start", |bench, sample| {
                in_turn(bench, sample, &Tool::ALL, timing::start)
            }),
            Job::on_all_cores("connect", |bench, sample| {
                in_turn(bench, sample, &Tool::ALL, users::connect)
            }),
            Job::on_all_cores("memory", |bench, sample| {
                in_turn(bench, sample, &Tool::ALL, users::memory)
            }),
            Job::on_all_cores("idle", |bench, sample| {
                in_turn(bench, sample, &[Tool::Simurgh], users::idle)
            }),
            Job::on_all_cores("broadcast", |bench, sample| {
                in_turn(bench, sample, &Tool::ALL, broadcasts::broadcast)
            }),
            Job::on_all_cores("stamp", |bench, sample| {
                in_turn(bench, sample, &[Tool::Simurgh], broadcasts::stamp_rooms)?;
                in_turn(bench, sample, &[Tool::Simurgh], broadcasts::stamp_room)
            }),
            Job::on_all_cores("arrivals", |bench, sample| {
                in_turn(bench, sample, &Tool::ALL, timing::arrivals)
            }),
            Job::on_all_cores("stall", |bench, sample| {
                in_turn(bench, sample, &[Tool::Simurgh], timing::stall)
            }),
        ]
    },
    clients: (users::USERS, users::USERS_SHORT),
    order: "in each row of a round: bare, simurgh; ratios within a round",
    recipes,
    ..USUAL
};

fn recipes(options: &Options) -> Result<Vec<Recipe>> {
    let mut all = Vec::new();
    for block in include_str!("table.txt").split("\n\n") {
        let rates = if block.contains("{rate}") { timing::rates(options) } else { &[0] };
        for rate in rates {
            all.extend(read(block, &[("{rate}", rate.to_string())])?);
        }
    }
    Ok(all)
}

/// The common input of a row's runs.
struct Bench<'a> {
    options: &'a Options,
    kit: Kit,
    /// The server of most rows.
    server: Target,
    log: PathBuf,
}

impl Bench<'_> {
    fn users(&self) -> usize {
        self.options.size(users::USERS, users::USERS_SHORT)
    }
}

/// The figures of one load generator in a sample.
struct Side<'a> {
    tool: Tool,
    sample: &'a mut Sample,
}

impl Side<'_> {
    /// Adds a figure: under its name for Simurgh, else with the tool's name before it.
    fn put(&mut self, name: impl Into<String>, value: f64) {
        self.sample.put(format!("{}{}", self.tool.prefix(), name.into()), value);
    }

    fn note(&mut self, note: &str) {
        self.sample.note(format!("{}{note}", self.tool.prefix()));
    }

    fn note_vanished(&mut self, threads: usize) {
        if threads > 0 {
            self.note(&format!("{threads} threads ended meanwhile: CPU understated"));
        }
    }
}

/// Has each tool do the same job.
fn in_turn(
    bench: &rounds::Bench<'_>,
    sample: &mut Sample,
    tools: &[Tool],
    job: fn(&Bench<'_>, &mut Side<'_>) -> Result<()>,
) -> Result<()> {
    let (simurgh, scratch) = (bench.program.clone(), bench.scratch.clone());
    let bench = Bench {
        options: bench.options,
        server: Target::simurgh(&simurgh, 1)?,
        log: scratch.join("server-log"),
        kit: Kit { simurgh, scratch },
    };
    for tool in tools.iter().copied() {
        quiet()?;
        job(&bench, &mut Side { tool, sample }).with_context(|| format!("{tool:?}"))?;
    }
    Ok(())
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
