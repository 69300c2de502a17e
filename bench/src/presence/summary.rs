//! Rows `summary` and `memory`: what presence costs a crowd whose list is not told, and what it
//! keeps of everybody.

use std::time::Duration;

use anyhow::Result;

use super::server::{self, How, LIST_MAX, QUIET, TOPIC};
use simurgh_bench_kit::members::Clients;
use simurgh_bench_kit::rounds::{Bench, Sample};
use simurgh_bench_kit::stats;

/// Members of a topic of the row `memory`.
const TOPIC_MEMBERS: usize = 100;
/// Topics that each client joins: so many that what a server has once does not matter.
const TOPICS: usize = 10;
/// Until an allocator has given back what it means to give back.
const CALM: Duration = Duration::from_secs(4);
/// Until a server has given back what a crowd leaves: 4 s after the last, and some for the work.
const GONE: Duration = Duration::from_secs(10);

/// CPU time of 18,000 joins to one topic, with presence and without: alone, and with the connect
/// and the upgrade before each.
pub(super) fn run(bench: &Bench<'_>, sample: &mut Sample) -> Result<()> {
    let count = if bench.options.short { 3_000 } else { 18_000 };
    let without = joins(bench, count, false, sample)?;
    let with = joins(bench, count, true, sample)?;
    for (name, with, without) in
        [("summary_joins", with.0, without.0), ("summary", with.1, without.1)]
    {
        let per_join = |ns| stats::per::<u64>(ns, 1000) / stats::per(count, 1);
        sample.put(format!("{name}_us"), per_join(with));
        sample.put(format!("{name}_without_us"), per_join(without));
        sample.put(format!("{name}_ratio"), stats::per(with, 1) / stats::per(without, 1));
    }
    Ok(())
}

/// Of all joins alone, and of connects, upgrades and joins, ns.
fn joins(
    bench: &Bench<'_>,
    count: usize,
    presence: bool,
    sample: &mut Sample,
) -> Result<(u64, u64)> {
    let mut found = [0; 2];
    for (found, is_alone) in found.iter_mut().zip([true, false]) {
        let served = server::serve(bench, How { presence, list_max: LIST_MAX })?;
        let mut clients = served.clients()?;
        if is_alone {
            clients.open(count)?;
        }
        clients.rest(QUIET)?;
        let before = served.cpu()?;
        match is_alone {
            true => clients.join_all(|_| TOPIC.to_owned())?,
            false => clients.open_and_join(count, |_| TOPIC.to_owned())?,
        }
        let all = u64::try_from(count)?;
        let is_told = |it: &Clients| !presence || it.total.states >= all && it.total.summaries > 0;
        clients.until(is_told)?;
        clients.rest(QUIET * 3)?;
        *found = served.spent(&before)?;
        if presence && is_alone {
            sample.put("summary_lists", stats::per(clients.total.states, 1));
            sample.put("summary_summaries", stats::per(clients.total.summaries, 1));
            sample.put("summary_diffs", stats::per(clients.total.diffs, 1));
            sample.put("summary_mb", stats::per(clients.total.bytes, 1_000_000));
            sample
                .put("summary_presences_missing", stats::per(all, 1) - server::presences(&served)?);
        }
    }
    Ok(found.into())
}

/// Resident bytes at the stages of a crowd.
struct Stages {
    connected: u64,
    /// When everybody has joined a first topic: what is made once is there.
    some: u64,
    joined: u64,
    left: u64,
}

/// Both are far below 2⁵³.
fn difference(one: u64, other: u64) -> f64 {
    stats::per(one, 1) - stats::per(other, 1)
}

/// Bytes of each tracked member, and what is left when all have gone.
pub(super) fn memory(bench: &Bench<'_>, sample: &mut Sample) -> Result<()> {
    let count = if bench.options.short { 3_000 } else { 15_000 };
    let without = stages(bench, count, false, sample)?;
    let with = stages(bench, count, true, sample)?;
    let meta = sample.figures.get("memory_meta_bytes").copied().unwrap_or(0.0);
    let others = stats::per(count * (TOPICS - 1), 1);
    let of_each = |it: &Stages| difference(it.joined, it.some) / others;
    sample.put("memory_with_bytes", of_each(&with));
    sample.put("memory_without_bytes", of_each(&without));
    sample.put("memory_member_bytes", of_each(&with) - of_each(&without) - meta);
    for (name, it) in [("with", &with), ("without", &without)] {
        sample.put(format!("memory_rise_{name}_mb"), difference(it.joined, it.connected) / 1e6);
        sample.put(format!("memory_left_{name}_mb"), difference(it.left, it.connected) / 1e6);
    }
    let left = difference(with.left, with.connected) / difference(with.joined, with.connected);
    sample.put("memory_left_percent", left.max(0.0) * 100.0);
    Ok(())
}

fn stages(bench: &Bench<'_>, count: usize, presence: bool, sample: &mut Sample) -> Result<Stages> {
    let topic =
        |round: usize| move |index: usize| format!("rooms:{round}-{}", index / TOPIC_MEMBERS);
    let served = server::serve(bench, How { presence, list_max: LIST_MAX })?;
    let mut clients = served.clients()?;
    clients.open(count)?;
    clients.kept = presence.then(Vec::new);
    clients.rest(CALM)?;
    let connected = served.resident()?;
    let mut some = None;
    for round in 0..TOPICS {
        clients.join_all(topic(round))?;
        let all = u64::try_from(count * (round + 1))?;
        clients.until(|it| !presence || it.total.states >= all)?;
        if some.is_none() {
            clients.rest(CALM)?;
            some = Some(served.resident()?);
        }
    }
    clients.rest(CALM)?;
    let joined = served.resident()?;
    if presence {
        sample.put("memory_untracked", stats::per(count * TOPICS, 1) - server::presences(&served)?);
        sample.put("memory_meta_bytes", meta_bytes(&clients)?);
    }
    for round in 0..TOPICS {
        clients.leave_all(topic(round))?;
    }
    clients.rest(GONE)?;
    let left = served.resident()?;
    if presence {
        sample.put("memory_presences_left", server::presences(&served)?);
    }
    Ok(Stages { connected, some: some.unwrap_or(connected), joined, left })
}

/// Bytes of a meta as the application wrote it: without the ref, which the table adds.
fn meta_bytes(clients: &Clients) -> Result<f64> {
    let mut kept = clients.kept.as_deref().unwrap_or_default();
    while let Some(frame) = simurgh_bench_kit::frames::frame(kept) {
        kept = kept.get(frame.len..).unwrap_or_default();
        let message: serde_json::Value = serde_json::from_slice(frame.payload)?;
        if message.get(3).is_some_and(|event| event == "presence_state")
            && let Some(list) = message.get(4).and_then(serde_json::Value::as_object)
            && let Some(meta) = list.values().next().and_then(|it| it.pointer("/metas/0"))
        {
            let mut meta = meta.clone();
            if let Some(fields) = meta.as_object_mut() {
                fields.remove("phx_ref");
            }
            return Ok(stats::per(meta.to_string().len(), 1));
        }
    }
    anyhow::bail!("the first member has got no list")
}
