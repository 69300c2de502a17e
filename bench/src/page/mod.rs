//! The page benchmark: `hello_page`, which renders its page for each request, compared with nginx,
//! which sends a file of the same size with a head of the same size; `wrk` requests both.
//!
//! ```text
//! for each run: nginx, hello_page (fresh processes) × 1, 2, 4, 8, 16, 32 connections
//!     server (serve) ◄── wrk (client) ──► CPU by schedstat, requests, latencies ──► table (report)
//! ```

use std::fs;
use std::path::Path;
use std::thread;
use std::time::Duration;

use anyhow::{Result, ensure};
use serde::Serialize;

use simurgh_bench_kit::flags::{Paths, at_least, number};
use simurgh_bench_kit::rounds::{check_machine, program, scratch};
use simurgh_bench_kit::stats;
use simurgh_bench_kit::target::CLIENT_CORE;

mod client;
mod report;
mod serve;

use serve::{Kind, Server};
use simurgh_bench_kit::wrk::Measured;

/// Connections at once; each number is a row of the table.
const CONNECTIONS: [u32; 6] = [1, 2, 4, 8, 16, 32];
/// Requests before a measurement, for this long.
const WARM_UP_S: u32 = 1;

/// Options of this measurement.
#[derive(clap::Args, Clone, Debug, PartialEq)]
pub(crate) struct Options {
    /// Runs of each server
    #[arg(long, value_name = "N", default_value_t = 7, value_parser = at_least::<1>)]
    pub(crate) runs: usize,
    /// Seconds of each row
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = number::<u32>)]
    pub(crate) seconds: u32,
    /// 1: one core for the server, one for wrk; 2: both for both
    #[arg(long = "cores", value_name = "1|2", default_value = "1",
        value_parser = is_shared, action = clap::ArgAction::Set)]
    pub(crate) is_shared: bool,
    /// Where programs and figures are.
    #[command(flatten)]
    pub(crate) paths: Paths,
}

fn is_shared(cores: &str) -> Result<bool, String> {
    match cores {
        "1" | "2" => Ok(cores == "2"),
        _ => Err("--cores is 1 (for the server) or 2 (for both)".to_owned()),
    }
}

/// The figures of one server with one number of connections.
#[derive(Debug, Serialize)]
pub(crate) struct Figures {
    pub(crate) server: &'static str,
    pub(crate) connections: u32,
    pub(crate) requests: u64,
    pub(crate) server_cpu_us: f64,
    #[serde(flatten)]
    pub(crate) timed: Measured,
}

impl Figures {
    pub(crate) fn cpu_us_per_request(&self) -> f64 {
        self.server_cpu_us / stats::per(self.requests, 1)
    }

    pub(crate) fn requests_per_cpu_s(&self) -> f64 {
        1e6 / self.cpu_us_per_request()
    }

    pub(crate) fn spread(&self) -> f64 {
        self.timed.p99_us / self.timed.p50_us
    }
}

/// The response sizes of both servers, which must be equal.
#[derive(Debug, Serialize)]
pub(crate) struct Sizes {
    pub(crate) body_bytes: usize,
    pub(crate) response_bytes: usize,
}

/// Measures nginx and the page in turn; prints and keeps the result.
pub(crate) fn run(options: &Options) -> Result<()> {
    check_machine(0)?;
    let page = program(options.paths.server_bin.as_deref(), "hello_page")?;
    ensure!(page.is_file(), "{} is not there: cargo build --release -p hello_page", page.display());
    let page = page.canonicalize()?;
    let directory = scratch()?;
    let measured = measure(options, &page, &directory);
    // Leftover files do not matter.
    let _ = fs::remove_dir_all(&directory);
    let (figures, sizes, config) = measured?;
    report::publish(options, &figures, &sizes, &config)?;
    let wrong: u64 = figures.iter().map(|it| it.timed.errors).sum();
    ensure!(wrong == 0, "{wrong} answers were not 200, or did not come: no figures");
    Ok(())
}

fn measure(
    options: &Options,
    page: &Path,
    directory: &Path,
) -> Result<(Vec<Figures>, Sizes, String)> {
    let hello = Kind::Page { program: page.to_owned() };
    let sample = Server::start(&hello, options.is_shared)?.response()?;
    let sizes = Sizes { body_bytes: sample.body.len(), response_bytes: sample.bytes };
    let nginx = serve::equal_nginx(directory, &sample, options.is_shared)?;
    let config = nginx.configuration();
    let mut figures = Vec::new();
    for run in 0..options.runs {
        eprintln!("run {} of {}", run + 1, options.runs);
        // Both run all the time: the one without requests sleeps, so the two figures of a row are
        // seconds apart. Which is first alternates.
        let servers =
            [Server::start(&nginx, options.is_shared)?, Server::start(&hello, options.is_shared)?];
        for server in &servers {
            client::ask(server, 8, WARM_UP_S, client_core(options))?;
        }
        for connections in CONNECTIONS {
            let mut pair = servers.each_ref();
            if run % 2 == 1 {
                pair.reverse();
            }
            for server in pair {
                figures.push(one(server, connections, options)?);
            }
        }
    }
    Ok((figures, sizes, config))
}

fn one(server: &Server, connections: u32, options: &Options) -> Result<Figures> {
    thread::sleep(Duration::from_millis(100));
    let before = server.cpu_ns()?;
    let timed = client::ask(server, connections, options.seconds, client_core(options))?;
    thread::sleep(Duration::from_millis(50));
    let ran = server.cpu_ns()?.saturating_sub(before);
    ensure!(timed.requests > 0, "{} answered nothing", server.name);
    Ok(Figures {
        server: server.name,
        connections,
        requests: timed.requests,
        server_cpu_us: stats::per(ran, 1_000),
        timed,
    })
}

fn client_core(options: &Options) -> Option<usize> {
    (!options.is_shared).then_some(CLIENT_CORE)
}
