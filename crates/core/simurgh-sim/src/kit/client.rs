//! Clients' ends of connections: what they read and write.

use simurgh_core::Wire;
use simurgh_data::Key;
use simurgh_proto::message::Payload;
use simurgh_proto::serializer::{Frame, ServerMessage};
use simurgh_proto::ws::{CloseFrame, Decoder, Event, FrameLimits, Role};

/// A client's end of a connection.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) slot: usize,
    /// The number of its node's start, among all starts.
    pub(crate) start: usize,
    pub(crate) shard: usize,
    pub(crate) key: Key,
    /// Its number among all connections.
    pub(crate) number: u32,
    pub(crate) decoder: Decoder,
    pub(crate) wire: Wire,
    /// The ref of its last message.
    pub(crate) refs: u32,
    /// How many messages with refs outside its session it has sent.
    pub(crate) odd: u32,
    /// When its long-poll session was last polled; `None` for other connections.
    pub(crate) polled_ns: Option<u64>,
}

/// What a client reads.
#[derive(Debug)]
pub(crate) enum Read<'a> {
    Message(ServerMessage<'a>),
    /// A message without a serializer.
    Plain(Payload<'a>),
    Close(Option<CloseFrame<'a>>),
    Wrong(String),
}

/// Reads all messages in bytes of a server.
pub(crate) fn read(
    decoder: &mut Decoder,
    wire: Wire,
    mut bytes: &mut [u8],
    mut with: impl FnMut(Read<'_>),
) {
    loop {
        let event = match decoder.next(Role::Client, &FrameLimits::default(), &mut bytes) {
            Ok(Some(event)) => event,
            Ok(None) => return,
            Err(error) => return with(Read::Wrong(format!("{error:?}"))),
        };
        let frame = match &event {
            Event::Text(text) => Frame::Text(text),
            Event::Binary(data) => Frame::Binary(data),
            Event::Close(_) => {
                let Event::Close(frame) = event else { return };
                with(Read::Close(frame));
                continue;
            }
            _ => continue,
        };
        with(match (wire.serializer(), frame) {
            (None, Frame::Text(text)) => Read::Plain(Payload::Json(text.into())),
            (None, Frame::Binary(data)) => Read::Plain(Payload::Binary(data.into())),
            (Some(serializer), frame) => match serializer.decode_server(frame) {
                Ok(message) => Read::Message(message),
                Err(error) => Read::Wrong(format!("{error:?}")),
            },
        });
    }
}
