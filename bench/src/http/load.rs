//! The benchmark of the HTTP benchmark: `simurgh load http` and wrk in turn against the same nginx,
//! which has a core for itself.

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::Result;

use super::nginx::{Nginx, Site};
use super::tools::{self, Tool};
use simurgh_bench_kit::rounds::table::{Recipe, read};
use simurgh_bench_kit::rounds::{Bench, Job, Options, Sample, Suite, USUAL};
use simurgh_bench_kit::stats;

const WRK: &str = "/usr/bin/wrk";
const CONNECTIONS: [usize; 3] = [1, 32, 128];
/// The requested files: their names and sizes in bytes.
const FILES: [(&str, usize); 2] = [("page.html", 2_404), ("tiny.txt", 13)];
const WARM_UP: Duration = Duration::from_secs(1);

pub(crate) const SUITE: Suite = Suite {
    name: "http-load",
    about: "`simurgh load http` beside wrk, both against nginx",
    jobs: || vec![Job::new("requests", run)],
    runs: 7,
    clients: (0, 0),
    order: "for each file and number of connections wrk and simurgh; the order changes each round",
    recipes,
    ..USUAL
};

fn recipes(_: &Options) -> Result<Vec<Recipe>> {
    let mut all = Vec::new();
    for (file, _) in FILES {
        for connections in CONNECTIONS {
            let values = [("{f}", file.to_owned()), ("{c}", connections.to_string())];
            all.extend(read(include_str!("load.txt"), &values)?);
        }
    }
    Ok(all)
}

fn run(bench: &Bench<'_>, sample: &mut Sample) -> Result<()> {
    let directory = bench.scratch.join("nginx");
    fs::create_dir_all(directory.join("root"))?;
    for (name, bytes) in FILES {
        fs::write(directory.join("root").join(name), "x".repeat(bytes))?;
    }
    let nginx = Nginx::start(&Site { directory, filler: None })?;
    let seconds = bench.options.seconds.unwrap_or(bench.options.size(4, 1));
    let tools = [(Tool::Wrk, Path::new(WRK), "wrk "), (Tool::Simurgh, &bench.program, "")];
    for (file, _) in FILES {
        for connections in CONNECTIONS {
            let url = format!("http://{}/{file}", nginx.address);
            for warms_up in [true, false] {
                let mut turns = tools;
                turns.rotate_left(sample.round % 2);
                for (tool, program, side) in turns {
                    let time = if warms_up { WARM_UP } else { Duration::from_secs(seconds) };
                    let before = nginx.cpu_ns()?;
                    let found = tools::run(tool, program, &url, connections, time, &bench.scratch)?;
                    if warms_up {
                        continue;
                    }
                    let server_us = stats::per(nginx.cpu_ns()? - before, 1_000) / found.requests;
                    let name = |figure: &str| format!("{side}{file} c{connections} {figure}");
                    sample.put(name("per_cpu_s"), found.requests / found.cpu_s);
                    sample.put(name("per_s"), found.requests / found.seconds);
                    sample.put(name("p50_us"), found.p50_us);
                    sample.put(name("p99_us"), found.p99_us);
                    sample.put_some(name("measured_p99_us"), found.measured_us.map(|us| us.1));
                    sample.put(name("server_us"), server_us);
                }
            }
        }
    }
    Ok(())
}
