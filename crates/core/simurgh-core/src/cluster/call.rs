//! What a core says to the other nodes of its cluster, and hears of them.

use std::fmt;
use std::sync::Arc;

use simurgh_presence::ToPeers;

use crate::broadcast::Broadcast;
use crate::history::engine::{Retention, StoreRequest};

/// The other nodes of a cluster, as a shard has them.
pub trait Cluster: Send + Sync {
    /// Tells them something, by way of a thread of its own. Never waits: what is too much for that
    /// thread is dropped, if it is a broadcast that is not to be kept, and counted there. What is
    /// to be kept is bounded by who asks for it.
    fn send(&self, what: ToCluster);

    /// The largest payload of a broadcast that other nodes take, with the bytes of its topic and
    /// its event.
    fn broadcast_bytes_max(&self) -> usize;
}

/// What a core tells the other nodes.
#[derive(Debug)]
pub enum ToCluster {
    /// A broadcast of this node.
    Broadcast(Arc<Broadcast>),
    /// A shard has members of a topic, or listeners, and had none before; and what is wanted of the
    /// topic's history, if its broadcasts are kept.
    TopicBegins(Box<str>, u16, Option<Retention>),
    /// It has none any more.
    TopicEnds(Box<str>, u16),
    /// About the presences of a topic, by the shard that keeps them here.
    Presence(Box<str>, ToPeers),
    /// The engine is to keep a broadcast. It is answered by [`Node::post_stored`], always.
    ///
    /// [`Node::post_stored`]: crate::Node::post_stored
    Store(Box<StoreRequest>),
    /// The history of a topic is wanted here, for a while, and what there is comes by
    /// [`Node::post_kept`]: that it has begun, and that it has ended.
    ///
    /// [`Node::post_kept`]: crate::Node::post_kept
    Follow(Box<str>, Retention),
    /// Somebody has come further in a topic elsewhere than it has here: it is to be asked of those
    /// who certainly have all.
    CheckTopic(Box<str>),
    /// All that is kept of a topic is to be forgotten. It is answered as a store, by this number.
    Forget(Box<str>, u64),
}

impl fmt::Debug for dyn Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Cluster")
    }
}
