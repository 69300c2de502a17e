//! Row `publish`: the cost of sending a broadcast to other nodes, compared with a bare client's.

use std::thread;

use anyhow::{Result, ensure};

use super::broker::Broker;
use super::helper::Helper;
use super::nodes::{self, NodeSettings, QUIET, THREAD};
use simurgh_bench_kit::rounds::{Bench, Sample, in_turn};
use simurgh_bench_kit::stats;

/// Blocks, in turn with the cluster, without it, and of the bare client; broadcasts of each.
const BLOCKS: usize = 24;
const BLOCK: usize = 20_000;
const ROOM: &str = "rooms:said";

pub(super) fn run(bench: &Bench<'_>, sample: &mut Sample) -> Result<()> {
    let broker = Broker::start(bench)?;
    let alone = NodeSettings::new(None, "alone").start(bench)?;
    // Another node without members: the broker only has to read.
    let [one, _two] = nodes::pair(bench, &broker, "")?;
    let mut bare_client = Helper::bare_client(&broker)?;
    let bytes = nodes::envelope_bytes(ROOM);
    let blocks = bench.options.size(BLOCKS, BLOCKS / 4);
    let costs = in_turn(
        blocks,
        |block| block % 3,
        |kind| {
            let costs = if kind == 2 {
                let before = bare_client.cpu()?;
                bare_client.ask(&format!("publish simurgh.b.0.00.{ROOM} {bytes} {BLOCK}"))?;
                thread::sleep(QUIET);
                [bare_client.cpu()?.since(&before).0, 0]
            } else {
                let topics = std::iter::repeat_n(ROOM.to_owned(), BLOCK);
                let server = if kind == 0 { &one } else { &alone };
                let (before, thread_before) = (server.cpu()?, server.cpu_of(THREAD)?);
                nodes::publish(server, topics)?;
                thread::sleep(QUIET);
                [server.spent(&before)?, server.cpu_of(THREAD)?.since(&thread_before).0]
            };
            Ok(costs.map(|ns| stats::ratio(ns, BLOCK as u64)))
        },
    )?;
    let [[with, of_thread], [without, _], [bare, _]] = costs;
    // A node updates its metrics once a second.
    let wanted = stats::per(blocks / 3 * BLOCK, 1);
    let counter = "simurgh_cluster_published_total{kind=\"broadcast\"}";
    let mut published = 0.0;
    nodes::until(&format!("{wanted} are published"), || {
        published = one.metric(counter)?;
        Ok(published >= wanted)
    })?;
    ensure!((published - wanted).abs() < 0.5, "{published} of {wanted} were published");
    sample.put("publish_thread_ns", of_thread);
    sample.put("publish_thread_ratio", of_thread / bare);
    sample.put("publish_ns", with - without);
    sample.put("publish_with_ns", with);
    sample.put("publish_without_ns", without);
    sample.put("publish_bare_ns", bare);
    sample.put("publish_ratio", (with - without) / bare);
    Ok(())
}
