//! How long bare connections take from nothing, and what they cost: the bare server on one side,
//! those who dial on the other, each a process with as many tables as Simurgh would have. Nobody
//! says anything; a connection is there when it has been accepted and is in a poll set.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde::Serialize;

use super::{Pairs, tables};
use simurgh_bench_kit::{stats, sys};

/// How long a process with hundreds of threads may take to start.
const START_TIMEOUT: Duration = Duration::from_secs(60);
/// What each connection may take, beside a minute.
const PER_CONNECTION: Duration = Duration::from_micros(500);
/// Rest before memory and CPU times are read.
const REST: Duration = Duration::from_secs(2);
/// Memory of a bare connection, both ends and both processes, at the very most.
const BYTES: u64 = 6_000;

/// What a run has shown: one line of JSON.
#[derive(Debug, Serialize)]
struct Figures {
    connections: u64,
    /// Threads, and tables, of each process.
    tables: usize,
    /// From the first `connect` until the server has accepted all.
    seconds: f64,
    per_second: f64,
    /// CPU time of all threads.
    server_cpu_s: f64,
    client_cpu_s: f64,
    /// The same for each connection.
    server_us: f64,
    client_us: f64,
    /// Resident memory of the server for each connection.
    server_bytes: f64,
    /// The kernel's records (slab) for each socket; there are two to a connection.
    kernel_bytes: f64,
    /// By how many the machine's TCP sockets rose: two to a connection, if nobody else came.
    sockets: i64,
    /// Connections that were tried again after a second, for want of room in a backlog: with any,
    /// `seconds` is no floor.
    tried_again: u64,
    /// CPU time that the host took from this machine meanwhile.
    stolen_s: f64,
}

/// Measures and prints.
pub(super) fn run(options: &Pairs) -> Result<()> {
    let wanted = u64::try_from(options.connections)?;
    if let Some(why) = too_small(wanted, setting) {
        bail!(
            "{why}; `simurgh tune --local-clients --connections {wanted}` shows all that is \
             needed, and changes it if told to"
        );
    }
    for _ in 0..options.runs {
        println!("{}", serde_json::to_string(&measure(options.connections)?)?);
        // What the kernel frees later is free by then.
        thread::sleep(REST);
    }
    Ok(())
}

/// The first setting that would refuse connections, or make those who wait for it try again.
fn too_small(connections: u64, have: impl Fn(&str) -> Option<u64>) -> Option<String> {
    let sockets = connections * 2;
    // Root may open more files than that.
    let files = if rustix::process::geteuid().is_root() { 0 } else { sockets + 20_000 };
    let needs = [
        ("fs/file-max", files),
        ("fs/epoll/max_user_watches", sockets + 1_000),
        ("net/core/somaxconn", 4_096),
        ("MemAvailable", connections * BYTES),
    ];
    needs.into_iter().find_map(|(name, need)| {
        let have = have(name).filter(|have| *have < need)?;
        Some(format!("{name} is {have}, and {need} are needed for {connections} connections"))
    })
}

/// A setting of the system, or what memory it has to spare; `None` if that cannot be read.
fn setting(name: &str) -> Option<u64> {
    match name {
        "MemAvailable" => {
            sys::kilobytes(&fs::read_to_string("/proc/meminfo").ok()?, "MemAvailable:")
        }
        name => fs::read_to_string(format!("/proc/sys/{name}")).ok()?.trim().parse().ok(),
    }
}

/// Requests for a connection that the kernel has sent again, since boot.
fn tried_again() -> Result<u64> {
    let text = fs::read_to_string("/proc/net/netstat")?;
    let mut lines = text.lines().filter(|line| line.starts_with("TcpExt:"));
    let (names, values) = (lines.next().unwrap_or_default(), lines.next().unwrap_or_default());
    let found = names.split(' ').zip(values.split(' ')).find(|it| it.0 == "TCPSynRetrans");
    Ok(found.context("netstat has no TCPSynRetrans")?.1.parse()?)
}

