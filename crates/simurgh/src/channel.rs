//! What an application writes: a [`Channel`], how it is joined ([`Join`]) and what its handlers
//! answer.
//!
//! A channel is one membership of one socket in one topic (PROTOCOL §1). It is *joined* by a
//! function, which either makes the channel or refuses, and then lives on the shard of its socket,
//! where its callbacks run one at a time, in the order of the messages.

use std::any::Any;
use std::borrow::Cow;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use simurgh_proto::message::Payload;

use crate::context::Context;

/// One membership of a socket in a topic, with whatever state the application keeps for it.
///
/// Callbacks must not block: they share their thread with thousands of other connections. What
/// takes longer than a few microseconds belongs in [`Context::spawn`] or [`Join::later`]. A
/// callback that panics ends its channel with `phx_error`, and nothing else.
///
/// A channel is `Send` so that [`Join::later`] may build it away from its shard; it never moves
/// again after that.
pub trait Channel: Send + 'static {
    /// The member is subscribed and its reply has been made: what is pushed or broadcast here
    /// follows the reply, and its own broadcasts reach it (PROTOCOL §5.5).
    fn after_join(&mut self, ctx: &mut Context<'_>) {
        let _ = ctx;
    }

    /// A message of the client: any event but `phx_join`, `phx_leave`. Phoenix knows no default for
    /// an unknown event, so neither does this: return [`Outcome::unknown_event`] for what is not
    /// known.
    fn handle_in(&mut self, ctx: &mut Context<'_>, event: &str, payload: Payload<'_>) -> Outcome;

    /// A message of the application itself, sent with
    /// [`ChannelHandle::send`](crate::ChannelHandle::send).
    fn handle_info(&mut self, ctx: &mut Context<'_>, info: Box<dyn Any + Send>) -> Outcome {
        let _ = (ctx, info);
        Outcome::NoReply
    }

    /// The events of which this channel wants to see every broadcast before it leaves, in
    /// [`handle_out`](Self::handle_out). Asked once, right after the join.
    ///
    /// An intercepted broadcast costs a callback and an encoding for each member; all others are
    /// encoded once and shared.
    fn intercept(&self) -> &'static [&'static str] {
        &[]
    }

    /// A broadcast of an intercepted event: push it (as it is, or rewritten), or swallow it by
    /// doing nothing.
    fn handle_out(&mut self, ctx: &mut Context<'_>, event: &str, payload: &Payload<'_>) -> Outcome {
        ctx.push(event, payload);
        Outcome::NoReply
    }

    /// A broadcast on a further topic this channel is subscribed to ([`Context::subscribe`]).
    fn handle_broadcast(&mut self, ctx: &mut Context<'_>, broadcast: &Broadcast) -> Outcome {
        let _ = (ctx, broadcast);
        Outcome::NoReply
    }

    /// Nothing has happened on this channel for a while
    /// ([`Config::hibernate_after`](crate::Config::hibernate_after)): time to release what can be
    /// made again when it is needed, such as buffers and caches. Called once for each such while,
    /// without a [`Context`]: there is nothing to say. Broadcasts that are not intercepted pass the
    /// channel by and do not wake it.
    fn hibernate(&mut self) {}

    /// The channel ends, for whatever reason. What is pushed here leaves *after* `phx_close`
    /// (PROTOCOL §6); nothing leaves when the transport is gone.
    fn terminate(&mut self, ctx: &mut Context<'_>, reason: &Reason) {
        let _ = (ctx, reason);
    }
}

/// The function that answers a `phx_join` (or, on a plain mount, the upgrade).
pub type JoinFn = Arc<dyn Fn(&mut Context<'_>, Payload<'_>) -> Join + Send + Sync>;

/// The answer to a join.
#[must_use]
pub struct Join(pub(crate) JoinKind);

