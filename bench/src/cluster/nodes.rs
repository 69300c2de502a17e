//! The nodes: their settings, readiness and counts.

use std::time::Duration;

use anyhow::{Context, Result};

use super::broker::Broker;
use simurgh_bench_kit::rounds::Bench;
use simurgh_bench_kit::target::Server;
use simurgh_bench_kit::{stats, wait};

/// The name of a node's thread with the link.
pub(super) const THREAD: &str = "simurgh-cluster";
/// The time limit for nodes to find the broker and each other.
pub(super) const READY: Duration = Duration::from_secs(20);
/// Time until messages are delivered everywhere and servers are idle.
pub(super) const QUIET: Duration = Duration::from_millis(300);
/// Time for an allocator to give back unused memory, and for gauges to be current.
pub(super) const CALM: Duration = Duration::from_secs(4);
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// Topics whose messages the broker keeps.
pub(super) const KEPT: &str = r#"
[[channel]]
topic = "kept:*"
join_reply = {}
history = { count = 100, age = "5m", bytes = "1MiB" }
[[channel.event]]
name = "new:msg"
broadcast = "all"
"#;
/// A member that does not read for the time of a block is not cut and slows down no other.
pub(super) const PATIENT: &str = "outbound_bytes_max = \"512MiB\"\n\
                                  outbound_budget = \"1GiB\"\nslow_after = \"1h\"\n";
pub(super) const BODY: usize = 180;

#[derive(Clone, Copy)]
pub(super) struct NodeSettings<'a> {
    /// `None`: a single node.
    pub(super) broker: Option<&'a Broker>,
    pub(super) name: &'a str,
    pub(super) shards: u32,
    /// Lines above all tables.
    pub(super) settings: &'a str,
    /// Lines of the table of the cluster.
    pub(super) cluster: &'a str,
    /// Tables of channels beside the rooms.
    pub(super) channels: &'a str,
    /// Whether members are tracked.
    pub(super) presence: bool,
}

impl<'a> NodeSettings<'a> {
    /// A node with one shard and default settings.
    pub(super) fn new(broker: Option<&'a Broker>, name: &'a str) -> Self {
        Self { broker, name, shards: 1, settings: "", cluster: "", channels: "", presence: false }
    }

    /// The settings: rooms in which all members receive what one publishes.
    fn text(&self) -> String {
        let Self { name, settings, cluster, channels, .. } = self;
        let table = self.broker.map(|broker| {
            let url = broker.url();
            format!(
                "[cluster]\nengine = \"nats\"\nname = \"{name}\"\nservers = [\"{url}\"]\n\
                 required = \"10s\"\n{cluster}\n"
            )
        });
        let presence = if self.presence { "presence = true\n" } else { "" };
        format!(
            "{settings}\n{}[[channel]]\ntopic = \"rooms:*\"\njoin_reply = {{}}\n{presence}\
             [[channel.event]]\nname = \"new:msg\"\nbroadcast = \"all\"\n{channels}",
            table.unwrap_or_default()
        )
    }

    pub(super) fn start(&self, bench: &Bench<'_>) -> Result<Server> {
        bench.serve(&self.text(), self.shards).with_context(|| self.name.to_owned())
    }
}

/// Waits until the condition holds, [`READY`] at most.
pub(super) fn until(what: &str, is_so: impl FnMut() -> Result<bool>) -> Result<()> {
    wait::until(what, READY, POLL_INTERVAL, is_so)
}

/// Whether a node has its link, and has sent all its interests.
pub(super) fn is_up(server: &Server) -> Result<bool> {
    Ok(server.metric("simurgh_cluster_state{state=\"up\"}")? > 0.5)
}

/// Waits until all have a link and know each other.
pub(super) fn together(nodes: &[&Server]) -> Result<()> {
    let others = stats::per(nodes.len() - 1, 1);
    for node in nodes {
        until("the nodes know each other", || {
            let alive = node.metric("simurgh_cluster_nodes{state=\"alive\"}")?;
            Ok(is_up(node)? && alive >= others)
        })?;
    }
    Ok(())
}

pub(super) fn pair(bench: &Bench<'_>, broker: &Broker, settings: &str) -> Result<[Server; 2]> {
    pair_of(bench, &NodeSettings { settings, ..NodeSettings::new(Some(broker), "") })
}

/// Two nodes of one cluster with these settings, whatever their name.
pub(super) fn pair_of(bench: &Bench<'_>, how: &NodeSettings<'_>) -> Result<[Server; 2]> {
    let start = |name| NodeSettings { name, ..*how }.start(bench);
    let nodes = [start("one")?, start("two")?];
    together(&nodes.each_ref())?;
    Ok(nodes)
}

/// A back end's payload: numbered like messages of clients, all with the same number.
pub(super) fn payload() -> String {
    format!("{{\"n\":0,\"body\":\"{}\"}}", "x".repeat(BODY))
}

/// Publishes a message on each of these topics, as a back end does; on return kept ones are stored.
pub(super) fn publish(server: &Server, topics: impl Iterator<Item = String>) -> Result<()> {
    server.publish(topics, &payload()).map(drop)
}

/// Bytes of the envelope of one such message (simurgh-cluster's documentation: the envelope).
pub(super) fn envelope_bytes(topic: &str) -> usize {
    let (head, topic_and_items, flags) = (20, 2 + topic.len() + 2, 1);
    head + topic_and_items + flags + 1 + "new:msg".len() + 4 + payload().len()
}
