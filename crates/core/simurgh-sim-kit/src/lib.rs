//! The common base of the simulations of whole servers: real cores in one thread, with a transport,
//! mailboxes and clocks that a seed controls.
//!
//! ```text
//!   seed ─► plan ─► operations ─► simulation ─► findings: what is wrong, what was met
//!                                    │
//!       clients ⇄ transport ⇄ cores ⇄ mailboxes ⇄ … other shards
//! ```
//!
//! A run is a list of operations, each complete by itself, so leaving some out shrinks it.

#![allow(missing_docs, reason = "not shipped: what a name says is not said again")]

pub mod client;
pub mod delivery;
pub mod fault;
pub mod findings;
pub mod handle;
pub mod node;
pub mod operation;
pub mod payload;
pub mod peer;
pub mod presence;
pub mod refs;
pub mod run;
pub mod setup;
pub mod shard;
pub mod topics;
pub mod transport;

/// No payload, channel or connection.
pub const NONE: u32 = u32::MAX;
/// Events of broadcasts; interceptors take the first, or the first two.
pub const EVENTS: [&str; 3] = ["a", "b", "c"];
