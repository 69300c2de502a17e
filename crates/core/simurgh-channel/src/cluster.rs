//! What a core sends to the other nodes of its cluster.

use std::fmt;
use std::sync::Arc;

use simurgh_presence::ToPeers;

use crate::broadcast::Broadcast;
use simurgh_history::Retention;

use crate::history::engine::StoreRequest;

/// The other nodes of a cluster, as a shard has them.
pub trait Cluster: Send + Sync {
    /// Sends them something by way of the cluster's own thread, without waiting. When that thread
    /// has too much, broadcasts that are not to be kept are dropped and counted there. What is to
    /// be kept is bounded by its sender.
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
    /// A shard has members of a topic, or listeners, and had none before; and what is wanted of the
    /// topic's history, if its broadcasts are kept.
    TopicBegins(Box<str>, u16, Option<Retention>),
    /// The shard has neither members nor listeners of a topic any more.
    TopicEnds(Box<str>, u16),
    /// Presences of a topic, from the shard that keeps them here.
    Presence(Box<str>, ToPeers),
    /// The engine is to keep a broadcast. The answer, always, is [`Node::post_stored`].
    ///
    /// [`Node::post_stored`]: crate::Node::post_stored
    Store(Box<StoreRequest>),
    /// The history of a topic is wanted here for a while: [`Node::post_kept`] gets it from
    /// [`FromEngine::Begun`](crate::FromEngine::Begun) to
    /// [`FromEngine::Ended`](crate::FromEngine::Ended).
    ///
    /// [`Node::post_kept`]: crate::Node::post_kept
    Follow(Box<str>, Retention),
    /// A client has received more of a topic elsewhere than there is here: the engine's own servers
    /// are to be asked.
    CheckTopic(Box<str>),
    /// All that is kept of a topic is to be forgotten. Answered as a store, with this number.
    Forget(Box<str>, u64),
}

impl fmt::Debug for dyn Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Cluster")
    }
}