fn measure(connections: usize) -> Result<Figures> {
    let text = connections.to_string();
    let number = text.as_str();
    let begun = Instant::now();
    let patience = Duration::from_secs(60) + PER_CONNECTION * u32::try_from(connections)?;
    let server = ["bare-server", "--listen", "127.77.0.1:0", "--max-connections"];
    let mut server = Process::start(&[&server[..], &[number, "--tell-at", number]].concat())?;
    let address = server.hear("listening on http://", START_TIMEOUT)?;
    let dial = ["bare-dial", "--server", address.as_str(), "--connections", number];
    let mut dial = Process::start(&dial)?;
    dial.hear("ready", START_TIMEOUT)?;
    // Whatever the start has left to do is done.
    thread::sleep(REST / 4);
    let (server_cpu, client_cpu) = (sys::Cpu::of(server.pid())?, sys::Cpu::of(dial.pid())?);
    let (resident, kernel) = (sys::resident(server.pid())?, sys::Kernel::now()?);
    let (retries, (_, stolen)) = (tried_again()?, sys::machine_ticks());
    dial.go()?;
    let first: u64 = dial.hear("first at ", START_TIMEOUT)?.parse()?;
    dial.hear("all at ", patience)?;
    let accepted = server.hear(&format!("accepted {number} at "), patience)?;
    let retries = tried_again()? - retries;
    let stolen = sys::machine_ticks().1.saturating_sub(stolen);
    let seconds = stats::per(accepted.parse::<u64>()?.saturating_sub(first), 1) / 1e9;
    thread::sleep(REST);
    let (server_ns, server_ended) = sys::Cpu::of(server.pid())?.since(&server_cpu);
    let (client_ns, client_ended) = sys::Cpu::of(dial.pid())?.since(&client_cpu);
    ensure!(server_ended + client_ended == 0, "a thread has ended");
    let now = sys::Kernel::now()?;
    let each = u32::try_from(connections)?;
    let rise = |now: u64, before: u64| stats::per(now.saturating_sub(before), each);
    let figures = Figures {
        connections: u64::try_from(connections)?,
        tables: tables::count_for(connections),
        seconds,
        per_second: f64::from(each) / seconds,
        server_cpu_s: stats::per(server_ns, 1) / 1e9,
        client_cpu_s: stats::per(client_ns, 1) / 1e9,
        server_us: stats::per(server_ns, each) / 1e3,
        client_us: stats::per(client_ns, each) / 1e3,
        server_bytes: rise(sys::resident(server.pid())?, resident),
        kernel_bytes: rise(now.slab(), kernel.slab()) / 2.0,
        sockets: now.tcp_inuse.cast_signed() - kernel.tcp_inuse.cast_signed(),
        tried_again: retries,
        stolen_s: stats::per(stolen, 100),
    };
    // Those who dialled first: their end is a reset, and neither side is left in TIME_WAIT.
    drop(dial);
    drop(server);
    eprintln!("{connections} connections came and went in {:.1} s", begun.elapsed().as_secs_f64());
    Ok(figures)
}

/// This program again, with a task; killed when dropped.
struct Process {
    child: Child,
    input: Option<ChildStdin>,
    lines: Receiver<String>,
}

impl Process {
    fn start(arguments: &[&str]) -> Result<Self> {
        let mut child = Command::new(std::env::current_exe().context("own path")?)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("start this program again")?;
        let (said, lines) = mpsc::channel();
        let input = child.stdin.take();
        let output = child.stdout.take();
        // From here on it is killed if anything fails.
        let process = Self { child, input, lines };
        let output = output.context("the process has no output")?;
        thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                // Nobody may want to hear it any more.
                let _ = said.send(line);
            }
        });
        Ok(process)
    }

    fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits until it says something that begins so; returns the rest of that line.
    fn hear(&mut self, begin: &str, timeout: Duration) -> Result<String> {
        let begun = Instant::now();
        loop {
            let left = timeout.saturating_sub(begun.elapsed());
            match self.lines.recv_timeout(left) {
                Ok(line) => {
                    if let Some(rest) = line.strip_prefix(begin) {
                        return Ok(rest.trim().to_owned());
                    }
                }
                Err(mpsc::RecvTimeoutError::Timeout) => {
                    bail!("nobody said {begin:?} within {timeout:?}")
                }
                Err(mpsc::RecvTimeoutError::Disconnected) => {
                    bail!("a process has ended ({}), see above", self.child.wait()?)
                }
            }
        }
    }

    /// Gives it the one line it waits for.
    fn go(&mut self) -> Result<()> {
        writeln!(self.input.as_mut().context("the process has no input")?, "go")?;
        Ok(())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Fails only if it has ended already, which is what is wanted.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_too_small_is_named() {
        let enough = |name: &str| (name != "net/core/somaxconn").then_some(u64::MAX);
        assert_eq!(too_small(2_000_000, enough), None);
        let few = |name: &str| (name == "fs/epoll/max_user_watches").then_some(3_000_000);
        assert_eq!(too_small(1_000_000, few), None);
        let why = too_small(2_000_000, few).unwrap();
        assert!(why.contains("max_user_watches is 3000000, and 4001000"), "{why}");
        assert!(tried_again().is_ok());
        assert!(setting("net/core/somaxconn").is_some_and(|most| most > 0));
        assert!(setting("MemAvailable").is_some_and(|bytes| bytes > 0));
    }
}
