//! Programs that take commands as lines, and answer each with a line of JSON: the bare async-nats
//! client, and crowds of clients, each in its own process and so with its own descriptor table.

use std::ffi::OsStr;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::broker::Broker;
use simurgh_bench_kit::process::{self, Process};
use simurgh_bench_kit::sys::Cpu;
use simurgh_bench_kit::target::SERVER_CORE;

/// The file name of the bare client, beside this program: a separate package, so that nothing else
/// waits for async-nats to be built.
const PEER: &str = "simurgh-bench-peer";

/// The time limit of any answer.
const WAIT_MAX: Duration = Duration::from_secs(600);

pub(super) struct Helper {
    process: Process,
}

impl Helper {
    pub(super) fn start<S: AsRef<OsStr>>(
        program: &Path,
        core: usize,
        arguments: &[S],
    ) -> Result<Self> {
        let mut command = process::command(program, Some(core), None)?;
        let process = Process::with_output(command.args(arguments).stdin(Stdio::piped()))?;
        Ok(Self { process })
    }

    /// The bare client, on the servers' core.
    pub(super) fn bare_client(broker: &Broker) -> Result<Self> {
        let program = std::env::current_exe().context("own path")?.with_file_name(PEER);
        ensure!(
            program.is_file(),
            "{} is not there: build it (cargo build --release -p {PEER})",
            program.display()
        );
        Self::start(&program, SERVER_CORE, &[broker.url()])
    }

    /// Sends a command without reading the answer.
    pub(super) fn send(&mut self, line: &str) -> Result<()> {
        self.process.write_line(line)
    }

    pub(super) fn answer(&mut self) -> Result<Value> {
        let line = self.process.line("", WAIT_MAX).context("a helper, see above")?;
        serde_json::from_str(&line).context(line)
    }

    pub(super) fn ask(&mut self, line: &str) -> Result<Value> {
        self.send(line)?;
        self.answer()
    }

    pub(super) fn cpu(&self) -> Result<Cpu> {
        self.process.cpu()
    }
}

pub(super) fn number(answer: &Value, name: &str) -> Result<f64> {
    answer.get(name).and_then(Value::as_f64).with_context(|| format!("no {name} in {answer}"))
}
