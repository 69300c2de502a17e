//! Notices of hooks: between their task, this node's shards, and the other nodes.

use std::fmt::Write;
use std::sync::{Arc, Weak};
use std::time::Duration;

use serde_json::{Value, json};
use simurgh_cluster::{LogCommand, LogEvent, NodeId};
use simurgh_core::SightingSink;
pub(crate) use simurgh_notices::PARTITIONS;
use simurgh_notices::{Key, Verdict};
use simurgh_shard::cluster_inbox::{ClusterInbox, Mail, NodeName, Service};
use simurgh_shard::config::Config;
use simurgh_shard::server::Server;
use simurgh_socket::UserSocket;
use simurgh_socket::hooks::{
    LogPlace, NOTICE_TYPES, NoticeFigures, NoticesInbox, NoticesQuery, NoticesStart, Outside,
};

use tokio::time::timeout;

pub(crate) use crate::hooked::inbox;
use crate::hooked::{self, histogram, notifying, sample};
use crate::metrics::family;
use crate::questions::{NoAnswer, ask_others};

/// The directory of the log in `state_dir`.
const DIRECTORY: &str = "notices";
/// So long clients have to return after a restart, in addition to the time of a take-over.
const RETURN: Duration = Duration::from_secs(15);

/// A report without an answer is sent again after this time.
const REPORT_TIMEOUT: Duration = Duration::from_secs(5);

/// Decides nothing more, if this node is alone: whoever leaves now may return after the restart.
/// Other nodes decide otherwise.
pub(crate) fn drain(server: &Server) {
    if let (None, Some(inbox)) = (&server.cluster, inbox(server)) {
        inbox.stop();
    }
}

/// The partition of a topic.
pub(crate) fn partition_of(topic: &str) -> u8 {
    Key::topic_of(topic).partition()
}

/// Has shards report what hooks want to know.
pub(crate) fn listen(config: &mut Config, user_sockets: &[UserSocket]) {
    let Some(set) = notifying(user_sockets).cloned() else { return };
    let Some(settings) = set.notice_settings().map(Arc::new) else { return };
    let take = Arc::new(move |sightings| {
        if let Some(inbox) = set.notices() {
            inbox.sightings(sightings);
        }
    });
    config.sighting_sink = Some(SightingSink { settings, take });
}

/// Starts notices, before the shards, and what else hooks do as long as the server runs.
/// `are_stored`: the broker has the log of notices.
pub(crate) fn begin(server: &Arc<Server>, are_stored: bool) {
    start(server, are_stored);
    hooked::go_on(server);
}

fn start(server: &Arc<Server>, are_stored: bool) {
    let Some(set) = notifying(&server.user_sockets) else { return };
    let Config { node_name, state_dir, drain_time, .. } = &server.config;
    let nodes = |inbox: &Arc<ClusterInbox>| -> Box<dyn Outside> {
        Box::new(Nodes { server: Arc::downgrade(server), inbox: Arc::clone(inbox) })
    };
    let outside = server.cluster.as_ref().map(nodes);
    let log = match (&outside, state_dir) {
        (Some(_), _) if are_stored => LogPlace::Outside,
        (None, Some(directory)) => LogPlace::Files(directory.join(DIRECTORY)),
        _ => LogPlace::Memory,
    };
    let restart_grace = RETURN + *drain_time;
    let node = (server.id, node_name.clone());
    set.notify(NoticesStart { node, log, outside, restart_grace });
}

/// The other nodes.
struct Nodes {
    server: Weak<Server>,
    inbox: Arc<ClusterInbox>,
}

impl Outside for Nodes {
    fn report(&self, node: u64, partition: u8, call: u64, report: Vec<u8>) {
        let Some(server) = self.server.upgrade() else { return };
        let Some(inbox) = inbox(&server) else { return };
        let calling = self.inbox.call(NodeId(node), Service::Notices, report);
        server.spawn(async move {
            let answer = timeout(REPORT_TIMEOUT, calling).await.ok().flatten();
            let verdict = answer.and_then(|answer| Verdict::from_repr(answer.status));
            inbox.answered(partition, call, verdict);
        });
    }

    fn log(&self, command: LogCommand) {
        self.inbox.post(Mail::Log(command));
    }
}

/// Takes an event of the log, or of the other nodes.
pub(crate) fn log(server: &Server, event: LogEvent) {
    if let Some(inbox) = inbox(server) {
        inbox.log(event);
    }
}

