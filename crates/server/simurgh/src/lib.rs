//! A real-time channels server that speaks the Phoenix Channels protocol.
//!
//! A chat in which all members receive each message, for the unchanged official `phoenix` clients:
//!
//! ```no_run
//! use simurgh::{
//!     Channel, ChannelRoute, Context, Endpoint, JoinContext, Outcome, Payload, Reject, UserSocket,
//!     json,
//! };
//!
//! struct Room;
//!
//! async fn join(ctx: JoinContext, _payload: Payload<'static>) -> Result<Room, Reject> {
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
//!             "new:msg" => {
//!                 ctx.broadcast(event, payload);
//!                 Ok(Outcome::ok(json!({})))
//!             }
//!             // Ends the channel with `phx_error`, as Phoenix does for an event without a clause.
//!             _ => Err(Reject::unknown_event()),
//!         }
//!     }
//! }
//!
//! fn main() -> Result<(), simurgh::Error> {
//!     Endpoint::builder()
//!         .socket(UserSocket::new("/socket").channel(ChannelRoute::new("rooms:*", join)))
//!         .listen("127.0.0.1:4000")
//!         .run()
//! }
//! ```
//!
//! An [`Endpoint`] holds [`UserSocket`]s; a user socket decides who may connect, and maps topics to
//! channels by its [`ChannelRoute`]s. A [`Channel`]'s handlers are `async fn`s on tokio, which may
//! wait. They get a [`Context`] to push, broadcast and reply. Code outside of channels uses
//! [`PubSub`].
//!
//! Connections live on *shards*: threads that share nothing, each with its own event loop. A
//! [`ShardChannel`]'s callbacks run there. A push and its reply then cost a few microseconds less,
//! but a callback must not block: [`ShardContext::spawn`], [`Join::later`] and [`Connect::later`]
//! move slow work to tokio.
//!
//! # Inside `#[tokio::main]`
//! [`Builder::run`] blocks its thread until a signal has drained the server. A program with a
//! tokio runtime of its own starts the server, and drains it when the program ends:
//!
//! ```no_run
//! # use simurgh::{Endpoint, UserSocket};
//! # async fn until_the_end() {}
//! #[tokio::main]
//! async fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     let user_socket = UserSocket::new("/socket");
//!     let endpoint = Endpoint::builder().socket(user_socket).listen("127.0.0.1:4000").start()?;
//!     let pubsub = endpoint.pubsub(); // a clone for each task that broadcasts
//! #   drop(pubsub);
//!     until_the_end().await;
//!     tokio::task::spawn_blocking(move || endpoint.drain()).await??;
//!     Ok(())
//! }
//! ```
//!
//! # Features
//!
//! None is on by default.
//!
//! - `hooks`: the module `hooks`, for declared channels whose application decides over HTTP who
//!   connects, joins and publishes. Includes `token`; adds the dependency `tokio-rustls`.
//! - `mimalloc`: for binaries whose `#[global_allocator]` is mimalloc (this sets none). Returns
//!   memory of closed connections and hibernating channels to the system.
//! - `token`: the module `token`, for sockets that authenticate with `Phoenix.Token` or JSON Web
//!   Token, and are closed when it expires. Adds the dependency `ring`.

mod access;
mod blocks;
pub mod cluster;
pub mod driver;
mod endpoint;
mod error;
mod handle;
pub mod history;
#[cfg(feature = "hooks")]
mod hooked;
pub mod http;
mod longpoll;
pub mod metrics;
#[cfg(feature = "hooks")]
mod notices;
pub mod observe;
mod prepare;
mod presence;
pub mod pubsub;
mod questions;
mod reload;
mod remote_waker;
mod secret;
mod signals;
mod takeover;
pub mod tls;
mod watchdog;

pub use cluster::Cluster;
pub use endpoint::{Builder, Endpoint};
pub use error::Error;
#[doc(hidden)]
pub use handle::Activity;
pub use handle::{Handle, Pulse};
pub use presence::{Presence, PresenceListError};
pub use pubsub::{PubSub, Subscription};
#[doc(hidden)]
pub use reload::{Applied, Reloader};
pub use signals::Signals;
pub use simurgh_core::{
    Broadcast, BroadcastError, ChannelHandle, ChannelLimits, Compress, Join, JoinFn, Limit,
    LimitPolicy, Outcome, PresenceConfig, PresenceError, Presences, Rate, RateError, RateLimit,
    Reason, Reply, ReplyRef, ShardChannel, ShardContext, ShardHandleInfo, SizeLimit, SocketLimits,
    Stop,
};
pub use simurgh_proto::message::{Payload, PayloadError, UserBroadcast};
pub use simurgh_proto::origin::CheckOrigin;
pub use simurgh_proto::serializer::Serializer;
pub use simurgh_proto::ws::{CloseCode, FrameLimits};
pub use simurgh_shard::config::Config;
pub use simurgh_shard::server::Reloaded;
pub use simurgh_socket::asynchronous::{
    Async, Channel, ConnectRequest, Context, HandleInfo, IntoJoin, JoinContext, Reject,
};
#[cfg(feature = "hooks")]
#[doc(inline)]
pub use simurgh_socket::hooks;
#[cfg(feature = "token")]
#[doc(inline)]
pub use simurgh_socket::token;
pub use simurgh_socket::{
    ChannelRoute, Connect, ConnectFn, ConnectInfo, LongPoll, Transport, UserSocket,
};
#[doc(inline)]
pub use simurgh_socket::{asynchronous, declared, supabase};

/// The document's programs must compile and run.
#[cfg(doctest)]
#[doc = include_str!("../../../../docs/CHANNELS.md")]
mod channels_document {}

#[cfg(doctest)]
#[doc = include_str!("../../../../docs/PRESENCE.md")]
mod presence_document {}

#[cfg(all(doctest, feature = "token"))]
#[doc = include_str!("../../../../docs/TOKENS.md")]
mod tokens_document {}

/// Tokens of the server API ([`Config::api_tokens`]).
pub mod api {
    pub use simurgh_proto::topic::{Pattern, PatternError};
    pub use simurgh_shard::config::{ApiToken, Scope};
}

pub use axum;
pub use serde_json::json;

/// The README's examples must compile and run.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}
