//! The server is stopped for longer than its idle timeout, like a suspended virtual machine. Its
//! clients keep sending heartbeats, so none counts as silent when the server continues.

use std::time::{Duration, Instant};

use anyhow::Result;
use rustix::process::Signal;

use super::field::{Field, Setup, USUAL, attack};
use super::{Bench, Sample};
use simurgh_bench_kit::clients::{Script, VerifiedClients};
use simurgh_bench_kit::{stats, wait};

pub(super) const CLIENTS: usize = 10_000;
/// Heartbeats of each client while the server is stopped.
const BEATS: u32 = 3;

pub(super) fn run(bench: &Bench<'_>, sample: &mut Sample) -> Result<()> {
    let idle_timeout = bench.options.size("60s", "4s");
    attack(bench, sample, "suspended", Setup { idle_timeout, ..USUAL }, stopped)
}

fn stopped(field: &mut Field<'_>) -> Result<()> {
    let options = field.bench.options;
    let size = |full: u64, short: u64| Duration::from_secs(options.size(full, short));
    let stopped = size(90, 6);
    let address = field.server.address;
    let mut connections = VerifiedClients::new(address, Script::lobby(address))?;
    let clients = options.size(CLIENTS, CLIENTS / 10);
    connections.grow(clients, Duration::from_secs(60))?;
    connections.heartbeat_all()?;
    let answered = connections.tally().replies;

    field.server.process.signal(Signal::STOP)?;
    let begun = Instant::now();
    for beat in 0..BEATS {
        // A client with a heartbeat each 30 s has one due after 15, 45 and 75 s of 90.
        wait::sleep_until(begun + stopped * (2 * beat + 1) / (2 * BEATS));
        connections.send_heartbeats()?;
    }
    wait::sleep_until(begun + stopped);
    field.server.process.signal(Signal::CONT)?;
    // Some sweeps over the records, and less than the timeout after the last heartbeat.
    connections.rest(size(20, 3))?;

    let tally = connections.tally();
    // A client that was sent a close frame counts as closed, even if it is still connected.
    let closed = tally.closes.values().sum::<u64>().max(tally.lost);
    field.put("closed", stats::per(closed, 1));
    let asked = u64::try_from(clients)?.saturating_sub(closed) * u64::from(BEATS);
    let unanswered = asked.saturating_sub(tally.replies - answered);
    field.put("unanswered", stats::per(unanswered, 1));
    if closed > 0 {
        field.note(&format!("clients closed, by code: {:?}", tally.closes));
    }
    let wrong = tally.odd + tally.repeated + tally.missed + tally.refused;
    field.sample.check_wrong("suspended", wrong);
    Ok(())
}
