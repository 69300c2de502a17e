//! The server is stopped for longer than it lets a client be silent, as a virtual machine that was
//! suspended is. Its clients go on sending heartbeats, and nobody has been silent when it goes on.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::process::{Pid, Signal, kill_process};

use super::server::{How, Served, USUAL};
use super::{Bench, Sample};
use simurgh_bench_kit::fleet::{Fleet, Script};
use simurgh_bench_kit::stats;

/// Clients.
pub(super) const CLIENTS: usize = 10_000;
/// Heartbeats that each sends while the server stands still.
const BEATS: u32 = 3;

pub(super) fn run(bench: &Bench<'_>, sample: &mut Sample) -> Result<()> {
    let size = |full: u64, short: u64| Duration::from_secs(bench.options.size(full, short));
    let stopped = size(90, 6);
    let idle_timeout = bench.options.size("60s", "4s");
    let mut server = Served::start(bench, How { idle_timeout, ..USUAL })?;
    let address = server.running.address;
    let mut fleet = Fleet::new(address, Script::lobby(address))?;
    let clients = bench.options.size(CLIENTS, CLIENTS / 10);
    fleet.grow(clients, Duration::from_secs(60))?;
    fleet.heartbeat_all()?;
    let answered = fleet.tally().replies;

    let pid = i32::try_from(server.running.pid()).ok().and_then(Pid::from_raw).context("no pid")?;
    kill_process(pid, Signal::STOP)?;
    let begun = Instant::now();
    for beat in 0..BEATS {
        // A client with a heartbeat each 30 s has one due after 15, 45 and 75 s of 90.
        until(begun + stopped * (2 * beat + 1) / (2 * BEATS));
        fleet.send_heartbeats()?;
    }
    until(begun + stopped);
    kill_process(pid, Signal::CONT)?;
    // Some sweeps over the records, and less than the timeout after the last heartbeat.
    fleet.rest(size(20, 3))?;

    let tally = fleet.tally();
    // Who is told so is closed, whether or not the connection has ended by now.
    let closed = tally.closes.values().sum::<u64>().max(tally.lost);
    sample.put("suspended_closed", stats::per(closed, 1));
    sample.put_count("suspended_clients", clients);
    let asked = u64::try_from(clients)?.saturating_sub(closed) * u64::from(BEATS);
    let unanswered = asked.saturating_sub(tally.replies - answered);
    sample.put("suspended_unanswered", stats::per(unanswered, 1));
    if closed > 0 {
        sample.note(format!("clients closed, by code: {:?}", tally.closes));
    }
    sample.check_wrong("suspended", tally.odd + tally.repeated + tally.missed + tally.refused);
    super::cursors::aftermath(&mut server, sample, "suspended", USUAL)
}

fn until(time: Instant) {
    if let Some(left) = time.checked_duration_since(Instant::now()) {
        thread::sleep(left);
    }
}
