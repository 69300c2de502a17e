//! Self-descriptions of nodes.

use crate::node_id::NodeId;
use simurgh_data::prelude::*;

/// A heartbeat of a node, which is all that others know of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Beat {
    /// The id of this start of the node.
    pub id: NodeId,
    /// The name that survives restarts: the host's name, if no other is set.
    pub name: Box<str>,
    /// The version of the program.
    pub version: Box<str>,
    /// The oldest and the newest version of envelopes that it understands.
    pub envelopes: (u8, u8),
    /// Open sockets.
    pub sockets: u64,
    /// Whether it closes its sockets and is about to end.
    pub is_draining: bool,
    /// Its own clock, in milliseconds since 1970.
    pub unix_ms: u64,
}

/// The first heartbeat over a link, with what other nodes need once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hello {
    /// The heartbeat.
    pub beat: Beat,
    /// Each pattern of topics, with a hash of those of its settings that must be the same on all
    /// nodes.
    pub settings: Vec<(Box<str>, u64)>,
}
