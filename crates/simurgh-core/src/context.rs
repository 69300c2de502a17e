//! What a callback may do: a [`Context`] collects its effects, the shard carries them out in order.

use std::any::Any;
use std::future::Future;
use std::sync::Arc;

use simurgh_proto::message::{OwnedRef, Payload, Ref};
use simurgh_proto::ws::CloseCode;

use crate::id::ChannelId;
use crate::metrics::ShardMetrics;
use crate::outcome::{Reply, ReplyRef, Stop};
use crate::reach::{Reach, ToChannel};

/// What the application's connect gave a socket; nothing at all where it gave nothing.
#[derive(Default)]
pub struct SocketState {
    /// The id under which the socket hears `disconnect`.
    pub id: Option<Box<str>>,
    /// What channels read with [`Context::assigns`].
    pub assigns: Option<Box<dyn Any + Send + Sync>>,
}

impl SocketState {
    /// Whether there is nothing to keep.
    pub fn is_empty(&self) -> bool {
        self.id.is_none() && self.assigns.is_none()
    }
}

impl std::fmt::Debug for SocketState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SocketState").field("id", &self.id).finish_non_exhaustive()
    }
}

/// What was made of a long message where it was read; only the channel's definition knows it.
pub type Prepared = Box<dyn Any + Send>;

/// What a callback knows of its socket and topic, and everything it may do.
///
/// Pushes, replies and broadcasts leave in the order they are made (PROTOCOL §6), also those made
/// before a panic.
pub struct Context<'a> {
    pub(crate) effects: &'a mut Vec<Effect>,
    pub(crate) reach: &'a Arc<dyn Reach>,
    pub(crate) metrics: &'a ShardMetrics,
    pub(crate) socket: Option<&'a SocketState>,
    pub(crate) topic: &'a str,
    pub(crate) channel: ChannelId,
    pub(crate) message: Option<Ref<'a>>,
    /// What was made of the message where it was read, if it is a long one.
    pub(crate) prepared: Option<Prepared>,
}

