//! Row `receive`: what a broadcast of another node costs until a shard has it, which is the CPU of
//! the cluster's thread, beside a bare client that is told of such an envelope. What the shard does
//! with it, its log and its member's frame, it does with every broadcast; it is shown as well.

use std::thread;

use anyhow::{Context, Result, ensure};

use super::engine::Engine;
use super::helper::{Helper, number};
use super::line::Line;
use super::servers::{self, QUIET, THREAD};
use simurgh_bench_kit::rounds::{Bench, Sample};
use simurgh_bench_kit::stats;

/// Blocks, in turn to the node and to the bare client, and broadcasts of each.
const BLOCKS: usize = 16;
const BLOCK: usize = 20_000;
/// A member that does not read for the time of a block is neither cut nor makes anybody slower.
const PATIENT: &str = "outbound_bytes_max = \"512MiB\"\noutbound_budget = \"1GiB\"\n\
                       slow_after = \"1h\"\n";
/// Where the node has a member, and what the bare client hears. Equally long.
const ROOM: &str = "rooms:node";
const OTHER: &str = "rooms:peer";

pub(super) fn run(bench: &Bench<'_>, sample: &mut Sample) -> Result<()> {
    let engine = Engine::start(bench)?;
    let [one, two] = servers::pair(bench, &engine, PATIENT)?;
    let mut member = Line::join(two.running.address, ROOM)?;
    member.take_little()?;
    let mut peer = Helper::peer(&engine)?;
    // Whatever the bucket.
    peer.ask(&format!("hear simurgh.b.*.*.{OTHER}"))?;
    thread::sleep(servers::CALM);
    let blocks = if bench.options.short { BLOCKS / 4 } else { BLOCKS };
    let (mut node_ns, mut whole_ns, mut bare_ns) = (Vec::new(), Vec::new(), Vec::new());
    for block in 0..blocks {
        let heard = block % 4 == 1 || block % 4 == 2;
        let (node, before, bare) = (two.cpu()?, two.cpu_of(THREAD)?, peer.cpu()?);
        servers::publish(&one, if heard { OTHER } else { ROOM }, BLOCK)?;
        thread::sleep(QUIET);
        let (cost, whole) = match heard {
            true => (peer.cpu()?.since(&bare).0, 0),
            false => (two.cpu_of(THREAD)?.since(&before).0, two.spent(&node)?),
        };
        if !heard {
            // What it has not read is in the log; that it comes out of there is not measured.
            member.read_broadcasts(BLOCK)?;
            thread::sleep(QUIET);
        }
        // The first of each warms up.
        if block > 1 {
            let costs = if heard { &mut bare_ns } else { &mut node_ns };
            costs.push(stats::per(cost, 1) / stats::per(BLOCK, 1));
            if !heard {
                whole_ns.push(stats::per(whole, 1) / stats::per(BLOCK, 1));
            }
        }
    }
    let heard = number(&peer.ask("heard")?, "heard")?;
    let wanted = stats::per(blocks / 2 * BLOCK, 1);
    ensure!((heard - wanted).abs() < 0.5, "the bare client has heard {heard} of {wanted}");
    let medians = stats::median(&node_ns).zip(stats::median(&bare_ns));
    let (node, bare) = medians.context("nothing measured")?;
    sample.put("receive_ns", node);
    let whole = stats::median(&whole_ns).context("nothing measured")?;
    sample.put("receive_whole_ns", whole);
    sample.put("receive_bare_ns", bare);
    sample.put("receive_ratio", node / bare);
    Ok(())
}
