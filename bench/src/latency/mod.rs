//! How late messages arrive at a given rate: Simurgh beside other servers, each on one core. First
//! the rate that a server sustains, then latencies at shares of it. README.md says how each figure
//! comes about.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use simurgh_bench_kit::clients::{Layout, Level, Outcome, StampedClients};
use simurgh_bench_kit::process::Process;
use simurgh_bench_kit::rounds::table::{Recipe, read};
use simurgh_bench_kit::rounds::{Bench, Job, Options, Sample, Suite, USUAL};
use simurgh_bench_kit::stats;

use self::peers::{OTHERS, Peer, SIMURGH};

pub(crate) mod chart;
mod peers;

pub(crate) const SUITE: Suite = Suite {
    name: "latency",
    about: "Latency at shares of the sustained rate, beside other servers",
    jobs: || {
        vec![
            Job::new("room", |bench, sample| {
                all(bench, sample, Layout { clients: 5_000, members: 5_000, topics_each: 1 })
            }),
            Job::new("rooms", |bench, sample| {
                all(bench, sample, Layout { clients: CLIENTS, members: 20, topics_each: 1 })
            }),
            Job::new("own", |bench, sample| {
                all(bench, sample, Layout { clients: CLIENTS, members: 1, topics_each: 1 })
            }),
            Job::new("two", |bench, sample| {
                all(bench, sample, Layout { clients: CLIENTS, members: 8, topics_each: 2 })
            }),
        ]
    },
    recipes,
    order: "in each row of a round: the other servers, then Simurgh, also at the others' rates",
    ..USUAL
};

/// A server process may have 20,000 descriptors on many machines.
const CLIENTS: usize = 18_000;
/// A server sustains a rate if the median of a step stays below this, ms: no queue stands. One
/// message to a large room takes longer than a queue elsewhere.
const MEDIAN_MAX_MS: f64 = 10.0;
const MEDIAN_OF_ROOM_MAX_MS: f64 = 100.0;
/// Deliveries per second of the first step.
const FIRST_RATE: f64 = 10_000.0;
const DOUBLINGS_MAX: u32 = 12;
const HALVINGS: u32 = 3;
const SHARES: [u32; 4] = [25, 50, 75, 90];

/// The lines of Simurgh, and those of each other server that is there.
fn recipes(_: &Options) -> Result<Vec<Recipe>> {
    let (own, others) = include_str!("table.txt").split_once("\n\n").context("two blocks")?;
    let mut all = read(own, &[])?;
    for peer in OTHERS.iter().filter(|peer| peer.program().is_ok()) {
        all.extend(read(others, &[("{peer}", peer.name.to_owned())])?);
    }
    Ok(all)
}

/// Measures the other servers, then Simurgh.
fn all(bench: &Bench<'_>, sample: &mut Sample, layout: Layout) -> Result<()> {
    let layout =
        Layout { clients: bench.options.size(layout.clients, layout.clients / 10), ..layout };
    let layout = Layout { members: layout.members.min(layout.clients), ..layout };
    let mut rates = Vec::new();
    for peer in &OTHERS {
        match other(bench, sample, peer, layout) {
            Ok(rate) => rates.push((peer.name, rate)),
            Err(why) => sample.note(format!("{}: {why:#}", peer.name)),
        }
    }
    let mut run = Run::start(bench, &SIMURGH, layout)?;
    run.all(sample)?;
    for (name, rate) in rates {
        for share in [50, 90] {
            run.level(sample, &format!("at {name} {share}"), rate, share)?;
        }
    }
    Ok(())
}

/// Measures another server; returns its sustained rate.
fn other(bench: &Bench<'_>, sample: &mut Sample, peer: &Peer, layout: Layout) -> Result<f64> {
    peer.program()?;
    ensure!(peer.language.is_echoed || layout.members > 1, "nobody receives these messages");
    Run::start(bench, peer, layout)?.all(sample)
}

/// A server with all its clients.
struct Run<'a> {
    bench: &'a Bench<'a>,
    peer: &'a Peer,
    process: Process,
    clients: StampedClients,
    median_max_ms: f64,
    steps: u64,
}

