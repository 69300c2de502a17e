//! The application's part: a [`ShardChannel`], and how it is joined ([`Join`]).
//!
//! A channel is one membership of one socket in one topic (PROTOCOL §1). It is *joined* by a
//! function, which either makes the channel or refuses. It then lives on the shard of its socket,
//! where its callbacks run one at a time, in the order of the messages.

use core::any::Any;
use core::future::Future;
use core::pin::Pin;

use simurgh_proto::message::Payload;

use crate::broadcast::Broadcast;
use crate::context::ShardContext;
use crate::outcome::{Outcome, Reason};
use simurgh_data::prelude::*;

/// One membership of a socket in a topic, with the state that the application keeps for it.
///
/// Callbacks must not block: they share their thread with thousands of other connections. What
/// takes longer than a few microseconds belongs in [`ShardContext::spawn`] or [`Join::later`]. A
/// callback that panics ends its channel with `phx_error`, and nothing else.
///
/// A channel is `Send` so that [`Join::later`] may build it away from its shard; it never moves
/// again after that.
pub trait ShardChannel: Any + Send {
    /// The member is subscribed and its reply has been made: what is pushed or broadcast here
    /// follows the reply, and its own broadcasts reach it (PROTOCOL §5.5).
    fn after_join(&mut self, ctx: &mut ShardContext<'_>) {
        let _ = ctx;
    }

    /// A message of the client: any event except `phx_join` and `phx_leave`. Phoenix has no default
    /// for an unknown event, so neither has this: return [`Outcome::unknown_event`] for it.
    fn handle_in(
        &mut self,
        ctx: &mut ShardContext<'_>,
        event: &str,
        payload: Payload<'_>,
    ) -> Outcome;

    /// The events whose broadcasts all pass through [`handle_out`](Self::handle_out) before they
    /// are sent. Called once, right after the join.
    ///
    /// An intercepted broadcast costs a callback and an encoding for each member; all others are
    /// encoded once and shared.
    fn intercept(&self) -> &'static [&'static str] {
        &[]
    }

    /// A broadcast of an intercepted event: push it, unchanged or rewritten, or drop it by doing
    /// nothing.
    fn handle_out(
        &mut self,
        ctx: &mut ShardContext<'_>,
        event: &str,
        payload: &Payload<'_>,
    ) -> Outcome {
        ctx.push(event, payload);
        Outcome::NoReply
    }

    /// A broadcast on a further topic this channel is subscribed to ([`ShardContext::subscribe`]).
    fn handle_broadcast(&mut self, ctx: &mut ShardContext<'_>, broadcast: &Broadcast) -> Outcome {
        let _ = (ctx, broadcast);
        Outcome::NoReply
    }

    /// Nothing has happened on this channel for
    /// [`Config::hibernate_after`](crate::Config::hibernate_after): time to release what can be
    /// made again, such as buffers and caches. Called once in each such period. Broadcasts that are
    /// not intercepted do not wake the channel.
    fn hibernate(&mut self) {}

    /// The channel ends. What is pushed here is sent *after* `phx_close` (PROTOCOL §6); nothing is
    /// sent when the transport is gone.
    fn terminate(&mut self, ctx: &mut ShardContext<'_>, reason: &Reason) {
        let _ = (ctx, reason);
    }
}

