//! What an application says of its sockets, as `simurgh` shows it.
//!
//! ```text
//! declared ─► socket ─► supabase ─► token ─► connect
//!                └────► asynchronous ────────► connect
//!                                    below them: shape, ids, off_shard, panics
//! ```
//!
//! A [`UserSocket`] says at which path sockets connect, who may ([`Connect`]), and which topics
//! lead to which channel. [`asynchronous`] has channels whose handlers may wait, [`supabase`] those
//! of Supabase's clients, and [`declared`] makes user sockets of what stands in a file. Hidden
//! fields and functions are for `simurgh`, which serves all of it.

pub mod asynchronous;
mod connect;
pub mod declared;
mod ids;
mod off_shard;
mod panics;
mod shape;
mod socket;
pub mod supabase;
#[cfg(feature = "token")]
pub mod token;

pub use connect::{Connect, ConnectFn, ConnectInfo, ConnectKind, Transport};
pub use off_shard::{OffShard, enter_shard};
pub use panics::log_panic;
pub use shape::PayloadShape;
pub use socket::{LongPoll, UserSocket};
