//! The context of an asynchronous handler.

use std::any::Any;
use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use simurgh_channel::{
    Assigns, ChannelHandle, Effect, Effects, NodeHandle, Reply, ReplyRef, Scope, ShardContext,
};

use super::Channel;
use super::adapter::Async;
use super::join::JoinContext;

/// The socket and topic of an asynchronous handler, and its actions: as [`ShardContext`], except
/// that effects are sent when the handler next waits, or is done.
pub type Context = simurgh_channel::Context<OffShardScope>;

/// The part of a [`Context`] that only handlers away from the shard have.
#[derive(Debug)]
pub struct OffShardScope {
    pub(super) known: JoinContext,
    message: Option<ReplyRef>,
    handle: ChannelHandle<()>,
    pub(super) outbox: Outbox,
}

/// The part that join functions have, too.
impl Deref for OffShardScope {
    type Target = JoinContext;

    fn deref(&self) -> &JoinContext {
        &self.known
    }
}

/// Effects of a handler that are not sent yet. The task that polls the handler takes them, also
/// when the handler panics and its context is gone.
#[derive(Clone, Debug, Default)]
pub struct Outbox(Arc<Mutex<Vec<Effect>>>);

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

impl Scope for OffShardScope {
    type Effects = Outbox;

    fn node(&self) -> &Arc<dyn NodeHandle> {
        self.handle.node()
    }

    fn topic(&self) -> &str {
        self.known.topic()
    }

    fn parts(&mut self) -> (&dyn NodeHandle, &str, &mut Outbox) {
        (&**self.handle.node(), self.known.topic(), &mut self.outbox)
    }
}

impl OffShardScope {
    /// For a message of the client, or without one.
    pub(super) fn of(ctx: &ShardContext<'_>, message: Option<ReplyRef>) -> Self {
        Self {
            known: JoinContext::of(ctx),
            message,
            handle: ctx.handle(),
            outbox: Outbox::default(),
        }
    }

    /// Assigns a value to the socket in place of the previous one; all its channels read it. It is
    /// dropped on the socket's shard, and should not own a descriptor.
    pub fn assign(&mut self, value: impl Any + Send + Sync) {
        let value: Assigns = Arc::new(value);
        self.known.assigns = Some(Arc::clone(&value));
        self.outbox.add(Effect::Assign(value));
    }

    /// Answers the current message before the handler is done, which then has to return
    /// [`Outcome::NoReply`](simurgh_channel::Outcome::NoReply).
    pub fn reply(&mut self, reply: Reply) {
        match self.message.take() {
            Some(message) => self.outbox.add(Effect::Reply(message, reply)),
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
}
