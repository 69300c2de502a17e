//! Row `kept`: a node's cost of a broadcast of another one, if the engine keeps it and if not.

use std::thread;

use anyhow::{Context, Result};

use super::engine::Engine;
use super::nodes::{self, KEPT, NodeSettings, PATIENT, QUIET, THREAD, publish};
use simurgh_bench_kit::rounds::{Bench, Sample};
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

/// Nanoseconds per broadcast of each kind, block by block.
#[derive(Default)]
struct Costs {
    thread: Vec<f64>,
    whole: Vec<f64>,
    engine: Vec<f64>,
}

pub(super) fn run(bench: &Bench<'_>, sample: &mut Sample) -> Result<()> {
    let engine = Engine::keeping(bench)?;
    let settings =
        NodeSettings { settings: PATIENT, channels: KEPT, ..NodeSettings::new(Some(&engine), "") };
    let [one, two] = nodes::pair_of(bench, &settings)?;
    let mut members = two.clients()?;
    members.open(TOPICS / EACH)?;
    for nth in 0..EACH {
        members.join_all(|index| Kind::Kept.topic(index * EACH + nth))?;
        members.join_all(|index| Kind::Plain.topic(index * EACH + nth))?;
    }
    members.rest(nodes::CALM)?;
    let blocks = bench.options.size(BLOCKS, BLOCKS / 3);
    let mut costs: [Costs; 3] = Default::default();
    for block in 0..blocks {
        let kind = KINDS.get(block % KINDS.len()).copied().context("no kind")?;
        let (node, of_thread, of_engine) = (two.cpu()?, two.cpu_of(THREAD)?, engine.cpu()?);
        publish(&one, (0..BLOCK).map(|nth| kind.topic(nth)))?;
        thread::sleep(QUIET);
        let cost = [
            two.cpu_of(THREAD)?.since(&of_thread).0,
            two.spent(&node)?,
            engine.cpu()?.since(&of_engine).0,
        ];
        // Unread messages are in the log; reading them from there is not measured.
        let wanted = u64::try_from((block + 1) * BLOCK)?;
        members.until(|it| it.messages >= wanted)?;
        thread::sleep(QUIET);
        // The first of each warms up.
        if let (true, Some(costs)) = (block >= KINDS.len(), costs.get_mut(block % KINDS.len())) {
            let [thread, whole, engine] = cost.map(|ns| stats::per(ns, 1) / stats::per(BLOCK, 1));
            costs.thread.push(thread);
            costs.whole.push(whole);
            costs.engine.push(engine);
        }
    }
    for reason in ["gap", "filled"] {
        let holes = format!("simurgh_cluster_holes_total{{result=\"{reason}\"}}");
        sample.put(format!("kept_holes_{reason}"), two.metric(&holes)?);
    }
    let [kept, plain, gathered] = &costs;
    for (name, costs) in [("kept", kept), ("kept_plain", plain), ("kept_gathered", gathered)] {
        sample.put(format!("{name}_ns"), stats::middle(&costs.thread)?);
        sample.put(format!("{name}_whole_ns"), stats::middle(&costs.whole)?);
        sample.put(format!("{name}_engine_ns"), stats::middle(&costs.engine)?);
    }
    for (name, costs) in [("kept", kept), ("kept_gathered", gathered)] {
        let thread = stats::middle(&costs.thread)? / stats::middle(&plain.thread)?;
        sample.put(format!("{name}_ratio"), thread);
        sample.put(
            format!("{name}_whole_ratio"),
            stats::middle(&costs.whole)? / stats::middle(&plain.whole)?,
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_has_no_topic_twice_or_only_one() {
        let topics = |kind: Kind| -> std::collections::BTreeSet<String> {
            (0..1_000).map(|nth| kind.topic(nth)).collect()
        };
        assert_eq!(KINDS.map(|kind| topics(kind).len()), [TOPICS, TOPICS, 1]);
        let length = |kind: Kind| kind.topic(BLOCK - 1).len();
        assert!(KINDS.iter().all(|kind| length(*kind) == length(Kind::Plain)));
    }
}
