//! What nodes say of themselves.

use crate::node_id::NodeId;

/// A sign of life of a node, which is all that others know of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Beat {
    /// Of this start of the node.
    pub id: NodeId,
    /// What outlives it: the host's name, if nothing else was set.
    pub name: Box<str>,
    /// Of the program.
    pub version: Box<str>,
    /// The oldest and the newest envelope that it understands.
    pub envelopes: (u8, u8),
    /// Open sockets.
    pub sockets: u64,
    /// It closes its sockets and is about to end.
    pub is_draining: bool,
    /// Milliseconds since 1970, by its own clock.
    pub unix_ms: u64,
}

/// The first sign of life over a link: what others must know once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hello {
    /// As always.
    pub beat: Beat,
    /// Each pattern of topics, and a hash of those of its settings that must be alike on all nodes.
    pub settings: Vec<(Box<str>, u64)>,
}
