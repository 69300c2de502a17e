//! Reaching a channel from any thread.

use core::marker::PhantomData;

use simurgh_proto::message::Payload;

use crate::broadcast::{Audience, BroadcastError};
use crate::channel::{ChannelMessage, ShardChannel, ShardHandleInfo};
use crate::context::{OnShard, ShardContext};
use crate::id::ChannelId;
use crate::node_handle::{NodeHandle, ToChannel};
use crate::outcome::{Outcome, Reply, ReplyRef, Stop};
use simurgh_data::prelude::*;

/// Reaches one channel, of type `C`, from any thread. It does not keep the channel alive: messages
/// to a channel or server that has ended are dropped, and a broadcast is `Ok`.
#[derive(derive_more::Debug)]
#[debug("ChannelHandle({channel:?})")]
pub struct ChannelHandle<C> {
    node: Arc<dyn NodeHandle>,
    channel: ChannelId,
    of: PhantomData<fn(C)>,
}

impl OnShard<'_> {
    /// A handle with which any thread can reach this channel: `ctx.handle::<Self>()`. In a join
    /// function there is no channel yet, and nothing to reach.
    pub fn handle<C>(&self) -> ChannelHandle<C> {
        ChannelHandle { node: Arc::clone(self.node), channel: self.channel, of: PhantomData }
    }
}

impl<C: ShardChannel> ChannelHandle<C> {
    /// Sends the channel a message of the application, for [`ShardHandleInfo::handle_info`].
    pub fn send<M: Send + 'static>(&self, message: M)
    where
        C: ShardHandleInfo<M>,
    {
        self.post(ToChannel::Message(Box::new(ChannelMessage::new::<C, M>(message))));
    }

    /// Calls a function with the channel, on its shard.
    #[doc(hidden)]
    pub fn visit(&self, f: impl FnOnce(&mut C, &mut ShardContext<'_>) -> Outcome + Send + 'static) {
        self.post(ToChannel::Message(Box::new(ChannelMessage::of(f))));
    }
}

impl<C> ChannelHandle<C> {
    /// Answers a message.
    pub fn reply(&self, to: ReplyRef, reply: Reply) {
        self.post(ToChannel::Reply(to, reply));
    }

    /// Pushes an event to the member.
    pub fn push(&self, event: &str, payload: impl Into<Payload<'static>>) {
        self.post(ToChannel::Push(event.into(), payload.into()));
    }

    /// Broadcasts to all members of the channel's topic, itself included.
    ///
    /// # Errors
    /// The payload is too large, or too much is in flight: try again later.
    pub fn broadcast(
        &self,
        event: &str,
        payload: impl Into<Payload<'static>>,
    ) -> Result<(), BroadcastError> {
        self.node.broadcast_by(self.channel, event, payload.into(), Audience::All)
    }

    /// Broadcasts to all members of the channel's topic except itself.
    ///
    /// # Errors
    /// As [`broadcast`](Self::broadcast).
    pub fn broadcast_from(
        &self,
        event: &str,
        payload: impl Into<Payload<'static>>,
    ) -> Result<(), BroadcastError> {
        self.node.broadcast_by(self.channel, event, payload.into(), Audience::Others)
    }

    /// Ends the channel.
    pub fn stop(&self, how: Stop) {
        self.post(ToChannel::Stop(how));
    }

    /// The same for a channel of another type.
    #[doc(hidden)]
    pub fn retype<D>(&self) -> ChannelHandle<D> {
        ChannelHandle { node: Arc::clone(&self.node), channel: self.channel, of: PhantomData }
    }

    /// The name of its channel.
    #[doc(hidden)]
    pub fn id(&self) -> ChannelId {
        self.channel
    }

    /// The node by which it reaches its channel.
    #[doc(hidden)]
    pub fn node(&self) -> &Arc<dyn NodeHandle> {
        &self.node
    }

    fn post(&self, what: ToChannel) {
        self.node.send(self.channel, what);
    }
}

impl<C> Clone for ChannelHandle<C> {
    fn clone(&self) -> Self {
        self.retype()
    }
}
