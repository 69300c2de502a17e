//! Messages from a core to the other nodes of its cluster.

use core::fmt;

use simurgh_presence::ToPeers;

use crate::broadcast::Broadcast;
use simurgh_data::prelude::*;
use simurgh_history::Retention;

use crate::history::engine::StoreRequest;

/// The other nodes of a cluster, as a shard has them.
pub trait Cluster: Send + Sync {
    /// Sends a message by way of the cluster's own thread, without waiting. When that thread has
    /// too much, broadcasts that are not to be kept are dropped and counted there. The sender
    /// bounds those to be kept.
    fn send(&self, what: ToCluster);

    /// The largest payload of a broadcast that other nodes take, with the bytes of its topic and
    /// its event.
    fn broadcast_bytes_max(&self) -> usize;
}

/// A message of a core for the other nodes.
#[derive(Debug)]
pub enum ToCluster {
    /// A broadcast of this node.
    Broadcast(Arc<Broadcast>),
    /// A shard has the first members or listeners of a topic; and what it wants of the topic's
    /// history, if its broadcasts are kept.
    TopicBegins(Box<str>, u16, Option<Retention>),
    /// The shard has no more members or listeners of a topic.
    TopicEnds(Box<str>, u16),
    /// Presences of a topic, from their home shard.
    Presence(Box<str>, ToPeers),
    /// The broker is to keep a broadcast. Always answered by [`post_stored`].
    ///
    /// [`post_stored`]: crate::Mailboxes::post_stored
    Store(Box<StoreRequest>),
    /// The history of a topic is wanted here for a while: [`post_kept`] gets it from
    /// [`FromEngine::Begun`](crate::FromEngine::Begun) to
    /// [`FromEngine::Ended`](crate::FromEngine::Ended).
    ///
    /// [`post_kept`]: crate::Publisher::post_kept
    Follow(Box<str>, Retention),
    /// A client has received more of a topic elsewhere than there is here: the broker's leader is
    /// to be asked.
    CheckTopic(Box<str>),
    /// The broker is to forget all it keeps of a topic. Answered as a store, with this number.
    Forget(Box<str>, u64),
}

impl fmt::Debug for dyn Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Cluster")
    }
}
