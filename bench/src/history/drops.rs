//! Rows `drops` and `drops-nodes`: official clients that are cut off repeatedly, by resets and in
//! silence, and how many messages they receive, of one server or of several nodes. The clients are
//! JavaScript: drops.mjs runs them, with the harness of the end-to-end tests.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Context, Result, ensure};

use simurgh_bench_kit::process;
use simurgh_bench_kit::rounds::{Bench, Sample};

/// The nodes of `drops-nodes`, of which one is killed.
const NODES: &str = "3";

pub(super) fn on_one(bench: &Bench<'_>, sample: &mut Sample) -> Result<()> {
    run(bench, sample, &[])
}

pub(super) fn on_nodes(bench: &Bench<'_>, sample: &mut Sample) -> Result<()> {
    run(bench, sample, &["--nodes", NODES])
}

fn run(bench: &Bench<'_>, sample: &mut Sample, arguments: &[&str]) -> Result<()> {
    ensure!(
        bench.program.file_name().is_some_and(|name| name == "simurgh"),
        "{} is to be called simurgh: its directory is all that is passed on",
        bench.program.display()
    );
    let directory = bench.program.parent().context("the server is in no directory")?;
    let mut node = process::command(Path::new("node"), None, None)?;
    node.arg(script()).args(arguments).args(bench.options.short.then_some("--short"));
    node.env("E2E_BIN_DIR", directory).env("SEED", sample.round.to_string());
    let done = node.stderr(Stdio::inherit()).output().context("node")?;
    ensure!(done.status.success(), "drops.mjs ended with {} (npm ci in e2e?)", done.status);
    let figures: BTreeMap<String, f64> = serde_json::from_slice(&done.stdout)
        .with_context(|| format!("drops.mjs said {}", String::from_utf8_lossy(&done.stdout)))?;
    for (name, value) in figures {
        sample.put(name, value);
    }
    Ok(())
}

/// Beside the package; for an installed binary in the working directory.
fn script() -> PathBuf {
    let package = std::env::var_os("CARGO_MANIFEST_DIR");
    package.map_or_else(|| "bench".into(), PathBuf::from).join("drops.mjs")
}
