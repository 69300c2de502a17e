//! What the cluster's thread shows of itself: to metrics, the health check and the observer.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::time::Instant;

use serde::Serialize;
use simurgh_cluster::{Adapter, Cluster, Counts, InterestCounts, Kind, NodeId, Peer, State};

/// How it stood a moment ago.
#[derive(Clone, Debug)]
pub(crate) struct View {
    pub(crate) state: State,
    pub(crate) since: Instant,
    /// Why there is no link, while there is none.
    pub(crate) why: String,
    /// This node's own.
    pub(crate) id: String,
    pub(crate) nodes: Vec<NodeView>,
    /// The ids of those.
    ids: BTreeSet<NodeId>,
    pub(crate) interests: InterestCounts,
    /// The buckets that bring most of what nobody here wants.
    pub(crate) worst: Vec<(String, u64)>,
    pub(crate) outbox_bytes: usize,
    pub(crate) under_way: usize,
    pub(crate) name_conflicts: usize,
    pub(crate) counts: Counts,
    /// Broadcasts that were dropped before the thread had them, and after.
    pub(crate) dropped_at_door: u64,
    pub(crate) dropped_at_shards: u64,
}

/// Another node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct NodeView {
    /// Of this start of it.
    pub id: String,
    /// What outlives it.
    pub name: String,
    /// Of its program.
    pub version: String,
    /// `alive`, `silent`, `draining` or `incompatible`.
    pub state: &'static str,
    /// Its open sockets.
    pub sockets: u64,
    /// Milliseconds since it was heard last.
    pub heard_ms: u64,
    /// By how many milliseconds its clock is ahead of this node's; an estimate.
    pub clock_offset_ms: Option<i64>,
}

impl View {
    /// Whether a node is one of the others, and not gone.
    pub(crate) fn knows(&self, node: NodeId) -> bool {
        self.ids.contains(&node)
    }

    /// Its id, if that is what it is, or its name; the one that was heard last, if several have it.
    pub(crate) fn find(&self, node: &str) -> Option<NodeId> {
        let is_it = |it: &&NodeView| it.id == node || it.name == node;
        let found = self.nodes.iter().filter(is_it).min_by_key(|it| it.heard_ms)?;
        found.id.parse().ok()
    }

    /// Before anything is known.
    pub(super) fn new(since: Instant) -> Self {
        Self {
            state: State::Away,
            since,
            why: "nothing is known of it yet".to_owned(),
            id: String::new(),
            nodes: Vec::new(),
            ids: BTreeSet::new(),
            interests: InterestCounts::default(),
            worst: Vec::new(),
            outbox_bytes: 0,
            under_way: 0,
            name_conflicts: 0,
            counts: Counts::default(),
            dropped_at_door: 0,
            dropped_at_shards: 0,
        }
    }

    /// Looks at a cluster; `made` is when its clock showed nothing.
    pub(super) fn look<A: Adapter>(&mut self, cluster: &Cluster<A>, made: Instant, now_ns: u64) {
        let (state, since_ns) = cluster.state();
        self.state = state;
        self.since = made + std::time::Duration::from_nanos(since_ns);
        self.id = cluster.me().to_string();
        self.nodes = cluster.peers().iter().map(|it| NodeView::of(it, now_ns)).collect();
        self.ids = cluster.peers().iter().map(Peer::id).collect();
        self.nodes.sort_by(|one, other| (&one.name, &one.id).cmp(&(&other.name, &other.id)));
        self.interests = cluster.interests().counts();
        let worst = cluster.interests().worst_buckets().into_iter();
        self.worst = worst.map(|(bucket, count)| (bucket.to_string(), count)).collect();
        self.outbox_bytes = cluster.outbox().bytes();
        self.under_way = cluster.adapter().under_way();
        self.name_conflicts = cluster.peers().counts().name_conflicts;
        self.counts = cluster.counts().clone();
    }
}

impl NodeView {
    fn of(peer: &Peer, now_ns: u64) -> Self {
        let beat = peer.beat();
        let state = match peer.is_silent() {
            _ if peer.is_incompatible() => "incompatible",
            true => "silent",
            false if beat.is_draining => "draining",
            false => "alive",
        };
        Self {
            id: beat.id.to_string(),
            name: beat.name.to_string(),
            version: beat.version.to_string(),
            state,
            sockets: beat.sockets,
            heard_ms: now_ns.saturating_sub(peer.heard_ns()) / 1_000_000,
            clock_offset_ms: peer.clock_offset_ms(),
        }
    }
}

/// One family of metrics.
struct Family {
    name: &'static str,
    kind: &'static str,
    help: &'static str,
    /// Labels and value of each of its series.
    series: Vec<(String, f64)>,
}

/// `/metrics` of a cluster, in Prometheus' text format.
pub(crate) fn render(out: &mut String, view: &View) {
    for Family { name, kind, help, series } in families(view) {
        let _ = writeln!(out, "# HELP simurgh_{name} {help}\n# TYPE simurgh_{name} {kind}");
        for (labels, value) in series {
            let _ = writeln!(out, "simurgh_{name}{labels} {value}");
        }
    }
}

