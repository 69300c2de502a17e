//! Clients: their connections, and what they have sent on them.

use crate::kit::client::Connection;
use simurgh_core::Wire;

pub(crate) struct Client {
    pub(crate) connection: Option<Connection>,
    pub(crate) wire: Wire,
    /// The ref of its last message.
    pub(crate) refs: u32,
    /// How many messages with refs outside its session it has sent.
    pub(crate) odd: u32,
    /// When its long-poll session was last polled; `None` for other connections.
    pub(crate) polled_ns: Option<u64>,
}

impl Client {
    pub(crate) fn new() -> Self {
        Self { connection: None, wire: Wire::V2, refs: 0, odd: 0, polled_ns: None }
    }
}
