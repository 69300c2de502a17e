//! How a message is answered: one channel type for each mode.
//!
//! On a plain user socket a channel is a connection. Its messages come as event `text` or `binary`,
//! and its answers and broadcasts are sent as bare messages, without the event.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use simurgh::{CloseCode, Outcome, Payload, ShardChannel, ShardContext};

use crate::history::Keeper;

/// Sends every message to all users, also the sender.
pub(crate) struct Everybody;

impl ShardChannel for Everybody {
    fn handle_in(
        &mut self,
        ctx: &mut ShardContext<'_>,
        event: &str,
        payload: Payload<'_>,
    ) -> Outcome {
        ctx.broadcast(event, payload.into_owned());
        Outcome::NoReply
    }
}

/// Sends every message back to its sender.
pub(crate) struct Echo;

impl ShardChannel for Echo {
    fn handle_in(&mut self, _: &mut ShardContext<'_>, _: &str, payload: Payload<'_>) -> Outcome {
        Outcome::ok(payload.into_owned())
    }
}

/// Adds every message to the history, which is sent to all users.
pub(crate) struct History(pub(crate) Keeper);

impl ShardChannel for History {
    fn handle_in(&mut self, ctx: &mut ShardContext<'_>, _: &str, payload: Payload<'_>) -> Outcome {
        if self.0.keep(&payload).is_err() {
            // Messages come faster than lists can be sent. It is better to ask the sender to try
            // again later (1013) than to queue without a bound.
            ctx.close_socket(CloseCode::TRY_AGAIN);
        }
        Outcome::NoReply
    }
}

/// Counts messages, and delivers none.
pub(crate) struct Silent(pub(crate) Arc<Counts>);

/// Messages received in [`Silent`] mode, summed over all shards.
#[derive(Default)]
pub(crate) struct Counts {
    connections: AtomicU64,
    messages: AtomicU64,
    bytes: AtomicU64,
}

impl ShardChannel for Silent {
    fn after_join(&mut self, _: &mut ShardContext<'_>) {
        self.0.connections.fetch_add(1, Ordering::Relaxed);
    }

    fn handle_in(&mut self, _: &mut ShardContext<'_>, _: &str, payload: Payload<'_>) -> Outcome {
        self.0.messages.fetch_add(1, Ordering::Relaxed);
        self.0.bytes.fetch_add(payload.len() as u64, Ordering::Relaxed);
        Outcome::NoReply
    }
}

impl std::fmt::Display for Counts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let [connections, messages, bytes] =
            [&self.connections, &self.messages, &self.bytes].map(|it| it.load(Ordering::Relaxed));
        write!(f, "{connections} connections sent {messages} messages of {bytes} bytes in all")
    }
}
