//! A node that runs: its shards, and its part in the cluster.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use crate::kit::fault::Fault;
use crate::kit::payload::hashed;
use crate::limits::Limits;
use simurgh_cluster::{Cluster, LinkState, NodeId, Prefix, Time};
use simurgh_core::{Kind, LimitPolicy, Route, UserSocket};
use simurgh_loopback::Network;
use simurgh_proto::topic::Pattern;

use crate::world::app;
use crate::world::thread::{ClusterThread, Mailbox};
use crate::world::{Shard, Shared, SimNode};

/// The user socket of clients with channels, and that of plain sockets.
fn user_sockets(shared: &Arc<Shared>, mailbox: &Arc<Mailbox>) -> Vec<UserSocket> {
    let plan = &shared.plan;
    let history = plan.history.as_ref().map(|it| it.rule);
    let limits = mistaken(shared, plan.app.limits.unwrap_or_default());
    let join = app::join(shared, mailbox);
    let prepare = (plan.app.prepare_above > 0).then(|| app::ready::prepare(shared));
    let (of_channel, of_plain) = (limits.of_channel(), join.clone());
    let route =
        |pattern| Route { prepare, limits: of_channel, history, ..Route::new(pattern, join) };
    // All names with this prefix; it cannot fail.
    let pattern = Pattern::parse("rooms:*").ok();
    let mut channels = UserSocket::new(Kind::Channels(pattern.map(route).into_iter().collect()));
    channels.channels_max = plan.app.channels_max;
    let mut plain = UserSocket::new(Kind::Plain { topic: "plain:0".to_owned(), join: of_plain });
    for socket in [&mut channels, &mut plain] {
        socket.count_members = plan.app.counts_members;
        socket.limits = limits.of_socket();
    }
    vec![channels, plain]
}

/// The limits of the core, with a planted fault.
fn mistaken(shared: &Shared, mut limits: Limits) -> Limits {
    let faults = &shared.faults;
    if faults.happens(Fault::Unlimit) {
        return Limits::default();
    }
    let (is_more, is_silent) = (faults.happens(Fault::Overfill), faults.happens(Fault::Silence));
    for quota in limits.socket.iter_mut().chain(&mut limits.channel).flatten() {
        quota.burst += u64::from(is_more);
        if is_silent && quota.policy == LimitPolicy::Reply {
            quota.policy = LimitPolicy::Drop;
        }
    }
    limits
}

pub(crate) struct RunningNode {
    pub(crate) slot: usize,
    pub(crate) start: usize,
    pub(crate) id: NodeId,
    pub(crate) node: Arc<SimNode>,
    pub(crate) mailbox: Arc<Mailbox>,
    pub(crate) shards: Vec<Shard>,
    pub(crate) thread: ClusterThread,
    pub(crate) link: usize,
    /// The simulation's time at which its clock showed 0.
    born_ns: u64,
    pub(crate) is_frozen: bool,
    pub(crate) is_draining: bool,
    pub(crate) cannot_send: bool,
    pub(crate) cannot_hear: bool,
    pub(crate) is_lossy: bool,
    /// When it last did not run, or was not linked as it should be.
    pub(crate) unlinked_ns: u64,
}

impl RunningNode {
    /// Starts a node of a slot; `None` without a valid plan for it, which does not occur.
    pub(crate) fn start(
        shared: &Arc<Shared>,
        network: &Network,
        slot: usize,
        clock_ns: u64,
    ) -> Option<Self> {
        let plan = &shared.plan;
        let shards = plan.nodes.get(slot).copied()?;
        let mut ledger = shared.ledger();
        let seed = hashed(plan.seed ^ 0x4e_4f_44_45, &ledger.starts.len().to_le_bytes());
        let id = NodeId(seed | 1);
        let start = ledger.start(id, shards);
        ledger.note(|| format!("node {slot} starts as start {start}, {shards} shards"));
        drop(ledger);
        let mailbox = Arc::new(Mailbox::new(shared, start));
        let others: Arc<dyn simurgh_core::Cluster> = Arc::clone(&mailbox) as _;
        let others = Some(others).filter(|_| !plan.is_one_node());
        let user_sockets = user_sockets(shared, &mailbox);
        let node = SimNode::new(shared, (id.0, start), user_sockets, others);
        let node = Arc::new(node);
        node.skew_ms.store(plan.skew_ms(seed % 5_000), Relaxed);
        let shard = |it| Shard::new(&node, it, Arc::default(), seed.rotate_left(9));
        let adapter = network.adapter(&Prefix::new("sim").ok()?);
        let link = adapter.node();
        let config = plan.cluster(&format!("node-{slot}"))?;
        let time = Time { ns: 0, unix_ms: clock_ns / 1_000_000 };
        let cluster = Cluster::new(config, Box::new(adapter), id, seed.rotate_left(17), time);
        Some(Self {
            slot,
            start,
            id,
            thread: ClusterThread::new(cluster, &node, &mailbox, start),
            shards: (0..shards).map(shard).collect(),
            mailbox,
            node,
            link,
            born_ns: clock_ns,
            is_frozen: false,
            is_draining: false,
            cannot_send: false,
            cannot_hear: false,
            is_lossy: false,
            unlinked_ns: clock_ns,
        })
    }

    /// A hash of everything that it has sent.
    pub(crate) fn hash(&self) -> u64 {
        self.shards.iter().fold(0, |hash, it| hash ^ it.net.hash.rotate_left(7))
    }

    /// The simulation's time when its clock shows this.
    pub(crate) fn clock_ns(&self, local_ns: u64) -> u64 {
        local_ns.saturating_add(self.born_ns)
    }

    pub(crate) fn local_ns(&self, clock_ns: u64) -> u64 {
        clock_ns - self.born_ns
    }

    pub(crate) fn time(&self, clock_ns: u64) -> Time {
        let ns = self.local_ns(clock_ns);
        let skew_ms = self.node.skew_ms.load(Relaxed);
        Time { ns, unix_ms: clock_ns / 1_000_000 + skew_ms }
    }

    /// The simulation's time of its next turn; never, while it is frozen.
    pub(crate) fn next_ns(&self) -> Option<u64> {
        if self.is_frozen {
            return None;
        }
        let state = self.node.state();
        let is_busy = !state.deciding.is_empty() || state.mailboxes.iter().any(|it| !it.is_empty());
        if is_busy || self.thread.is_due(0) {
            return Some(0);
        }
        let servers = self.shards.iter().filter(|it| !it.has_ended).map(|it| it.next_ns).min();
        let local_ns = servers.unwrap_or(u64::MAX).min(self.thread.next_ns);
        Some(self.clock_ns(local_ns))
    }

    pub(crate) fn is_linked(&self) -> bool {
        let is_whole = !self.cannot_send && !self.cannot_hear && !self.is_lossy;
        is_whole && !self.is_frozen && self.thread.node.cluster.state().0 != LinkState::Away
    }

    pub(crate) fn is_open(&self) -> bool {
        !self.is_draining && !self.is_frozen
    }
}