/// Takes a report of another node.
pub(crate) async fn report(server: &Server, by: NodeId, report: Vec<u8>) -> (u16, Vec<u8>) {
    let verdict = match inbox(server) {
        Some(inbox) => inbox.report(by.0, report).await,
        None => None,
    };
    (verdict.unwrap_or(Verdict::NotCoordinator) as u16, Vec::new())
}

/// Asks this node and all others; also returns those that did not answer.
pub(crate) async fn ask_everywhere(
    server: &Server,
    inbox: &NoticesInbox,
    query: NoticesQuery,
) -> Result<(Value, Vec<NodeName>), NoAnswer> {
    let body = serde_json::to_vec(&query).unwrap_or_default();
    let others = server.cluster.as_ref().map(|nodes| ask_others(nodes, Service::AskNotices, &body));
    let mut all = inbox.ask(query).await.ok_or(NoAnswer)?;
    let mut missing = Vec::new();
    if let Some(others) = others {
        for (name, answer) in others.await {
            match answer.and_then(|body| serde_json::from_slice(&body).ok()) {
                Some(other) => join(&mut all, other),
                None => missing.push(name),
            }
        }
    }
    Ok((all, missing))
}

/// Joins lists and objects, and adds numbers, except ages.
fn join(all: &mut Value, other: Value) {
    match (all, other) {
        (Value::Array(all), Value::Array(mut more)) => all.append(&mut more),
        (Value::Object(all), Value::Object(more)) => {
            for (key, value) in more {
                let (is_age, before) = (key.starts_with("oldest"), all.get_mut(&key));
                match (before, value.as_u64()) {
                    (Some(before), Some(n)) if is_age => {
                        *before = before.as_u64().unwrap_or(0).max(n).into();
                    }
                    (Some(before), _) => join(before, value),
                    (None, _) => drop(all.insert(key, value)),
                }
            }
        }
        (all, more) => *all = json!(all.as_u64().unwrap_or(0) + more.as_u64().unwrap_or(0)),
    }
}

/// Answers another node's question.
pub(crate) async fn serve(server: &Server, query: &[u8]) -> (u16, Vec<u8>) {
    let Ok(query) = serde_json::from_slice(query) else { return (400, Vec::new()) };
    let Some(inbox) = inbox(server) else { return (404, Vec::new()) };
    match inbox.ask(query).await {
        Some(answer) => (200, answer.to_string().into_bytes()),
        None => (503, Vec::new()),
    }
}

/// Writes the metrics of notices.
pub(crate) fn render(out: &mut String, server: &Server) {
    let Some(inbox) = inbox(server) else { return };
    let figures = inbox.figures();
    let name = "simurgh_notices_total";
    family(out, name, "counter", "Notices by what became of them; some were sent again.");
    for of in &figures.hooks {
        for (kind, counts) in NOTICE_TYPES.iter().zip(&of.counts) {
            for (result, count) in ["delivered", "again", "dead"].iter().zip(counts) {
                let labels = format!("hook=\"{}\",type=\"{kind}\",result=\"{result}\"", of.hook);
                sample(out, name, &labels, count);
            }
        }
    }
    let name = "simurgh_notices_waiting";
    family(out, name, "gauge", "Notices in memory that a hook has not accepted.");
    figures.hooks.iter().for_each(|of| sample(out, name, &label(of), of.waiting));
    let name = "simurgh_notices_oldest_seconds";
    family(out, name, "gauge", "Age of the oldest notice that a hook has not accepted.");
    figures.hooks.iter().for_each(|of| sample(out, name, &label(of), of.oldest.as_secs_f64()));
    let name = "simurgh_notices_delivery_seconds";
    family(out, name, "histogram", "Time from sending a batch of notices to its answer.");
    for of in &figures.hooks {
        histogram(out, name, &label(of), (&of.buckets, of.sum_us));
    }
    for (name, kind, help, value) in [
        ("stays", "gauge", "Open stays that this node decides about.", figures.stays as u64),
        (
            "partitions",
            "gauge",
            "Partitions that this node decides about.",
            figures.partitions as u64,
        ),
        ("takeovers_total", "counter", "Partitions that this node took over.", figures.takeovers),
        ("lost_logs_total", "counter", "Logs in files that had to begin anew.", figures.lost_logs),
        (
            "failed_appends_total",
            "counter",
            "Appends to the log that failed.",
            figures.failed_appends,
        ),
    ] {
        let name = &format!("simurgh_lifecycle_{name}");
        family(out, name, kind, help);
        let _ = writeln!(out, "{name} {value}");
    }
}

fn label(of: &NoticeFigures) -> String {
    format!("hook=\"{}\"", of.hook)
}
