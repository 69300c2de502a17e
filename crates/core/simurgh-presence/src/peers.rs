//! Messages between nodes about the presences of one topic.

use alloc::sync::Arc;

use crate::delta::{Delta, Shared, Snapshot};
use crate::phx_ref::Owner;

/// A message from the home of a topic's presences to those on other nodes.
#[derive(Debug)]
pub enum ToPeers {
    /// Members of this node are present or want the list, so all other nodes have to be asked. The
    /// answer [`FromPeers::Requested`] lists them.
    Begin,
    /// The topic's presences are not used here any more.
    End,
    /// The changes of this node, for all.
    Delta(Delta),
    /// Entries of this node are missing here.
    RequestState(Owner),
    /// All entries of this node, for a node that has asked.
    State(Owner, Snapshot),
}

/// A message to the home of a topic's presences from those on other nodes.
#[derive(Debug)]
pub enum FromPeers {
    /// These nodes were asked for their entries; each answers with a state, or is gone.
    Requested(Arc<[Owner]>),
    /// The same for a repeated or later request: nodes that do not answer have to be asked again,
    /// since lost requests are not reported.
    RequestedAgain(Arc<[Owner]>),
    /// Changes of another node.
    Delta(Delta),
    /// All entries of another node.
    State(Snapshot),
    /// A node asks for the entries of this one.
    StateWanted(Owner),
}

impl FromPeers {
    /// About as many bytes as it has.
    pub fn bytes(&self) -> usize {
        let entries = |all: &[Shared]| {
            all.iter().map(|it| it.key.len() + it.meta.as_str().len() + 64).sum::<usize>()
        };
        match self {
            Self::Requested(_) | Self::RequestedAgain(_) | Self::StateWanted(_) => 0,
            Self::Delta(delta) => entries(&delta.joins) + delta.leaves.len() * 12,
            Self::State(state) => entries(&state.entries),
        }
    }
}
