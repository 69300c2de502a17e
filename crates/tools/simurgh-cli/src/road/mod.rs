//! `simurgh road`: how many connections one server on this machine holds, measured on the way.
//!
//! ```text
//! tune -> server, crowd, bystanders (processes) -> climb, rest, measure, tell all -> again
//!                                                        `-> results: JSON, table, page
//! ```
//!
//! The server is `simurgh serve`, crowd and bystanders are `simurgh load`, steered through its
//! standard input; what they measured is read from their journals and from `/metrics`. With
//! `--nodes` there are several servers, nodes of a cluster with an engine between them, and one
//! lobby over all.

mod compare;
mod engine;
mod machine;
mod measure;
mod metrics;
mod nodes;
mod plan;
mod processes;
mod report;
mod storm;
mod ticks;
mod told;
mod tuned;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use clap::Args;
use simurgh_load::report::grouped;

use crate::units::{self, Choice};
use crate::{complain, fail, print};

use compare::Compared;
use engine::Program;
use machine::Machine;
use measure::{Milestone, Walkers};
use nodes::Nodes;
use plan::Crowd;
use processes::Load;
use report::{Place, Road, time};
use told::Told;
use tuned::Tuned;

/// What can be typed after `simurgh road`.
#[derive(Debug, Args)]
pub(crate) struct Flags {
    /// Connections at the end of the road. Default: as many as memory allows.
    #[arg(long, value_name = "N", value_parser = units::road_connections)]
    connections: Option<u64>,
    /// Connections that come per second.
    #[arg(long, value_name = "N", default_value_t = 20_000,
          value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    rate: u32,
    /// Directory for all that is written; it must be empty or not be there. Default:
    /// ./simurgh-road.
    #[arg(long, value_name = "DIR", default_value = "simurgh-road")]
    out: PathBuf,
    /// How far apart the heartbeats of each client are that are measured at the end, or off.
    #[arg(long, value_name = "TIME", default_value = "30s",
          value_parser = units::duration_or_off)]
    heartbeats: Choice<Duration>,
    /// Text in what is said to all, beside a stamp of some 40 bytes: 10kB, for example.
    #[arg(long, value_name = "SIZE", value_parser = units::bytes)]
    text: Option<usize>,
    /// Another server to walk the road with: a command, which is started with the options that
    /// `simurgh serve` would get here, says on which address it is listening in the same words, and
    /// answers GET /metrics and POST /api/broadcast.
    #[arg(long, value_name = "COMMAND")]
    server: Option<String>,
    /// So many servers, nodes of one cluster, with a nats-server between them and one lobby over
    /// all.
    #[arg(long, value_name = "N", default_value_t = 1, conflicts_with = "server",
          value_parser = clap::value_parser!(u32).range(1..=32))]
    nodes: u32,
    /// Walks the road again with one server without a cluster, and says what several cost beside
    /// it.
    #[arg(long)]
    compare: bool,
    /// Where nats-server is. Default: what SIMURGH_NATS_SERVER says, or nats-server in PATH.
    #[arg(long, value_name = "FILE")]
    nats: Option<PathBuf>,
    /// How often something is said to all when everybody is there. Default: once, of several nodes
    /// five times.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000))]
    broadcasts: Option<u32>,
    /// Leaves out the storm at the end: all clients vanish at once, and come back at once.
    #[arg(long)]
    no_storm: bool,
    /// Changes nothing in the system; else what is too small for so many connections is raised, and
    /// put back at the end.
    #[arg(long)]
    no_tune: bool,
    /// Where the live page of the load generator is, or off.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8091")]
    dashboard: String,
}

/// Memory of a connection, both ends, before there is a figure of this machine's own.
const BYTES_AT_FIRST: f64 = 9_400.0;
/// A road that ends where memory does ends at a multiple of this.
const ROUND: u64 = 10_000;
/// So much of the machine's memory is left alone: for what broadcasts have under way, and others.
const MEMORY_LEFT: f64 = 0.06;
/// Sockets of the server beyond the crowd: those who stand by.
const MORE_SOCKETS: u64 = 300;

/// Walks the road.
pub(crate) fn road(flags: &Flags) -> ExitCode {
    match walk(flags) {
        Ok(road) => {
            print(&road.markdown());
            ExitCode::SUCCESS
        }
        Err(why) => fail(&why),
    }
}

