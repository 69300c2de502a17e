//! The application's description of its sockets, as `simurgh` exports it.
//!
//! ```text
//! declared ─► socket ─► supabase ─► token ─► connect
//!                └────► asynchronous ────────► connect
//!                                    below them: shape, ids, off_shard, panics, user
//! ```
//!
//! A [`UserSocket`] has a path, decides who may [`Connect`], and maps topics to channels.
//! [`asynchronous`] has channels whose handlers may wait, [`supabase`] those of Supabase's clients,
//! and [`declared`] makes user sockets from a configuration file. Hidden fields and functions are
//! for `simurgh`, which serves them.

pub mod asynchronous;
mod connect;
pub mod declared;
#[cfg(feature = "hooks")]
pub mod hooks;
mod identity;
mod ids;
mod off_shard;
mod panics;
mod shape;
mod socket;
pub mod supabase;
#[cfg(feature = "token")]
pub mod token;

pub use connect::{Connect, ConnectFn, ConnectInfo, ConnectKind, Transport, address_key};
#[doc(hidden)]
pub use identity::{Regrant, identity_of, limits_of, user_in, user_of, void_grants};
pub use off_shard::{OffShard, enter_shard};
pub use panics::log_panic;
pub use shape::{Misfit, PayloadShape};
pub use socket::{ChannelRoute, LongPoll, Parts, UserSocket};
#[doc(hidden)]
pub use socket::{InterestFn, SHORT_TEXT_BYTES};
