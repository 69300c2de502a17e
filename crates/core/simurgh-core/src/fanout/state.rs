//! What the fan-out of a shard has in hand.

use std::collections::{HashSet, VecDeque};
use std::hash::{BuildHasherDefault, DefaultHasher};
use std::sync::Arc;

use simurgh_reactor::Key;

use super::batch::Batch;
use crate::flow::{Flow, FlowsElsewhere};
use crate::history::keys::Keys;
use crate::listeners::Listeners;
use crate::metrics::ShardMetrics;
use crate::node::Node;
use crate::permits::Permit;
use crate::registry::TopicId;
use crate::wire::{FORMS, WIRES};

/// The topics with something left to send, and the bytes in use.
pub(crate) struct Fanout<N: Node> {
    pub(super) node: Arc<N>,
    pub(super) metrics: Arc<ShardMetrics>,
    pub(super) shard: u16,
    pub(super) permit: Permit,
    pub(super) active: VecDeque<TopicId>,
    /// By wire.
    pub(super) batches: [Option<Box<Batch>>; WIRES],
    /// With positions.
    pub(super) placed: [Option<Box<Batch>>; FORMS - WIRES],
    /// Topics of which bytes are withheld.
    pub(super) withheld: Vec<TopicId>,
    pub(super) elsewhere: FlowsElsewhere,
    /// None until the first listens.
    pub(super) listeners: Option<Box<Listeners>>,
    /// As whom clients have joined; none until the first says.
    pub(crate) keys: Option<Box<Keys>>,
    /// None until the first is held.
    pub(super) held: Option<Box<Publishers>>,
}

/// Sockets that are not read because they published more than is to be under way.
#[derive(Default)]
pub(super) struct Publishers {
    /// In the order in which they are read again; some may be gone.
    pub(super) queue: VecDeque<Held>,
    /// Who they are. Nobody who would want keys to meet in one place chooses them.
    pub(super) keys: HashSet<Key, BuildHasherDefault<DefaultHasher>>,
}

/// A socket that is not read because it published more than is to be under way.
pub(super) struct Held {
    pub(super) key: Key,
    pub(super) flow: Arc<Flow>,
}

impl<N: Node> Fanout<N> {
    pub(crate) fn new(node: Arc<N>, metrics: Arc<ShardMetrics>, shard: u16) -> Self {
        Self {
            node,
            metrics,
            shard,
            permit: Permit::None,
            active: VecDeque::new(),
            batches: [const { None }; WIRES],
            placed: [const { None }; FORMS - WIRES],
            withheld: Vec::new(),
            elsewhere: FlowsElsewhere::default(),
            listeners: None,
            keys: None,
            held: None,
        }
    }

    /// Notes how many topics have something left to send.
    pub(super) fn count_active(&self) {
        self.metrics.fanout_topics.set(self.active.len() as u64);
    }

    /// Notes how many bytes are under way here: they come from all shards, so this is done once a
    /// turn.
    pub(crate) fn count_bytes(&self) {
        self.metrics.fanout_bytes.set(self.node.charged(usize::from(self.shard)) as u64);
    }

    /// Gives bytes of broadcasts back that everybody here has got.
    pub(super) fn delivered(&self, bytes: usize) {
        if bytes > 0 {
            self.node.discharge(usize::from(self.shard), bytes);
        }
    }

    /// Counts what members were sent.
    pub(super) fn count_deliveries(&self, count: u64) {
        self.metrics.deliveries.add(count);
        self.metrics.messages_out.add(count);
    }
}
