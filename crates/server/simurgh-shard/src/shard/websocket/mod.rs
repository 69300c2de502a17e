//! WebSockets of clients: from a connection's first bytes to messages for the shard's core, and
//! what the protocol itself answers.
//!
//! Before the upgrade bytes belong to `upgrade`; afterwards `frames` takes messages from them,
//! `inbound` keeps count of those that are not whole, and what has to be waited for is in
//! `waiting`.

mod frames;
mod inbound;
mod upgrade;
mod waiting;

pub(crate) use inbound::Inbound;
pub(crate) use upgrade::{check, client};
pub use waiting::{Long, TEXT_BYTES_MAX, receive};
