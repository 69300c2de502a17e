//! Mail from other threads to a core.

use core::time::Duration;

use simurgh_data::Key;
use simurgh_presence::Owner;

use crate::channel::Join;
use crate::flow::{Charge, Posted};
use crate::history::HistoryMail;
use crate::id::ChannelId;
use crate::listener::Listener;
use crate::node_handle::ToChannel;
use crate::presence::{PresenceMail, SharedPush};
use simurgh_data::prelude::*;

/// Everything that other threads may send to a core.
#[derive(Debug)]
pub enum Mail {
    /// A broadcast made elsewhere; its weight was charged to this shard.
    Broadcast(Posted),
    /// For one channel.
    ToChannel(ChannelId, ToChannel),
    /// The join that a socket waits for is decided, or its decision panicked; the ticket
    /// distinguishes it from earlier joins of the socket.
    Joined(Key, u32, Option<Join>),
    /// Code outside of all channels subscribes to a topic.
    Listen(Box<str>, Listener),
    /// It unsubscribes.
    Unlisten(Box<str>, ChannelId),
    /// A node of the cluster is gone, and with it the presences there.
    NodeGone(Owner),
    /// Mail about the presences of a topic whose home is this shard, with its charge in the flow of
    /// the member that sent it.
    Presence(Box<str>, PresenceMail, Option<Arc<Charge>>),
    /// An event for several channels.
    Push(SharedPush),
    /// Mail about the history of a topic.
    History(HistoryMail),
    /// A permit to fan out, for which this shard was in the queue.
    Permit,
    /// Close everything with 1012 over this time, then end.
    Drain(Duration),
}
