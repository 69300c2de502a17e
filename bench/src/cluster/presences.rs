//! Row `presences`: 18,000 presences on three nodes, one of which is away and then gone for good.

use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rustix::process::Signal;
use serde_json::Value;

use super::broker::Broker;
use super::crowd;
use super::helper::{Helper, number};
use super::nodes::{self, NodeSettings, until};
use simurgh_bench_kit::rounds::{Bench, Sample};
use simurgh_bench_kit::stats;
use simurgh_bench_kit::target::Server;

/// Members of a room on one node; the number of rooms follows from it.
const ROOM_MEMBERS: usize = 1_000;
const NODES: usize = 3;
/// A silent node's presences leave after this time. The partition is 5 s shorter.
const DOWN_S: u64 = 12;
const PARTITION: Duration = Duration::from_secs(DOWN_S - 5);
/// How long leaves are waited for at most, and how long no diffs may come, ms.
const LEAVES_MAX_MS: u64 = 2_500 * DOWN_S;
const WATCHED_MS: u64 = 1_000 * (DOWN_S - 5) + 4_000;

pub(super) fn run(bench: &Bench<'_>, sample: &mut Sample) -> Result<()> {
    let each = bench.options.size(6_000, 1_000);
    let rooms = each * NODES / ROOM_MEMBERS;
    let broker = Broker::start(bench)?;
    let down = format!("presence_down = \"{DOWN_S}s\"");
    let start = |name| {
        let settings = "presence_list_max = 5000\n";
        let node = NodeSettings {
            settings,
            cluster: &down,
            presence: true,
            ..NodeSettings::new(Some(&broker), name)
        };
        node.start(bench)
    };
    let mut nodes = vec![start("one")?, start("two")?, start("three")?];
    nodes::together(&nodes.iter().collect::<Vec<_>>())?;
    let crowds = nodes.iter().map(|node| crowd::start(node.address));
    let mut crowds: Vec<Helper> = crowds.collect::<Result<_>>()?;
    crowd::all(crowds.iter_mut(), |nth| format!("join {each} {rooms} {}", nth * each))?;
    settled(&mut crowds)?;
    for node in &nodes {
        all_present(node, rooms, each * NODES)?;
    }
    let gone = nodes.pop().context("no nodes")?;
    // The clients of the lost node stay connected but idle.
    let _gone_crowd = crowds.pop();
    partition(&gone, &mut crowds, sample)?;
    settled(&mut crowds)?;
    let in_a_room = each / rooms + usize::from(!each.is_multiple_of(rooms));
    let line = format!("leaves {in_a_room} {LEAVES_MAX_MS}");
    for crowd in &mut crowds {
        crowd.send(&line)?;
    }
    gone.process.signal(Signal::KILL)?;
    let answers: Vec<Value> = crowds.iter_mut().map(Helper::answer).collect::<Result<_>>()?;
    let (wanted, left) = (stats::per(in_a_room, 1), numbers(&answers, "leaves")?);
    ensure!(left.iter().all(|it| (it - wanted).abs() < 0.5), "{left:?} of {wanted} left");
    let last = most(&answers, "complete_s")?;
    sample.put("presences_gone_s", last);
    sample.put("presences_gone_above_s", last - stats::per(DOWN_S, 1));
    sample.put("presences_diffs", most(&answers, "most")?);
    let least = numbers(&answers, "least")?;
    ensure!(least.iter().all(|it| *it > 0.5), "some got no diff");
    for node in &nodes {
        all_present(node, rooms, each * (NODES - 1))?;
    }
    Ok(())
}

/// A node is stopped for less than the time-out of the others: no member may receive a diff.
fn partition(node: &Server, crowds: &mut [Helper], sample: &mut Sample) -> Result<()> {
    for crowd in crowds.iter_mut() {
        crowd.send(&format!("leaves 0 {WATCHED_MS}"))?;
    }
    node.process.signal(Signal::STOP)?;
    thread::sleep(PARTITION);
    node.process.signal(Signal::CONT)?;
    let answers: Vec<Value> = crowds.iter_mut().map(Helper::answer).collect::<Result<_>>()?;
    sample.put("presences_partition_diffs", most(&answers, "most")?);
    Ok(())
}

/// Reads until no more diffs come.
fn settled(crowds: &mut [Helper]) -> Result<()> {
    let mut before = None;
    until("presences settle", || {
        let answers = crowd::all(crowds.iter_mut(), |_| "rest 500".to_owned())?;
        let now: f64 = answers.iter().map(|it| number(it, "diffs")).sum::<Result<f64>>()?;
        Ok(before.replace(now).is_some_and(|before: f64| (before - now).abs() < 0.5))
    })
}

/// Waits until a node reports `count` presences in all rooms.
fn all_present(node: &Server, rooms: usize, count: usize) -> Result<()> {
    let wanted = stats::per(count, 1);
    until("all presences are known", || {
        let mut known = 0.0;
        for room in 0..rooms {
            known += number(&node.get(&format!("/api/presence?topic=rooms:{room}"))?, "entries")?;
        }
        Ok((known - wanted).abs() < 0.5)
    })
}

fn numbers(answers: &[Value], name: &str) -> Result<Vec<f64>> {
    answers.iter().map(|it| number(it, name)).collect()
}

fn most(answers: &[Value], name: &str) -> Result<f64> {
    stats::quantile(&numbers(answers, name)?, 1.0).context("nobody has answered")
}
