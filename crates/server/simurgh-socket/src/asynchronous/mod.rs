//! Channels whose handlers may wait: [`Channel`], and joins and connects that are `async fn`s.
//!
//! ```
//! use serde::Deserialize;
//! use simurgh::{Channel, Context, JoinContext, ChannelRoute, UserSocket, Outcome, Payload, Reject,
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
//! impl Channel for Room {
//!     async fn handle_in(
//!         &mut self,
//!         ctx: &mut Context,
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
//! let user_socket = UserSocket::new("/socket").channel(ChannelRoute::new("room:*", join));
//! # let _ = user_socket;
//! ```
//!
//! # Execution
//! A handler runs on tokio and owns its channel, which returns with the result as mail. Until then
//! further messages of this channel are queued in order; all other channels of the socket continue.
//! Effects of its [`Context`] are sent in order when the handler next waits or is done; its
//! reply follows.
//!
//! Not even the first step runs on the shard: a shard has its own descriptor table, in which a
//! connection that a handler opens would be lost. For the same reason a channel is dropped on
//! tokio, with its handlers, their errors, and unhandled messages of the application. Values
//! assigned to a socket are dropped on the shard. [`hibernate`](Channel::hibernate) and
//! [`terminate`](Channel::terminate) run on the shard, and must neither block nor use a
//! connection.
//!
//! # Bounds
//! [`BEHIND_MAX`] messages of the client, or [`BEHIND_BYTES_MAX`] bytes of them, are queued behind
//! a running handler. Then the socket is not read until half of them are handled; other sockets are
//! not affected. If that takes longer than `Config::decision_timeout`, the channel counts as
//! crashed: its handler is dropped, and the client receives `phx_error`.
//!
//! # Ends
//! A channel that ends (a leave, a disconnect, a drain, another message's error) drops its handler
//! where it waits, with the channel itself. Effects until then have been sent. Clean up in `Drop`:
//! [`Channel::terminate`] is called only if no handler runs.

mod adapter;
mod context;
mod join;
mod reject;

use std::future::Future;

#[allow(unused_imports, reason = "for the documentation")]
use simurgh_channel::ShardChannel;
use simurgh_channel::{Broadcast, Outcome, Reason, ShardContext};
use simurgh_proto::message::Payload;

pub use adapter::{Async, BEHIND_BYTES_MAX, BEHIND_MAX};
pub use context::{Context, OffShardScope};
pub use join::{ConnectRequest, IntoJoin, JoinContext};
pub(crate) use join::{connect, join};
pub use reject::Reject;

/// A channel whose handlers may wait, for a database or anything else; see the [module](self). It
/// is given to [`ChannelRoute::new`](crate::ChannelRoute::new).
///
/// The client receives an `Err` as the reply to its message, with status `error` ([`Reject`]);
/// without a message to answer, it is logged.
pub trait Channel: Send + Sized + 'static {
    /// The events whose broadcasts this channel sees before they are sent, in
    /// [`handle_out`](Self::handle_out); as [`ShardChannel::intercept`].
    const INTERCEPT: &'static [&'static str] = &[];

    /// The member is subscribed and its reply has been made; as [`ShardChannel::after_join`].
    fn after_join(&mut self, ctx: &mut Context) -> impl Future<Output = Result<(), Reject>> + Send {
        let _ = ctx;
        adapter::Nothing
    }

    /// A message of the client; as [`ShardChannel::handle_in`].
    fn handle_in(
        &mut self,
        ctx: &mut Context,
        event: &str,
        payload: Payload<'static>,
    ) -> impl Future<Output = Result<Outcome, Reject>> + Send;

    /// A broadcast of an intercepted event; as [`ShardChannel::handle_out`].
    fn handle_out(
        &mut self,
        ctx: &mut Context,
        event: &str,
        payload: Payload<'static>,
    ) -> impl Future<Output = Result<Outcome, Reject>> + Send {
        ctx.push(event, payload);
        async { Ok(Outcome::NoReply) }
    }

    /// A broadcast on a further topic of this channel; as [`ShardChannel::handle_broadcast`].
    fn handle_broadcast(
        &mut self,
        ctx: &mut Context,
        broadcast: Broadcast,
    ) -> impl Future<Output = Result<Outcome, Reject>> + Send {
        let _ = (ctx, broadcast);
        async { Ok(Outcome::NoReply) }
    }

    /// The channel had no activity for a while; as [`ShardChannel::hibernate`].
    fn hibernate(&mut self) {}

    /// The channel ends while no handler runs; a running one is dropped with its channel instead.
    /// As [`ShardChannel::terminate`].
    fn terminate(&mut self, ctx: &mut ShardContext<'_>, reason: &Reason) {
        let _ = (ctx, reason);
    }
}

/// A [`Channel`] that receives messages of the application itself, of one type, as
/// [`ShardHandleInfo`](simurgh_channel::ShardHandleInfo) does. They are sent with
/// [`Context::handle`](OffShardScope::handle)'s
/// [`send`](simurgh_channel::ChannelHandle::send), and are queued behind a running handler.
pub trait HandleInfo<M>: Channel {
    /// A message of the application.
    fn handle_info(
        &mut self,
        ctx: &mut Context,
        message: M,
    ) -> impl Future<Output = Result<Outcome, Reject>> + Send;
}
