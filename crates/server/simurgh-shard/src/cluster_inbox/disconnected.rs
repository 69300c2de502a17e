//! The outcome of a disconnect, or of another order, on all nodes.

use serde::Serialize;

/// A node, as others see it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct NodeName {
    /// Id of this start of the node: 11 characters.
    pub id: String,
    /// Name that outlives restarts; empty if unknown.
    pub name: String,
}

/// The outcome of a disconnect on all nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Disconnected {
    /// Other nodes that have closed all sockets with that id.
    pub confirmed: Vec<NodeName>,
    /// Nodes that have not confirmed within a minute, or were not connected any more: they may
    /// still serve such a socket. Refuse the client where its token is checked, and ask again when
    /// the node is back.
    pub missing: Vec<NodeName>,
    /// How many sockets were closed, on this node and on those that have confirmed.
    pub closed: u64,
}