fn families(view: &View) -> Vec<Family> {
    let counts = &view.counts;
    let mut all = of_nodes(view);
    all.extend(of_envelopes(view));
    all.extend([
        single("cluster_outbox_bytes", "gauge", "Bytes that wait to be handed over.", {
            view.outbox_bytes as u64
        }),
        single("cluster_under_way", "gauge", "Envelopes that the engine may not have yet.", {
            view.under_way as u64
        }),
        single("cluster_links_total", "counter", "Links that were made.", counts.links),
        single(
            "cluster_lost_total",
            "counter",
            "Times that broadcasts of other nodes may have been lost.",
            counts.lost,
        ),
        single(
            "cluster_resyncs_total",
            "counter",
            "Topics whose presences were asked for again.",
            counts.resyncs,
        ),
    ]);
    all
}

/// A family of one series without labels.
fn single(name: &'static str, kind: &'static str, help: &'static str, value: u64) -> Family {
    Family { name, kind, help, series: vec![(String::new(), value as f64)] }
}

/// A family whose series differ in one label.
fn labelled<'a>(
    (name, kind, help): (&'static str, &'static str, &'static str),
    label: &str,
    series: impl IntoIterator<Item = (&'a str, u64)>,
) -> Family {
    let series = series.into_iter();
    let series = series.map(|(of, value)| (format!("{{{label}=\"{of}\"}}"), value as f64));
    Family { name, kind, help, series: series.collect() }
}

fn of_nodes(view: &View) -> Vec<Family> {
    let states = [State::Away, State::CatchingUp, State::Up];
    let states = states.map(|it| (it.name(), u64::from(it == view.state)));
    let nodes = ["alive", "draining", "silent", "incompatible"];
    let count = |state: &str| view.nodes.iter().filter(|it| it.state == state).count() as u64;
    let nodes = nodes.map(|state| (state, count(state)));
    let interests =
        [("exact", view.interests.exact as u64), ("whole", view.interests.whole as u64)];
    let about_state = "1 for how it stands with the link to the engine.";
    let about_interests = "Subscriptions to topics, and to whole buckets of topics.";
    vec![
        labelled(("cluster_state", "gauge", about_state), "state", states),
        labelled(("cluster_nodes", "gauge", "Other nodes that are not gone."), "state", nodes),
        single(
            "cluster_name_conflicts",
            "gauge",
            "Nodes that share their name with another.",
            view.name_conflicts as u64,
        ),
        labelled(("cluster_interests", "gauge", about_interests), "kind", interests),
    ]
}

fn of_envelopes(view: &View) -> Vec<Family> {
    let counts = &view.counts;
    let kinds = || Kind::ALL.iter().map(|kind| kind.name());
    let dropped = [
        ("bytes", counts.dropped.by_bytes),
        ("age", counts.dropped.by_age),
        ("door", view.dropped_at_door),
        ("shard", view.dropped_at_shards),
        ("control", counts.refused_control),
        ("presence", counts.refused_presence),
        ("call", counts.refused_calls),
        ("too_large", counts.refused_large),
    ];
    let refused =
        [("broken", counts.broken), ("version", counts.other_versions), ("own", counts.own)];
    let about_dropped = "What was not sent to other nodes, or not given to a shard that had too \
        much under way.";
    let about_refused = "What came and is no envelope that is understood here.";
    vec![
        labelled(
            ("cluster_published_total", "counter", "Envelopes handed over to the engine."),
            "kind",
            kinds().zip(counts.published),
        ),
        labelled(
            ("cluster_received_total", "counter", "Envelopes of other nodes."),
            "kind",
            kinds().zip(counts.received),
        ),
        single(
            "cluster_received_unwanted_total",
            "counter",
            "Broadcasts of other nodes on topics without members here.",
            counts.unwanted,
        ),
        single(
            "cluster_received_again_total",
            "counter",
            "Broadcasts that came a second time, and were not passed on.",
            counts.again,
        ),
        labelled(("cluster_received_refused_total", "counter", about_refused), "reason", refused),
        labelled(("cluster_dropped_total", "counter", about_dropped), "reason", dropped),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_family_has_its_help_and_its_type_once() {
        let mut out = String::new();
        let mut view = View::new(Instant::now());
        view.counts.published[0] = 7;
        view.state = State::Up;
        render(&mut out, &view);
        let helps: Vec<&str> = out.lines().filter(|it| it.starts_with("# HELP")).collect();
        let types = out.lines().filter(|it| it.starts_with("# TYPE")).count();
        let mut names = helps.clone();
        names.dedup();
        assert_eq!((helps.len(), types), (names.len(), names.len()));
        assert!(out.contains("simurgh_cluster_published_total{kind=\"broadcast\"} 7\n"), "{out}");
        assert!(out.contains("simurgh_cluster_state{state=\"up\"} 1\n"), "{out}");
        assert!(out.contains("simurgh_cluster_state{state=\"away\"} 0\n"), "{out}");
    }
}
