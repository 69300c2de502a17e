//! The other nodes: requests to them for viewers here, and answers to theirs.
//!
//! ```text
//! look ─► Question ─► ClusterInbox ─► Service::Look of each ─► serve() ─► NodeAnswer ─► rows
//! ```
//! Questions and answers are JSON whose unknown parts are ignored, so that nodes of different
//! versions understand each other. Every client that may publish at the broker can forge answers:
//! they are bounded in bytes, nodes and time, and contain only numbers. Names come from heartbeats.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use simurgh_cluster::{Answer, LinkState, NodeId};
use simurgh_core::metrics::ShardMetrics;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::{Observer, lists, unix_s};
use simurgh_shard::cluster_inbox::{ClusterInbox, NodeView, Service, View};
use simurgh_shard::view::{
    ClusterOverview, HistoriesRow, InterestsRow, LinkRow, NamedCount, NodeFigures, NodeMembers,
    NodeRow, OutboxRow, Overview,
};

/// How long a result is reused.
pub(super) const KEPT: Duration = Duration::from_secs(1);
const ROWS_MAX: usize = 256;
/// Nodes that are queried at a time; the others are shown with the data of their heartbeats.
const ASKED_MAX: usize = 64;
/// The timeout of each.
const ANSWER_MAX: Duration = Duration::from_millis(500);
/// Bytes of a question.
const QUESTION_BYTES_MAX: usize = 2048;
/// Questions of other nodes that are answered per second, and at a time.
const SERVED_PER_S: u32 = 200;
const SERVED_AT_ONCE: usize = 16;

#[derive(Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Question {
    /// Answered with [`NodeFigures`].
    Figures,
    /// Answered with [`MembersHere`].
    Members {
        /// Its name.
        topic: String,
    },
}

#[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
struct MembersHere {
    members: u64,
}

/// The last overview, and when it was made.
pub(super) type Latest = Option<(Instant, Arc<ClusterOverview>)>;

#[derive(Debug)]
struct NodeAnswer {
    node: NodeId,
    took: Duration,
    /// Untrusted bytes; the service limits their number.
    what: Vec<u8>,
}

pub(super) struct Served {
    places: Semaphore,
    /// The start of the current second, and the questions answered in it.
    second: Mutex<(Instant, u32)>,
}

impl Default for Served {
    fn default() -> Self {
        let second = Mutex::new((Instant::now(), 0));
        Self { places: Semaphore::new(SERVED_AT_ONCE), second }
    }
}

impl Served {
    fn may(&self, now: Instant) -> bool {
        let mut second = self.second.lock().unwrap_or_else(PoisonError::into_inner);
        if now.saturating_duration_since(second.0) >= Duration::from_secs(1) {
            *second = (now, 0);
        }
        second.1 += 1;
        second.1 <= SERVED_PER_S
    }
}

/// Answers another node: 200, 400 for an unknown question, or 503.
pub(crate) async fn serve(observer: &Observer, question: &[u8]) -> (u16, Vec<u8>) {
    let served = &observer.served;
    let Ok(_place) = served.places.try_acquire() else { return (503, Vec::new()) };
    if !served.may(Instant::now()) {
        return (503, Vec::new());
    }
    let known = Some(question).filter(|it| it.len() <= QUESTION_BYTES_MAX);
    let Some(Ok(question)) = known.map(serde_json::from_slice) else { return (400, Vec::new()) };
    match answer(observer, question).await {
        Some(answer) => (200, answer),
        None => (503, Vec::new()),
    }
}

async fn answer(observer: &Observer, question: Question) -> Option<Vec<u8>> {
    let answer = match question {
        Question::Figures => serde_json::to_vec(&own_figures(observer)?),
        Question::Members { topic } => {
            let counted = timeout(ANSWER_MAX, lists::members_here(observer, &topic));
            serde_json::to_vec(&MembersHere { members: counted.await.ok()? })
        }
    };
    answer.ok()
}

fn own_figures(observer: &Observer) -> Option<NodeFigures> {
    let overview = Arc::clone(&observer.latest.borrow());
    let Overview { now, uptime_s, .. } = &*overview;
    if overview.server.is_empty() {
        return None;
    }
    let sum = |read: fn(&ShardMetrics) -> u64| {
        observer.server.metrics.iter().map(|it| read(it)).sum::<u64>()
    };
    let presences_remote = sum(|it| it.presences_remote.value());
    Some(NodeFigures {
        uptime_s: *uptime_s,
        sockets: now.sockets,
        channels: now.channels,
        topics: now.topics,
        messages_in_per_s: now.messages_in_per_s,
        messages_out_per_s: now.messages_out_per_s,
        presences_local: sum(|it| it.presences.value()).saturating_sub(presences_remote),
        presences_remote,
        kept_messages: sum(|it| it.history_messages.value()),
        cpu_cores: now.cpu_cores,
        resident_bytes: now.resident_bytes,
        errors_per_s: now.errors_per_s,
    })
}

