//! Row `presences`: 18,000 members who are present on three nodes, one of which is away for a
//! while and then gone for good.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rustix::process::Signal;
use serde_json::Value;

use super::crowd;
use super::engine::{self, Engine};
use super::helper::{Helper, number};
use super::servers::{self, How, READY, until};
use simurgh_bench_kit::rounds::served::Served;
use simurgh_bench_kit::rounds::{Bench, Sample};
use simurgh_bench_kit::stats;

/// Of one node; they are in as many rooms as there are of these among all.
const ROOM_MEMBERS: usize = 1_000;
const NODES: usize = 3;
/// After so long without a word a node's presences leave. The partition is 5 s shorter.
const DOWN_S: u64 = 12;
const PARTITION: Duration = Duration::from_secs(DOWN_S - 5);
/// How long leaves are waited for at most, and how long nothing is to be told, ms.
const PATIENCE_MS: u64 = 2_500 * DOWN_S;
const WATCHED_MS: u64 = 1_000 * (DOWN_S - 5) + 4_000;

pub(super) fn run(bench: &Bench<'_>, sample: &mut Sample) -> Result<()> {
    let each = if bench.options.short { 1_000 } else { 6_000 };
    let rooms = each * NODES / ROOM_MEMBERS;
    let engine = Engine::start(bench)?;
    let down = format!("presence_down = \"{DOWN_S}s\"");
    let start = |name| {
        let settings = "presence_list_max = 5000\n";
        let node =
            How { settings, cluster: &down, presence: true, ..How::new(Some(&engine), name) };
        node.start(bench)
    };
    let mut nodes = vec![start("one")?, start("two")?, start("three")?];
    servers::together(&nodes.iter().collect::<Vec<_>>())?;
    let crowds = nodes.iter().map(|node| crowd::start(node.running.address));
    let mut crowds: Vec<Helper> = crowds.collect::<Result<_>>()?;
    crowd::all(crowds.iter_mut(), |nth| format!("join {each} {rooms} {}", nth * each))?;
    settled(&mut crowds)?;
    for node in &nodes {
        all_present(node, rooms, each * NODES)?;
    }
    let gone = nodes.pop().context("no nodes")?;
    // The clients of the node that goes stay connected, and do nothing more.
    let _gone_crowd = crowds.pop();
    partition(&gone, &mut crowds, sample)?;
    settled(&mut crowds)?;
    let in_a_room = each / rooms + usize::from(!each.is_multiple_of(rooms));
    let line = format!("leaves {in_a_room} {PATIENCE_MS}");
    for crowd in &mut crowds {
        crowd.tell(&line)?;
    }
    let began = Instant::now();
    engine::signal(gone.running.pid(), Signal::KILL)?;
    let told: Vec<Value> = crowds.iter_mut().map(Helper::answer).collect::<Result<_>>()?;
    let mut complete = Vec::new();
    for said in &told {
        let when = said.get("complete_s").and_then(Value::as_f64);
        let when = when.with_context(|| format!("after {:?}: {said}", began.elapsed()))?;
        complete.push(when);
    }
    let wanted = stats::per(in_a_room, 1);
    let told_of = told.iter().map(|it| number(it, "leaves")).collect::<Result<Vec<_>>>()?;
    ensure!(told_of.iter().all(|it| (it - wanted).abs() < 0.5), "{told_of:?} of {wanted} left");
    let last = stats::quantile(&complete, 1.0).context("nobody was told")?;
    sample.put("presences_gone_s", last);
    sample.put("presences_gone_above_s", last - stats::per(DOWN_S, 1));
    sample.put("presences_diffs", most(&told, "most")?);
    let least = told.iter().map(|it| number(it, "least")).collect::<Result<Vec<_>>>()?;
    ensure!(least.iter().all(|it| *it > 0.5), "some were told nothing");
    for node in &nodes {
        all_present(node, rooms, each * (NODES - 1))?;
    }
    Ok(())
}

/// A node stands still for less than others wait for it: nobody is told anything.
fn partition(node: &Served, crowds: &mut [Helper], sample: &mut Sample) -> Result<()> {
    for crowd in crowds.iter_mut() {
        crowd.tell(&format!("leaves 0 {WATCHED_MS}"))?;
    }
    engine::signal(node.running.pid(), Signal::STOP)?;
    thread::sleep(PARTITION);
    engine::signal(node.running.pid(), Signal::CONT)?;
    let told: Vec<Value> = crowds.iter_mut().map(Helper::answer).collect::<Result<_>>()?;
    sample.put("presences_partition_diffs", most(&told, "most")?);
    Ok(())
}

/// Reads until nobody is told anything more.
fn settled(crowds: &mut [Helper]) -> Result<()> {
    let mut before = None;
    until("presences settle", READY, || {
        let told = crowd::all(crowds.iter_mut(), |_| "rest 500".to_owned())?;
        let now: f64 = told.iter().map(|it| number(it, "diffs")).sum::<Result<f64>>()?;
        let is_same = before.replace(now).is_some_and(|before: f64| (before - now).abs() < 0.5);
        Ok(is_same)
    })
}

/// Waits until a node knows of so many, in all rooms.
fn all_present(node: &Served, rooms: usize, count: usize) -> Result<()> {
    let wanted = stats::per(count, 1);
    until("all presences are known", READY, || {
        let mut known = 0.0;
        for room in 0..rooms {
            known += number(&node.get(&format!("/api/presence?topic=rooms:{room}"))?, "entries")?;
        }
        Ok((known - wanted).abs() < 0.5)
    })
}

fn most(told: &[Value], name: &str) -> Result<f64> {
    let all = told.iter().map(|it| number(it, name)).collect::<Result<Vec<_>>>()?;
    stats::quantile(&all, 1.0).context("nobody was told")
}
