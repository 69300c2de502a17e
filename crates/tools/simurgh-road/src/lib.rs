//! `simurgh road`: a capacity test that measures how many connections one server on this machine
//! holds, and what each costs.
//!
//! ```text
//! raise limits -> start server, clients, probes -> climb to a milestone, rest, measure -> the next
//!                                                                  `-> results: JSON, table, page
//! ```
//!
//! All are processes of this program: the server is `simurgh serve`, clients and probes are
//! `simurgh load`, controlled through standard input. The measurements come from their journals,
//! from `/metrics` and from `/proc`. With `--nodes` there are several servers, nodes of a cluster
//! with a broker between them.
//!
//! `run` is the state of a test; `climb`, `broadcast` and `reconnect` measure with it. `results` is
//! the data they fill, which `compare` and `report` read.

mod broadcast;
mod climb;
mod compare;
mod engine;
mod journal;
mod metrics;
mod processes;
mod reconnect;
mod report;
mod results;
mod run;
mod scenarios;
mod servers;
mod tuning;
mod usage;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use simurgh_text::format::grouped;
use simurgh_text::output::{complain, fail, print};
use simurgh_text::{Choice, bytes_at_least_one, duration, whole, word_or};
use simurgh_tune::CONNECTIONS_MAX;

use engine::Program;
use processes::{Identity, Load, wait_until};
use report::time;
use results::{BroadcastResult, Comparison, Host, Milestone, Results};
use run::CapacityTest;
use scenarios::Workload;
use servers::Servers;
use tuning::TemporaryTuning;
use usage::Usage;

/// The flags of `simurgh road`.
#[derive(Debug, Args)]
pub struct Flags {
    /// Number of connections to reach. Default: as many as memory allows.
    #[arg(long, value_name = "N", value_parser = whole::<u64>(100, CONNECTIONS_MAX))]
    connections: Option<u64>,
    /// New connections per second.
    #[arg(long, value_name = "N", default_value_t = 20_000,
          value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    rate: u32,
    /// Output directory; must be empty or not exist.
    #[arg(long, value_name = "DIR", default_value = "simurgh-road")]
    out: PathBuf,
    /// Heartbeat interval of each client for the measurement at the end, or off.
    #[arg(long, value_name = "TIME", default_value = "30s",
          value_parser = word_or("off", duration))]
    heartbeats: Choice<Duration>,
    /// Size of the text in each broadcast, besides a stamp of about 40 bytes; for example 10kB.
    #[arg(long, value_name = "SIZE", value_parser = bytes_at_least_one)]
    text: Option<usize>,
    /// Tests another server: a command that takes the options of `simurgh serve`, prints the same
    /// `listening on` line, and answers GET /metrics and POST /api/broadcast.
    #[arg(long, value_name = "COMMAND")]
    server: Option<String>,
    /// Clients connect with TLS: the server's certificate, a PEM file for any name. Handshakes
    /// take more CPU than joins: choose a lower --rate.
    #[arg(long, value_name = "FILE", requires = "tls_key", conflicts_with = "server")]
    tls_certificate: Option<PathBuf>,
    /// The certificate's private key, a PEM file.
    #[arg(long, value_name = "FILE", requires = "tls_certificate")]
    tls_key: Option<PathBuf>,
    /// How clients connect: sockets, or tun. With tun, clients have no sockets (`simurgh load
    /// --transport tun`), so memory holds almost twice as many connections. It needs root, and has
    /// no TLS.
    #[arg(long, value_name = "HOW", value_parser = ["sockets", "tun"], default_value = "sockets",
          hide_possible_values = true, conflicts_with = "tls_certificate")]
    transport: String,
    /// Tests a cluster of N nodes with a nats-server and one topic on all nodes.
    #[arg(long, value_name = "N", default_value_t = 1, conflicts_with = "server",
          value_parser = clap::value_parser!(u32).range(1..=32))]
    nodes: u32,
    /// Repeats the test with one server without a cluster, and compares.
    #[arg(long)]
    compare: bool,
    /// Path of nats-server. Default: SIMURGH_NATS_SERVER, or nats-server in PATH.
    #[arg(long, value_name = "FILE")]
    nats: Option<PathBuf>,
    /// Number of broadcasts to all clients at the end. Default: 1, or 5 with --nodes.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000))]
    broadcasts: Option<u32>,
    /// Skips the reconnect test at the end, in which all clients disconnect and return at once.
    #[arg(long, alias = "no-storm")]
    no_reconnect: bool,
    /// Does not change system settings. By default road raises those that are too low and restores
    /// them at the end.
    #[arg(long)]
    no_tune: bool,
    /// Address of the live dashboard of the load generator, or off.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8091")]
    dashboard: String,
}