impl<'a> Run<'a> {
    fn start(bench: &'a Bench<'a>, peer: &'a Peer, layout: Layout) -> Result<Self> {
        let (process, address) = peer.start(bench)?;
        let clients = StampedClients::join(address, peer.language, layout)?;
        let is_large = layout.members > 1_000;
        let median_max_ms = if is_large { MEDIAN_OF_ROOM_MAX_MS } else { MEDIAN_MAX_MS };
        Ok(Self { bench, peer, process, clients, median_max_ms, steps: 0 })
    }

    /// Finds the sustained rate, and measures at shares of it; returns the rate.
    fn all(&mut self, sample: &mut Sample) -> Result<f64> {
        let rate = self.sustained()?;
        sample.put(format!("{} rate", self.peer.name), rate);
        for share in SHARES {
            self.level(sample, &share.to_string(), rate, share)?;
        }
        Ok(rate)
    }

    /// Deliveries per second that it sustains: doubled until it does not, then halfway between.
    fn sustained(&mut self) -> Result<f64> {
        let (mut low, mut high) = (0.0, f64::INFINITY);
        let mut rate = FIRST_RATE;
        for _ in 0..DOUBLINGS_MAX {
            if !self.keeps_up(rate)? {
                high = rate;
                break;
            }
            (low, rate) = (rate, rate * 2.0);
        }
        ensure!(low > 0.0, "it does not sustain {FIRST_RATE} deliveries/s");
        for _ in 0..HALVINGS {
            let rate = (low * high).sqrt();
            if !rate.is_finite() {
                break;
            }
            if self.keeps_up(rate)? { low = rate } else { high = rate }
        }
        Ok(low)
    }

    /// Whether it keeps up with a rate in one of two tries.
    fn keeps_up(&mut self, rate: f64) -> Result<bool> {
        let time = self.bench.options.size(Duration::from_millis(1500), Duration::from_millis(500));
        for _ in 0..2 {
            self.steps += 1;
            let level = Level { rate, time, backlog_max: Duration::from_millis(500) };
            let outcome = self.clients.run(level, self.steps)?;
            let median = outcome.latency_ms(0.5);
            eprintln!("    {} {rate:.0}/s: p50 {median:.1} ms", self.peer.name);
            if !outcome.is_overrun && outcome.missing == 0 && median <= self.median_max_ms {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Measures at a share of a rate, in percent. All servers get the same arrivals at a share.
    fn level(&mut self, sample: &mut Sample, name: &str, rate: f64, share: u32) -> Result<()> {
        let time = self.bench.options.size(Duration::from_secs(4), Duration::from_secs(1));
        let rate = rate * f64::from(share) / 100.0;
        let before = self.process.cpu()?;
        let level = Level { rate, time, backlog_max: Duration::from_secs(60) };
        let outcome = self.clients.run(level, u64::from(share) << 32)?;
        let (spent_ns, _) = self.process.cpu()?.since(&before);
        self.put(sample, name, &outcome, stats::per(spent_ns, 1000));
        Ok(())
    }

    fn put(&self, sample: &mut Sample, name: &str, outcome: &Outcome, cpu_us: f64) {
        let name = format!("{} {name}", self.peer.name);
        let mut put = |figure: &str, value: f64| sample.put(format!("{name} {figure}"), value);
        put("p50", outcome.latency_ms(0.5));
        put("p99", outcome.latency_ms(0.99));
        put("max", outcome.latency_ms(1.0));
        put("lag p99", outcome.lag_ms(0.99));
        put("busy %", outcome.busy * 100.0);
        put("deliveries", stats::per(outcome.deliveries(), 1));
        put("server µs", cpu_us / stats::per(outcome.deliveries(), 1));
        let missing = format!("{name}: {} deliveries are missing", outcome.missing);
        match outcome.missing {
            0 => {}
            _ if self.peer.name == SIMURGH.name => sample.faults.push(missing),
            _ => sample.notes.push(missing),
        }
    }
}
