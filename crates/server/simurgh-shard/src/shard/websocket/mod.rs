//! WebSockets of clients: from a connection's first bytes to messages for the shard's core, and the
//! protocol's own answers.
//!
//! Bytes before the upgrade go to `upgrade`, later ones to `frames`, which decodes messages.
//! `inbound` bounds incomplete messages, `waiting` holds connections that have to wait, and
//! `unfinished` those with messages for which a turn had no time.

mod frames;
mod hand_off;
mod inbound;
mod unfinished;
mod upgrade;
mod waiting;

pub(crate) use hand_off::HandingOff;
pub(crate) use inbound::Inbound;
pub(crate) use unfinished::Unfinished;
pub(crate) use upgrade::{check, client};
pub use waiting::{Long, receive};
