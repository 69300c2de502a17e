//! Row `stored`: messages a second that one node has stored, compared with a bare client's.

use std::thread;
use std::time::Instant;

use anyhow::{Context, Result, anyhow, ensure};

use super::broker::Broker;
use super::helper::{Helper, number};
use super::nodes::{self, KEPT, NodeSettings, QUIET, payload};
use simurgh_bench_kit::rounds::{Bench, Sample, in_turn};
use simurgh_bench_kit::target::{SERVER_CORE, Server, broadcasts};
use simurgh_bench_kit::{stats, sys};

/// Blocks, with each kind in turn, and messages of each: roughly a second of each kind.
const BLOCKS: usize = 24;
const BLOCK: [usize; 4] = [40_000, 200_000, 40_000, 40_000];
/// Each sends requests of a thousand messages, so that the node always has more than it may send.
const CONNECTIONS: usize = 4;
/// Messages in a row for one topic.
const BURST: usize = 20;
/// Messages that the bare client has in progress.
const WINDOW: usize = 256;
/// Topics, also of the bare client: a hundred messages of each are kept.
const TOPICS: usize = CONNECTIONS * 1_000;

pub(super) fn run(bench: &Bench<'_>, sample: &mut Sample) -> Result<()> {
    let broker = Broker::keeping(bench)?;
    let node =
        NodeSettings { channels: KEPT, ..NodeSettings::new(Some(&broker), "node") }.start(bench)?;
    nodes::together(&[&node])?;
    let mut bare_client = Helper::bare_client(&broker)?;
    let bytes = nodes::envelope_bytes("kept:0-000");
    let blocks = bench.options.size(BLOCKS, BLOCKS / 3);
    let mut by_node = [0, 0];
    // Messages a second; microseconds of each of the broker and of the node.
    let costs = in_turn(
        blocks,
        |block| block % 4,
        |kind| {
            let count = BLOCK.get(kind).copied().context("no kind")?;
            let (of_broker, of_node) = (broker.cpu()?, node.cpu()?);
            let seconds = match kind {
                0 => stored(&node, count, 1)?,
                1 => stored(&node, count, BURST)?,
                _ => {
                    let headers = if kind == 2 { "none" } else { "id" };
                    let how = format!("{TOPICS} {bytes} {count} {WINDOW} {headers}");
                    let line = format!("store simurgh.h.0.00.peer {how}");
                    number(&bare_client.ask(&line)?, "seconds")?
                }
            };
            if let Some(by_node) = by_node.get_mut(kind) {
                *by_node += count;
            }
            thread::sleep(QUIET);
            let spent = [broker.cpu()?.since(&of_broker).0, node.spent(&of_node)?];
            let [broker, node] = spent.map(|ns| stats::ratio(ns, count as u64) / 1e3);
            Ok([stats::per(count, 1) / seconds, broker, node])
        },
    )?;
    let [singles, in_bursts] = by_node.map(|it| stats::per(it, 1));
    put_counts(&node, singles, in_bursts, sample)?;
    put_costs(costs, sample);
    Ok(())
}

fn put_counts(node: &Server, singles: f64, in_bursts: f64, sample: &mut Sample) -> Result<()> {
    let wanted = singles + in_bursts;
    // A node updates its metrics once a second.
    nodes::until(&format!("{wanted} are stored"), || {
        Ok(node.metric("simurgh_cluster_stored_total")? >= wanted)
    })?;
    let repeated = node.metric("simurgh_cluster_store_repeated_total")?;
    sample.put("stored_repeated", repeated);
    let envelopes = node.metric("simurgh_cluster_store_seconds_count")?;
    sample.put("stored_burst_items", in_bursts / (envelopes - singles).max(1.0));
    Ok(())
}

fn put_costs([one, many, peer, with_ids]: [[f64; 3]; 4], sample: &mut Sample) {
    let (single, burst, bare, ids) = (one[0], many[0], peer[0], with_ids[0]);
    sample.put("stored_share", single / bare);
    sample.put("stored_ids_share", single / ids);
    sample.put("stored_burst_share", burst / bare);
    sample.put("stored_below", bare / single);
    sample.put("stored_burst_below", bare / burst);
    for (name, [rate, broker, node]) in
        [("stored", one), ("stored_burst", many), ("stored_bare", peer), ("stored_ids", with_ids)]
    {
        sample.put(format!("{name}_per_s"), rate);
        sample.put(format!("{name}_engine_us"), broker);
        sample.put(format!("{name}_node_us"), node);
    }
}

/// Seconds until a node has stored a block that comes over several connections, with `burst`
/// messages in a row for each topic. The publisher is on the node's core, like the bare client, so
/// that the broker has the other core for itself.
fn stored(node: &Server, count: usize, burst: usize) -> Result<f64> {
    let requests = |connection| {
        let topic = |nth| format!("kept:{connection}-{:03}", nth % 1_000 / burst);
        let topics = (0..count / CONNECTIONS).map(topic);
        broadcasts(topics, &payload()).map(|(_, body)| body).collect()
    };
    let requests: Vec<Vec<String>> = (0..CONNECTIONS).map(requests).collect();
    let began = Instant::now();
    thread::scope(|scope| {
        let publish = |requests: Vec<String>| {
            scope.spawn(move || {
                sys::pin(SERVER_CORE)?;
                requests.iter().try_for_each(|it| node.post("/api/broadcast", it).map(drop))
            })
        };
        let threads: Vec<_> = requests.into_iter().map(publish).collect();
        let ended = |thread: thread::ScopedJoinHandle<'_, Result<()>>| {
            thread.join().map_err(|_| anyhow!("a publisher has panicked"))?
        };
        threads.into_iter().try_for_each(ended)
    })?;
    let seconds = began.elapsed().as_secs_f64();
    ensure!(seconds > 0.0, "no time has passed");
    Ok(seconds)
}
