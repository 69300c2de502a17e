//! The interface of a node for an application's code on any thread.

use core::any::Any;
use core::fmt;
use core::future::Future;
use core::pin::Pin;

use simurgh_proto::message::Payload;

use crate::broadcast::{Audience, Broadcast, BroadcastError, Publication};
use crate::id::ChannelId;
use crate::outcome::{Reply, ReplyRef, Stop};
use crate::presence::{PresenceCallback, PresenceConfig};
use simurgh_data::prelude::*;

/// Work that runs away from the shards.
pub type Work = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Work that runs away from the shards for a channel; dropping this ends it.
pub trait LinkedWork: Send {
    /// Whether it has ended.
    fn is_finished(&self) -> bool;
}

impl fmt::Debug for dyn LinkedWork {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LinkedWork").field("is_finished", &self.is_finished()).finish()
    }
}

/// A message of a [`ChannelHandle`](crate::ChannelHandle) to its channel.
#[derive(derive_more::Debug)]
pub enum ToChannel {
    /// A [`ChannelMessage`](crate::ChannelMessage), which knows the type of its channel.
    #[debug("Message")]
    Message(Box<dyn Any + Send>),
    /// The answer to a message.
    #[debug("Reply")]
    Reply(ReplyRef, Reply),
    /// An event for the member.
    #[debug("Push")]
    Push(Box<str>, Payload<'static>),
    /// An event for all members, with or without the channel itself; its weight was charged to the
    /// channel's shard.
    #[debug("Broadcast")]
    Broadcast(Box<str>, Payload<'static>, Audience),
    /// Broadcasts that the channel may send even if it has ended.
    #[debug("Publish")]
    Publish(Vec<Publication>),
    /// The channel is to end.
    #[debug("Stop")]
    Stop(Stop),
}

impl ToChannel {
    /// The bytes charged to the channel's shard while it is on its way.
    pub fn weight(&self) -> usize {
        match self {
            Self::Broadcast(event, payload, _) => Broadcast::weight_of("", event, payload),
            _ => 0,
        }
    }
}

/// The verified identity of a client, by its token or by an application's answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Identity<'a> {
    /// The subject of its claims.
    pub user: Option<&'a str>,
    /// The claim `jti`, which names a token.
    pub token_id: Option<&'a str>,
    /// When the token or the answer was issued, in seconds since the Unix epoch; none if unknown.
    pub issued_at: Option<u64>,
}

/// The part of a node that applications use.
pub trait NodeHandle: Send + Sync {
    /// Sends something to a channel, which may have ended.
    fn send(&self, channel: ChannelId, what: ToChannel);

    /// Has a channel broadcast on its topic, if it has not ended.
    ///
    /// # Errors
    /// The payload is too large, or too much is in flight.
    fn broadcast_by(
        &self,
        channel: ChannelId,
        event: &str,
        payload: Payload<'static>,
        audience: Audience,
    ) -> Result<(), BroadcastError>;

    /// Runs work away from the shards.
    fn spawn(&self, work: Work);

    /// Runs work away from the shards until the returned value is dropped.
    fn spawn_linked(&self, work: Work) -> Box<dyn LinkedWork>;

    /// Limits and times of presence.
    fn presence_config(&self) -> &PresenceConfig;

    /// Requests the list of presences of a topic. The callback is dropped if the shard has ended.
    fn list_presences(&self, topic: &str, callback: PresenceCallback);

    /// How many members a topic has on all shards; `None` if no user socket counts them.
    fn member_count(&self, topic: &str) -> Option<u32>;

    /// Why a client with this identity may not join a topic, or connect at all: it is blocked, or
    /// its token is revoked. `None` if it may.
    fn denial(&self, _: &Identity<'_>, _topic: Option<&str>) -> Option<&'static str> {
        None
    }
}
