//! Processes that a measurement starts: on their own core if wanted, and ended with this process.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
pub use rustix::process::Signal;
use rustix::process::{Pid, kill_process};

use crate::sys::Cpu;

const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// `program`, through our own `exec`, which pins itself and asks to be killed with us before it
/// becomes the program; so it never runs a thread on another core, and never outlives a crash.
/// `address_space` limits what it may map, in bytes.
pub fn command(program: &Path, core: Option<usize>, address_space: Option<u64>) -> Result<Command> {
    let mut command = Command::new(std::env::current_exe().context("own path")?);
    command.arg("exec");
    if let Some(core) = core {
        command.args(["--core", &core.to_string()]);
    }
    command.args(address_space.map(|bytes| format!("--address-space={bytes}")));
    command.arg("--").arg(program).stdin(Stdio::null());
    Ok(command)
}

/// A child process; killed when dropped.
pub struct Process {
    child: Child,
    /// Its output, if that is a pipe. The lock lets threads share the process.
    lines: Option<Mutex<Receiver<String>>>,
}

impl Process {
    /// Starts the process.
    pub fn start(command: &mut Command) -> Result<Self> {
        let mut child = command.spawn().with_context(|| format!("{command:?} does not start"))?;
        let lines = child.stdout.take().map(|stdout| {
            let (sender, lines) = mpsc::channel();
            // Reads on when the lines are no longer wanted: a full pipe would block the process.
            thread::spawn(move || {
                for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                    let _ = sender.send(line);
                }
            });
            Mutex::new(lines)
        });
        Ok(Self { child, lines })
    }

    /// Starts the process with its output in a pipe.
    pub fn with_output(command: &mut Command) -> Result<Self> {
        Self::start(command.stdout(Stdio::piped()))
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// CPU time of its threads so far.
    pub fn cpu(&self) -> Result<Cpu> {
        Cpu::of(self.pid())
    }

    /// Its exit status, if it has ended.
    pub fn status(&mut self) -> Result<Option<ExitStatus>> {
        Ok(self.child.try_wait()?)
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        let pid = i32::try_from(self.pid()).ok().and_then(Pid::from_raw).context("no pid")?;
        kill_process(pid, signal).context("signal")
    }

    /// Waits until it ends.
    pub fn wait(&mut self) -> Result<ExitStatus> {
        Ok(self.child.wait()?)
    }

    /// Writes a line to its input, which has to be a pipe.
    pub fn write_line(&mut self, line: &str) -> Result<()> {
        let input = self.child.stdin.as_mut().context("the process has no input")?;
        writeln!(input, "{line}").with_context(|| line.to_owned())
    }

    /// Waits for an output line that begins with `start`; returns the rest of that line.
    pub fn line(&mut self, start: &str, within: Duration) -> Result<String> {
        let deadline = Instant::now() + within;
        let lines = self.lines.as_mut().context("the process has no output")?;
        let lines = lines.get_mut().unwrap_or_else(PoisonError::into_inner);
        loop {
            match lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(line) => {
                    if let Some(rest) = line.strip_prefix(start) {
                        return Ok(rest.trim().to_owned());
                    }
                }
                Err(RecvTimeoutError::Timeout) => bail!("no line {start:?} within {within:?}"),
                Err(RecvTimeoutError::Disconnected) => {
                    bail!("it ended ({}) without a line {start:?}", self.child.wait()?)
                }
            }
        }
    }

    /// Waits until it ends by itself; returns its status and all its output.
    pub fn finish(mut self, within: Duration) -> Result<(ExitStatus, String)> {
        let deadline = Instant::now() + within;
        let status = loop {
            match self.status()? {
                Some(status) => break status,
                None if Instant::now() > deadline => bail!("it does not end within {within:?}"),
                None => thread::sleep(POLL_INTERVAL),
            }
        };
        let lines = self.lines.take();
        let lines = lines.map(|it| it.into_inner().unwrap_or_else(PoisonError::into_inner));
        Ok((status, lines.iter().flatten().map(|line| line + "\n").collect()))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Fails only if it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
