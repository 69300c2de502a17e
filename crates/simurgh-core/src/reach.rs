//! What an application's code reaches from any thread: channels by their names, and the threads on
//! which work may wait.

use std::any::Any;
use std::fmt;
use std::future::Future;
use std::pin::Pin;

use simurgh_proto::message::Payload;

use crate::id::ChannelId;
use crate::outcome::{Reply, ReplyRef, Stop};

/// Work that runs away from the shards.
pub type Work = Pin<Box<dyn Future<Output = ()> + Send>>;

/// What a [`ChannelHandle`](crate::ChannelHandle) sends to its channel.
pub enum ToChannel {
    /// For [`Channel::handle_info`](crate::Channel::handle_info).
    Info(Box<dyn Any + Send>),
    /// The answer to a message.
    Reply(ReplyRef, Reply),
    /// An event for the member.
    Push(Box<str>, Payload<'static>),
    /// The channel is to end.
    Stop(Stop),
}

impl fmt::Debug for ToChannel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Info(_) => "Info",
            Self::Reply(..) => "Reply",
            Self::Push(..) => "Push",
            Self::Stop(_) => "Stop",
        })
    }
}

/// The part of a node that applications reach.
pub trait Reach: Send + Sync {
    /// Sends something to a channel, which may have ended.
    fn tell(&self, channel: ChannelId, what: ToChannel);

    /// Runs work away from the shards.
    fn spawn(&self, work: Work);

    /// How many members a topic has on all shards; `None` if no mount counts them.
    fn member_count(&self, topic: &str) -> Option<u32>;
}
