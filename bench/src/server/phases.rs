//! One run of one server: the phases in their order, and the figures they yield.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use serde_json::json;

use simurgh_bench_kit::clients::{Script, VerifiedClients};
use simurgh_bench_kit::probe::Probe;
use simurgh_bench_kit::rounds::{Options, Sample};
use simurgh_bench_kit::stats;
use simurgh_bench_kit::sys::{self, Cpu, Kernel};
use simurgh_bench_kit::target::{self, Server, Target};

/// Memory is compared between this many clients and all, to exclude what a server sets up once, and
/// slabs left over from the run before.
const FIRST_CLIENTS: usize = 1_000;
/// Broadcasts of the spaced measure, and of the burst.
const BROADCASTS: u32 = 20;
const WARM_UP: u32 = 2;
const HEARTBEATS_ALONE: usize = 2_000;
/// Joins wanted during broadcasts, joins tried in one, and broadcasts spent on them at most.
const JOINS: usize = 200;
const JOINS_PER_BROADCAST: usize = 8;
const JOIN_BROADCASTS_MAX: usize = 200;
/// A run whose client waits longer than this has failed.
const WAIT_MAX: Duration = Duration::from_secs(30);

pub(super) const MEASURES: [&str; 7] =
    ["memory", "connect", "spaced", "burst", "heartbeat", "join", "turn"];

pub(super) fn clients(options: &Options) -> usize {
    options.clients.unwrap_or(options.size(18_000, 2_000))
}

fn wants(options: &Options, measure: &str) -> bool {
    // The longest turn is that of all traffic; memory is measured by waiting only.
    options.wants(measure) || (measure != "memory" && options.wants("turn"))
}

/// Runs `target` once. The figures have the names of table.txt; failures are in the sample, with
/// all results until then.
pub(crate) fn measured(target: &Target, options: &Options, log: &Path) -> Sample {
    let mut figures = Sample::default();
    let (busy, stolen) = sys::machine_ticks();
    let own = Cpu::of(std::process::id());
    let done = quiet_sockets().and_then(|()| measure(target, options, log, &mut figures));
    let server_s = done.as_ref().copied().unwrap_or_default();
    if let Err(error) = done {
        figures.faults.push(format!("{error:#}"));
    }
    let (busy_now, stolen_now) = sys::machine_ticks();
    if let (Ok(before), Ok(now)) = (own, Cpu::of(std::process::id())) {
        let ours = stats::per(now.since(&before).0, 1_000_000_000) + server_s;
        let others = stats::per(busy_now.saturating_sub(busy), 100) - ours;
        let stolen = stats::per(stolen_now.saturating_sub(stolen), 100);
        figures.note(format!("others used {others:.1} CPU s, the host took {stolen:.1} s"));
    }
    figures
}

