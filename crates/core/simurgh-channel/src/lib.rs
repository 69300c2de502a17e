//! Channels, the settings of a server, and the messages between shards and threads.
//!
//! An application writes a [`ShardChannel`] and its [`Join`] function; callbacks act by their
//! [`ShardContext`]. A server declares a [`UserSocket`] with its routes and limits, and a
//! [`Config`]. A shard reaches its node by the trait [`Node`], and other threads send it [`Mail`].
//! All of it is plain data and traits; `simurgh-core` is the shard that acts on it. Public fields
//! without documentation are for that crate.
//!
//! # Features
//!
//! None is on by default. `std` brings `guarded`, which shards need.
#![cfg_attr(not(test), no_std)]

extern crate alloc;
#[cfg(feature = "std")]
extern crate std;

mod broadcast;
mod channel;
mod clock;
mod cluster;
mod config;
mod context;
mod flow;
#[cfg(feature = "std")]
mod guard;
mod handle;
mod history;
mod id;
mod limit;
mod listener;
mod mail;
mod mailboxes;
pub mod metrics;
mod node;
mod node_handle;
mod outcome;
mod permits;
mod presence;
mod presences;
mod publisher;
mod takeover;
mod user_socket;
mod watch;

pub use broadcast::*;
pub use channel::*;
pub use clock::*;
pub use cluster::*;
pub use config::*;
pub use context::*;
pub use flow::*;
#[cfg(feature = "std")]
pub use guard::guarded;
pub use handle::ChannelHandle;
pub use history::engine::{self, FromEngine, KeptItem, NotKept, StoreRequest};
pub use history::*;
pub use id::*;
pub use limit::*;
pub use listener::*;
pub use mail::*;
pub use mailboxes::*;
pub use node::*;
pub use node_handle::*;
pub use outcome::*;
pub use permits::*;
pub use presence::*;
pub use presences::*;
pub use publisher::*;
pub use takeover::*;
pub use user_socket::*;
pub use watch::*;
