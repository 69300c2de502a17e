//! A node that runs: its shards, and its part in the cluster.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use simurgh_cluster::{Cluster, LinkState, NodeId, Prefix, Time};
use simurgh_core::Core;
use simurgh_core::metrics::ShardMetrics;
use simurgh_loopback::Network;
use simurgh_reactor::Next;

use super::machine::{Door, Machine};
use super::node::SimNode;
use super::watched::Watched;
use super::world::Shared;
use crate::net::Net;
use crate::peer::hashed;

/// A shard, and its sockets.
pub(crate) struct Server {
    pub(crate) core: Core<SimNode>,
    pub(crate) net: Net,
    pub(crate) metrics: Arc<ShardMetrics>,
    pub(crate) is_in_turn: bool,
    pub(crate) has_ended: bool,
    /// When it runs again at the latest, by its node's clock.
    pub(crate) next_ns: u64,
}

impl Server {
    fn new(node: &Arc<SimNode>, shard: usize, seed: u64) -> Self {
        let metrics: Arc<ShardMetrics> = Arc::default();
        let core = Core::new(Arc::clone(node), shard as u16, Arc::clone(&metrics), seed);
        let net = Net::new(Arc::clone(&node.shared.stage));
        Self { core, net, metrics, is_in_turn: false, has_ended: false, next_ns: 0 }
    }

    /// What one part of a turn says about the next.
    pub(crate) fn after(&mut self, next: Next, now_ns: u64) {
        let next_ns = match next {
            Next::Now => now_ns,
            Next::After(span) => now_ns.saturating_add(span.as_nanos() as u64),
            Next::At(at_ns) => at_ns,
            Next::Idle => u64::MAX,
        };
        self.next_ns = self.next_ns.min(next_ns);
    }
}

/// See the module.
pub(crate) struct Live {
    pub(crate) slot: usize,
    /// Its number among all starts.
    pub(crate) start: usize,
    pub(crate) id: NodeId,
    pub(crate) node: Arc<SimNode>,
    pub(crate) servers: Vec<Server>,
    pub(crate) machine: Machine,
    /// Its number in the network.
    pub(crate) link: usize,
    /// When its clock showed nothing.
    born_ns: u64,
    pub(crate) is_frozen: bool,
    pub(crate) is_draining: bool,
    pub(crate) cannot_send: bool,
    pub(crate) cannot_hear: bool,
    pub(crate) is_lossy: bool,
    /// When it was last not linked as it should be, or did not run.
    pub(crate) shaken_ns: u64,
}

impl Live {
    /// Starts a node of a slot; none if the plan makes no node, which it does.
    pub(crate) fn start(
        shared: &Arc<Shared>,
        network: &Network,
        slot: usize,
        clock_ns: u64,
    ) -> Option<Self> {
        let plan = &shared.plan;
        let shards = plan.nodes.get(slot).copied()?;
        let mut account = shared.account();
        let seed = hashed(plan.seed ^ 0x4e_4f_44_45, &account.starts.len().to_le_bytes());
        let id = NodeId(seed | 1);
        let start = account.starts(id, shards);
        account.note(|| format!("node {slot} starts as start {start}, {shards} shards"));
        drop(account);
        let door = Arc::new(Door::new(shared, start));
        let node = Arc::new(SimNode::new(shared, door, id.0, shards));
        node.skew_ms.store(plan.skew_ms(seed % 5_000), Relaxed);
        let servers = (0..shards).map(|it| Server::new(&node, it, seed.rotate_left(9))).collect();
        let adapter = network.adapter(&Prefix::new("sim").ok()?);
        let link = adapter.node();
        let watched = Watched::new(adapter, Arc::clone(shared));
        let config = plan.cluster(&format!("node-{slot}"))?;
        let time = Time { ns: 0, unix_ms: clock_ns / 1_000_000 };
        let cluster = Cluster::new(config, watched, id, seed.rotate_left(17), time);
        Some(Self {
            slot,
            start,
            id,
            machine: Machine::new(cluster, &node, start),
            node,
            servers,
            link,
            born_ns: clock_ns,
            is_frozen: false,
            is_draining: false,
            cannot_send: false,
            cannot_hear: false,
            is_lossy: false,
            shaken_ns: clock_ns,
        })
    }

    /// What its clock shows.
    pub(crate) fn local_ns(&self, clock_ns: u64) -> u64 {
        clock_ns - self.born_ns
    }

    pub(crate) fn time(&self, clock_ns: u64) -> Time {
        let ns = self.local_ns(clock_ns);
        let skew_ms = self.node.skew_ms.load(Relaxed);
        Time { ns, unix_ms: clock_ns / 1_000_000 + skew_ms }
    }

    /// When something of it runs next, by the world's clock; never, while it is frozen.
    pub(crate) fn next_ns(&self) -> Option<u64> {
        if self.is_frozen {
            return None;
        }
        let has_mail = (0..self.servers.len()).any(|it| self.node.has_mail(it));
        if has_mail || self.machine.is_due(0) || self.node.is_deciding() {
            return Some(0);
        }
        let servers = self.servers.iter().filter(|it| !it.has_ended).map(|it| it.next_ns).min();
        let local_ns = servers.unwrap_or(u64::MAX).min(self.machine.next_ns);
        Some(local_ns.saturating_add(self.born_ns))
    }

    /// Whether its link stands, for all that it knows and the world does.
    pub(crate) fn is_linked(&self) -> bool {
        let is_whole = !self.cannot_send && !self.cannot_hear && !self.is_lossy;
        is_whole && !self.is_frozen && self.machine.node.state().0 != LinkState::Away
    }

    /// Whether its sockets are served.
    pub(crate) fn is_open(&self) -> bool {
        !self.is_draining && !self.is_frozen
    }
}