/// Waits until the sockets of the run before are closed.
fn quiet_sockets() -> Result<()> {
    for _ in 0..100 {
        let kernel = Kernel::now()?;
        if kernel.tcp_inuse < 500 && kernel.tcp_time_wait < 500 {
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    Ok(())
}

/// Returns the server's CPU time, seconds.
fn measure(target: &Target, options: &Options, log: &Path, figures: &mut Sample) -> Result<f64> {
    let server = target.start(log)?;
    let (address, tls) = server.entrance();
    let clients = VerifiedClients::with_tls(address, Script::lobby(address), tls)?;
    let mut phases = Phases { options, server, clients, figures };
    let outcome = phases.run(target.name == "floor" || phases.server.entrance().1.is_some());
    let Phases { server, clients, figures, .. } = phases;
    let tally = clients.tally();
    let behind = clients.behind();
    figures.raw.push(json!({ "tally": tally }));
    figures.note(format!(
        "{} deliveries checked one by one: {} missed, {} repeated, {} of wrong form",
        tally.delivered, tally.missed, tally.repeated, tally.odd
    ));
    if let Err(error) = outcome {
        bail!("{error:#}; {behind} clients have not had every broadcast");
    }
    if behind > 0 || tally.missed + tally.repeated + tally.odd + tally.refused > 0 {
        figures.faults.push(format!(
            "{behind} clients have not had every broadcast exactly once and in order: {} missed, \
             {} repeated, {} of the wrong form, {} pushes refused",
            tally.missed, tally.repeated, tally.odd, tally.refused
        ));
    }
    Ok(stats::per(server.cpu()?.since(&Cpu::default()).0, 1_000_000_000))
}

struct Phases<'a> {
    options: &'a Options,
    server: Server,
    clients: VerifiedClients,
    figures: &'a mut Sample,
}

impl Phases<'_> {
    fn run(&mut self, is_floor: bool) -> Result<()> {
        let resident_first = self.connect()?;
        let mut spaced = None;
        if wants(self.options, "spaced") || wants(self.options, "join") {
            spaced = Some(self.broadcasts_spaced()?);
        }
        if wants(self.options, "burst") {
            self.broadcasts_burst()?;
        }
        if wants(self.options, "heartbeat") {
            self.heartbeats()?;
        }
        // The bare loop finishes a broadcast before it reads anything else: nothing to measure.
        if wants(self.options, "join") && !is_floor {
            self.joins_during_broadcasts(spaced.unwrap_or_default())?;
        }
        // Time for duplicates to arrive.
        self.rest(300)?;
        if wants(self.options, "memory") {
            let more = stats::per(self.clients.joined().saturating_sub(FIRST_CLIENTS), 1);
            let grown = stats::difference(self.server.resident()?, resident_first);
            let after = (more > 0.0).then(|| grown / more);
            self.figures.put_some("user_bytes_after_traffic", after);
        }
        self.read_metrics();
        let lost = self.clients.tally().lost;
        ensure!(lost == 0, "the server cut {lost} connections");
        Ok(())
    }

    fn rest(&mut self, ms: u64) -> Result<()> {
        self.clients.rest(Duration::from_millis(ms))
    }

    /// Server CPU since `before` in ns.
    fn cpu_since(&mut self, before: &Cpu) -> Result<f64> {
        let (ran, vanished) = self.server.cpu()?.since(before);
        if vanished > 0 {
            let note = format!("{vanished} server threads ended in a phase: CPU understated");
            self.figures.note(note);
        }
        Ok(stats::per(ran, 1))
    }

    /// Connects all; memory and CPU from the first 1,000 on. Returns the RSS at the first 1,000.
    fn connect(&mut self) -> Result<u64> {
        let all = clients(self.options);
        let first = FIRST_CLIENTS.min(all / 2);
        let rest = if wants(self.options, "memory") { 2_000 } else { 200 };
        self.clients.grow(first, WAIT_MAX)?;
        self.rest(rest)?;
        let kernel_first = Kernel::now()?;
        let resident_first = self.server.resident()?;
        let cpu = self.server.cpu()?;
        self.clients.grow(all, WAIT_MAX)?;
        self.rest(100)?;
        let more = all - first;
        if wants(self.options, "connect") {
            let connect_ns = self.cpu_since(&cpu)? / stats::per(more, 1);
            self.figures.put("connect_ns", connect_ns);
        }
        self.rest(rest)?;
        if !wants(self.options, "memory") {
            return Ok(resident_first);
        }
        let sockets = 2 * u64::try_from(more)?;
        let mut kernel = Kernel::now()?;
        // Other processes on the machine open sockets too; they mostly close them again.
        for _ in 0..20 {
            if kernel.tcp_inuse == kernel_first.tcp_inuse + sockets {
                break;
            }
            self.rest(250)?;
            kernel = Kernel::now()?;
        }
        let grown = stats::difference(self.server.resident()?, resident_first);
        let out = &mut *self.figures;
        let user_bytes = grown / stats::per(more, 1);
        out.put("user_bytes", user_bytes);
        let slab_caches = kernel.caches_since(&kernel_first);
        let rose = kernel.tcp_inuse.saturating_sub(kernel_first.tcp_inuse);
        if rose == sockets {
            let slab = stats::difference(kernel.slab(), kernel_first.slab());
            let listing = sys::listing_bytes(&slab_caches);
            let sockets = stats::per(sockets, 1);
            let kernel_bytes = (slab - listing) / sockets;
            out.put("kernel_bytes", kernel_bytes);
            out.put("total_bytes", user_bytes + kernel_bytes);
            if listing / sockets > 20.0 {
                let bytes = listing / sockets;
                out.note(format!("something lists /proc/PID/fd: {bytes:.0} B each taken off"));
            }
            let of_caches = sys::socket_bytes(&slab_caches).map(|bytes| bytes / sockets);
            out.put_some("socket_caches_bytes", of_caches);
        } else {
            out.note(format!("kernel memory not valid: {rose} sockets, not {sockets}"));
        }
        out.raw.push(json!({ "kernel": [kernel_first, kernel], "slab_caches": slab_caches }));
        Ok(resident_first)
    }

    /// Returns the server's CPU time of one broadcast: no fan-out is over before that.
    fn broadcasts_spaced(&mut self) -> Result<Duration> {
        for _ in 0..WARM_UP {
            self.clients.broadcast(1, WAIT_MAX)?;
        }
        self.rest(100)?;
        let joined = stats::per(self.clients.joined(), 1);
        let first = self.server.cpu()?;
        let mut cpu = first.clone();
        let (mut last, mut each) = (Vec::new(), Vec::new());
        for _ in 0..BROADCASTS {
            last.push(self.clients.broadcast(1, WAIT_MAX)?.as_secs_f64() * 1e3);
            self.rest(5)?;
            let now = self.server.cpu()?;
            each.push(stats::per(now.since(&cpu).0, 1) / joined);
            cpu = now;
        }
        self.rest(100)?;
        let ran = self.cpu_since(&first)? / f64::from(BROADCASTS);
        self.figures.put("spaced_ns", ran / joined);
        self.figures.put_some("spaced_median_ns", stats::median(&each));
        self.figures.put_some("spaced_last_ms", stats::median(&last));
        Ok(Duration::from_secs_f64(ran / 1e9))
    }

    fn broadcasts_burst(&mut self) -> Result<()> {
        let cpu = self.server.cpu()?;
        let last = self.clients.broadcast(BROADCASTS, WAIT_MAX)?;
        self.rest(100)?;
        let deliveries = f64::from(BROADCASTS) * stats::per(self.clients.joined(), 1);
        let burst_ns = self.cpu_since(&cpu)? / deliveries;
        self.figures.put("burst_ns", burst_ns);
        self.figures.put("burst_last_ms", last.as_secs_f64() * 1e3);
        Ok(())
    }

    fn heartbeats(&mut self) -> Result<()> {
        let cpu = self.server.cpu()?;
        let mut trips = Vec::with_capacity(HEARTBEATS_ALONE);
        for _ in 0..HEARTBEATS_ALONE {
            trips.push(self.clients.heartbeat()?.as_secs_f64() * 1e6);
        }
        self.rest(50)?;
        let ran = self.cpu_since(&cpu)?;
        self.figures.put("heartbeat_alone_us", ran / 1e3 / stats::per(HEARTBEATS_ALONE, 1));
        self.figures.put_some("heartbeat_p50_us", stats::median(&trips));
        let cpu = self.server.cpu()?;
        self.clients.heartbeat_all()?;
        self.rest(100)?;
        let ran = self.cpu_since(&cpu)?;
        let joined = stats::per(self.clients.joined(), 1);
        self.figures.put("heartbeat_batched_us", ran / 1e3 / joined);
        Ok(())
    }

    /// `fan_out`: CPU time of one broadcast. It cannot be over sooner, so joins sent within its
    /// first 80 % certainly come during it.
    fn joins_during_broadcasts(&mut self, fan_out: Duration) -> Result<()> {
        let mut priority = "";
        let mut latencies: Vec<f64> = Vec::new();
        for round in 0..JOIN_BROADCASTS_MAX {
            if latencies.len() >= JOINS {
                break;
            }
            let (server, progress) = (self.server.address, self.clients.progress());
            let probe = Probe::start(server, JOINS_PER_BROADCAST, progress)?;
            priority = probe.priority;
            self.rest(20)?;
            let clients = &mut self.clients;
            let target = clients.tally().delivered + u64::try_from(clients.joined())?;
            let start = Instant::now();
            clients.publish(1)?;
            probe.go(start, offsets(round, fan_out), target)?;
            clients.await_delivered(target, WAIT_MAX)?;
            self.rest(5)?;
            latencies.extend(probe.finish()?.iter().map(|took| took.as_secs_f64() * 1e3));
            // Lets the server see the probe's connections close before the next broadcast.
            self.rest(20)?;
        }
        latencies.truncate(JOINS);
        let out = &mut *self.figures;
        out.note(format!(
            "{} of {JOINS} joins met a fan-out, timed by a thread at {priority}",
            latencies.len()
        ));
        out.put_some("join_p99_ms", stats::quantile(&latencies, 0.99));
        out.put_some("join_p50_ms", stats::median(&latencies));
        out.put_some("join_max_ms", stats::quantile(&latencies, 1.0));
        Ok(())
    }

    fn read_metrics(&mut self) {
        let out = &mut *self.figures;
        match self.server.metrics() {
            Ok(lines) => {
                let ms = |name| target::metric(&lines, name).map(|seconds| seconds * 1e3);
                if wants(self.options, "turn") {
                    out.put_some(
                        "turn_max_ms",
                        ms("simurgh_shard_turn_cpu_max_seconds{shard=\"0\"}"),
                    );
                    out.put_some(
                        "turn_wall_max_ms",
                        ms("simurgh_shard_turn_max_seconds{shard=\"0\"}"),
                    );
                }
                let telling = ["turn", "heartbeat", "alloc", "slow"];
                let is_telling = |line: &&String| telling.iter().any(|word| line.contains(word));
                let lines: Vec<&String> = lines.iter().filter(is_telling).collect();
                out.raw.push(json!({ "metrics": lines }));
            }
            Err(error) => out.note(format!("no /metrics: {error:#}")),
        }
    }
}

/// Evenly spread over the first 80 % of the fan-out, shifted a little each round.
fn offsets(round: usize, fan_out: Duration) -> Vec<Duration> {
    let window = fan_out.mul_f64(0.8);
    let shift = stats::per(round % 10, 10);
    (0..JOINS_PER_BROADCAST)
        .map(|at| window.mul_f64((stats::per(at, 1) + 0.1 + 0.9 * shift) / 8.0))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn joins_start_within_the_fan_out() {
        let fan_out = Duration::from_millis(100);
        for round in 0..20 {
            let offsets = offsets(round, fan_out);
            assert_eq!(offsets.len(), JOINS_PER_BROADCAST);
            assert!(offsets.is_sorted());
            assert!(offsets.iter().all(|at| (1..80).contains(&at.as_millis())));
        }
    }
}