/// A channel that takes messages of the application itself, of one type; it may implement this for
/// several types. They are sent with [`ChannelHandle::send`](crate::ChannelHandle::send), from any
/// thread.
pub trait ShardHandleInfo<M>: ShardChannel {
    /// Handles a message. The outcome has the same effect as in
    /// [`handle_in`](ShardChannel::handle_in); there is no message of the client to reply to.
    fn handle_info(&mut self, ctx: &mut ShardContext<'_>, message: M) -> Outcome;
}

/// A message of the application for a channel, whose type it has.
#[derive(derive_more::Debug)]
pub struct ChannelMessage(#[debug(skip)] Box<Visit>);

type Visit = dyn FnOnce(&mut dyn ShardChannel, &mut ShardContext<'_>) -> Outcome + Send;

impl ChannelMessage {
    /// A message for a channel of type `C`.
    pub fn new<C: ShardHandleInfo<M>, M: Send + 'static>(message: M) -> Self {
        Self::of(|channel: &mut C, ctx| channel.handle_info(ctx, message))
    }

    /// A function to call with a channel of type `C`, on its shard.
    pub fn of<C: ShardChannel>(
        f: impl FnOnce(&mut C, &mut ShardContext<'_>) -> Outcome + Send + 'static,
    ) -> Self {
        Self(Box::new(move |channel, ctx| {
            let channel: &mut dyn Any = channel;
            if let Some(channel) = channel.downcast_mut() {
                return f(channel, ctx);
            }
            // The handle was made in a callback of another channel type than its own.
            let (topic, wanted) = (ctx.topic(), core::any::type_name::<C>());
            tracing::error!(topic, wanted, "dropped a message for a channel of another type");
            ctx.spawn(async move { drop(f) });
            Outcome::NoReply
        }))
    }

    /// Passes it to the channel.
    pub fn deliver(self, channel: &mut dyn ShardChannel, ctx: &mut ShardContext<'_>) -> Outcome {
        (self.0)(channel, ctx)
    }
}

/// The function that answers a `phx_join` (or, on a plain user socket, the upgrade).
pub type JoinFn = Arc<dyn Fn(&mut ShardContext<'_>, Payload<'_>) -> Join + Send + Sync>;

/// The answer to a join.
#[derive(derive_more::Debug)]
#[debug("{_0:?}")]
#[must_use]
pub struct Join(#[doc(hidden)] pub JoinKind);

/// Work that decides about a join.
pub type JoinDecision = Pin<Box<dyn Future<Output = Join> + Send>>;

/// How something is decided away from its shard.
#[doc(hidden)]
pub enum Decision<T> {
    /// By work on tokio.
    Work(Pin<Box<dyn Future<Output = T> + Send>>),
    /// By a call from another thread: no task has to wait for it.
    Call(AskFn<T>),
}

/// Starts a decision; its result is passed to the given function. Dropping the returned value says
/// that nobody waits for it any more.
#[doc(hidden)]
pub type AskFn<T> = Box<dyn FnOnce(Box<dyn FnOnce(T) + Send>) -> Box<dyn Any + Send> + Send>;

impl<T: 'static> Decision<T> {
    /// The decision that this function makes of the result.
    pub fn map<U: 'static>(self, f: impl FnOnce(T) -> U + Send + 'static) -> Decision<U> {
        match self {
            Self::Work(work) => Decision::Work(Box::pin(async move { f(work.await) })),
            Self::Call(ask) => {
                Decision::Call(Box::new(move |done| ask(Box::new(move |it| done(f(it))))))
            }
        }
    }
}

/// The answer to a join, taken apart.
#[derive(derive_more::Debug)]
#[doc(hidden)]
pub enum JoinKind {
    #[debug("Join::ok")]
    Ok(Admission),
    #[debug("Join::error")]
    Error(Payload<'static>),
    #[debug("Join::later")]
    Later(Decision<Join>),
    /// Admitted once the decision is [`Released`](Self::Released).
    #[debug("Join::after")]
    Held(Admission, JoinDecision),
    /// The held client is admitted.
    #[debug("Join")]
    Released,
    /// Decided by a function on the shard, where what was learnt while the join waited is applied.
    #[debug("Join::on_shard")]
    OnShard(DecideFn),
}

/// Decides a join on the shard of its socket.
#[doc(hidden)]
pub type DecideFn = Box<dyn FnOnce(&mut ShardContext<'_>) -> Join + Send>;

/// What a join function has made for a client that it admits.
#[derive(derive_more::Debug)]
#[debug("Admission {{ reply: {reply:?}, .. }}")]
#[doc(hidden)]
pub struct Admission {
    pub channel: Box<dyn ShardChannel>,
    pub reply: Payload<'static>,
    /// Called when the client is a member, before the channel's `after_join`.
    pub starts: Vec<StartFn>,
}

/// Starts something for a new member.
#[doc(hidden)]
pub type StartFn = Box<dyn FnOnce(&mut ShardContext<'_>) + Send>;

impl Join {
    /// Admits the client; the reply is `{}` unless [`reply`](Self::reply) sets another.
    pub fn ok(channel: impl ShardChannel) -> Self {
        let (channel, reply, starts) = (Box::new(channel), Payload::EMPTY_OBJECT, Vec::new());
        Self(JoinKind::Ok(Admission { channel, reply, starts }))
    }

    /// Refused, with a payload for the client, by convention `{"reason": "…"}`.
    pub fn error(response: impl Into<Payload<'static>>) -> Self {
        Self(JoinKind::Error(response.into()))
    }

    /// Answered when `work` is done, which runs on tokio. Until then nothing more is read from this
    /// socket, and messages behind the join wait for it, in order (PROTOCOL §5.4).
    pub fn later(work: impl Future<Output = Join> + Send + 'static) -> Self {
        Self(JoinKind::Later(Decision::Work(Box::pin(work))))
    }

    /// As [`later`](Self::later), decided by a call from another thread.
    #[doc(hidden)]
    pub fn asked(
        ask: impl FnOnce(Box<dyn FnOnce(Self) + Send>) -> Box<dyn Any + Send> + Send + 'static,
    ) -> Self {
        Self(JoinKind::Later(Decision::Call(Box::new(ask))))
    }

    /// Decided by a function on the shard: the last part of a [`later`](Self::later) that needs the
    /// socket's context.
    pub fn on_shard(decide: impl FnOnce(&mut ShardContext<'_>) -> Self + Send + 'static) -> Self {
        Self(JoinKind::OnShard(Box::new(decide)))
    }

    /// Has an admitted client wait until `work` is done, which runs on tokio. The channel is made
    /// before, and has no member yet; otherwise as [`later`](Self::later).
    pub fn after(self, work: impl Future<Output = ()> + Send + 'static) -> Self {
        Self(match self.0 {
            JoinKind::Ok(admission) => {
                let released = async move {
                    work.await;
                    Self(JoinKind::Released)
                };
                JoinKind::Held(admission, Box::pin(released))
            }
            JoinKind::Later(decision) => {
                JoinKind::Later(decision.map(move |join| join.after(work)))
            }
            JoinKind::Held(admission, until) => {
                let released = async move {
                    work.await;
                    until.await
                };
                JoinKind::Held(admission, Box::pin(released))
            }
            JoinKind::OnShard(decide) => {
                JoinKind::OnShard(Box::new(move |ctx| decide(ctx).after(work)))
            }
            other @ (JoinKind::Error(_) | JoinKind::Released) => other,
        })
    }

    /// Sets the payload of the reply to a successful join; does nothing to the others.
    pub fn reply(mut self, response: impl Into<Payload<'static>>) -> Self {
        if let JoinKind::Ok(admission) | JoinKind::Held(admission, _) = &mut self.0 {
            admission.reply = response.into();
        }
        self
    }

    /// Calls `start` when the client is a member, before the channel's
    /// [`after_join`](ShardChannel::after_join).
    #[doc(hidden)]
    pub fn on_start(mut self, start: impl FnOnce(&mut ShardContext<'_>) + Send + 'static) -> Self {
        if let JoinKind::Later(decision) = self.0 {
            return Self(JoinKind::Later(decision.map(move |join| join.on_start(start))));
        }
        if let JoinKind::OnShard(decide) = self.0 {
            return Self::on_shard(move |ctx| decide(ctx).on_start(start));
        }
        if let JoinKind::Ok(admission) | JoinKind::Held(admission, _) = &mut self.0 {
            admission.starts.push(Box::new(start));
        }
        self
    }
}
