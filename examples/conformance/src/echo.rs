//! `/echo`: a plain WebSocket without channels, for tests of the WebSocket itself.

use simurgh::{
    Compress, FrameLimits, Join, Outcome, Payload, ShardChannel, ShardContext, UserSocket,
};

/// Autobahn's largest messages have 16 MiB.
const MESSAGE_BYTES_MAX: usize = 16 << 20;
/// They are sent back while the next one is being received.
pub(crate) const OUTBOUND_BYTES_MAX: usize = 64 << 20;

/// Messages are only sent back, so the topic that all connections share is never broadcast on.
pub(crate) fn user_socket() -> UserSocket {
    let limits =
        FrameLimits { frame_bytes_max: MESSAGE_BYTES_MAX, message_bytes_max: MESSAGE_BYTES_MAX };
    UserSocket::plain("/echo", "echo", |_, _| Join::ok(Echo))
        .frame_limits(limits)
        .compress(Compress::All)
}

struct Echo;

impl ShardChannel for Echo {
    /// `event` is `text` or `binary`, and is sent back unchanged.
    fn handle_in(
        &mut self,
        _: &mut ShardContext<'_>,
        _event: &str,
        payload: Payload<'_>,
    ) -> Outcome {
        Outcome::ok(payload.into_owned())
    }
}
