//! The load generators under test as processes: their start on a core, their use of resources, and
//! the end of all their descendants.
//!
//! Tsung is a shell script whose Erlang node starts further nodes, and a daemon that survives them
//! all. So each is started with a mark in its environment, which its descendants inherit and by
//! which they are found, to count their CPU time and to kill them.

use std::ffi::OsString;
use std::fs::{self, File};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal};

use simurgh_bench_kit::process;
use simurgh_bench_kit::sys::{self, Cpu};
use simurgh_bench_kit::wait;

const MARK: &str = "SIMURGH_BENCH_TOOL";
static NEXT: AtomicU32 = AtomicU32::new(0);

/// A running load generator; it and all its descendants are killed when dropped.
pub(super) struct Process {
    child: Child,
    mark: String,
    /// Name of the process that does the work, if it is not the started one.
    worker: Option<&'static str>,
    /// When it was started: before the fork.
    pub(super) started: Instant,
}

pub(super) struct Start<'a> {
    pub(super) program: &'a Path,
    pub(super) arguments: Vec<OsString>,
    /// The core for all its threads; `None`: all cores.
    pub(super) core: Option<usize>,
    /// The file for its output.
    pub(super) log: &'a Path,
    /// Name of the process that does the work, if it is not this one.
    pub(super) worker: Option<&'static str>,
    /// Its home: Tsung makes a directory there.
    pub(super) home: &'a Path,
}

impl Process {
    pub(super) fn start(start: Start<'_>) -> Result<Self> {
        let own = std::process::id();
        let mark = format!("{own}-{}", NEXT.fetch_add(1, Ordering::Relaxed));
        let log = File::options().create(true).append(true).open(start.log)?;
        let mut command = match start.core {
            None => Command::new(start.program),
            Some(core) => process::command(start.program, Some(core), None)?,
        };
        command
            .args(&start.arguments)
            .env(MARK, &mark)
            .env("HOME", start.home)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log);
        let started = Instant::now();
        let child =
            command.spawn().with_context(|| format!("start {}", start.program.display()))?;
        Ok(Self { child, mark, worker: start.worker, started })
    }

    /// The processes that do the work; empty before they start and after they end.
    fn workers(&self) -> Vec<u32> {
        match self.worker {
            None => vec![self.child.id()],
            Some(name) => {
                let named = |pid: &u32| {
                    let comm = fs::read_to_string(format!("/proc/{pid}/comm"));
                    comm.is_ok_and(|comm| comm.trim() == name)
                };
                marked(&self.mark).into_iter().filter(named).collect()
            }
        }
    }

    /// CPU time of the workers.
    pub(super) fn cpu(&self) -> Result<Spent> {
        let read = |pid| Ok((pid, Cpu::of(pid)?));
        Ok(Spent(self.workers().into_iter().map(read).collect::<Result<_>>()?))
    }

    pub(super) fn memory(&self) -> Option<Memory> {
        self.workers().into_iter().filter_map(|pid| Memory::of(pid).ok()).reduce(Memory::plus)
    }

    pub(super) fn ended(&mut self) -> Option<std::process::ExitStatus> {
        self.child.try_wait().ok().flatten()
    }

    pub(super) fn must_run(&mut self) -> Result<()> {
        match self.ended() {
            None => Ok(()),
            Some(status) => bail!("the load generator ended early, {status}; see its log"),
        }
    }

    pub(super) fn wait(&mut self, within: Duration) -> Result<()> {
        let poll = Duration::from_millis(20);
        wait::until("the load generator ends", within, poll, || Ok(self.ended().is_some()))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let mut rest = marked(&self.mark);
        for _ in 0..100 {
            for pid in &rest {
                kill(*pid);
            }
            // Reaps the child; whether it had ended before does not matter.
            let _ = self.child.try_wait();
            rest = marked(&self.mark);
            if rest.is_empty() {
                break;
            }
            thread::sleep(Duration::from_millis(10));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn kill(pid: u32) {
    if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
        // Fails only if it has ended already.
        let _ = rustix::process::kill_process(pid, Signal::KILL);
    }
}

/// All processes with `mark` in their environment.
fn marked(mark: &str) -> Vec<u32> {
    let wanted = format!("{MARK}={mark}");
    let carries = |pid: &u32| {
        fs::read(format!("/proc/{pid}/environ"))
            .is_ok_and(|all| all.split(|byte| *byte == 0).any(|one| one == wanted.as_bytes()))
    };
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pid = |entry: fs::DirEntry| entry.file_name().to_str()?.parse().ok();
    entries.filter_map(pid).filter(carries).collect()
}

pub(super) struct Spent(Vec<(u32, Cpu)>);

impl Spent {
    /// Seconds since `earlier`, and the threads that ended in between, whose time is lost.
    pub(super) fn since(&self, earlier: &Self) -> (f64, usize) {
        let nothing = Cpu::default();
        let mut sum = (0.0, 0);
        for (pid, now) in &self.0 {
            let before = earlier.0.iter().find(|(other, _)| other == pid);
            let (ran, vanished) = now.since(before.map_or(&nothing, |(_, cpu)| cpu));
            sum.0 += Duration::from_nanos(ran).as_secs_f64();
            sum.1 += vanished;
        }
        sum
    }
}

/// User-space memory of a process in bytes, from its smaps_rollup.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Memory {
    /// Resident.
    pub(super) rss: u64,
    /// Resident, shared pages divided among those that share them.
    pub(super) pss: u64,
    /// Resident and not shared.
    pub(super) private: u64,
}

