//! Row `kept`: a node's cost of a broadcast of another one, if the broker keeps it and if not.

use std::thread;

use anyhow::{Context, Result};

use super::broker::Broker;
use super::nodes::{self, KEPT, NodeSettings, PATIENT, QUIET, THREAD, publish};
use simurgh_bench_kit::rounds::{Bench, Sample, in_turn};
use simurgh_bench_kit::stats;

/// Blocks, with each kind in turn, and broadcasts of each.
const BLOCKS: usize = 18;
const BLOCK: usize = 20_000;
/// A request has one message for each topic, so that none is stored together with another.
const TOPICS: usize = 1_000;
/// Topics of either kind that a member is in; a connection may have a hundred.
const EACH: usize = 25;
#[derive(Clone, Copy, PartialEq)]
enum Kind {
    /// Each in its own envelope.
    Kept,
    Plain,
    /// A thousand in a row for each topic, so that they share envelopes.
    Gathered,
}

const KINDS: [Kind; 3] = [Kind::Kept, Kind::Plain, Kind::Gathered];

impl Kind {
    /// The topic of the `nth` message; all names are equally long.
    fn topic(self, nth: usize) -> String {
        match self {
            Self::Kept => format!("kept:{:04}", nth % TOPICS),
            Self::Plain => format!("rooms:{:03}", nth % TOPICS),
            Self::Gathered => format!("kept:{:04}", nth / TOPICS),
        }
    }
}

pub(super) fn run(bench: &Bench<'_>, sample: &mut Sample) -> Result<()> {
    let broker = Broker::keeping(bench)?;
    let settings =
        NodeSettings { settings: PATIENT, channels: KEPT, ..NodeSettings::new(Some(&broker), "") };
    let [one, two] = nodes::pair_of(bench, &settings)?;
    let mut members = two.clients()?;
    members.open(TOPICS / EACH)?;
    for nth in 0..EACH {
        members.join_all(|index| Kind::Kept.topic(index * EACH + nth))?;
        members.join_all(|index| Kind::Plain.topic(index * EACH + nth))?;
    }
    members.rest(nodes::CALM)?;
    let blocks = bench.options.size(BLOCKS, BLOCKS / 3);
    let mut published = 0;
    // Nanoseconds per broadcast: of the cluster's thread, of the node, of the broker.
    let [kept, plain, gathered] = in_turn(
        blocks,
        |block| block % KINDS.len(),
        |kind| {
            let kind = KINDS.get(kind).copied().context("no kind")?;
            let (node, of_thread, of_broker) = (two.cpu()?, two.cpu_of(THREAD)?, broker.cpu()?);
            publish(&one, (0..BLOCK).map(|nth| kind.topic(nth)))?;
            thread::sleep(QUIET);
            let cost = [
                two.cpu_of(THREAD)?.since(&of_thread).0,
                two.spent(&node)?,
                broker.cpu()?.since(&of_broker).0,
            ];
            // Unread messages are in the log; reading them from there is not measured.
            published += BLOCK as u64;
            members.until(|it| it.messages >= published)?;
            thread::sleep(QUIET);
            Ok(cost.map(|ns| stats::ratio(ns, BLOCK as u64)))
        },
    )?;
    for reason in ["gap", "filled"] {
        let holes = format!("simurgh_cluster_holes_total{{result=\"{reason}\"}}");
        sample.put(format!("kept_holes_{reason}"), two.metric(&holes)?);
    }
    for (name, [thread, whole, broker]) in
        [("kept", kept), ("kept_plain", plain), ("kept_gathered", gathered)]
    {
        sample.put(format!("{name}_ns"), thread);
        sample.put(format!("{name}_whole_ns"), whole);
        sample.put(format!("{name}_engine_ns"), broker);
        sample.put(format!("{name}_ratio"), thread / plain[0]);
        sample.put(format!("{name}_whole_ratio"), whole / plain[1]);
    }
    Ok(())
}
