//! The nodes: what they serve, when they are ready, and what they say of themselves.

use std::ops::Range;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::engine::Engine;
use simurgh_bench_kit::rounds::Bench;
use simurgh_bench_kit::rounds::served::Served;
use simurgh_bench_kit::target::metric;

/// As the thread of a node is named that has the link.
pub(super) const THREAD: &str = "simurgh-cluster";
/// How long nodes may take to find the engine and each other.
pub(super) const READY: Duration = Duration::from_secs(20);
/// Until what was published has gone everywhere, and servers rest.
pub(super) const QUIET: Duration = Duration::from_millis(300);
/// Until an allocator has given back what it means to give back, and gauges are of this state.
pub(super) const CALM: Duration = Duration::from_secs(4);
/// Between two looks.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// Topics of which the engine keeps what is said.
pub(super) const KEPT: &str = r#"
[[channel]]
topic = "kept:*"
join_reply = {}
history = { count = 100, age = "5m", bytes = "1MiB" }
[[channel.event]]
name = "new:msg"
broadcast = "all"
"#;
/// Bytes of a broadcast's body.
pub(super) const BODY: usize = 180;
/// Messages of a request.
const BATCH: usize = 1_000;

/// What a node is like.
#[derive(Clone, Copy)]
pub(super) struct How<'a> {
    /// Without one it is alone.
    pub(super) engine: Option<&'a Engine>,
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

impl<'a> How<'a> {
    /// A node with one shard and nothing special.
    pub(super) fn new(engine: Option<&'a Engine>, name: &'a str) -> Self {
        Self { engine, name, shards: 1, settings: "", cluster: "", channels: "", presence: false }
    }

    /// What is served: rooms in which what one says is heard by all.
    fn text(&self) -> String {
        let Self { name, settings, cluster, channels, .. } = self;
        let table = self.engine.map(|engine| {
            let url = engine.url();
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

    pub(super) fn start(&self, bench: &Bench<'_>) -> Result<Served> {
        Served::start(bench, &self.text(), self.shards).with_context(|| self.name.to_owned())
    }
}

/// Waits until it is so.
pub(super) fn until(
    what: &str,
    within: Duration,
    mut is_so: impl FnMut() -> Result<bool>,
) -> Result<()> {
    let deadline = Instant::now() + within;
    while !is_so()? {
        ensure!(Instant::now() < deadline, "{what}: not within {within:?}");
        thread::sleep(POLL_INTERVAL);
    }
    Ok(())
}

/// A metric of the whole node, labels included in its name.
pub(super) fn gauge(served: &Served, name: &str) -> Result<f64> {
    metric(&served.running.metrics()?, name).with_context(|| format!("no {name} in /metrics"))
}

/// Whether a node has its link, and has said all it had to say.
pub(super) fn is_up(served: &Served) -> Result<bool> {
    Ok(gauge(served, "simurgh_cluster_state{state=\"up\"}")? > 0.5)
}

/// Waits until all have a link and know each other.
pub(super) fn together(nodes: &[&Served]) -> Result<()> {
    let others = simurgh_bench_kit::stats::per(nodes.len() - 1, 1);
    for node in nodes {
        until("the nodes know each other", READY, || {
            let alive = gauge(node, "simurgh_cluster_nodes{state=\"alive\"}")?;
            Ok(is_up(node)? && alive >= others)
        })?;
    }
    Ok(())
}

/// Two nodes of one cluster.
pub(super) fn pair(bench: &Bench<'_>, engine: &Engine, settings: &str) -> Result<[Served; 2]> {
    pair_of(bench, &How { settings, ..How::new(Some(engine), "") })
}

/// The same of such nodes, whatever their name.
pub(super) fn pair_of(bench: &Bench<'_>, how: &How<'_>) -> Result<[Served; 2]> {
    let start = |name| How { name, ..*how }.start(bench);
    let nodes = [start("one")?, start("two")?];
    together(&nodes.each_ref())?;
    Ok(nodes)
}

/// What a back end publishes: numbered as messages of clients are, all with the same number.
fn payload() -> String {
    format!("{{\"n\":0,\"body\":\"{}\"}}", "x".repeat(BODY))
}

/// Publishes so many broadcasts on one topic, as a back end does, in requests of a thousand.
pub(super) fn publish(served: &Served, topic: &str, count: usize) -> Result<()> {
    publish_each(served, 0..count, |_| topic.to_owned())
}

/// The same, each on a topic of its own; what is kept is by then.
pub(super) fn publish_each(
    served: &Served,
    messages: Range<usize>,
    topic: impl Fn(usize) -> String,
) -> Result<()> {
    requests(messages, topic).try_for_each(|body| post(served, &body))
}

/// The requests for that, each of which is made when it is asked for.
pub(super) fn requests(
    messages: Range<usize>,
    topic: impl Fn(usize) -> String,
) -> impl Iterator<Item = String> {
    let payload = payload();
    messages.clone().step_by(BATCH).map(move |first| {
        let message = |nth: usize| {
            let topic = topic(nth);
            format!("{{\"topic\":\"{topic}\",\"event\":\"new:msg\",\"payload\":{payload}}}")
        };
        let some: Vec<String> = (first..messages.end.min(first + BATCH)).map(message).collect();
        format!("{{\"messages\":[{}]}}", some.join(","))
    })
}

/// Sends one of them.
pub(super) fn post(served: &Served, body: &str) -> Result<()> {
    served.post("/api/broadcast", body).map(drop)
}

/// Bytes of the envelope of one of these (simurgh-cluster's documentation: the envelope).
pub(super) fn envelope_bytes(topic: &str) -> usize {
    let (head, topic_and_items, flags) = (20, 2 + topic.len() + 2, 1);
    head + topic_and_items + flags + 1 + "new:msg".len() + 4 + payload().len()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::line::number;

    #[test]
    fn what_is_published_is_numbered() {
        let said = format!("[null,null,\"rooms:a\",\"new:msg\",{}]", payload());
        assert_eq!(number(said.as_bytes()), Some(0));
    }
}
