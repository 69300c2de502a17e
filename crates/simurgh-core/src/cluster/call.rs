//! What a core says to the other nodes of its cluster, and hears of them.

use std::fmt;
use std::sync::Arc;

use simurgh_presence::{Delta, Owner, Snapshot};

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

/// What the home of a topic's presences says to those on other nodes.
#[derive(Debug)]
pub enum ToPeers {
    /// Members here are present, or want to know who is: all others are to be asked.
    /// [`FromPeers::Asked`] says whom that was.
    Begin,
    /// Not any more.
    End,
    /// What has changed here, for all.
    Delta(Delta),
    /// Something of this node's is missing here.
    Ask(Owner),
    /// All that is here, for a node that has asked.
    State(Owner, Snapshot),
}

/// What the home of a topic's presences hears of those on other nodes.
#[derive(Debug)]
pub enum FromPeers {
    /// These nodes were asked for what they have; each answers with a state, or is gone.
    Asked(Arc<[Owner]>),
    /// What has changed there.
    Delta(Delta),
    /// All that is there.
    State(Snapshot),
    /// A node asks for what is here.
    Wants(Owner),
}

impl FromPeers {
    /// Bytes that are charged to the home's shard while it is on its way.
    pub(crate) fn weight(&self) -> usize {
        let entries = |all: &[simurgh_presence::Shared]| {
            all.iter().map(|it| it.key.len() + it.meta.as_str().len() + 64).sum::<usize>()
        };
        match self {
            Self::Asked(_) | Self::Wants(_) => 0,
            Self::Delta(delta) => entries(&delta.joins) + delta.leaves.len() * 12,
            Self::State(state) => entries(&state.entries),
        }
    }
}

impl fmt::Debug for dyn Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Cluster")
    }
}
