//! WebSockets of clients: from a connection's first bytes to messages for the shard's core, and the
//! protocol's own answers.
//!
//! Bytes before the upgrade go to `upgrade`, later ones to `frames`, which decodes messages;
//! `inbound` bounds incomplete messages, and `waiting` holds connections that have to wait.

mod frames;
mod inbound;
mod upgrade;
mod waiting;

pub(crate) use inbound::Inbound;
pub(crate) use upgrade::{check, client};
pub use waiting::{Long, TEXT_BYTES_MAX, receive};
