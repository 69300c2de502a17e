//! Row `checked`: the broker comes back to a node with members in 100,000 kept topics, which then
//! asks for each topic whether it has missed messages.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::broker::Broker;
use super::nodes::{self, CALM, KEPT, NodeSettings, publish, until};
use simurgh_bench_kit::rounds::{Bench, Sample};
use simurgh_bench_kit::target::{metric, metric_sum};
use simurgh_bench_kit::{stats, wait};

const TOPICS: usize = 10;
/// The limit from the joins until the broker was asked for the last message of each topic.
const FOLLOWED: Duration = Duration::from_secs(120);
const CHECKED: &str = "simurgh_cluster_checked_total";

pub(super) fn run(bench: &Bench<'_>, sample: &mut Sample) -> Result<()> {
    let count = bench.options.size(10_000, 1_000);
    let topics = count * TOPICS;
    let topic = |nth: usize| format!("kept:{}-{}", nth % TOPICS, nth / TOPICS);
    let mut broker = Broker::keeping(bench)?;
    let node =
        NodeSettings { channels: KEPT, ..NodeSettings::new(Some(&broker), "node") }.start(bench)?;
    nodes::together(&[&node])?;
    let mut clients = node.clients()?;
    clients.open(count)?;
    for nth in 0..TOPICS {
        clients.join_all(|index| topic(index * TOPICS + nth))?;
    }
    let joined = Instant::now();
    let wanted = stats::per(topics, 1) - 0.5;
    wait::until("all topics are followed", FOLLOWED, Duration::from_millis(20), || {
        let filled = node.metric("simurgh_cluster_fills_total")?;
        Ok(node.metric("simurgh_cluster_kept_topics")?.min(filled) > wanted)
    })?;
    sample.put("checked_followed_s", joined.elapsed().as_secs_f64());
    publish(&node, (0..topics).map(topic))?;
    clients.until(|it| it.messages >= topics as u64)?;
    clients.rest(CALM)?;
    let (checked, links) = (node.sum(CHECKED)?, node.metric("simurgh_cluster_reconnects_total")?);
    broker.kill();
    let of_node = node.cpu()?;
    broker.start_again()?;
    let (began, of_broker) = (Instant::now(), broker.cpu()?);
    sample.put("checked_start_s", stats::per(of_broker.since(&Default::default()).0, 1) / 1e9);
    until("all topics are checked", || {
        let lines = node.metrics()?;
        let links_now = metric(&lines, "simurgh_cluster_reconnects_total").context("no links")?;
        let now = metric_sum(&lines, CHECKED).context("nothing is checked")?;
        Ok(links_now > links && now - checked > wanted)
    })?;
    sample.put("checked_s", began.elapsed().as_secs_f64());
    clients.rest(Duration::from_millis(200))?;
    sample.put("checked_engine_s", stats::per(broker.cpu()?.since(&of_broker).0, 1) / 1e9);
    sample.put("checked_node_s", stats::per(node.spent(&of_node)?, 1) / 1e9);
    sample.put_count("checked_topics", topics);
    sample.put("checked_mb", stats::per(node.resident()?, 1) / 1e6);
    let gaps = node.metric("simurgh_cluster_holes_total{result=\"gap\"}")?;
    let behind = node.metric("simurgh_cluster_checked_total{result=\"behind\"}")?;
    sample.put("checked_wrong", gaps + behind);
    // All topics still receive.
    let before = clients.total().messages;
    publish(&node, (0..topics).map(topic))?;
    clients.until(|it| it.messages >= before + topics as u64)?;
    ensure!(clients.total().messages == before + topics as u64, "some came twice");
    Ok(())
}
