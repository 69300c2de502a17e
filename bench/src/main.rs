//! Simurgh's benchmark: a bare server, clients that verify every delivery, and the table that
//! compares `simurgh serve` with the floor. See README.md for how each figure comes about.

#![allow(
    clippy::disallowed_types,
    clippy::disallowed_methods,
    reason = "it must not rest on the reactor it measures, so it has no shards: most of it has one \
              descriptor table, and bare/ takes nothing but threads with their own from there"
)]

use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{self, ExitCode};
use std::time::Instant;

use anyhow::{Context, Result, anyhow, ensure};

use crate::args::Command;
use crate::measure::{Figures, Run};
use simurgh_bench_kit::rounds::{self, check_machine, leave, program, scratch};
use simurgh_bench_kit::target::{CLIENT_CORE, Target};
use simurgh_bench_kit::{nginx, sys};

mod args;
mod attacks;
mod bare;
mod cluster;
mod fairness;
mod history;
mod hold;
mod http_load;
mod load;
mod measure;
mod page;
mod presence;
mod reference;
mod server_table;
#[cfg(test)]
mod suites;

fn main() -> ExitCode {
    let command = match args::parse(std::env::args_os().skip(1)) {
        Ok(command) => command,
        Err(error) => error.exit(),
    };
    match done(command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("simurgh-bench: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn done(command: Command) -> Result<()> {
    match command {
        Command::Run(options) => run(&options),
        Command::Hold(options) => hold::run(&options),
        Command::Load(options) => load::run(&options),
        Command::HttpLoad(options) => http_load::run(&options),
        Command::Bare(plan) => load::bare::run(&plan),
        Command::BareServer(options) => bare::serve(&options),
        Command::Nginx { directory, core } => nginx::serve(&nginx::Site::new(&directory, core)),
        Command::Page(options) => page::run(&options),
        Command::Fairness(options) => rounds::run(&fairness::SUITE, &options),
        Command::Attacks(options) => rounds::run(&attacks::SUITE, &options),
        Command::Presence(options) => rounds::run(&presence::SUITE, &options),
        Command::History(options) => rounds::run(&history::SUITE, &options),
        Command::Cluster(options) => rounds::run(&cluster::SUITE, &options),
        Command::Crowd { server } => cluster::crowd::serve(server),
        Command::Reference { records } => reference::run(records),
        Command::Exec { core, address_space, program } => exec(core, address_space, &program),
    }
}

/// Becomes `program`, on one core or any, in limited memory, as long as the parent lives.
fn exec(
    core: Option<usize>,
    address_space: Option<u64>,
    program: &[std::ffi::OsString],
) -> Result<()> {
    let (name, arguments) = program.split_first().context("exec needs -- PROGRAM")?;
    if let Some(core) = core {
        sys::pin(core)?;
    }
    if let Some(bytes) = address_space {
        sys::limit_address_space(bytes)?;
    }
    sys::die_with_parent()?;
    // exec only returns when it fails.
    Err(anyhow!(process::Command::new(name).args(arguments).exec()))
}

/// Floor and Simurgh in turn; keeps the result. Wrong deliveries are an error, missed limits not.
fn run(options: &Run) -> Result<()> {
    check_machine(options.clients)?;
    sys::pin(CLIENT_CORE)?;
    // Quick acknowledgements as in all earlier runs, so that figures can be compared with those.
    let floor = Target::bare(&["--quick-acks"])?;
    let simurgh = Target::simurgh(&program(options.paths.server_bin.as_deref(), "simurgh")?, 1)?;
    let scratch = scratch()?;
    let measured = |target: &Target| measured(target, options, &scratch.join("server-log"));

    let mut floors = vec![measured(&floor)];
    let mut runs = Vec::new();
    for _ in 0..options.runs {
        runs.push(measured(&simurgh));
        floors.push(measured(&floor));
    }

    server_table::publish(options, &floors, &runs)?;
    let faults = floors.iter().chain(&runs).map(|run| run.faults.len()).sum::<usize>();
    leave(&scratch, faults)?;
    ensure!(faults == 0, "{faults} faults, see above: these figures are not valid");
    Ok(())
}

fn measured(target: &Target, options: &Run, log: &Path) -> Figures {
    eprint!("{} …", target.name);
    let started = Instant::now();
    let figures = measure::run(target, options, log);
    let bytes = |value: Option<f64>| value.map_or("–".to_owned(), |value| format!("{value:.0}"));
    eprintln!(
        " {:.0} s: user {} B, kernel {} B, connect {} ns, spaced {} ns, burst {} ns{}",
        started.elapsed().as_secs_f64(),
        bytes(figures.user_bytes),
        bytes(figures.kernel_bytes),
        bytes(figures.connect_ns),
        bytes(figures.spaced_ns),
        bytes(figures.burst_ns),
        if figures.faults.is_empty() { "" } else { " — FAULT" },
    );
    figures
}
