//! The capacity test (`simurgh road`) with `simurgh serve`, and with the bare server.

use std::fs;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use simurgh_bench_kit::process::{self, Process};
use simurgh_bench_kit::rounds::table::read;
use simurgh_bench_kit::rounds::{Bench, Job, Sample, Suite, USUAL};

pub(crate) const SUITE: Suite = Suite {
    name: "road",
    about: "`simurgh road` with `simurgh serve`, and with the bare server",
    jobs: || vec![Job::on_all_cores("road", run)],
    runs: 4,
    clients: (0, 0),
    order: "baseline, simurgh",
    recipes: |_| read(include_str!("table.txt"), &[]),
    ..USUAL
};

/// Paths of figures in a milestone of road.json.
const FIGURES: [&str; 6] = [
    "server_us_per_join",
    "broadcast/server_us",
    "broadcast/last_us",
    "broadcast/heartbeats/p99",
    "server_bytes",
    "kernel_bytes",
];
const TIME_MAX: Duration = Duration::from_secs(3600);

fn run(bench: &Bench<'_>, sample: &mut Sample) -> Result<()> {
    let bare = std::env::current_exe().context("own path")?;
    let bare = format!("{} bare-server", bare.display());
    let serve = format!("{} serve --config {}", bench.program.display(), bench.chat()?.display());
    for (side, server) in [("bare ", bare), ("", serve)] {
        let road = road(bench, &server)?;
        for path in FIGURES {
            let figure = road.pointer(&format!("/{path}")).and_then(Value::as_f64);
            sample.put(format!("{side}{path}"), figure.with_context(|| format!("no {path}"))?);
        }
        sample.raw.push(road);
    }
    Ok(())
}

/// The last milestone with this server.
fn road(bench: &Bench<'_>, server: &str) -> Result<Value> {
    let out = bench.scratch.join("road");
    let size = bench.options.size("30000", "3000");
    let mut command = process::command(&bench.program, None, None)?;
    command.args(["road", "--connections", size, "--no-reconnect", "--heartbeats", "off"]);
    command.args(["--dashboard", "off", "--server", server, "--out"]).arg(&out);
    let (status, text) = Process::with_output(&mut command)?.finish(TIME_MAX)?;
    ensure!(status.success(), "simurgh road: {status}\n{text}");
    let road: Value = serde_json::from_slice(&fs::read(out.join("road.json"))?)?;
    fs::remove_dir_all(&out)?;
    let last = road.get("milestones").and_then(Value::as_array).and_then(|all| all.last());
    last.cloned().context("no milestone")
}
