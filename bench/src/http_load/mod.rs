//! The benchmark of the HTTP benchmark: `simurgh load http` and wrk in turn against the same nginx,
//! which has a core for itself. README.md says how each figure comes about.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Result, ensure};
use serde::Serialize;

use self::tools::Tool;
use simurgh_bench_kit::flags::{Paths, at_least, number};
use simurgh_bench_kit::nginx::{self, Nginx, Site};
use simurgh_bench_kit::rounds::{check_machine, program, scratch};
use simurgh_bench_kit::target::SERVER_CORE;
use simurgh_bench_kit::{stats, sys};

mod table;
mod tools;

/// Options of the measurement.
#[derive(clap::Args, Debug, PartialEq)]
pub(crate) struct Options {
    /// Rounds
    #[arg(long, value_name = "N", default_value_t = 7, value_parser = at_least::<1>)]
    pub(crate) runs: usize,
    /// Seconds of each run
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = number::<u64>)]
    pub(crate) seconds: u64,
    /// Numbers of connections (several with commas)
    #[arg(long, value_name = "N", value_delimiter = ',', default_values_t = [1, 32, 128],
        value_parser = at_least::<1>)]
    pub(crate) connections: Vec<usize>,
    /// nginx
    #[arg(long, value_name = "PATH", default_value = nginx::PROGRAM)]
    pub(crate) nginx: PathBuf,
    /// wrk
    #[arg(long, value_name = "PATH", default_value = "/usr/bin/wrk")]
    pub(crate) wrk: PathBuf,
    /// Where programs and figures are.
    #[command(flatten)]
    pub(crate) paths: Paths,
}

/// The requested files: their names and sizes in bytes.
const FILES: [(&str, usize); 2] = [("page.html", 2_404), ("tiny.txt", 13)];

#[derive(Debug, Serialize)]
struct Sample {
    tool: Tool,
    round: usize,
    file: &'static str,
    connections: usize,
    figures: tools::Figures,
    server_cpu_s: f64,
    /// Share of one core that all other processes used meanwhile, and that the host took.
    others: f64,
}

/// Measures, prints and keeps the results. A missed limit is only shown, an aborted run an error.
pub(crate) fn run(options: &Options) -> Result<()> {
    check_machine(0)?;
    let simurgh = program(options.paths.server_bin.as_deref(), "simurgh")?;
    for program in [&simurgh, &options.wrk, &options.nginx] {
        ensure!(program.is_file(), "{} is not there", program.display());
    }
    let scratch = scratch()?;
    let measured = rounds(options, &simurgh, &scratch);
    fs::remove_dir_all(&scratch)?;
    let samples = measured?;
    table::publish(options, &samples)
}

fn rounds(options: &Options, simurgh: &Path, scratch: &Path) -> Result<Vec<Sample>> {
    fs::create_dir_all(scratch.join("root"))?;
    for (name, bytes) in FILES {
        fs::write(scratch.join("root").join(name), "x".repeat(bytes))?;
    }
    let site = Site { program: options.nginx.clone(), ..Site::new(scratch, Some(SERVER_CORE)) };
    let nginx = Nginx::start(&site)?;
    let server_cpu = || Ok::<_, anyhow::Error>(stats::per(nginx.cpu_ns()?, 1_000_000_000));
    let mut samples = Vec::new();
    let jobs = FILES.iter().flat_map(|(file, _)| {
        options.connections.iter().map(move |connections| (*file, *connections))
    });
    let jobs: Vec<(&str, usize)> = jobs.collect();
    for round in 0..=options.runs {
        for (file, connections) in jobs.iter().copied() {
            // The order changes, so that drift favours neither.
            let mut tools = Tool::ALL;
            tools.rotate_left(round % 2);
            for tool in tools {
                let program = if tool == Tool::Wrk { &options.wrk } else { simurgh };
                let job = tools::Job {
                    url: format!("http://{}/{file}", nginx.address),
                    connections,
                    // Round 0 warms up.
                    time: Duration::from_secs(if round == 0 { 1 } else { options.seconds }),
                    scratch,
                };
                let before = (server_cpu()?, sys::machine_ticks());
                let figures = tools::run(tool, program, &job)?;
                let server_cpu_s = server_cpu()? - before.0;
                let ticks = sys::machine_ticks();
                let busy = (ticks.0 + ticks.1).saturating_sub(before.1.0 + before.1.1);
                let ours = server_cpu_s + figures.cpu_s;
                let others = (stats::per(busy, 100) - ours) / figures.seconds;
                if round > 0 {
                    eprintln!(
                        "round {round}, {file}, {connections} connections, {}: {:.0}/s, {:.0} per \
                         CPU second, p50 {:.0} us, p99 {:.0} us; others {:.2}",
                        tool.name(),
                        figures.requests / figures.seconds,
                        figures.requests / figures.cpu_s,
                        figures.p50_us,
                        figures.p99_us,
                        others
                    );
                    samples.push(Sample {
                        tool,
                        round,
                        file,
                        connections,
                        figures,
                        server_cpu_s,
                        others,
                    });
                }
            }
        }
    }
    Ok(samples)
}
