//! Programs that do what they are told by lines, and answer each with a line of JSON: the bare
//! async-nats client, and crowds of clients with a process, and so a descriptor table, each.

use std::ffi::OsStr;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{ChildStdin, ChildStdout, Stdio};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::engine::Engine;
use simurgh_bench_kit::children::{self, Children};
use simurgh_bench_kit::sys::Cpu;
use simurgh_bench_kit::target::SERVER_CORE;

/// The file name of the bare client, beside this program: a package of its own, so that nothing
/// else waits for async-nats to be built.
const PEER: &str = "simurgh-bench-peer";

/// Killed when dropped.
pub(super) struct Helper {
    _child: Children,
    pid: u32,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Helper {
    pub(super) fn start<S: AsRef<OsStr>>(
        program: &Path,
        core: usize,
        arguments: &[S],
    ) -> Result<Self> {
        let mut child = children::command(program, Some(core), None)?
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("start {}", program.display()))?;
        let input = child.stdin.take().context("no input")?;
        let output = BufReader::new(child.stdout.take().context("no output")?);
        let pid = child.id();
        let mut children = Children::default();
        children.push(child);
        Ok(Self { _child: children, pid, input, output })
    }

    /// The bare client, on the core that servers have.
    pub(super) fn peer(engine: &Engine) -> Result<Self> {
        let program = std::env::current_exe().context("own path")?.with_file_name(PEER);
        ensure!(
            program.is_file(),
            "{} is not there: build it (cargo build --release -p {PEER})",
            program.display()
        );
        Self::start(&program, SERVER_CORE, &[engine.url()])
    }

    /// Has it do something; the answer is still to be read.
    pub(super) fn tell(&mut self, line: &str) -> Result<()> {
        writeln!(self.input, "{line}").with_context(|| line.to_owned())
    }

    pub(super) fn answer(&mut self) -> Result<Value> {
        let mut line = String::new();
        let count = self.output.read_line(&mut line)?;
        ensure!(count > 0, "a helper has ended, see above");
        serde_json::from_str(&line).context(line)
    }

    pub(super) fn ask(&mut self, line: &str) -> Result<Value> {
        self.tell(line)?;
        self.answer()
    }

    pub(super) fn cpu(&self) -> Result<Cpu> {
        Cpu::of(self.pid)
    }
}

/// A number of an answer.
pub(super) fn number(said: &Value, name: &str) -> Result<f64> {
    said.get(name).and_then(Value::as_f64).with_context(|| format!("no {name} in {said}"))
}
