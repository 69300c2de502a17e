//! Row `receive`: the CPU of the cluster's thread for a broadcast of another node until a shard has
//! it, compared with a bare client that receives such an envelope. The shard's work (its log and
//! its member's frame) is the same for every broadcast; it is shown as well.

use std::thread;

use anyhow::{Result, ensure};

use super::broker::Broker;
use super::client::Client;
use super::helper::{Helper, number};
use super::nodes::{self, PATIENT, QUIET, THREAD};
use simurgh_bench_kit::rounds::{Bench, Sample, in_turn, turn};
use simurgh_bench_kit::stats;

/// Blocks, in turn to the node and to the bare client, and broadcasts of each.
const BLOCKS: usize = 16;
const BLOCK: usize = 20_000;
/// The topics of the node's member and of the bare client. Equally long.
const ROOM: &str = "rooms:node";
const OTHER: &str = "rooms:peer";

pub(super) fn run(bench: &Bench<'_>, sample: &mut Sample) -> Result<()> {
    let broker = Broker::start(bench)?;
    let [one, two] = nodes::pair(bench, &broker, PATIENT)?;
    let mut member = Client::join(two.address, ROOM)?;
    member.take_little()?;
    let mut bare_client = Helper::bare_client(&broker)?;
    // In any bucket.
    bare_client.ask(&format!("subscribe simurgh.b.*.*.{OTHER}"))?;
    thread::sleep(nodes::CALM);
    let blocks = bench.options.size(BLOCKS, BLOCKS / 4);
    let [[node, whole], [bare, _]] = in_turn(blocks, turn, |kind| {
        let is_bare = kind == 1;
        let (node, before, bare) = (two.cpu()?, two.cpu_of(THREAD)?, bare_client.cpu()?);
        let topic = if is_bare { OTHER } else { ROOM };
        nodes::publish(&one, std::iter::repeat_n(topic.to_owned(), BLOCK))?;
        thread::sleep(QUIET);
        let costs = match is_bare {
            true => [bare_client.cpu()?.since(&bare).0, 0],
            false => [two.cpu_of(THREAD)?.since(&before).0, two.spent(&node)?],
        };
        if !is_bare {
            // Unread messages are in the log; reading them from there is not measured.
            member.read_broadcasts(BLOCK)?;
            thread::sleep(QUIET);
        }
        Ok(costs.map(|ns| stats::ratio(ns, BLOCK as u64)))
    })?;
    let received = number(&bare_client.ask("received")?, "received")?;
    let wanted = stats::per(blocks / 2 * BLOCK, 1);
    ensure!((received - wanted).abs() < 0.5, "the bare client has got {received} of {wanted}");
    sample.put("receive_ns", node);
    sample.put("receive_whole_ns", whole);
    sample.put("receive_bare_ns", bare);
    sample.put("receive_ratio", node / bare);
    Ok(())
}
