//! Runs `wrk` against a server.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::serve::Server;
use simurgh_bench_kit::process::{self, Process};
use simurgh_bench_kit::wrk::{self, Measured};

/// Requests over `connections` connections in a closed loop for this many seconds.
pub(crate) fn ask(
    server: &Server,
    connections: u32,
    seconds: u32,
    core: Option<usize>,
) -> Result<Measured> {
    let mut command = process::command(Path::new("wrk"), core, None)?;
    command.args(["-t1", "--latency", "--timeout", "10s"]);
    command.args([format!("-c{connections}"), format!("-d{seconds}s")]);
    command.arg(format!("http://{}/", server.address));
    let within = Duration::from_secs(u64::from(seconds) + 30);
    let (status, text) = Process::with_output(&mut command)?.finish(within)?;
    ensure!(status.success(), "wrk (Debian's package of that name): {status}: {text}");
    wrk::parse(&text).with_context(|| format!("wrk printed something unexpected:\n{text}"))
}
