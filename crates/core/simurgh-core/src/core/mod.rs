//! The state of one shard.

mod channels;
mod input;
mod join;
mod joining;
mod limited;
mod sessions;
#[cfg(test)]
mod testing;
mod view;

use simurgh_channel::metrics::ShardMetrics;
use simurgh_channel::{Node, Prepared};
use simurgh_data::Key;
use simurgh_proto::message::Message;

use self::channels::Channels;
pub use self::view::{SUBSCRIPTION_BYTES, TOPIC_BYTES, TopicView};
use crate::deadlines::Deadlines;
use crate::history::{HandedOver, HandedOverNumbers, SavedHistory};
use crate::presence::PresenceCounts;
use crate::sockets::Sockets;
use simurgh_data::prelude::*;

/// One shard of a node: its sessions, its topics and the broadcasts that are to be sent. The
/// crate's page lists the kinds of its methods and their order.
pub struct Core<N: Node> {
    node: Arc<N>,
    shard: u16,
    metrics: Arc<ShardMetrics>,
    channels: Channels<N>,
    deadlines: Deadlines,
    /// The last number of a join that waits.
    tickets: u32,
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
            channels: Channels::new(Arc::clone(&node), shard, Arc::clone(&metrics), seed),
            deadlines: Deadlines::new(&*node),
            tickets: 0,
            shard,
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
        self.channels.registry.ended()
    }

    /// Whether a pass of hibernation has released memory of channels or topics since the last call.
    pub fn take_released(&mut self) -> bool {
        self.deadlines.take_released()
    }

    /// What this shard has of presences.
    pub fn presences(&self) -> PresenceCounts {
        self.channels.presences.counts()
    }

    /// Whether a socket is not read because of what it published.
    pub fn is_held_back(&self, key: Key) -> bool {
        self.channels.fanout.holds_back(key)
    }

    /// Entries that are kept for history: waiting channels and sockets, and how far clients have
    /// got. None are left when all clients have left.
    pub fn history_waits(&self) -> usize {
        self.channels.histories.waits()
            + self.channels.barriers.len()
            + self.channels.registry.client_pages()
    }

    /// Takes out what is kept here: the shard ends.
    pub fn take_history(&mut self) -> SavedHistory {
        self.channels.histories.take()
    }

    /// Restores what was kept before, at the beginning.
    pub fn restore_history(&mut self, saved: SavedHistory, now_ns: u64) {
        self.channels.histories.restore(saved, now_ns);
    }

    /// Continues with other settings and user sockets. What is joined stays joined. A user socket
    /// must keep its place, since sockets refer to it.
    pub fn reload(&mut self, out: &mut impl Sockets, node: &Arc<N>) {
        self.node = Arc::clone(node);
        self.deadlines.reload(&**node);
        self.channels.reload(out, node);
    }

    /// Continues the numbers of the process that this one takes over from, at the beginning.
    pub fn restore_numbers(&mut self, numbers: &HandedOverNumbers) {
        self.channels.histories.restore_numbers(numbers);
    }

    /// Gives a copy of the histories to the process that takes over. From now on that process
    /// stores and numbers the broadcasts of both ([`Node::other_process`]).
    pub fn hand_over(&mut self) -> HandedOver {
        self.channels.histories.hand_over()
    }

    /// The process that takes over has ended: this one numbers its broadcasts again.
    pub fn take_back(&mut self) {
        self.channels.histories.take_back();
    }

    /// Returns this shard's part of what all share, since it ends.
    pub fn retire(&mut self) {
        self.channels.fanout.put_permit_back();
        self.channels.hand_over_sightings();
    }
}

impl<N: Node> core::fmt::Debug for Core<N> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Core")
            .field("shard", &self.shard)
            .field("topics", &self.metrics.topics.value())
            .finish_non_exhaustive()
    }
}
