//! The state of a shard's fan-out.

use simurgh_channel::metrics::ShardMetrics;
use simurgh_channel::{Flow, Node, Permit};
use simurgh_data::Key;

use super::batch::Batch;
use super::interest::Listeners;
use crate::flow::MemberlessFlows;
use crate::registry::TopicId;
use crate::seeded_state::HashSet;
use crate::wire::WIRES;
use simurgh_data::prelude::*;

pub(crate) struct Fanout<N: Node> {
    pub(super) node: Arc<N>,
    pub(super) metrics: Arc<ShardMetrics>,
    pub(super) shard: u16,
    pub(super) permit: Permit,
    pub(super) active: VecDeque<TopicId>,
    pub(super) batches: [Option<Box<Batch>>; WIRES],
    pub(super) placed: [Option<Box<Batch>>; WIRES],
    pub(super) withheld: Vec<TopicId>,
    pub(super) memberless: MemberlessFlows,
    pub(super) listeners: Option<Box<Listeners>>,
    pub(super) held: Option<Box<Publishers>>,
}

#[derive(Default)]
pub(super) struct Publishers {
    pub(super) queue: VecDeque<Held>,
    pub(super) keys: HashSet<Key>,
}

pub(super) struct Held {
    pub(super) key: Key,
    pub(super) flow: Arc<Flow>,
}

impl<N: Node> Fanout<N> {
    pub(crate) fn new(node: Arc<N>, metrics: Arc<ShardMetrics>, shard: u16, seed: u64) -> Self {
        Self {
            node,
            metrics,
            shard,
            permit: Permit::None,
            active: VecDeque::new(),
            batches: [const { None }; WIRES],
            placed: [const { None }; WIRES],
            withheld: Vec::new(),
            memberless: MemberlessFlows::new(seed),
            listeners: None,
            held: None,
        }
    }

    pub(crate) fn reload(&mut self, node: &Arc<N>) {
        self.node = Arc::clone(node);
    }

    pub(super) fn count_active(&self) {
        self.metrics.fanout_topics.set(self.active.len() as u64);
    }

    pub(crate) fn count_bytes(&self) {
        self.metrics.fanout_bytes.set(self.node.charged(usize::from(self.shard)) as u64);
    }

    pub(super) fn delivered(&self, bytes: usize) {
        if bytes > 0 {
            self.node.discharge(usize::from(self.shard), bytes);
        }
    }

    pub(super) fn count_deliveries(&self, count: u64) {
        self.metrics.deliveries.add(count);
        self.metrics.messages_out.add(count);
    }
}
