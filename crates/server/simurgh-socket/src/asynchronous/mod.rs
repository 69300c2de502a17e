//! Channels whose handlers may wait: [`AsyncChannel`], and joins and connects that are `async fn`s.
//!
//! ```
//! use serde::Deserialize;
//! use simurgh::{AsyncChannel, AsyncContext, JoinContext, UserSocket, Outcome, Payload, Reject,
//! json};
//!
//! struct Room;
//!
//! #[derive(Deserialize)]
//! struct NewMsg {
//!     body: String,
//! }
//!
//! async fn join(ctx: JoinContext, _payload: Payload<'_>) -> Result<Room, Reject> {
//!     match ctx.subtopic() {
//!         "private" => Err(Reject::new("unauthorized")),
//!         _ => Ok(Room),
//!     }
//! }
//!
//! impl AsyncChannel for Room {
//!     async fn handle_in(
//!         &mut self,
//!         ctx: &mut AsyncContext,
//!         event: &str,
//!         payload: Payload<'static>,
//!     ) -> Result<Outcome, Reject> {
//!         match event {
//!             "new_msg" => {
//!                 let message: NewMsg = payload.parse()?;
//!                 ctx.broadcast("new_msg", json!({"body": message.body}));
//!                 Ok(Outcome::ok(json!({})))
//!             }
//!             _ => Err(Reject::unknown_event()),
//!         }
//!     }
//! }
//!
//! let user_socket = UserSocket::new("/socket").async_channel("room:*", join);
//! # let _ = user_socket;
//! ```
//!
//! # The way of a message
//! A handler runs on tokio, with its channel, which comes back with the result as mail. Until then
//! further messages of this channel wait behind it, in their order; all other channels of the
//! socket go on. What a handler does with its [`AsyncContext`] leaves when it next waits or is
//! done, in its order; its reply follows that.
//!
//! Never on the shard, not even the first step: a shard has a descriptor table of its own, in which
//! a connection that a handler opens would be lost. For the same reason a channel is dropped on
//! tokio, too, with its handlers, their errors, and messages of the application that it does not
//! come to handle. What is assigned to a socket is dropped on the shard.
//! [`hibernate`](AsyncChannel::hibernate) and [`terminate`](AsyncChannel::terminate) do run on the
//! shard, and must neither block nor use a connection.
//!
//! # Bounds
//! [`BEHIND_MAX`] messages of the client, or [`BEHIND_BYTES_MAX`] bytes of them, wait behind one
//! that is handled. Then the socket is not read until half of them are handled; nobody else notices
//! anything. If that takes longer than `Config::decision_timeout`, the channel is
//! given up as crashed: its handler is dropped, and the client receives `phx_error`.
//!
//! # Ends
//! A channel that ends (a leave, a disconnect, a drain, another message's error) drops its handler
//! where it waits, with the channel itself. What it has done by then has been sent. Clean up in
//! `Drop`: [`AsyncChannel::terminate`] is for a channel whose handlers are done.

mod adapter;
mod context;
mod join;
mod reject;

use std::future::Future;

#[allow(unused_imports, reason = "for the documentation")]
use simurgh_channel::Channel;
use simurgh_channel::{Broadcast, Context, Outcome, Reason};
use simurgh_proto::message::Payload;

pub use adapter::{Async, BEHIND_BYTES_MAX, BEHIND_MAX};
pub use context::AsyncContext;
pub use join::{ConnectRequest, IntoJoin, JoinContext};
pub(crate) use join::{connect, join};
pub use reject::Reject;

/// A channel whose handlers may wait, for a database or anything else; see the
/// [module](self). It is given to [`UserSocket::async_channel`](crate::UserSocket::async_channel).
///
/// An `Err` is what the client receives as the reply of its message, with status `error`
/// ([`Reject`]); where there is no message of the client to answer, it is logged.
pub trait AsyncChannel: Send + Sized + 'static {
    /// The events of which this channel wants to see every broadcast before it leaves, in
    /// [`handle_out`](Self::handle_out); as [`Channel::intercept`].
    const INTERCEPT: &'static [&'static str] = &[];

    /// The member is subscribed and its reply has been made; as [`Channel::after_join`].
    fn after_join(
        &mut self,
        ctx: &mut AsyncContext,
    ) -> impl Future<Output = Result<(), Reject>> + Send {
        let _ = ctx;
        adapter::Nothing
    }

    /// A message of the client; as [`Channel::handle_in`].
    fn handle_in(
        &mut self,
        ctx: &mut AsyncContext,
        event: &str,
        payload: Payload<'static>,
    ) -> impl Future<Output = Result<Outcome, Reject>> + Send;

    /// A broadcast of an intercepted event; as [`Channel::handle_out`].
    fn handle_out(
        &mut self,
        ctx: &mut AsyncContext,
        event: &str,
        payload: Payload<'static>,
    ) -> impl Future<Output = Result<Outcome, Reject>> + Send {
        ctx.push(event, payload);
        async { Ok(Outcome::NoReply) }
    }

    /// A broadcast on a further topic this channel is subscribed to; as
    /// [`Channel::handle_broadcast`].
    fn handle_broadcast(
        &mut self,
        ctx: &mut AsyncContext,
        broadcast: Broadcast,
    ) -> impl Future<Output = Result<Outcome, Reject>> + Send {
        let _ = (ctx, broadcast);
        async { Ok(Outcome::NoReply) }
    }

    /// Nothing has happened on this channel for a while; as [`Channel::hibernate`].
    fn hibernate(&mut self) {}

    /// The channel ends, and no handler of it waits: one that does is dropped with its channel
    /// instead. As [`Channel::terminate`].
    fn terminate(&mut self, ctx: &mut Context<'_>, reason: &Reason) {
        let _ = (ctx, reason);
    }
}

/// An [`AsyncChannel`] that receives messages of the application itself, of one type, as
/// [`HandleInfo`](simurgh_channel::HandleInfo) does. They are sent with [`AsyncContext::handle`]'s
/// [`send`](simurgh_channel::ChannelHandle::send), and wait behind the message that is being
/// handled.
pub trait AsyncHandleInfo<M>: AsyncChannel {
    /// A message has come.
    fn handle_info(
        &mut self,
        ctx: &mut AsyncContext,
        message: M,
    ) -> impl Future<Output = Result<Outcome, Reject>> + Send;
}
