//! `/echo`: a plain WebSocket without channels on it, for tests of the WebSocket itself.

use simurgh::{Channel, Context, Join, Limits, Outcome, Payload, UserSocket};

/// Autobahn's largest messages have 16 MiB.
const MESSAGE_BYTES_MAX: usize = 16 << 20;
/// They come back while the next one is under way.
pub(crate) const OUTBOUND_BYTES_MAX: usize = 64 << 20;

/// Nobody is told what others send, so the topic all connections share is never broadcast on.
pub(crate) fn user_socket() -> UserSocket {
    UserSocket::plain("/echo", "echo", |_, _| Join::ok(Echo))
        .limits(Limits { frame_bytes_max: MESSAGE_BYTES_MAX, message_bytes_max: MESSAGE_BYTES_MAX })
}

struct Echo;

impl Channel for Echo {
    /// `event` is `text` or `binary`, and goes back as what it was.
    fn handle_in(&mut self, _: &mut Context<'_>, _event: &str, payload: Payload<'_>) -> Outcome {
        Outcome::ok(payload.into_owned())
    }
}
