//! Row `topics`: a node whose members are in 100,000 topics, one in each.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::broker::Broker;
use super::nodes::{CALM, NodeSettings, until};
use simurgh_bench_kit::clients::Clients;
use simurgh_bench_kit::rounds::{Bench, Sample};
use simurgh_bench_kit::stats;
use simurgh_bench_kit::target::{Server, metric};

const TOPICS: usize = 10;

pub(super) fn run(bench: &Bench<'_>, sample: &mut Sample) -> Result<()> {
    let count = bench.options.size(10_000, 1_000);
    let without = {
        let alone = NodeSettings::new(None, "alone").start(bench)?;
        let _clients = in_all_topics(&alone, count)?;
        alone.resident()?
    };
    let mut broker = Broker::start(bench)?;
    let node = NodeSettings::new(Some(&broker), "node").start(bench)?;
    let mut clients = in_all_topics(&node, count)?;
    let (with, topics) = (node.resident()?, stats::per(count * TOPICS, 1));
    let mb = stats::difference(with, without) / 1e6;
    sample.put("topics_mb", mb);
    // The limit of their number includes what each topic may take.
    let allowed = 60.0 + 120.0 * topics / 1e6;
    sample.put("topics_share", mb / allowed);
    let interests = node.sum("simurgh_cluster_interests")?;
    sample.put("topics_interests", interests);
    sample.put("topics_whole", node.metric("simurgh_cluster_interests{kind=\"whole\"}")?);
    // Waits until the broker has all interests again, and the node is up.
    let links = node.metric("simurgh_cluster_reconnects_total")?;
    broker.kill();
    broker.start_again()?;
    let began = Instant::now();
    until("the node is up again", || {
        let lines = node.metrics()?;
        let of = |name: &str| metric(&lines, name).context("no metric");
        let is_new = of("simurgh_cluster_reconnects_total")? > links;
        Ok(is_new && of("simurgh_cluster_state{state=\"up\"}")? > 0.5)
    })?;
    sample.put("topics_ready_s", began.elapsed().as_secs_f64());
    clients.rest(Duration::from_millis(100))?;
    Ok(())
}

/// Idle clients that are together in all topics.
fn in_all_topics(server: &Server, count: usize) -> Result<Clients> {
    let mut clients = server.clients()?;
    clients.open(count)?;
    for nth in 0..TOPICS {
        clients.join_all(|index| format!("rooms:{nth}-{index}"))?;
    }
    clients.rest(CALM)?;
    Ok(clients)
}
