//! How long bare connections take from the start, and what they cost: the bare server on one side,
//! the clients on the other, each a process with as many tables as Simurgh would have. No data is
//! sent; a connection counts when it has been accepted and is in a poll set.

use std::fs;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde::Serialize;

use super::{Pairs, tables};
use simurgh_bench_kit::process::Process;
use simurgh_bench_kit::{stats, sys};

/// The time limit for a process with hundreds of threads to start.
const START_TIMEOUT: Duration = Duration::from_secs(60);
/// The time limit per connection, beside a minute.
const PER_CONNECTION: Duration = Duration::from_micros(500);
/// The pause before memory and CPU times are read.
const REST: Duration = Duration::from_secs(2);
/// Upper bound of the memory of a bare connection, both ends and both processes.
const BYTES: u64 = 6_000;

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
    /// The increase of the machine's TCP sockets: two per connection, without other processes.
    sockets: i64,
    /// Retries after a second, because a backlog was full: with any, `seconds` is not a floor.
    tried_again: u64,
    /// CPU time that the host took from this machine meanwhile.
    stolen_s: f64,
}

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
        // Memory that the kernel frees late is free by then.
        thread::sleep(REST);
    }
    Ok(())
}

/// The first setting that would refuse connections, or make waiting ones retry.
fn too_small(connections: u64, have: impl Fn(&str) -> Option<u64>) -> Option<String> {
    let sockets = connections * 2;
    // Root may open more files than the limit.
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

/// A setting of the system, or its available memory; `None` if that cannot be read.
fn setting(name: &str) -> Option<u64> {
    match name {
        "MemAvailable" => {
            sys::kilobytes(&fs::read_to_string("/proc/meminfo").ok()?, "MemAvailable:")
        }
        name => fs::read_to_string(format!("/proc/sys/{name}")).ok()?.trim().parse().ok(),
    }
}

/// SYNs that the kernel has sent again since boot.
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
    let wait_max = Duration::from_secs(60) + PER_CONNECTION * u32::try_from(connections)?;
    let server = ["bare-server", "--listen", "127.77.0.1:0", "--max-connections"];
    let mut server = start(&[&server[..], &[number, "--tell-at", number]].concat())?;
    let address = server.line("listening on http://", START_TIMEOUT)?;
    let dial = ["bare-dial", "--server", address.as_str(), "--connections", number];
    let mut dial = start(&dial)?;
    dial.line("ready", START_TIMEOUT)?;
    // The remaining work of the start is done by then.
    thread::sleep(REST / 4);
    let (server_cpu, client_cpu) = (server.cpu()?, dial.cpu()?);
    let (resident, kernel) = (sys::resident(server.pid())?, sys::Kernel::now()?);
    let (retries, (_, stolen)) = (tried_again()?, sys::machine_ticks());
    dial.write_line("go")?;
    let first: u64 = dial.line("first at ", START_TIMEOUT)?.parse()?;
    dial.line("all at ", wait_max)?;
    let accepted = server.line(&format!("accepted {number} at "), wait_max)?;
    let retries = tried_again()? - retries;
    let stolen = sys::machine_ticks().1.saturating_sub(stolen);
    let seconds = stats::per(accepted.parse::<u64>()?.saturating_sub(first), 1) / 1e9;
    thread::sleep(REST);
    let (server_ns, server_ended) = server.cpu()?.since(&server_cpu);
    let (client_ns, client_ended) = dial.cpu()?.since(&client_cpu);
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
    // The clients first: they end by a reset, so neither side is left in TIME_WAIT.
    drop(dial);
    drop(server);
    eprintln!("{connections} connections came and went in {:.1} s", begun.elapsed().as_secs_f64());
    Ok(figures)
}

fn start(arguments: &[&str]) -> Result<Process> {
    let mut command = Command::new(std::env::current_exe().context("own path")?);
    Process::with_output(command.args(arguments).stdin(Stdio::piped()))
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
