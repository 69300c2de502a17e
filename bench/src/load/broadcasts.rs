//! Broadcasts: the cost of receiving, stamping and recording, and the error of reception times.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::scenario::{self, Messages};
use super::tools::{AtWork, Job, Report, Tool};
use super::users::{counter, joined};
use super::{Bench, Side};
use simurgh_bench_kit::stats;
use simurgh_bench_kit::target::Server;

/// Messages a second. More would only fill buffers, and all figures would look better.
const RATE: u32 = 100;
const MEMBERS: usize = 1_000;

/// `broadcast`: one of a channel's 1,000 members publishes.
pub(super) fn broadcast(bench: &Bench<'_>, side: &mut Side<'_>) -> Result<()> {
    let messages = RATE * bench.options.size(10, 3);
    let plan = Messages { members: MEMBERS, rate: RATE, messages };
    let server = bench.server.start(&bench.log)?;
    let job = match side.tool {
        Tool::Simurgh => simurgh(&server, plan),
        Tool::Bare => Job::bare(server.address, plan.members, 1_000)
            .with("--wait-ms=1000")
            .with(&format!("--say={}", plan.rate))
            .with(&format!("--messages={}", plan.messages)),
    };
    let mut work = bench.kit.start(&job)?;
    let delivered = listen(&server, &mut work, plan, side)?;
    if side.tool == Tool::Simurgh {
        let report = ended(&mut work, side)?;
        // Joins are announced up to a hundred members, but have no stamp.
        let counted = report.count("deliveries");
        ensure!(
            (counted - delivered).abs() < 0.5,
            "the server delivered {delivered} messages, {counted} were recorded"
        );
    }
    work.end();
    Ok(())
}

fn simurgh(server: &Server, plan: Messages) -> Job {
    // Ends by itself some seconds after the last message.
    let seconds = 10 + plan.messages.div_ceil(plan.rate);
    Job::toml(scenario::broadcasts(server.address, plan)).with(&format!("--duration={seconds}s"))
}

/// Measures from before the first message to after the last; returns the server's deliveries.
fn listen(server: &Server, work: &mut AtWork, plan: Messages, side: &mut Side<'_>) -> Result<f64> {
    joined(server, work, u64::try_from(plan.members)?, |_| (), |_, _| Ok(()))?;
    thread::sleep(Duration::from_millis(500));
    let delivered = || counter(server, "simurgh_deliveries_total");
    let (cpu, before) = (work.process.cpu()?, delivered()?);
    let expected = u64::from(plan.messages) * u64::try_from(plan.members)?;
    let (mut last, mut first, mut changed) = (before, None, Instant::now());
    while last < before + expected {
        thread::sleep(Duration::from_millis(50));
        work.must_run()?;
        let now = delivered()?;
        if now > last {
            first = first.or(Some(changed));
            (last, changed) = (now, Instant::now());
        }
        ensure!(changed.elapsed() < Duration::from_secs(15), "{last} deliveries, then no more");
    }
    let took = first.map_or(Duration::ZERO, |first| changed - first);
    thread::sleep(Duration::from_millis(300));
    let (spent, vanished) = work.process.cpu()?.since(&cpu);
    let spent = Duration::from_nanos(spent).as_secs_f64();
    let count = stats::per(delivered()? - before, 1);
    side.put("broadcast frames per CPU s", count / spent);
    side.put("broadcast CPU s", spent);
    side.put("broadcast frames per s", count / took.as_secs_f64());
    side.put("broadcast frames", count);
    side.note_vanished(vanished);
    Ok(count)
}

pub(super) fn ended(work: &mut AtWork, side: &mut Side<'_>) -> Result<Report> {
    work.wait(Duration::from_secs(60))?;
    let report = work.report()?;
    side.sample.notes.extend(report.complaints());
    side.sample.raw.push(report.kept());
    Ok(report)
}

/// `stamp`: 50,000 frames a second, evenly: 5,000 messages to rooms of ten.
pub(super) fn stamp_rooms(bench: &Bench<'_>, side: &mut Side<'_>) -> Result<()> {
    let server = bench.server.start(&bench.log)?;
    let seconds = bench.options.size(10, 3);
    let text = scenario::rooms(server.address, MEMBERS, 5_000, seconds);
    let mut work = bench.kit.start(&Job::toml(text).with("--kernel-stamps"))?;
    stamp(&mut work, side, "rooms")?;
    work.end();
    Ok(())
}

/// `stamp`: 50,000 frames a second in bursts: 50 messages to a room of 1,000.
pub(super) fn stamp_room(bench: &Bench<'_>, side: &mut Side<'_>) -> Result<()> {
    let server = bench.server.start(&bench.log)?;
    let plan = Messages { members: MEMBERS, rate: 50, messages: 50 * bench.options.size(10, 3) };
    let mut work = bench.kit.start(&simurgh(&server, plan).with("--kernel-stamps"))?;
    stamp(&mut work, side, "room")?;
    work.end();
    Ok(())
}

fn stamp(work: &mut AtWork, side: &mut Side<'_>, shape: &str) -> Result<()> {
    let report = ended(work, side)?;
    ensure!(report.count("deliveries") > 0.0, "no broadcast was received");
    for value in ["p50", "p99", "max"] {
        let measured = report.metric("stamp_error", value);
        let measured = measured.context("report.json has no stamp_error")?;
        side.put(format!("stamp {shape} {value} µs"), measured);
    }
    side.put(format!("stamp {shape} deliveries"), report.count("deliveries"));
    Ok(())
}