/// The cluster as this node knows it, at most a second old; `None` outside of a cluster.
pub(super) async fn cluster(observer: &Observer) -> Option<Arc<ClusterOverview>> {
    let inbox = observer.server.cluster.as_ref()?;
    // Held until all have answered, so that simultaneous viewers share one request.
    let mut latest = observer.cluster.lock().await;
    if let Some((made, overview)) = &*latest
        && made.elapsed() < KEPT
    {
        return Some(Arc::clone(overview));
    }
    let shown = ask(inbox, &Question::Figures).await;
    let overview = Arc::new(overview(&inbox.view(), own_figures(observer), &shown));
    *latest = Some((Instant::now(), Arc::clone(&overview)));
    Some(overview)
}

/// This node first, with `here` members; `None` outside of a cluster.
pub(super) async fn members(
    observer: &Observer,
    topic: &str,
    here: u64,
) -> Option<Vec<NodeMembers>> {
    let inbox = observer.server.cluster.as_ref()?;
    let shown = ask(inbox, &Question::Members { topic: topic.to_owned() }).await;
    let answers = by_node::<MembersHere>(&shown);
    let view = inbox.view();
    let (id, name) = (view.id.clone(), view.name.clone());
    let own = NodeMembers { id, name, is_here: true, members: Some(here) };
    let others = view.nodes.iter().take(ROWS_MAX).map(|node| NodeMembers {
        id: node.node.to_string(),
        name: node.name.clone(),
        is_here: false,
        members: answers.get(&node.node).map(|(it, _)| it.members),
    });
    Some([own].into_iter().chain(others).collect())
}

/// Returns the answers that came in time.
async fn ask(inbox: &Arc<ClusterInbox>, question: &Question) -> Vec<NodeAnswer> {
    let question = serde_json::to_vec(question).unwrap_or_default();
    if question.len() > QUESTION_BYTES_MAX {
        return Vec::new();
    }
    let asked: Vec<NodeId> = {
        let view = inbox.view();
        // A node without heartbeats would not answer, and without a link no node would.
        let is_asked = |it: &&NodeView| matches!(it.state, "alive" | "draining");
        let is_linked = view.state != LinkState::Away;
        let nodes = view.nodes.iter().filter(|_| is_linked).filter(is_asked);
        nodes.take(ASKED_MAX).map(|it| it.node).collect()
    };
    let shown: JoinSet<Option<NodeAnswer>> = asked
        .into_iter()
        .map(|node| {
            let (began, calling) =
                (Instant::now(), inbox.call(node, Service::Look, question.clone()));
            async move {
                let answer = timeout(ANSWER_MAX, calling).await.ok().flatten();
                let Answer { status, body: what } = answer?;
                let is_one = status == 200;
                is_one.then(|| NodeAnswer { node, took: began.elapsed(), what })
            }
        })
        .collect();
    shown.join_all().await.into_iter().flatten().collect()
}

fn by_node<T: for<'a> Deserialize<'a>>(shown: &[NodeAnswer]) -> HashMap<NodeId, (T, Duration)> {
    let read = |it: &NodeAnswer| Some((it.node, (serde_json::from_slice(&it.what).ok()?, it.took)));
    shown.iter().filter_map(read).collect()
}

fn overview(view: &View, own: Option<NodeFigures>, shown: &[NodeAnswer]) -> ClusterOverview {
    let mut figures = by_node::<NodeFigures>(shown);
    let others = view.nodes.iter().take(ROWS_MAX).map(|node| {
        let (figures, took) = figures.remove(&node.node).unzip();
        node_row(node, figures.map(finite), took)
    });
    let own = own_row(view, own);
    let counts = &view.counts;
    let refused =
        [("broken", counts.broken), ("version", counts.other_versions), ("own", counts.own)];
    ClusterOverview {
        link: link_row(view),
        nodes: [own].into_iter().chain(others).collect(),
        more_nodes: view.nodes.len().saturating_sub(ROWS_MAX) as u64,
        interests: InterestsRow {
            topics: view.interests.topics as u64,
            exact: view.interests.exact as u64,
            exact_max: view.exact_max as u64,
            whole: view.interests.whole as u64,
            whole_buckets: view.interests.whole_buckets as u64,
        },
        outbox: OutboxRow {
            bytes: view.outbox_bytes as u64,
            bytes_max: view.outbox_bytes_max as u64,
            under_way: view.under_way as u64,
        },
        dropped: named(view.dropped()),
        worst_buckets: named(view.worst.iter().map(|(name, total)| (name.as_str(), *total))),
        unwanted: counts.unwanted,
        refused: named(refused),
        resyncs: counts.resyncs,
        histories: histories_row(view),
        at_unix_s: unix_s(),
    }
}

fn named<'a>(counts: impl IntoIterator<Item = (&'a str, u64)>) -> Vec<NamedCount> {
    let named = |(name, total): (&str, u64)| NamedCount { name: name.to_owned(), total };
    counts.into_iter().map(named).collect()
}

fn link_row(view: &View) -> LinkRow {
    LinkRow {
        state: view.state.name().to_owned(),
        for_s: view.lasts().as_secs_f64(),
        why: (view.state == LinkState::Away).then(|| view.why.clone()),
        engine: view.measures.engine.clone(),
        rtt_ms: view.measures.round_trip.map(milliseconds),
        reconnects: view.counts.links.saturating_sub(1),
        lost: view.counts.lost,
    }
}

