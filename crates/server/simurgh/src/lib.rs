//! A real-time channels server that speaks the Phoenix Channels protocol.
//!
//! A chat in which all members receive each message, for the unchanged official `phoenix` clients:
//!
//! ```no_run
//! use serde_json::json;
//! use simurgh::{ShardChannel, ShardContext, Endpoint, Join, ChannelRoute, UserSocket, Outcome, Payload};
//!
//! struct Room;
//!
//! fn join(ctx: &mut ShardContext<'_>, _payload: Payload<'_>) -> Join {
//!     match ctx.subtopic() {
//!         "private" => Join::error(json!({"reason": "unauthorized"})),
//!         _ => Join::ok(Room),
//!     }
//! }
//!
//! impl ShardChannel for Room {
//!     fn handle_in(&mut self, ctx: &mut ShardContext<'_>, event: &str, data: Payload<'_>) -> Outcome {
//!         match event {
//!             "new:msg" => {
//!                 ctx.broadcast(event, &data);
//!                 Outcome::ok(json!({}))
//!             }
//!             _ => Outcome::unknown_event(),
//!         }
//!     }
//! }
//!
//! fn main() -> Result<(), simurgh::Error> {
//!     Endpoint::builder()
//!         .socket(UserSocket::new("/socket").channel(ChannelRoute::on_shard("rooms:*", join)))
//!         .listen("127.0.0.1:4000")
//!         .run()
//! }
//! ```
//!
//! An [`Endpoint`] holds [`UserSocket`]s; a user socket decides who may connect, and maps topics to
//! [`ShardChannel`]s; a channel's callbacks get a [`ShardContext`] to push, broadcast and reply. Callbacks
//! run on *shards*: threads that share nothing, each with its own event loop and connections. They
//! must not block: an [`Channel`]'s handlers may wait, and [`ShardContext::spawn`], [`Join::later`]
//! and [`Connect::later`] move slow work to tokio. Code outside of channels uses [`PubSub`].
//!
//! # Features
//!
//! None is on by default.
//!
//! - `mimalloc`: for binaries whose `#[global_allocator]` is mimalloc (this sets none). Returns
//!   memory of closed connections and hibernating channels to the system.
//! - `token`: the module `token`, for sockets that authenticate with `Phoenix.Token` or JSON Web
//!   Token, and are closed when it expires. Adds the dependency `ring`.

mod access;
pub mod cluster;
pub mod driver;
mod endpoint;
mod error;
mod handle;
pub mod history;
pub mod http;
mod longpoll;
pub mod metrics;
pub mod observe;
mod presence;
pub mod pubsub;
mod remote_waker;
mod secret;
mod signals;
mod watchdog;

pub use cluster::Cluster;
pub use endpoint::{Builder, Endpoint};
pub use error::Error;
#[doc(hidden)]
pub use handle::Activity;
pub use handle::{Handle, Pulse};
pub use history::{
    HistoryCursor, HistoryError, HistoryQuery, HistoryTopics, HistoryTopicsQuery, NotKept,
};
pub use presence::{Presence, PresenceListError};
pub use pubsub::{PubSub, Subscription};
pub use signals::Signals;
pub use simurgh_core::{
    Broadcast, BroadcastError, ChannelHandle, ChannelLimits, GapReason, HistoryConfig, HistoryPage,
    HistoryRule as History, HistoryTopic, Join, JoinFn, KeptAt, KeptMessage, Limit, LimitPolicy,
    Outcome, Position, PresenceConfig, PresenceError, Presences, Rate, RateError, RateLimit,
    Reason, Reply, ReplyRef, Resume, ShardChannel, ShardContext, ShardHandleInfo, Since, SizeLimit,
    SocketLimits, Stop,
};
pub use simurgh_proto::message::{Payload, PayloadError, UserBroadcast};
pub use simurgh_proto::origin::CheckOrigin;
pub use simurgh_proto::serializer::Serializer;
pub use simurgh_proto::ws::{CloseCode, FrameLimits};
pub use simurgh_shard::config::Config;
pub use simurgh_socket::asynchronous::{
    Async, Channel, ConnectRequest, Context, HandleInfo, IntoJoin, JoinContext, Reject,
};
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

pub use axum;
pub use serde_json::json;

/// The README's examples must compile and run.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}
