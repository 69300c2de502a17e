//! `wrk` asks a server.

use std::path::Path;

use anyhow::{Context, Result, ensure};

use super::serve::Server;
use simurgh_bench_kit::children;
use simurgh_bench_kit::wrk::{self, Said};

/// Has `connections` ask in a closed loop for so many seconds.
pub(crate) fn ask(
    server: &Server,
    connections: u32,
    seconds: u32,
    core: Option<usize>,
) -> Result<Said> {
    let mut command = children::command(Path::new("wrk"), core, None)?;
    command.args(["-t1", "--latency", "--timeout", "10s"]);
    command.args([format!("-c{connections}"), format!("-d{seconds}s")]);
    command.arg(format!("http://{}/", server.address));
    let output = command.output().context("start wrk")?;
    let text = String::from_utf8_lossy(&output.stdout);
    ensure!(
        output.status.success(),
        "wrk (Debian's package of that name): {}{text}",
        String::from_utf8_lossy(&output.stderr)
    );
    wrk::parse(&text).with_context(|| format!("wrk said something else than expected:\n{text}"))
}