impl Flags {
    fn is_tun(&self) -> bool {
        self.transport == "tun"
    }

    /// Bytes of a connection, both ends, until this machine's own are measured.
    fn bytes_at_first(&self) -> f64 {
        if self.is_tun() { 5_000.0 } else { 9_400.0 }
    }
}

/// A test that is limited by memory ends at a multiple of this.
const ROUND: u64 = 10_000;
/// The share of the machine's memory that is kept for broadcasts in flight and other programs.
const MEMORY_LEFT: f64 = 0.06;
/// Sockets of the server for the probes, with spare.
const MORE_SOCKETS: u64 = 300;

/// Runs the test, and returns its exit status.
pub fn road(flags: &Flags) -> ExitCode {
    match run(flags) {
        Ok(results) => {
            print(&results.markdown());
            ExitCode::SUCCESS
        }
        Err(why) => fail(&why),
    }
}

fn run(flags: &Flags) -> Result<Results, String> {
    let is_alone = flags.nodes == 1;
    if is_alone && (flags.compare || flags.nats.is_some()) {
        return Err("--compare and --nats need --nodes 2 or more".to_owned());
    }
    let program = match is_alone {
        true => None,
        false => Some(Program::find(flags.nats.as_deref())?),
    };
    let tls = identity(flags)?;
    let tls = tls.as_ref();
    let dir = make_directory(&flags.out)?;
    let before = Usage::now()?;
    let room = (spare(&before) / flags.bytes_at_first()) as u64;
    let to = flags.connections.unwrap_or(room / ROUND * ROUND).max(1);
    // Dropped last, so that settings are restored after all processes have ended.
    let tuning = match flags.no_tune {
        true => TemporaryTuning::nothing(),
        false => TemporaryTuning::raise(to, !flags.is_tun(), &dir)?,
    };
    let mut results = Results {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        machine: Host::this(before.total),
        server: flags.server.clone().unwrap_or_else(|| "simurgh serve".to_owned()),
        nodes: flags.nodes,
        tls: tls.is_some(),
        tun: flags.is_tun(),
        engine: program.as_ref().map(|program| format!("nats-server {}", program.version)),
        rate: flags.rate,
        text: flags.text.unwrap_or(0),
        tuning: tuning.changes.clone(),
        ..Results::default()
    };
    let servers = match &program {
        None => Servers::one(flags.server.as_deref(), tls, to + MORE_SOCKETS, &dir)?,
        Some(program) => {
            // Users are spread almost evenly, and a node refuses connections beyond its limit.
            let sockets = to.div_ceil(u64::from(flags.nodes)) + 2 * MORE_SOCKETS;
            Servers::several(flags.nodes, tls, sockets, &dir, program)?
        }
    };
    run_with(flags, servers, to, &dir, &mut results)?;
    if flags.compare {
        compare(flags, tls, &before, &dir, &mut results)?;
    }
    complain(&format!("results in {}", dir.display()));
    Ok(results)
}

