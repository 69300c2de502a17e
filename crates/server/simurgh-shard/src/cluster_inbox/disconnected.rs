//! What has become of a disconnect on all nodes.

use serde::Serialize;

/// A node, as others know it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct NodeName {
    /// Of this start of the node: 11 characters.
    pub id: String,
    /// What outlives it; empty, if it is not known any more.
    pub name: String,
}

/// What has become of a disconnect on the other nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Disconnected {
    /// Nodes that have closed all sockets with that id.
    pub confirmed: Vec<NodeName>,
    /// Nodes that have not said so within a minute, or were not connected any more: they
    /// may still serve one. Have the client refused where its token is checked, and ask again when
    /// the node is back.
    pub missing: Vec<NodeName>,
}
