//! Messages between nodes about the presences of one topic.

use alloc::sync::Arc;

use crate::delta::{Delta, Shared, Snapshot};
use crate::phx_ref::Owner;

/// From the home of a topic's presences on a node to those on other nodes.
#[derive(Debug)]
pub enum ToPeers {
    /// Members here are present, or want the list: all others are to be asked. The answer
    /// [`FromPeers::Requested`] names those.
    Begin,
    /// They are not used here any more.
    End,
    /// What has changed here, for all.
    Delta(Delta),
    /// Something of this node is missing here.
    RequestState(Owner),
    /// All that is here, for a node that has asked.
    State(Owner, Snapshot),
}

/// To the home of a topic's presences on a node from those on other nodes.
#[derive(Debug)]
pub enum FromPeers {
    /// These nodes were asked for what they have; each answers with a state, or is gone.
    Requested(Arc<[Owner]>),
    /// The same for a repeated or later request: nodes that do not answer are to be asked again,
    /// since lost requests are not reported.
    RequestedAgain(Arc<[Owner]>),
    /// What has changed there.
    Delta(Delta),
    /// All that is there.
    State(Snapshot),
    /// A node asks for what is here.
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