impl Memory {
    fn of(pid: u32) -> Result<Self> {
        let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup"))?;
        Self::read(&text).context("smaps_rollup lacks a line")
    }

    fn read(text: &str) -> Option<Self> {
        let bytes = |name| sys::kilobytes(text, name);
        Some(Self {
            rss: bytes("Rss:")?,
            pss: bytes("Pss:")?,
            private: bytes("Private_Clean:")? + bytes("Private_Dirty:")?,
        })
    }

    fn plus(self, other: Self) -> Self {
        Self {
            rss: self.rss + other.rss,
            pss: self.pss + other.pss,
            private: self.private + other.private,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str, worker: Option<&'static str>) -> Process {
        let home = std::env::temp_dir();
        Process::start(Start {
            program: Path::new("/bin/sh"),
            arguments: ["-c", script].map(OsString::from).to_vec(),
            core: None,
            log: Path::new("/dev/null"),
            worker,
            home: &home,
        })
        .unwrap()
    }

    #[test]
    fn what_a_tool_leaves_behind_is_found_and_killed() {
        // A process of another session, like Erlang's daemon.
        let mut tool = shell("setsid sleep 1000 & exit 0", Some("sleep"));
        tool.wait(Duration::from_secs(5)).unwrap();
        let left = (0..500).find_map(|_| {
            thread::sleep(Duration::from_millis(10));
            tool.workers().first().copied()
        });
        let left = left.unwrap();
        assert!(tool.cpu().is_ok() && tool.memory().is_some());
        let mark = tool.mark.clone();
        drop(tool);
        assert!(marked(&mark).is_empty());
        let state = fs::read_to_string(format!("/proc/{left}/stat")).unwrap_or_default();
        assert!(state.is_empty() || state.contains(") Z "), "{state}");
    }

    #[test]
    fn one_that_ends_early_is_an_error() {
        let mut tool = shell("exit 3", None);
        tool.wait(Duration::from_secs(5)).unwrap();
        assert!(format!("{:#}", tool.must_run().unwrap_err()).contains('3'));
    }

    #[test]
    fn memory_is_read_by_line() {
        let text = "Rss: 10 kB\nPss: 4 kB\nPss_Dirty: 9 kB\nPrivate_Clean: 1 kB\n\
                    Private_Dirty: 2 kB\n";
        let expected = Memory { rss: 10 << 10, pss: 4 << 10, private: 3 << 10 };
        assert_eq!(Memory::read(text), Some(expected));
        assert_eq!(Memory::read("Rss: 10 kB\n"), None);
    }
}