/// One thing a callback did, carried out when it has returned.
#[derive(Debug)]
pub(crate) enum Effect {
    Push { event: Box<str>, payload: Payload<'static> },
    Broadcast { topic: Option<Box<str>>, event: Box<str>, payload: Payload<'static>, others: bool },
    Subscribe(Box<str>),
    Unsubscribe(Box<str>),
    Close(CloseCode),
}

impl Context<'_> {
    /// The topic of this channel.
    pub fn topic(&self) -> &str {
        self.topic
    }

    /// The part of the topic behind the first colon: `lobby` of `rooms:lobby`, or the whole topic.
    pub fn subtopic(&self) -> &str {
        self.topic.split_once(':').map_or(self.topic, |(_, rest)| rest)
    }

    /// The id the socket was given by its connect function.
    pub fn socket_id(&self) -> Option<&str> {
        self.socket.and_then(|socket| socket.id.as_deref())
    }

    /// What the connect function assigned to the socket, if it is of this type.
    pub fn assigns<T: Any>(&self) -> Option<&T> {
        self.socket?.assigns.as_deref()?.downcast_ref()
    }

    /// Pushes an event to this member alone.
    pub fn push(&mut self, event: &str, payload: impl Into<Payload<'static>>) {
        self.effects.push(Effect::Push { event: event.into(), payload: payload.into() });
    }

    /// Broadcasts to all members of this topic, this one included.
    pub fn broadcast(&mut self, event: &str, payload: impl Into<Payload<'static>>) {
        self.publish(None, event, payload.into(), false);
    }

    /// Broadcasts to all members of this topic but this one.
    pub fn broadcast_from(&mut self, event: &str, payload: impl Into<Payload<'static>>) {
        self.publish(None, event, payload.into(), true);
    }

    /// Broadcasts to all members of another topic.
    pub fn broadcast_to(&mut self, topic: &str, event: &str, payload: impl Into<Payload<'static>>) {
        self.publish(Some(topic.into()), event, payload.into(), false);
    }

    fn publish(
        &mut self,
        topic: Option<Box<str>>,
        event: &str,
        payload: Payload<'static>,
        others: bool,
    ) {
        self.effects.push(Effect::Broadcast { topic, event: event.into(), payload, others });
    }

    /// Subscribes this channel to a further topic: its broadcasts come to
    /// [`Channel::handle_broadcast`](crate::Channel::handle_broadcast).
    pub fn subscribe(&mut self, topic: &str) {
        self.effects.push(Effect::Subscribe(topic.into()));
    }

    /// Ends what [`subscribe`](Self::subscribe) began.
    pub fn unsubscribe(&mut self, topic: &str) {
        self.effects.push(Effect::Unsubscribe(topic.into()));
    }

    /// Closes every socket with this id, on every shard, with 1001 (PROTOCOL §7).
    pub fn disconnect(&mut self, socket_id: &str) {
        self.broadcast_to(
            socket_id,
            simurgh_proto::message::events::DISCONNECT,
            Payload::EMPTY_OBJECT,
        );
    }

    /// Closes this socket with a close code, 1012 for one that should come back elsewhere.
    pub fn close_socket(&mut self, code: CloseCode) {
        self.effects.push(Effect::Close(code));
    }

    /// Names the message in hand, to answer it later with [`ChannelHandle::reply`]. `None` in
    /// callbacks that are not about a message of the client.
    pub fn reply_ref(&self) -> Option<ReplyRef> {
        self.message.as_ref().map(|message| ReplyRef(OwnedRef::from(message)))
    }

    /// A handle with which any thread can reach this channel, for as long as it lives.
    pub fn handle(&self) -> ChannelHandle {
        ChannelHandle { reach: Arc::clone(self.reach), channel: self.channel }
    }

    /// Runs work on tokio, away from the shard; use [`handle`](Self::handle) to bring its result
    /// back.
    pub fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        self.reach.spawn(Box::pin(work));
    }

    /// What was made of the message in hand where it was read, if it is of this type.
    #[doc(hidden)]
    pub fn take_prepared<T: Any>(&mut self) -> Option<T> {
        Some(*self.prepared.take()?.downcast().ok()?)
    }

    /// Counts a payload that its channel does not take.
    #[doc(hidden)]
    pub fn count_wrong_payload(&self) {
        self.metrics.errors_wrong_payload.add(1);
    }

    /// How many members this topic has on all shards; `None` if no mount counts them
    /// ([`Mount::count_members`](crate::Mount::count_members)).
    pub fn member_count(&self) -> Option<u32> {
        self.reach.member_count(self.topic)
    }
}

/// Reaches one channel from any thread. What is sent to a channel that has ended is dropped.
#[derive(Clone)]
pub struct ChannelHandle {
    reach: Arc<dyn Reach>,
    channel: ChannelId,
}

impl ChannelHandle {
    /// Calls [`Channel::handle_info`](crate::Channel::handle_info) with this value.
    pub fn send(&self, info: impl Any + Send) {
        self.post(ToChannel::Info(Box::new(info)));
    }

    /// Answers a message.
    pub fn reply(&self, to: ReplyRef, reply: Reply) {
        self.post(ToChannel::Reply(to, reply));
    }

    /// Pushes an event to the member.
    pub fn push(&self, event: &str, payload: impl Into<Payload<'static>>) {
        self.post(ToChannel::Push(event.into(), payload.into()));
    }

    /// Ends the channel.
    pub fn stop(&self, how: Stop) {
        self.post(ToChannel::Stop(how));
    }

    fn post(&self, what: ToChannel) {
        self.reach.tell(self.channel, what);
    }
}

impl std::fmt::Debug for Context<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Context").field("topic", &self.topic).finish_non_exhaustive()
    }
}

impl std::fmt::Debug for ChannelHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("ChannelHandle").field(&self.channel).finish()
    }
}
