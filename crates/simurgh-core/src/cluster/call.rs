//! What a core says to the other nodes of its cluster, and hears of them.

use std::fmt;
use std::sync::Arc;

use simurgh_presence::ToPeers;

use crate::broadcast::Broadcast;

/// The other nodes of a cluster, as a shard has them.
pub trait Cluster: Send + Sync {
    /// Tells them something, by way of a thread of its own. Never waits: what is too much for that
    /// thread is dropped, if it is a broadcast, and counted there.
    fn tell(&self, what: ToCluster);

    /// The largest payload of a broadcast that other nodes take, with the bytes of its topic and
    /// its event.
    fn broadcast_bytes_max(&self) -> usize;
}

/// What a core tells the other nodes.
#[derive(Debug)]
pub enum ToCluster {
    /// A broadcast of this node.
    Broadcast(Arc<Broadcast>),
    /// A shard has members of a topic, or listeners, and had none before.
    TopicBegins(Box<str>, u16),
    /// It has none any more.
    TopicEnds(Box<str>, u16),
    /// About the presences of a topic, by the shard that keeps them here.
    Presence(Box<str>, ToPeers),
}

impl fmt::Debug for dyn Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Cluster")
    }
}
