//! Simurgh's benchmark: a bare server, clients that verify every delivery, and the table that
//! compares `simurgh serve` with the floor. See README.md for how each figure comes about.

#![allow(
    clippy::disallowed_types,
    clippy::disallowed_methods,
    reason = "it must not rest on the reactor it measures, so it has no shards: most of it has one \
              descriptor table, and bare/ takes nothing but threads with their own from there"
)]

use std::os::unix::process::CommandExt;
use std::process::{self, ExitCode};

use anyhow::{Context, Result, anyhow};

use crate::args::{Command, Helper};
use simurgh_bench_kit::rounds::{self, Suite};
use simurgh_bench_kit::sys;

mod args;
mod attacks;
mod bare;
mod cluster;
mod deflate;
mod driver;
mod fairness;
mod history;
mod hooks;
mod http;
mod latency;
mod load;
mod presence;
mod road;
mod server;
#[cfg(test)]
mod suites;
mod timing;
mod tls;

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

/// The suites, each a command.
const SUITES: [&Suite; 16] = [
    &server::SUITE,
    &tls::SUITE,
    &fairness::SUITE,
    &attacks::SUITE,
    &presence::SUITE,
    &history::SUITE,
    &deflate::SUITE,
    &cluster::SUITE,
    &hooks::SUITE,
    &latency::SUITE,
    &load::SUITE,
    &http::load::SUITE,
    &http::page::SUITE,
    &timing::SUITE,
    &driver::SUITE,
    &road::SUITE,
];

fn done(command: Command) -> Result<()> {
    match command {
        Command::Measure(suite, options) => rounds::run(suite, &options),
        Command::Help(Helper::Bare(plan)) => load::bare::run(&plan),
        Command::Help(Helper::BareServer(options)) => bare::serve(&options),
        Command::Help(Helper::Crowd { server }) => cluster::crowd::serve(server),
        Command::Help(Helper::LatencyChart { files }) => {
            print!("{}", latency::chart::draw(&files)?);
            Ok(())
        }
        Command::Help(Helper::Recorder) => timing::recorder::serve(),
        Command::Help(Helper::Watch) => timing::recorder::watch(),
        Command::Help(Helper::Exec { core, address_space, program }) => {
            exec(core, address_space, &program)
        }
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