fn histories_row(view: &View) -> Option<HistoriesRow> {
    let kept = view.kept.as_ref()?;
    let counts = &kept.counts;
    Some(HistoriesRow {
        kept: view.measures.keeping.clone(),
        topics: kept.followed as u64,
        waiting_bytes: kept.store_bytes as u64,
        stored: counts.stored,
        not_stored: counts.unconfirmed + counts.refused + counts.full,
        holes_filled: counts.holes_filled,
        gaps: counts.gaps,
    })
}

fn own_row(view: &View, figures: Option<NodeFigures>) -> NodeRow {
    let state = if view.is_draining { "draining" } else { "alive" };
    NodeRow {
        id: view.id.clone(),
        name: view.name.clone(),
        version: view.version.clone(),
        is_here: true,
        state: state.to_owned(),
        is_draining: view.is_draining,
        has_namesake: view.nodes.iter().any(|it| it.has_namesake && it.name == view.name),
        sockets: figures.as_ref().map_or(0, |it| it.sockets),
        figures,
        ..NodeRow::default()
    }
}

fn node_row(node: &NodeView, figures: Option<NodeFigures>, took: Option<Duration>) -> NodeRow {
    let heard_ms = u64::try_from(node.heard.elapsed().as_millis()).ok();
    NodeRow {
        id: node.node.to_string(),
        name: node.name.clone(),
        version: node.version.clone(),
        is_here: false,
        state: node.state.to_owned(),
        is_draining: node.is_draining,
        has_namesake: node.has_namesake,
        sockets: node.sockets,
        heard_ms,
        rtt_ms: took.map(milliseconds),
        delay_ms: node.delay.and_then(|it| u64::try_from(it.as_millis()).ok()),
        clock_offset_ms: node.clock_offset_ms,
        differing: node.differing.clone(),
        figures,
    }
}

fn milliseconds(it: Duration) -> f64 {
    it.as_secs_f64() * 1e3
}

/// Replaces infinite and NaN numbers of other nodes by none.
fn finite(mut figures: NodeFigures) -> NodeFigures {
    let rates = [
        &mut figures.uptime_s,
        &mut figures.messages_in_per_s,
        &mut figures.messages_out_per_s,
        &mut figures.cpu_cores,
        &mut figures.errors_per_s,
    ];
    for rate in rates {
        if !(rate.is_finite() && *rate >= 0.0) {
            *rate = 0.0;
        }
    }
    figures
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries_keep_their_format_across_versions() {
        for (text, question) in [
            (r#""figures""#, Question::Figures),
            (r#"{"members":{"topic":"a\"b"}}"#, Question::Members { topic: "a\"b".to_owned() }),
        ] {
            assert_eq!(serde_json::to_string(&question).unwrap(), text);
            assert_eq!(serde_json::from_str::<Question>(text).unwrap(), question);
        }
        // A newer node sends more fields, and asks unknown questions.
        let more = r#"{"members":{"topic":"t","most":3}}"#;
        let question = Question::Members { topic: "t".to_owned() };
        assert_eq!(serde_json::from_str::<Question>(more).unwrap(), question);
        assert!(serde_json::from_str::<Question>(r#""secrets""#).is_err());
    }

    #[test]
    fn queries_per_second_are_limited() {
        let (served, now) = (Served::default(), Instant::now());
        let answered = (0..1000).filter(|_| served.may(now)).count();
        assert_eq!(answered, SERVED_PER_S as usize);
        assert!(!served.may(now + Duration::from_millis(999)));
        assert!(served.may(now + Duration::from_secs(2)));
    }

    fn shown(node: u64, what: &str) -> NodeAnswer {
        let (node, took) = (NodeId(node), Duration::from_millis(3));
        NodeAnswer { node, took, what: what.as_bytes().to_vec() }
    }

    #[test]
    fn figures_of_other_nodes_are_numbers_or_absent() {
        let deep = "[".repeat(4096);
        let all = [
            shown(1, r#"{"sockets":7,"cpu_cores":-1e308,"uptime_s":1e999}"#),
            shown(2, r#"{"sockets":7,"cpu_cores":0.5,"hair":"<img>"}"#),
            shown(3, r#"{"sockets":"<img src=x>"}"#),
            shown(4, &deep),
            shown(5, r#"{"sockets":-1}"#),
            shown(6, "\0\u{202e}"),
            shown(7, r#"{"cpu_cores":-5}"#),
        ];
        let mut figures = by_node::<NodeFigures>(&all);
        let mut nodes: Vec<u64> = figures.keys().map(|it| it.0).collect();
        nodes.sort_unstable();
        assert_eq!(nodes, [2, 7]);
        let two = figures.remove(&NodeId(2)).map(|(it, _)| finite(it)).unwrap();
        assert_eq!((two.sockets, two.cpu_cores, two.topics), (7, 0.5, 0));
        let seven = figures.remove(&NodeId(7)).map(|(it, _)| finite(it)).unwrap();
        assert_eq!(seven, NodeFigures::default());
    }
}
