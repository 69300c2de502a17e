//! Row `publish`: what it costs beside all else that a broadcast goes to other nodes, beside a bare
//! client that publishes as many bytes.

use std::thread;

use anyhow::{Context, Result, ensure};

use super::engine::Engine;
use super::helper::Helper;
use super::servers::{self, How, QUIET, THREAD, gauge};
use simurgh_bench_kit::rounds::{Bench, Sample};
use simurgh_bench_kit::stats;

/// Blocks, in turn with the cluster, without it, and of the bare client; broadcasts of each.
const BLOCKS: usize = 24;
const BLOCK: usize = 20_000;
const ROOM: &str = "rooms:said";

pub(super) fn run(bench: &Bench<'_>, sample: &mut Sample) -> Result<()> {
    let engine = Engine::start(bench)?;
    let alone = How::new(None, "alone").start(bench)?;
    // Another node is there, and nobody in it hears anything: the engine has no work but to read.
    let [one, _two] = servers::pair(bench, &engine, "")?;
    let mut peer = Helper::peer(&engine)?;
    let bytes = servers::envelope_bytes(ROOM);
    let blocks = if bench.options.short { BLOCKS / 4 } else { BLOCKS };
    let mut costs: [Vec<f64>; 3] = Default::default();
    let mut of_thread = Vec::new();
    for block in 0..blocks {
        let who = block % 3;
        let cost = if who == 2 {
            let before = peer.cpu()?;
            peer.ask(&format!("publish simurgh.b.0.00.{ROOM} {bytes} {BLOCK}"))?;
            thread::sleep(QUIET);
            peer.cpu()?.since(&before).0
        } else {
            let served = if who == 0 { &one } else { &alone };
            let (before, thread_before) = (served.cpu()?, served.cpu_of(THREAD)?);
            servers::publish(served, ROOM, BLOCK)?;
            thread::sleep(QUIET);
            if who == 0 && block > 2 {
                let spent = served.cpu_of(THREAD)?.since(&thread_before).0;
                of_thread.push(stats::per(spent, 1) / stats::per(BLOCK, 1));
            }
            served.spent(&before)?
        };
        // The first of each warms up.
        if let (true, Some(costs)) = (block > 2, costs.get_mut(who)) {
            costs.push(stats::per(cost, 1) / stats::per(BLOCK, 1));
        }
    }
    // A node shows what it has counted once a second.
    let wanted = stats::per(blocks / 3 * BLOCK, 1);
    servers::until(&format!("{wanted} are published"), servers::READY, || {
        Ok(gauge(&one, "simurgh_cluster_published_total{kind=\"broadcast\"}")? >= wanted)
    })?;
    let published = gauge(&one, "simurgh_cluster_published_total{kind=\"broadcast\"}")?;
    ensure!((published - wanted).abs() < 0.5, "{published} of {wanted} were published");
    let [with, without, bare] = costs.map(|it| stats::median(&it).context("nothing measured"));
    let (with, without, bare) = (with?, without?, bare?);
    let of_thread = stats::median(&of_thread).context("nothing measured")?;
    sample.put("publish_thread_ns", of_thread);
    sample.put("publish_thread_ratio", of_thread / bare);
    sample.put("publish_ns", with - without);
    sample.put("publish_with_ns", with);
    sample.put("publish_without_ns", without);
    sample.put("publish_bare_ns", bare);
    sample.put("publish_ratio", (with - without) / bare);
    Ok(())
}
