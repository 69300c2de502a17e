//! Row `kept`: what a node pays for a broadcast of another one that the engine keeps, beside one
//! that it does not.

use std::thread;

use anyhow::{Context, Result};

use super::engine::Engine;
use super::servers::{self, How, KEPT, QUIET, THREAD, publish_each};
use simurgh_bench_kit::rounds::{Bench, Sample};
use simurgh_bench_kit::stats;

/// Blocks, in turn of each kind, and broadcasts of each.
const BLOCKS: usize = 18;
const BLOCK: usize = 20_000;
/// A request has one message for each of them, so that none is stored together with another.
const TOPICS: usize = 1_000;
/// Topics of either kind that a member is in; a connection may have a hundred.
const EACH: usize = 25;
/// A member that does not read for the time of a block is neither cut nor makes anybody slower.
const PATIENT: &str = "outbound_bytes_max = \"512MiB\"\noutbound_budget = \"1GiB\"\n\
                       slow_after = \"1h\"\n";

/// What is published in a block.
#[derive(Clone, Copy, PartialEq)]
enum Kind {
    /// Each in an envelope of its own.
    Kept,
    Plain,
    /// A thousand in a row for each topic, so that they share envelopes.
    Gathered,
}

const KINDS: [Kind; 3] = [Kind::Kept, Kind::Plain, Kind::Gathered];

impl Kind {
    /// Where the `nth` message goes; all names are equally long.
    fn topic(self, nth: usize) -> String {
        match self {
            Self::Kept => format!("kept:{:04}", nth % TOPICS),
            Self::Plain => format!("rooms:{:03}", nth % TOPICS),
            Self::Gathered => format!("kept:{:04}", nth / TOPICS),
        }
    }
}

/// Nanoseconds a broadcast of each kind, block by block.
#[derive(Default)]
struct Costs {
    thread: Vec<f64>,
    whole: Vec<f64>,
    engine: Vec<f64>,
}

pub(super) fn run(bench: &Bench<'_>, sample: &mut Sample) -> Result<()> {
    let engine = Engine::keeping(bench)?;
    let how = How { settings: PATIENT, channels: KEPT, ..How::new(Some(&engine), "") };
    let [one, two] = servers::pair_of(bench, &how)?;
    let mut members = two.clients()?;
    members.open(TOPICS / EACH)?;
    for nth in 0..EACH {
        members.join_all(|index| Kind::Kept.topic(index * EACH + nth))?;
        members.join_all(|index| Kind::Plain.topic(index * EACH + nth))?;
    }
    members.rest(servers::CALM)?;
    let blocks = if bench.options.short { BLOCKS / 3 } else { BLOCKS };
    let mut costs: [Costs; 3] = Default::default();
    for block in 0..blocks {
        let kind = KINDS.get(block % KINDS.len()).copied().context("no kind")?;
        let (node, of_thread, of_engine) = (two.cpu()?, two.cpu_of(THREAD)?, engine.cpu()?);
        publish_each(&one, 0..BLOCK, |nth| kind.topic(nth))?;
        thread::sleep(QUIET);
        let cost = [
            two.cpu_of(THREAD)?.since(&of_thread).0,
            two.spent(&node)?,
            engine.cpu()?.since(&of_engine).0,
        ];
        // What they have not read is in the log; that it comes out of there is not measured.
        let wanted = u64::try_from((block + 1) * BLOCK)?;
        members.until(|it| it.total.messages >= wanted)?;
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
        sample.put(format!("kept_holes_{reason}"), servers::gauge(&two, &holes)?);
    }
    let median = |values: &[f64]| stats::median(values).context("nothing measured");
    let [kept, plain, gathered] = &costs;
    for (name, costs) in [("kept", kept), ("kept_plain", plain), ("kept_gathered", gathered)] {
        sample.put(format!("{name}_ns"), median(&costs.thread)?);
        sample.put(format!("{name}_whole_ns"), median(&costs.whole)?);
        sample.put(format!("{name}_engine_ns"), median(&costs.engine)?);
    }
    for (name, costs) in [("kept", kept), ("kept_gathered", gathered)] {
        let thread = median(&costs.thread)? / median(&plain.thread)?;
        sample.put(format!("{name}_ratio"), thread);
        sample.put(format!("{name}_whole_ratio"), median(&costs.whole)? / median(&plain.whole)?);
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