fn walk(flags: &Flags) -> Result<Road, String> {
    let is_alone = flags.nodes == 1;
    if is_alone && (flags.compare || flags.nats.is_some()) {
        return Err("--compare and --nats are of a road of several --nodes".to_owned());
    }
    let program = match is_alone {
        true => None,
        false => Some(Program::find(flags.nats.as_deref())?),
    };
    let dir = make_directory(&flags.out)?;
    let here = Machine::now()?;
    let room = (spare(&here) / BYTES_AT_FIRST) as u64;
    let to = flags.connections.unwrap_or(room / ROUND * ROUND).max(1);
    // Put back when all processes have ended: what is made first is dropped last.
    let tuned = if flags.no_tune { Tuned::nothing() } else { Tuned::raise(to, &dir)? };
    let mut road = Road {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        machine: Place::here(here.total),
        server: flags.server.clone().unwrap_or_else(|| "simurgh serve".to_owned()),
        nodes: flags.nodes,
        engine: program.as_ref().map(|program| format!("nats-server {}", program.version)),
        rate: flags.rate,
        text: flags.text.unwrap_or(0),
        tuned: tuned.changes.clone(),
        ..Road::default()
    };
    let nodes = match &program {
        None => Nodes::one(flags.server.as_deref(), to + MORE_SOCKETS, &dir)?,
        Some(program) => {
            // Users are spread evenly but for a few, and nodes let in no more than they hold.
            let sockets = to.div_ceil(u64::from(flags.nodes)) + 2 * MORE_SOCKETS;
            Nodes::several(flags.nodes, sockets, &dir, program)?
        }
    };
    walk_with(flags, nodes, to, &dir, &mut road)?;
    if flags.compare {
        compare(flags, &here, &dir, &mut road)?;
    }
    complain(&format!("written to {}", dir.display()));
    Ok(road)
}

/// Walks the same road, as far as it went, with one server without a cluster.
fn compare(flags: &Flags, before: &Machine, dir: &Path, road: &mut Road) -> Result<(), String> {
    let Some(to) = road.milestones.last().map(|it| it.members) else { return Ok(()) };
    complain("the same with one server");
    wait_for_sockets_to_go(before)?;
    let home = dir.join("one-node");
    std::fs::create_dir(&home).map_err(|error| format!("{}: {error}", home.display()))?;
    let alone = Nodes::alone(to + MORE_SOCKETS, &home)?;
    let mut one = Road {
        version: road.version.clone(),
        machine: road.machine.clone(),
        server: road.server.clone(),
        nodes: 1,
        rate: road.rate,
        text: road.text,
        ..Road::default()
    };
    walk_with(flags, alone, to, &home, &mut one)?;
    road.compared = Compared::of(road, one);
    write(dir, road)
}

/// The road to `to` with servers that are there, and what is measured at its end; written to `dir`
/// as it goes.
fn walk_with(
    flags: &Flags,
    nodes: Nodes,
    to: u64,
    dir: &Path,
    road: &mut Road,
) -> Result<(), String> {
    let milestones = plan::milestones(to);
    let servers = nodes.addresses();
    road.shards = nodes.metrics()?.lines("simurgh_sockets");
    let list: Vec<String> = servers.iter().map(ToString::to_string).collect();
    complain(&format!("server on {} with {} shards", list.join(", "), road.shards));
    let bystanders = plan::bystanders(&servers);
    let (text, heartbeats) = (road.text, flags.heartbeats.value());
    let plan = Crowd { servers, rate: flags.rate, text, heartbeats };
    let mut bystanders = Load::start("bystanders", &bystanders, dir.join("bystanders"), "off")?;
    wait_for_bystanders(&nodes, &mut bystanders)?;
    let crowd = plan.by_milestones(&milestones);
    let mut crowd = Load::start("crowd", &crowd, dir.join("crowd"), &flags.dashboard)?;
    // Or the program itself would count as memory of the clients.
    crowd.wait_until_ready()?;
    let mut walkers = Walkers::new(plan, nodes, crowd, bystanders)?;
    for milestone in &milestones {
        if let Some(why) = too_much(&walkers, *milestone)? {
            road.ending = why;
            break;
        }
        let mut say = |members| complain(&format!("  {} have joined", grouped(members)));
        let outcome = walkers.climb(*milestone, &mut say);
        road.users.clone_from(&walkers.users);
        match outcome {
            Ok(seen) => {
                complain(&line(&seen));
                road.milestones.push(seen);
            }
            Err(why) => {
                road.ending = format!("It broke off on the way to {milestone}: {why}");
                write(dir, road)?;
                return Err(why);
            }
        }
        // All that was found so far stays if the rest is cut short.
        write(dir, road)?;
    }
    if road.ending.is_empty() {
        road.ending = format!("It ended where it was to end: {} connections.", grouped(to));
    }
    let ended = finish(flags, &mut walkers, road);
    write(dir, road)?;
    ended
}

