//! The cluster's state for metrics, the health check and the observer.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use simurgh_cluster::{
    Adapter, Cluster, ClusterConfig, ClusterCounts, Durations, HistoryCounts, InterestCounts,
    LinkState, Measures, NodeId, Peer,
};

/// Most differing settings of a node that are listed.
const DIFFERING_MAX: usize = 20;

/// The state of the cluster, at most a second old.
#[derive(Clone, Debug, Default)]
pub struct View {
    pub state: LinkState,
    since: Option<Instant>,
    /// The reason for a missing link.
    pub why: String,
    pub id: String,
    pub name: String,
    pub version: String,
    pub is_draining: bool,
    pub nodes: Vec<NodeView>,
    ids: BTreeSet<NodeId>,
    pub interests: InterestCounts,
    /// Most exact subscriptions.
    pub exact_max: usize,
    /// The buckets with most unwanted envelopes.
    pub worst: Vec<(String, u64)>,
    pub outbox_bytes: usize,
    /// Most bytes of broadcasts in the outbox.
    pub outbox_bytes_max: usize,
    pub under_way: usize,
    pub name_conflicts: usize,
    pub counts: ClusterCounts,
    pub measures: Measures,
    /// How long beats of other nodes took to arrive.
    pub delays: Durations,
    /// Dropped broadcasts, before and after the thread received them.
    pub dropped_at_inbox: u64,
    pub dropped_at_shards: u64,
    /// Topics that the broker keeps; none if no channel has a history.
    pub kept: Option<KeptView>,
    /// Broadcasts with a history that were received on this node alone.
    pub local_only: u64,
}

/// The histories of the broker, as this node sees them.
#[derive(Clone, Debug, Default)]
pub struct KeptView {
    pub counts: HistoryCounts,
    pub followed: usize,
    /// Bytes that are not stored yet.
    pub store_bytes: usize,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeView {
    pub node: NodeId,
    /// Kept over restarts.
    pub name: String,
    pub version: String,
    /// `alive`, `silent`, `draining` or `incompatible`.
    pub state: &'static str,
    pub is_draining: bool,
    pub has_namesake: bool,
    pub sockets: u64,
    /// When this node last received something from it.
    pub heard: Instant,
    /// By how much its clock is ahead of this node's; an estimate.
    pub clock_offset_ms: Option<i64>,
    /// How much longer its last beat took to arrive than its fastest; an estimate.
    pub delay: Option<Duration>,
    /// Some of the patterns of topics that it has other settings for.
    pub differing: Vec<String>,
}

impl View {
    /// Whether a node is one of the others, and not gone.
    pub fn knows(&self, node: NodeId) -> bool {
        self.ids.contains(&node)
    }

    /// The node with this id or this name; of several with the name, the one whose beat came last.
    pub fn find(&self, node: &str) -> Option<NodeId> {
        let id: Option<NodeId> = node.parse().ok();
        let is_it = |it: &&NodeView| Some(it.node) == id || it.name == node;
        self.nodes.iter().filter(is_it).max_by_key(|it| it.heard).map(|it| it.node)
    }

    /// How long it has been in its state.
    pub fn lasts(&self) -> Duration {
        self.since.map_or(Duration::ZERO, |since| since.elapsed())
    }

    /// Takes the settings of a node at its start.
    pub fn know(&mut self, config: &ClusterConfig) {
        self.why = "nothing is known about it yet".to_owned();
        self.name = config.name.to_string();
        self.version = config.version.to_string();
        self.exact_max = config.interests.exact_max;
        self.outbox_bytes_max = config.outbox.plain_bytes;
    }

    /// Reads a cluster's state; `made` is when its clock was 0.
    pub fn look(&mut self, cluster: &Cluster<dyn Adapter>, made: Instant) {
        let (state, since_ns) = cluster.state();
        self.state = state;
        self.since = Some(made + Duration::from_nanos(since_ns));
        self.id = cluster.me().to_string();
        self.ids = cluster.peers().iter().map(Peer::id).collect();
        self.nodes.clear();
        self.nodes.extend(cluster.peers().iter().map(|it| NodeView::of(it, cluster, made)));
        self.nodes.sort_by(|one, other| (&one.name, one.node).cmp(&(&other.name, other.node)));
        self.interests = cluster.interests().counts();
        let worst = cluster.interests().worst_buckets().into_iter();
        self.worst = worst.map(|(bucket, count)| (bucket.to_string(), count)).collect();
        self.outbox_bytes = cluster.outbox().bytes();
        self.under_way = cluster.adapter().in_flight();
        self.name_conflicts = cluster.peers().counts().name_conflicts;
        self.counts = cluster.counts().clone();
        self.measures = cluster.adapter().measures();
        self.delays = *cluster.peers().delays();
        self.kept = cluster.history_counts().map(|counts| KeptView {
            counts: counts.clone(),
            followed: cluster.followed(),
            store_bytes: cluster.store_bytes(),
        });
    }

    /// Broadcasts that were not sent, or not given to a shard, by reason.
    pub fn dropped(&self) -> [(&'static str, u64); 8] {
        let counts = &self.counts;
        [
            ("bytes", counts.dropped.by_bytes),
            ("age", counts.dropped.by_age),
            ("door", self.dropped_at_inbox),
            ("shard", self.dropped_at_shards),
            ("control", counts.refused_control),
            ("presence", counts.refused_presence),
            ("call", counts.refused_calls),
            ("too_large", counts.refused_large),
        ]
    }
}

impl NodeView {
    fn of(peer: &Peer, cluster: &Cluster<dyn Adapter>, made: Instant) -> Self {
        let beat = &peer.beat;
        let state = match peer.is_silent {
            _ if peer.is_incompatible => "incompatible",
            true => "silent",
            false if beat.is_draining => "draining",
            false => "alive",
        };
        let differing = cluster.peers().differing(beat.id).take(DIFFERING_MAX);
        Self {
            node: beat.id,
            name: beat.name.to_string(),
            version: beat.version.to_string(),
            state,
            is_draining: beat.is_draining,
            has_namesake: peer.has_namesake,
            sockets: beat.sockets,
            heard: made + Duration::from_nanos(peer.heard_ns),
            clock_offset_ms: peer.clock_offset_ms(),
            delay: peer.delay,
            differing: differing.map(str::to_owned).collect(),
        }
    }
}
