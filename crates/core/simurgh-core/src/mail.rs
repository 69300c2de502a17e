//! What other threads ask of a core: the one door.

use std::time::Duration;

use simurgh_presence::Owner;
use simurgh_reactor::Key;

use crate::channel::Join;
use crate::flow::Posted;
use crate::history::call::HistoryMail;
use crate::id::ChannelId;
use crate::listeners::Listener;
use crate::node_handle::ToChannel;
use crate::presence::call::{PresenceMail, SharedPush};

/// All that other threads may ask of a core.
#[derive(Debug)]
pub enum Mail {
    /// A broadcast made elsewhere; its weight was charged to this shard.
    Broadcast(Posted),
    /// For one channel.
    ToChannel(ChannelId, ToChannel),
    /// The join a socket waits for is decided, or its decision panicked; the number tells it from
    /// what the socket waited for before.
    Joined(Key, u32, Option<Join>),
    /// Somebody outside of all channels wants to hear a topic.
    Listen(Box<str>, Listener),
    /// And no longer.
    Unlisten(Box<str>, ChannelId),
    /// A node of the cluster is gone, and with it all who were present there.
    NodeGone(Owner),
    /// Something about the presences of a topic that this shard keeps.
    Presence(Box<str>, PresenceMail),
    /// An event for several channels.
    Push(SharedPush),
    /// Something about the history of a topic.
    History(HistoryMail),
    /// A permit to fan out, for which this shard stood in line.
    Permit,
    /// Close everything with 1012 over this time, then end.
    Drain(Duration),
}
