//! Rows `summary` and `memory`: presence with too many members for a list, and its memory.

use std::time::Duration;

use anyhow::Result;

use super::server::{How, LIST_MAX, PRESENCES, QUIET, TOPIC, serve};
use simurgh_bench_kit::clients::{Clients, Counts};
use simurgh_bench_kit::rounds::{Bench, Sample};
use simurgh_bench_kit::stats;

const TOPIC_MEMBERS: usize = 100;
/// Topics that each client joins: so many that the server's fixed cost does not matter.
const TOPICS: usize = 10;
/// Time for an allocator to give back unused memory.
const CALM: Duration = Duration::from_secs(4);
/// Time for a server to free a crowd's memory: 4 s after the last leave, and some for the work.
const GONE: Duration = Duration::from_secs(10);

/// CPU time of 18,000 joins to one topic, with presence and without: joins alone, and with the
/// connect and the upgrade before each.
pub(super) fn run(bench: &Bench<'_>, sample: &mut Sample) -> Result<()> {
    let count = bench.many_clients();
    let without = joins(bench, count, false, sample)?;
    let with = joins(bench, count, true, sample)?;
    let per_join = |ns: u64| stats::per(ns, 1000) / stats::per(count, 1);
    sample.put_both("summary_joins", "us", (per_join(with.0), per_join(without.0)));
    sample.put_both("summary", "us", (per_join(with.1), per_join(without.1)));
    Ok(())
}

/// CPU of all joins alone, and of connects, upgrades and joins, ns.
fn joins(
    bench: &Bench<'_>,
    count: usize,
    presence: bool,
    sample: &mut Sample,
) -> Result<(u64, u64)> {
    let mut found = [0; 2];
    for (found, is_alone) in found.iter_mut().zip([true, false]) {
        let server = serve(bench, How { presence, list_max: LIST_MAX })?;
        let mut clients = server.clients()?;
        if is_alone {
            clients.open(count)?;
        }
        clients.rest(QUIET)?;
        let before = server.cpu()?;
        match is_alone {
            true => clients.join_all(|_| TOPIC.to_owned())?,
            false => clients.open_and_join(count, |_| TOPIC.to_owned())?,
        }
        let all = u64::try_from(count)?;
        let has_all = |it: &Counts| !presence || it.states >= all && it.summaries > 0;
        clients.until(has_all)?;
        clients.rest(QUIET * 3)?;
        *found = server.spent(&before)?;
        if presence && is_alone {
            sample.put("summary_lists", stats::per(clients.total().states, 1));
            sample.put("summary_summaries", stats::per(clients.total().summaries, 1));
            sample.put("summary_diffs", stats::per(clients.total().diffs, 1));
            sample.put("summary_mb", stats::per(clients.total().bytes, 1_000_000));
            let missing = stats::per(all, 1) - server.sum(PRESENCES)?;
            sample.put("summary_presences_missing", missing);
        }
    }
    Ok(found.into())
}

/// Resident bytes at the stages of a crowd.
struct Stages {
    connected: u64,
    /// When all have joined a first topic, so that everything made once exists.
    some: u64,
    joined: u64,
    left: u64,
}

/// Bytes of each tracked member, and the bytes left when all have left.
pub(super) fn memory(bench: &Bench<'_>, sample: &mut Sample) -> Result<()> {
    let count = bench.options.size(15_000, 3_000);
    let without = stages(bench, count, false, sample)?;
    let with = stages(bench, count, true, sample)?;
    let meta = sample.figures.get("memory_meta_bytes").copied().unwrap_or(0.0);
    let others = stats::per(count * (TOPICS - 1), 1);
    let of_each = |it: &Stages| stats::difference(it.joined, it.some) / others;
    sample.put("memory_with_bytes", of_each(&with));
    sample.put("memory_without_bytes", of_each(&without));
    sample.put("memory_member_bytes", of_each(&with) - of_each(&without) - meta);
    for (name, it) in [("with", &with), ("without", &without)] {
        sample.put(
            format!("memory_rise_{name}_mb"),
            stats::difference(it.joined, it.connected) / 1e6,
        );
        sample
            .put(format!("memory_left_{name}_mb"), stats::difference(it.left, it.connected) / 1e6);
    }
    let left = stats::difference(with.left, with.connected)
        / stats::difference(with.joined, with.connected);
    sample.put("memory_left_percent", left.max(0.0) * 100.0);
    Ok(())
}

fn stages(bench: &Bench<'_>, count: usize, presence: bool, sample: &mut Sample) -> Result<Stages> {
    let topic =
        |round: usize| move |index: usize| format!("rooms:{round}-{}", index / TOPIC_MEMBERS);
    let server = serve(bench, How { presence, list_max: LIST_MAX })?;
    let mut clients = server.clients()?;
    clients.open(count)?;
    *clients.kept() = presence.then(Vec::new);
    clients.rest(CALM)?;
    let connected = server.resident()?;
    let mut some = None;
    for round in 0..TOPICS {
        clients.join_all(topic(round))?;
        let all = u64::try_from(count * (round + 1))?;
        clients.until(|it| !presence || it.states >= all)?;
        if some.is_none() {
            clients.rest(CALM)?;
            some = Some(server.resident()?);
        }
    }
    clients.rest(CALM)?;
    let joined = server.resident()?;
    if presence {
        sample.put("memory_untracked", stats::per(count * TOPICS, 1) - server.sum(PRESENCES)?);
        sample.put("memory_meta_bytes", meta_bytes(&mut clients)?);
    }
    for round in 0..TOPICS {
        clients.leave_all(topic(round))?;
    }
    clients.rest(GONE)?;
    let left = server.resident()?;
    if presence {
        sample.put("memory_presences_left", server.sum(PRESENCES)?);
    }
    Ok(Stages { connected, some: some.unwrap_or(connected), joined, left })
}

/// Bytes of a meta as the application wrote it: without the ref, which the table adds.
fn meta_bytes(clients: &mut Clients) -> Result<f64> {
    let mut kept = clients.kept().as_deref().unwrap_or_default();
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
