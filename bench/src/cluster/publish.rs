//! Row `publish`: the cost of sending a broadcast to other nodes, compared with a bare client's.

use std::thread;

use anyhow::{Result, ensure};

use super::engine::Engine;
use super::helper::Helper;
use super::nodes::{self, NodeSettings, QUIET, THREAD};
use simurgh_bench_kit::rounds::{Bench, Sample};
use simurgh_bench_kit::stats;

/// Blocks, in turn with the cluster, without it, and of the bare client; broadcasts of each.
const BLOCKS: usize = 24;
const BLOCK: usize = 20_000;
const ROOM: &str = "rooms:said";

pub(super) fn run(bench: &Bench<'_>, sample: &mut Sample) -> Result<()> {
    let engine = Engine::start(bench)?;
    let alone = NodeSettings::new(None, "alone").start(bench)?;
    // Another node without members: the engine only has to read.
    let [one, _two] = nodes::pair(bench, &engine, "")?;
    let mut bare_client = Helper::bare_client(&engine)?;
    let bytes = nodes::envelope_bytes(ROOM);
    let blocks = bench.options.size(BLOCKS, BLOCKS / 4);
    let mut costs: [Vec<f64>; 3] = Default::default();
    let mut of_thread = Vec::new();
    for block in 0..blocks {
        let who = block % 3;
        let cost = if who == 2 {
            let before = bare_client.cpu()?;
            bare_client.ask(&format!("publish simurgh.b.0.00.{ROOM} {bytes} {BLOCK}"))?;
            thread::sleep(QUIET);
            bare_client.cpu()?.since(&before).0
        } else {
            let topics = std::iter::repeat_n(ROOM.to_owned(), BLOCK);
            let server = if who == 0 { &one } else { &alone };
            let (before, thread_before) = (server.cpu()?, server.cpu_of(THREAD)?);
            nodes::publish(server, topics)?;
            thread::sleep(QUIET);
            if who == 0 && block > 2 {
                let spent = server.cpu_of(THREAD)?.since(&thread_before).0;
                of_thread.push(stats::per(spent, 1) / stats::per(BLOCK, 1));
            }
            server.spent(&before)?
        };
        // The first of each warms up.
        if let (true, Some(costs)) = (block > 2, costs.get_mut(who)) {
            costs.push(stats::per(cost, 1) / stats::per(BLOCK, 1));
        }
    }
    // A node updates its metrics once a second.
    let wanted = stats::per(blocks / 3 * BLOCK, 1);
    let counter = "simurgh_cluster_published_total{kind=\"broadcast\"}";
    let mut published = 0.0;
    nodes::until(&format!("{wanted} are published"), || {
        published = one.metric(counter)?;
        Ok(published >= wanted)
    })?;
    ensure!((published - wanted).abs() < 0.5, "{published} of {wanted} were published");
    let [with, without, bare] = costs.map(|it| stats::middle(&it));
    let (with, without, bare, of_thread) = (with?, without?, bare?, stats::middle(&of_thread)?);
    sample.put("publish_thread_ns", of_thread);
    sample.put("publish_thread_ratio", of_thread / bare);
    sample.put("publish_ns", with - without);
    sample.put("publish_with_ns", with);
    sample.put("publish_without_ns", without);
    sample.put("publish_bare_ns", bare);
    sample.put("publish_ratio", (with - without) / bare);
    Ok(())
}
