//! Processes that a measurement starts: on a core of their own if it wants that, and gone with us.

use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};

use anyhow::{Context, Result};

use crate::sys::Cpu;

/// `program`, through our own `exec`, which pins itself and asks to die with us before it becomes
/// the program; so it never runs a thread elsewhere, and never outlives a crash. `address_space`
/// limits what it may map, bytes.
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

/// Killed when dropped.
#[derive(Default)]
pub struct Children(Vec<Child>);

impl Children {
    /// Ends this process too when it is dropped.
    pub fn push(&mut self, child: Child) {
        self.0.push(child);
    }

    /// Whether one of them has ended.
    pub fn has_ended(&mut self) -> Result<bool> {
        let mut ended = false;
        for child in &mut self.0 {
            ended |= child.try_wait()?.is_some();
        }
        Ok(ended)
    }

    /// Waits for the end of each; how the last one ended.
    pub fn wait(&mut self) -> Result<Option<ExitStatus>> {
        let mut last = None;
        for child in &mut self.0 {
            last = Some(child.wait()?);
        }
        Ok(last)
    }

    /// CPU time of all their threads so far.
    pub fn cpu_ns(&self) -> Result<u64> {
        let of = |child: &Child| Ok(Cpu::of(child.id())?.since(&Cpu::default()).0);
        self.0.iter().map(of).sum()
    }
}

impl Drop for Children {
    fn drop(&mut self) {
        for child in &mut self.0 {
            // Fails only if it has ended already, which is what is wanted.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