/// The same test, up to the last milestone, with one server without a cluster.
fn compare(
    flags: &Flags,
    tls: Option<&Identity>,
    before: &Usage,
    dir: &Path,
    results: &mut Results,
) -> Result<(), String> {
    let Some(to) = results.milestones.last().map(|it| it.members) else { return Ok(()) };
    complain("repeating the test with one server");
    let is_closed = || Ok(Usage::now()?.sockets <= before.sockets + MORE_SOCKETS);
    let late = "the sockets of the first test are not closed yet; wait, then run road again";
    wait_until(is_closed, SOCKETS_TIMEOUT, Duration::from_millis(500), late)?;
    let home = dir.join("one-node");
    std::fs::create_dir(&home).map_err(|error| format!("{}: {error}", home.display()))?;
    let alone = Servers::alone(tls, to + MORE_SOCKETS, &home)?;
    let mut one = Results {
        version: results.version.clone(),
        machine: results.machine.clone(),
        server: results.server.clone(),
        nodes: 1,
        tls: results.tls,
        tun: results.tun,
        rate: results.rate,
        text: results.text,
        ..Results::default()
    };
    run_with(flags, alone, to, &home, &mut one)?;
    results.comparison = Comparison::of(results, one);
    write(dir, results)
}

/// Runs the test up to `to` members with running servers, and measures at its end; results are
/// written to `dir` meanwhile.
fn run_with(
    flags: &Flags,
    servers: Servers,
    to: u64,
    dir: &Path,
    results: &mut Results,
) -> Result<(), String> {
    let milestones = scenarios::milestones(to);
    let urls = servers.urls();
    let each = servers.metrics_each()?;
    results.shards = each.iter().map(|metrics| metrics.lines("simurgh_sockets")).sum();
    complain(&format!("server on {} with {} shards", urls.join(", "), results.shards));
    let probes = scenarios::probes(&urls);
    let (text, heartbeats) = (results.text, flags.heartbeats.value());
    let (rate, tun) = (flags.rate, flags.is_tun());
    let workload = Workload { servers: urls, rate, text, heartbeats, tun };
    let mut probes = Load::start("bystanders", &probes, dir.join("bystanders"), "off")?;
    wait_for_probes(&servers, &mut probes)?;
    let scenario = workload.by_milestones(&milestones);
    let mut clients = Load::crowd(&workload, &scenario, dir.join("crowd"), &flags.dashboard)?;
    // Otherwise the program's own memory would count as that of the clients.
    clients.wait_until_ready()?;
    let mut test = CapacityTest::new(workload, servers, clients, probes)?;
    for milestone in &milestones {
        if let Some(why) = too_much(flags, &test, *milestone)? {
            results.ending = why;
            break;
        }
        let mut progress = |members| complain(&format!("  {} clients joined", grouped(members)));
        let outcome = test.climb(*milestone, &mut progress);
        results.users.clone_from(&test.users);
        match outcome {
            Ok(seen) => {
                complain(&milestone_line(&seen));
                results.milestones.push(seen);
            }
            Err(why) => {
                results.ending = format!("The test failed before {milestone} connections: {why}");
                write(dir, results)?;
                return Err(why);
            }
        }
        // These results remain if the test is cut short.
        write(dir, results)?;
    }
    if results.ending.is_empty() {
        results.ending = format!("It reached the requested {} connections.", grouped(to));
    }
    let ended = finish(flags, &mut test, results);
    write(dir, results)?;
    ended
}

/// The measurements with all members; one that fails is named in the ending of the results.
fn finish(flags: &Flags, test: &mut CapacityTest, results: &mut Results) -> Result<(), String> {
    if test.members == 0 {
        return Ok(());
    }
    let times = flags.broadcasts.unwrap_or(if flags.nodes > 1 { BROADCASTS } else { 1 });
    results.broadcasts.extend(results.milestones.last().map(|last| last.broadcast.clone()));
    for _ in 1..times {
        let seen = test.broadcast_to_all();
        let seen = seen.inspect_err(|why| results.breaks_off("Another broadcast", why))?;
        complain(&broadcast_line(&seen));
        results.broadcasts.push(seen);
    }
    // The comparison does not use the rest.
    let is_alone = results.engine.is_none() && flags.compare;
    if is_alone {
        return Ok(());
    }
    if !flags.no_reconnect {
        complain("all clients disconnect at once and reconnect");
        let seen = test.reconnect_all(&flags.dashboard);
        results.reconnect = Some(seen.inspect_err(|why| results.breaks_off("The storm", why))?);
    }
    if let Some(every) = flags.heartbeats.value() {
        complain(&format!("all clients send heartbeats every {every:?}"));
        let seen = test.measure_heartbeats(every);
        results.heartbeats = Some(seen.inspect_err(|why| results.breaks_off("Heartbeats", why))?);
    }
    Ok(())
}