pub(crate) enum JoinKind {
    Ok { channel: Box<dyn Channel>, reply: Payload<'static> },
    Error(Payload<'static>),
    Later(Pin<Box<dyn Future<Output = Join> + Send>>),
}

impl Join {
    /// The client is in; the reply is `{}` unless [`reply`](Self::reply) says otherwise.
    pub fn ok(channel: impl Channel) -> Self {
        Self(JoinKind::Ok { channel: Box::new(channel), reply: Payload::EMPTY_OBJECT })
    }

    /// Refused, with a payload for the client, by convention `{"reason": "…"}`.
    pub fn error(response: impl Into<Payload<'static>>) -> Self {
        Self(JoinKind::Error(response.into()))
    }

    /// Answered when `work` is done, which runs on tokio. Until then nothing more is read from this
    /// socket, and messages behind the join wait for it, in order (PROTOCOL §5.4).
    pub fn later(work: impl Future<Output = Join> + Send + 'static) -> Self {
        Self(JoinKind::Later(Box::pin(work)))
    }

    /// Sets the payload of the reply to a join that is ok; does nothing to the others.
    pub fn reply(mut self, response: impl Into<Payload<'static>>) -> Self {
        if let JoinKind::Ok { reply, .. } = &mut self.0 {
            *reply = response.into();
        }
        self
    }
}

impl fmt::Debug for Join {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            JoinKind::Ok { .. } => "Join::ok",
            JoinKind::Error(_) => "Join::error",
            JoinKind::Later(_) => "Join::later",
        })
    }
}

/// What a handler answers.
#[derive(Debug)]
#[must_use]
pub enum Outcome {
    /// Nothing is answered (now).
    NoReply,
    /// The message is answered.
    Reply(Reply),
    /// The channel ends: `phx_close`, or `phx_error` for [`Stop::Abnormal`].
    Stop(Stop),
    /// The message is answered, then the channel ends.
    ReplyAndStop(Reply, Stop),
}

impl Outcome {
    /// Answers with status `ok`.
    pub fn ok(response: impl Into<Payload<'static>>) -> Self {
        Self::Reply(Reply::ok(response))
    }

    /// Answers with status `error`.
    pub fn error(response: impl Into<Payload<'static>>) -> Self {
        Self::Reply(Reply::error(response))
    }

    /// The end of every `match event`: what Phoenix does with an event that no clause takes, which
    /// is to end the channel with `phx_error`; the client may join again at once.
    pub fn unknown_event() -> Self {
        Self::Stop(Stop::Abnormal)
    }
}

/// A `phx_reply`: a status, usually `ok` or `error`, and a response.
#[derive(Debug, Clone)]
pub struct Reply {
    pub(crate) status: Cow<'static, str>,
    pub(crate) response: Payload<'static>,
}

impl Reply {
    /// Status `ok`.
    pub fn ok(response: impl Into<Payload<'static>>) -> Self {
        Self::new("ok", response)
    }

    /// Status `error`.
    pub fn error(response: impl Into<Payload<'static>>) -> Self {
        Self::new("error", response)
    }

    /// Any status; clients match on the word.
    pub fn new(
        status: impl Into<Cow<'static, str>>,
        response: impl Into<Payload<'static>>,
    ) -> Self {
        Self { status: status.into(), response: response.into() }
    }
}

/// How a channel stops itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stop {
    /// It is done: `phx_close`, the client does not rejoin.
    Normal,
    /// It is told to: `phx_close`.
    Shutdown,
    /// Something is wrong: `phx_error`, the client rejoins.
    Abnormal,
}

/// Why a channel ends, as [`Channel::terminate`] hears it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    /// The client left.
    Left,
    /// The client joined the same topic again.
    Rejoined,
    /// The channel stopped itself.
    Stopped(Stop),
    /// A callback panicked.
    Crashed,
    /// The transport is gone, or the server closes it.
    Closed,
}

/// A message to all members of a topic, on every shard.
#[derive(Debug)]
pub struct Broadcast {
    pub(crate) topic: Box<str>,
    pub(crate) event: Box<str>,
    pub(crate) payload: Payload<'static>,
    /// The member who does not get it (`broadcast_from`).
    pub(crate) except: Option<crate::shard::ChannelId>,
}

impl Broadcast {
    /// The topic it was made on.
    pub fn topic(&self) -> &str {
        &self.topic
    }

    /// The event.
    pub fn event(&self) -> &str {
        &self.event
    }

    /// The payload, shared by all who receive it.
    pub fn payload(&self) -> &Payload<'static> {
        &self.payload
    }

    /// Bytes it is counted with while it is under way.
    pub(crate) fn weight(&self) -> usize {
        self.payload.len() + self.topic.len() + self.event.len() + 64
    }
}
