//! The timing of load generators: whether users come at the requested rate, how a server that stops
//! for a while is measured, and how soon the load begins.

use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpListener};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use super::broadcasts::ended;
use super::scenario;
use super::tools::{AtWork, Job, Tool};
use super::{Bench, Side};
use simurgh_bench_kit::rounds::Options;
use simurgh_bench_kit::stats;
use simurgh_bench_kit::target::{Server, Target};

const SECONDS: u32 = 10;
/// Of 500 requests in ten seconds, this one waits.
const STALL_AT: f64 = 125.0;
const STALL: [&str; 4] = ["--stall-at", "125", "--stall-ms", "5000"];

/// The rates of `arrivals`, users per second.
pub(super) fn rates(options: &Options) -> &'static [u32] {
    options.size(&[100, 1_000, 5_000, 10_000], &[100, 1_000])
}

pub(super) fn arrivals(bench: &Bench<'_>, side: &mut Side<'_>) -> Result<()> {
    for rate in rates(bench.options).iter().copied() {
        match side.tool {
            Tool::Bare => arrive(bench, side, rate, false)?,
            Tool::Simurgh => {
                arrive(bench, side, rate, false)?;
                arrive(bench, side, rate, true)?;
            }
        }
    }
    Ok(())
}

/// The bare server, which does not judge itself: it notes when clients came, and can stop.
fn bare_server(bench: &Bench<'_>, flags: &[&str]) -> Result<Server> {
    Target::bare(flags)?.start(&bench.log)
}

fn arrive(bench: &Bench<'_>, side: &mut Side<'_>, rate: u32, poisson: bool) -> Result<()> {
    let server = bare_server(bench, &["--arrivals"])?;
    let asked = usize::try_from(rate * SECONDS)?;
    let mut work = bench.kit.start(&arrivals_job(side, server.address, rate, poisson))?;
    let name = |what: &str| {
        format!("arrivals {} {rate}/s {what}", if poisson { "poisson" } else { "even" })
    };
    if side.tool == Tool::Simurgh {
        let report = ended(&mut work, side)?;
        let started = report.count("users_started");
        let late = report.count("late_arrivals") / started.max(1.0);
        side.put(name("late %"), 100.0 * late);
        side.put(name("started"), started);
        if let Some(lag) = report.metric("arrival_lag", "p99") {
            side.put(name("lag p99 µs"), lag);
        }
        ensure!(report.count("connects") > 0.0, "nobody came");
    } else {
        until_all_came(&server, &mut work, asked)?;
    }
    work.end();
    let text = server.request("GET", "/arrivals", "Accept: text/plain", "")?;
    let times: Vec<u64> = text.lines().map(str::parse).collect::<Result<_, _>>()?;
    let first = times.first().copied().context("nobody came")?;
    let end = first + u64::from(SECONDS) * 1_000_000_000;
    let within: Vec<u64> = times.iter().copied().filter(|at| *at < end).collect();
    let (came, last) = (within.len(), within.last().copied().unwrap_or(first));
    let kept = stats::per(came - 1, 1) / (stats::per(last - first, 1) / 1e9);
    side.put(name("came"), stats::per(times.len(), 1));
    side.put(name("came in 10 s"), stats::per(came, 1));
    side.put(name("off %"), 100.0 * (kept / f64::from(rate) - 1.0));
    if poisson {
        let asked = stats::per(asked, 1);
        side.put(name("off σ"), (stats::per(times.len(), 1) - asked) / asked.sqrt());
    }
    Ok(())
}

fn arrivals_job(side: &Side<'_>, server: SocketAddrV4, rate: u32, poisson: bool) -> Job {
    match side.tool {
        Tool::Simurgh => Job::toml(scenario::arrivals(server, rate, poisson, side.sample.round)),
        Tool::Bare => {
            let users = usize::try_from(rate * SECONDS).unwrap_or(usize::MAX);
            Job::bare(server, users, rate).with("--hold-ms=200").with("--join=0")
        }
    }
}

/// Waits until it ends, or all have come, or no user has come for a while.
fn until_all_came(server: &Server, work: &mut AtWork, asked: usize) -> Result<()> {
    let (mut seen, mut changed) = (0, Instant::now());
    loop {
        let now = server.sum("bare_upgrades_total")? as usize;
        if now > seen {
            (seen, changed) = (now, Instant::now());
        }
        let wait_max = Duration::from_secs(if seen == 0 { 20 } else { 3 });
        // Random arrivals may be more than requested, so their number alone does not end it.
        if work.process.status()?.is_some() || changed.elapsed() > wait_max {
            break;
        }
        thread::sleep(Duration::from_millis(50));
    }
    ensure!(seen > asked / 100, "only {seen} of {asked} came");
    Ok(())
}

/// `stall`: a server that stops for 5 s in 10 s of 50 requests/s, once for one user that repeats
/// requests, once for a new user with each request.
pub(super) fn stall(bench: &Bench<'_>, side: &mut Side<'_>) -> Result<()> {
    for (shape, metric) in [("asks", "message"), ("requests", "http")] {
        let server = bare_server(bench, &STALL)?;
        let scenario = match shape {
            "asks" => scenario::asks(server.address),
            _ => scenario::requests(server.address),
        };
        let mut work = bench.kit.start(&Job::toml(scenario))?;
        let report = ended(&mut work, side)?;
        for value in ["p90", "p99", "max"] {
            let measured = report.metric(metric, value);
            let measured = measured.with_context(|| format!("no {metric} in report.json"))?;
            side.put(format!("stall {shape} {value} s"), measured / 1e6);
        }
        let count = report.metric(metric, "count").unwrap_or(0.0);
        side.put(format!("stall {shape} count"), count);
        work.end();
        let answered = server.sum("bare_answered_total")?;
        ensure!(answered >= STALL_AT, "only {answered} requests came: the server never stopped");
    }
    Ok(())
}

/// `start`: from the start of the program to its first connection.
pub(super) fn start(bench: &Bench<'_>, side: &mut Side<'_>) -> Result<()> {
    let listener = TcpListener::bind((Ipv4Addr::new(127, 77, 0, 1), 0))?;
    let SocketAddr::V4(server) = listener.local_addr()? else { bail!("not of IPv4") };
    listener.set_nonblocking(true)?;
    let job = match side.tool {
        Tool::Simurgh => {
            let text = scenario::arrivals(server, 1_000, false, 1);
            Job::toml(text).workers(100)
        }
        Tool::Bare => arrivals_job(side, server, 1_000, false),
    };
    let mut work = bench.kit.start_on(&job, None)?;
    let took = loop {
        if listener.accept().is_ok() {
            break work.started.elapsed();
        }
        work.must_run()?;
        let waited = work.started.elapsed();
        ensure!(waited < Duration::from_secs(60), "no connection within a minute");
        thread::sleep(Duration::from_micros(200));
    };
    side.put("start s", took.as_secs_f64());
    work.end();
    Ok(())
}