/// Waits until all probes have connected, so that the connections after that are clients.
fn wait_for_probes(servers: &Servers, probes: &mut Load) -> Result<(), String> {
    let are_there = || {
        probes.process.must_run()?;
        Ok(servers.metrics()?.count("simurgh_sockets") >= scenarios::PROBES)
    };
    let late = "the probe clients did not connect within 30 s; see bystanders/ in --out";
    wait_until(are_there, PROBES_TIMEOUT, Duration::from_millis(100), late)
}

/// How long the probes may take to connect; usually two seconds.
const PROBES_TIMEOUT: Duration = Duration::from_secs(30);
/// The kernel closes millions of sockets within a minute or two.
const SOCKETS_TIMEOUT: Duration = Duration::from_secs(600);
/// Broadcasts at the end of a test of several nodes, of which the median counts.
const BROADCASTS: u32 = 5;

/// Memory that connections may take, bytes.
fn spare(machine: &Usage) -> f64 {
    (machine.available as f64 - machine.total as f64 * MEMORY_LEFT).max(0.0)
}

/// Why the next milestone is not tried, if there is not enough memory.
fn too_much(flags: &Flags, test: &CapacityTest, to: u64) -> Result<Option<String>, String> {
    let each = test.bytes_per_connection()?.unwrap_or(flags.bytes_at_first());
    let more = to.saturating_sub(test.members);
    let (needed, spare) = (more as f64 * each, spare(&Usage::now()?));
    Ok((needed > spare).then(|| {
        format!(
            "It stopped before memory ran out: {} more connections take {:.1} GB ({each:.0} B \
             each, both ends), and {:.1} GB are free.",
            grouped(more),
            needed / 1e9,
            spare / 1e9
        )
    }))
}

fn milestone_line(seen: &Milestone) -> String {
    format!(
        "{} joined ({}/s, p99 {}); {:.0} + {:.0} B each; {}",
        grouped(seen.members),
        grouped(seen.joins_per_s as u64),
        time(seen.join.p99),
        seen.server_bytes,
        seen.kernel_bytes,
        broadcast_line(&seen.broadcast)
    )
}

fn broadcast_line(seen: &BroadcastResult) -> String {
    format!(
        "broadcast to all: first {}, median {}, last {}, {:.2} µs each; heartbeats meanwhile p99 \
         {} of {}",
        time(seen.first_us),
        time(seen.delivery.p50),
        time(seen.last_us),
        seen.server_us,
        time(seen.heartbeats.p99),
        seen.heartbeats.count
    )
}

/// The certificate of the flags. The server has another working directory.
fn identity(flags: &Flags) -> Result<Option<Identity>, String> {
    let (Some(certificate), Some(key)) = (&flags.tls_certificate, &flags.tls_key) else {
        return Ok(None);
    };
    let [certificate, key] =
        [("--tls-certificate", certificate), ("--tls-key", key)].map(|(flag, path)| {
            path.canonicalize().map_err(|error| format!("{flag}: {}: {error}", path.display()))
        });
    Ok(Some(Identity { certificate: certificate?, key: key? }))
}

fn make_directory(out: &Path) -> Result<PathBuf, String> {
    let failed = |error: std::io::Error| format!("cannot use {}: {error}", out.display());
    std::fs::create_dir_all(out).map_err(failed)?;
    if std::fs::read_dir(out).map_err(failed)?.next().is_some() {
        return Err(format!("{} is not empty: choose another --out", out.display()));
    }
    // The processes of the test have other working directories.
    out.canonicalize().map_err(failed)
}

fn write(dir: &Path, results: &Results) -> Result<(), String> {
    let json = serde_json::to_string_pretty(results).map_err(|error| error.to_string())?;
    for (name, text) in
        [("road.json", json), ("road.md", results.markdown()), ("road.html", results.page())]
    {
        let path = dir.join(name);
        simurgh_load::report::write_whole(&path, text.as_bytes())
            .map_err(|error| format!("cannot write {}: {error}", path.display()))?;
    }
    Ok(())
}
