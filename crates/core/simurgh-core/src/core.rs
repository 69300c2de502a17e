//! The state of one shard.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;

use simurgh_channel::metrics::ShardMetrics;
use simurgh_channel::{ChannelId, Node, Prepared, Reason, UserSocket};
use simurgh_data::Key;
use simurgh_proto::message::Message;

use crate::application::Application;
use crate::barrier::Barriers;
use crate::deadlines::Deadlines;
use crate::fanout::{Fanout, Registry};
use crate::history::{Histories, SavedHistory};
use crate::meters::Meters;
use crate::presence::{PresenceCounts, Presences};

/// One shard of a node: its sessions, its topics and the broadcasts that are to be sent. The
/// crate's page lists the kinds of its methods and their order.
pub struct Core<N: Node> {
    pub(crate) node: Arc<N>,
    pub(crate) shard: u16,
    pub(crate) metrics: Arc<ShardMetrics>,
    pub(crate) registry: Registry,
    pub(crate) fanout: Fanout<N>,
    pub(crate) application: Application<N>,
    pub(crate) deadlines: Deadlines,
    pub(crate) presences: Box<Presences<N>>,
    pub(crate) barriers: Barriers,
    pub(crate) histories: Box<Histories<N>>,
    pub(crate) meters: Option<Box<Meters>>,
    /// The socket whose channels are brought up to date before it is closed.
    pub(crate) closing: Option<Key>,
    /// Channels that stopped while they intercepted a broadcast, and why. They end once the message
    /// for which they were brought up to date is sent.
    pub(crate) ends: Vec<(ChannelId, Reason)>,
    pub(crate) tickets: u32,
}

/// A message of a client, as it was read.
#[derive(Debug)]
pub struct Received<'a> {
    /// The message.
    pub message: Message<'a>,
    /// What its channel's definition has made of it, if it is a long message.
    pub prepared: Option<Prepared>,
    /// Bytes of the payload that the preparation took out of the message.
    pub taken_bytes: usize,
}

impl<'a> From<Message<'a>> for Received<'a> {
    fn from(message: Message<'a>) -> Self {
        Self { message, prepared: None, taken_bytes: 0 }
    }
}

impl<N: Node> Core<N> {
    /// A shard without sockets. `seed` is secret: it keys the table of topics.
    pub fn new(node: Arc<N>, shard: u16, metrics: Arc<ShardMetrics>, seed: u64) -> Self {
        Self {
            shard,
            registry: Registry::new(Arc::clone(&metrics), shard, seed),
            fanout: Fanout::new(Arc::clone(&node), Arc::clone(&metrics), shard, seed),
            application: Application::new(Arc::clone(&node), Arc::clone(&metrics), shard),
            deadlines: Deadlines::new(&*node),
            presences: Box::new(Presences::new(
                Arc::clone(&node),
                Arc::clone(&metrics),
                shard,
                seed,
            )),
            barriers: Barriers::default(),
            histories: Box::new(Histories::new(
                Arc::clone(&node),
                Arc::clone(&metrics),
                shard,
                seed,
            )),
            meters: meters(&*node, &metrics, seed),
            closing: None,
            ends: Vec::new(),
            tickets: 0,
            metrics,
            node,
        }
    }

    /// Its place among the shards.
    pub fn shard(&self) -> u16 {
        self.shard
    }

    /// Memberships that ever ended: memory may be released after many.
    pub fn ended(&self) -> u64 {
        self.registry.ended()
    }

    /// Whether a pass of hibernation has released memory of channels or topics since the last call.
    pub fn take_released(&mut self) -> bool {
        self.deadlines.take_released()
    }

    /// What this shard has of presences.
    pub fn presences(&self) -> PresenceCounts {
        self.presences.counts()
    }

    /// Whether a socket is not read because of what it published.
    pub fn is_held_back(&self, key: Key) -> bool {
        self.fanout.holds_back(key)
    }

    /// Members that get what they have missed in parts.
    pub fn replays(&self) -> usize {
        self.histories.replays()
    }

    /// Entries that are kept for history: waiting channels and sockets, and how far clients have
    /// got. None are left when all clients have left.
    pub fn history_waits(&self) -> usize {
        self.histories.waits() + self.barriers.len() + self.registry.client_pages()
    }

    /// Takes out what is kept here: the shard ends.
    pub fn take_history(&mut self) -> SavedHistory {
        self.histories.take()
    }

    /// Restores what was kept before, at the beginning.
    pub fn restore_history(&mut self, saved: SavedHistory, now_ns: u64) {
        self.histories.restore(saved, now_ns);
    }

    /// Returns this shard's part of what all share, since it ends.
    pub fn retire(&mut self) {
        self.fanout.put_permit_back();
    }
}

fn meters(node: &impl Node, metrics: &Arc<ShardMetrics>, seed: u64) -> Option<Box<Meters>> {
    let is_limited = node.user_sockets().any(UserSocket::is_limited);
    let rates = node.user_sockets().flat_map(UserSocket::rates);
    is_limited.then(|| Box::new(Meters::new(Arc::clone(metrics), rates, seed)))
}

impl<N: Node> core::fmt::Debug for Core<N> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Core")
            .field("shard", &self.shard)
            .field("topics", &self.registry.topics.len())
            .finish_non_exhaustive()
    }
}