/// What is measured when everybody is there; what broke off is told in the road's ending as well.
fn finish(flags: &Flags, walkers: &mut Walkers, road: &mut Road) -> Result<(), String> {
    if walkers.members() == 0 {
        return Ok(());
    }
    let times = flags.broadcasts.unwrap_or(if flags.nodes > 1 { BROADCASTS } else { 1 });
    road.told.extend(road.milestones.last().map(|last| last.broadcast.clone()));
    for _ in 1..times {
        let seen = walkers.tell_all().inspect_err(|why| {
            road.ending = format!("{} Another broadcast broke off: {why}.", road.ending);
        })?;
        complain(&told_line(&seen));
        road.told.push(seen);
    }
    // What follows is not compared.
    let is_alone = road.engine.is_none() && flags.compare;
    if is_alone {
        return Ok(());
    }
    if !flags.no_storm {
        complain("all clients vanish at once, and then all come back");
        let seen = walkers.storm(walkers.members(), &flags.dashboard);
        road.storm = Some(seen.inspect_err(|why| {
            road.ending = format!("{} The storm broke off: {why}.", road.ending);
        })?);
    }
    // Last: where the cores cannot keep up with them, what waits would be in the way of all else.
    if let Some(every) = flags.heartbeats.value() {
        complain(&format!("all send heartbeats, {every:?} apart"));
        let seen = walkers.beat_all(every);
        road.heartbeats = Some(seen.inspect_err(|why| {
            road.ending = format!("{} Heartbeats broke off: {why}.", road.ending);
        })?);
    }
    Ok(())
}

/// Until all of them are there: from then on all that comes is the crowd.
fn wait_for_bystanders(nodes: &Nodes, bystanders: &mut Load) -> Result<(), String> {
    let begun = Instant::now();
    while nodes.metrics()?.count("simurgh_sockets") < plan::BYSTANDERS {
        bystanders.must_run()?;
        if begun.elapsed() > BYSTANDERS_TIMEOUT {
            return Err("those who stand by did not connect".to_owned());
        }
        thread::sleep(Duration::from_millis(100));
    }
    Ok(())
}

/// They come within two seconds.
const BYSTANDERS_TIMEOUT: Duration = Duration::from_secs(30);

/// Until the kernel has closed what the processes before have left, and its memory is free again.
fn wait_for_sockets_to_go(before: &Machine) -> Result<(), String> {
    let begun = Instant::now();
    while Machine::now()?.sockets > before.sockets + MORE_SOCKETS {
        if begun.elapsed() > SOCKETS_TIMEOUT {
            return Err("the sockets of the road before are not closed yet".to_owned());
        }
        thread::sleep(Duration::from_millis(500));
    }
    Ok(())
}

/// The kernel closes millions of sockets within a minute or two.
const SOCKETS_TIMEOUT: Duration = Duration::from_secs(600);
/// Broadcasts at the end of a road with several nodes, of which the median counts.
const BROADCASTS: u32 = 5;

/// Memory that connections may take, bytes.
fn spare(machine: &Machine) -> f64 {
    (machine.available as f64 - machine.total as f64 * MEMORY_LEFT).max(0.0)
}

/// Why the next milestone is not climbed, if memory would not suffice.
fn too_much(walkers: &Walkers, to: u64) -> Result<Option<String>, String> {
    let each = walkers.bytes_per_connection()?.unwrap_or(BYTES_AT_FIRST);
    let needed = to.saturating_sub(walkers.members()) as f64 * each;
    let spare = spare(&Machine::now()?);
    Ok((needed > spare).then(|| {
        format!(
            "It ended before memory does: {} more connections take {:.1} GB ({each:.0} B each, \
             both ends), and {:.1} GB are to spare.",
            grouped(to.saturating_sub(walkers.members())),
            needed / 1e9,
            spare / 1e9
        )
    }))
}

/// A milestone for those who watch.
fn line(seen: &Milestone) -> String {
    format!(
        "{} joined ({}/s, p99 {}); {:.0} + {:.0} B each; {}",
        grouped(seen.members),
        grouped(seen.joins_per_s as u64),
        time(seen.join.p99),
        seen.server_bytes,
        seen.kernel_bytes,
        told_line(&seen.broadcast)
    )
}

/// A broadcast for those who watch.
fn told_line(told: &Told) -> String {
    format!(
        "broadcast to all: first {}, median {}, last {}, {:.2} µs each; heartbeats meanwhile p99 \
         {} of {}",
        time(told.first_us),
        time(told.delivery.p50),
        time(told.last_us),
        told.server_us,
        time(told.heartbeats.p99),
        told.heartbeats.count
    )
}

fn make_directory(out: &Path) -> Result<PathBuf, String> {
    let say = |error: std::io::Error| format!("cannot use {}: {error}", out.display());
    std::fs::create_dir_all(out).map_err(say)?;
    if std::fs::read_dir(out).map_err(say)?.next().is_some() {
        return Err(format!("{} is not empty: name another --out", out.display()));
    }
    // The processes of the road have other working directories.
    out.canonicalize().map_err(say)
}

fn write(dir: &Path, road: &Road) -> Result<(), String> {
    let json = serde_json::to_string_pretty(road).map_err(|error| error.to_string())?;
    for (name, text) in
        [("road.json", json), ("road.md", road.markdown()), ("road.html", road.page())]
    {
        let path = dir.join(name);
        simurgh_load::report::write_whole(&path, text.as_bytes())
            .map_err(|error| format!("cannot write {}: {error}", path.display()))?;
    }
    Ok(())
}
