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

use crate::args::Command;
use simurgh_bench_kit::{rounds, sys};

mod args;
mod attacks;
mod bare;
mod cluster;
mod fairness;
mod history;
mod hold;
mod http;
mod load;
mod presence;
mod reference;
mod server;
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
        Command::Run(options) => server::run(&options),
        Command::Hold(options) => hold::run(&options),
        Command::Load(options) => rounds::run(&load::SUITE, &options),
        Command::HttpLoad(options) => rounds::run(&http::load::SUITE, &options),
        Command::Bare(plan) => load::bare::run(&plan),
        Command::BareServer(options) => bare::serve(&options),
        Command::Page(options) => rounds::run(&http::page::SUITE, &options),
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
