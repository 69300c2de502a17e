//! The context of an asynchronous handler.

use std::any::Any;
use std::future::Future;
use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use simurgh_channel::{
    Assigns, Audience, ChannelHandle, Effect, Effects, Presences, Reply, ReplyRef, ShardContext,
};
use simurgh_proto::message::{Payload, events};
use simurgh_proto::ws::CloseCode;

use super::Channel;
use super::adapter::Async;
use super::join::JoinContext;

/// The socket and topic of an asynchronous handler, and its actions: as [`ShardContext`], except that
/// effects are sent when the handler next waits, or is done.
#[derive(Debug)]
pub struct Context {
    pub(super) known: JoinContext,
    message: Option<ReplyRef>,
    handle: ChannelHandle<()>,
    pub(super) outbox: Outbox,
}

/// What join functions know as well.
impl Deref for Context {
    type Target = JoinContext;

    fn deref(&self) -> &JoinContext {
        &self.known
    }
}

/// Effects of a handler that are not sent yet. The task that polls the handler takes them, also
/// when the handler panics and its context is gone.
#[derive(Clone, Debug, Default)]
pub(super) struct Outbox(Arc<Mutex<Vec<Effect>>>);

impl Outbox {
    fn open(&self) -> MutexGuard<'_, Vec<Effect>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the effects since the last call.
    pub(super) fn take(&self) -> Vec<Effect> {
        std::mem::take(&mut *self.open())
    }
}

impl Effects for Outbox {
    fn add(&mut self, effect: Effect) {
        self.open().push(effect);
    }
}

impl Context {
    /// A context for a message of the client, or without one.
    pub(super) fn of<C: Channel>(ctx: &ShardContext<'_>, message: Option<ReplyRef>) -> Self {
        Self {
            known: JoinContext::of(ctx),
            message,
            handle: ctx.handle::<Async<C>>().retype(),
            outbox: Outbox::default(),
        }
    }

    /// Assigns a value to the socket in place of the previous one; all its channels read it. It is
    /// dropped on the socket's shard, and should not own a descriptor.
    pub fn assign(&mut self, value: impl Any + Send + Sync) {
        let value: Assigns = Arc::new(value);
        self.known.assigns = Some(Arc::clone(&value));
        self.does(Effect::Assign(value));
    }

    /// Pushes an event to this member alone.
    pub fn push(&mut self, event: &str, payload: impl Into<Payload<'static>>) {
        self.does(Effect::Push(event.into(), payload.into()));
    }

    /// Broadcasts to all members of this topic, this one included.
    pub fn broadcast(&mut self, event: &str, payload: impl Into<Payload<'static>>) {
        self.publish(None, event, payload.into(), Audience::All);
    }

    /// Broadcasts to all members of this topic except this one.
    pub fn broadcast_from(&mut self, event: &str, payload: impl Into<Payload<'static>>) {
        self.publish(None, event, payload.into(), Audience::Others);
    }

    /// Broadcasts to all members of another topic.
    pub fn broadcast_to(&mut self, topic: &str, event: &str, payload: impl Into<Payload<'static>>) {
        self.publish(Some(topic.into()), event, payload.into(), Audience::All);
    }

    fn publish(
        &mut self,
        topic: Option<Box<str>>,
        event: &str,
        payload: Payload<'static>,
        audience: Audience,
    ) {
        self.does(Effect::Broadcast(topic, event.into(), payload, audience));
    }

    /// Subscribes this channel to a further topic: its broadcasts are passed to
    /// [`Channel::handle_broadcast`].
    pub fn subscribe(&mut self, topic: &str) {
        self.does(Effect::Subscribe(topic.into()));
    }

    /// Ends what [`subscribe`](Self::subscribe) began.
    pub fn unsubscribe(&mut self, topic: &str) {
        self.does(Effect::Unsubscribe(topic.into()));
    }

    /// The presences of this channel, and the list of its topic; `Presence::list` to `await` the
    /// answer.
    pub fn presence(&mut self) -> Presences<'_> {
        Presences::new(&**self.handle.node(), self.known.topic(), &mut self.outbox)
    }

    /// Closes every socket with this id, on every shard, with 1001 (PROTOCOL §7).
    pub fn disconnect(&mut self, socket_id: &str) {
        self.broadcast_to(socket_id, events::DISCONNECT, Payload::EMPTY_OBJECT);
    }

    /// Closes this socket with a close code, 1012 to have it reconnect elsewhere.
    pub fn close_socket(&mut self, code: CloseCode) {
        self.does(Effect::Close(code));
    }

    /// Answers the current message before the handler is done, which then has to return
    /// [`Outcome::NoReply`](simurgh_channel::Outcome::NoReply).
    pub fn reply(&mut self, reply: Reply) {
        match self.message.take() {
            Some(message) => self.does(Effect::Reply(message, reply)),
            None => tracing::warn!(topic = self.topic(), "there is no message to reply to"),
        }
    }

    /// Identifies the current message, to answer it later with [`ChannelHandle::reply`]. `None` in
    /// handlers without a message of the client.
    pub fn reply_ref(&self) -> Option<ReplyRef> {
        self.message.clone()
    }

    /// A handle with which any thread can reach this channel: `ctx.handle::<Self>()`.
    pub fn handle<C: Channel>(&self) -> ChannelHandle<Async<C>> {
        self.handle.retype()
    }

    /// Runs work on tokio to its end, even if the channel ends before.
    pub fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        self.handle.node().spawn(Box::pin(work));
    }

    /// Runs work on tokio for this channel alone: it is dropped when the channel ends.
    pub fn spawn_linked(&mut self, work: impl Future<Output = ()> + Send + 'static) {
        let work = self.handle.node().spawn_linked(Box::pin(work));
        self.does(Effect::Link(work));
    }

    /// Number of members of this topic on all shards; `None` if no user socket counts them
    /// ([`UserSocket::count_members`](crate::UserSocket::count_members)).
    pub fn member_count(&self) -> Option<u32> {
        self.handle.node().member_count(self.topic())
    }

    fn does(&self, effect: Effect) {
        self.outbox.open().push(effect);
    }
}
