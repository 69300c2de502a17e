//! From bytes to WebSocket messages, and the protocol's own answers: pongs and errors.

use std::borrow::Cow;

use simurgh_core::{Phase, Received};
use simurgh_proto::serializer::{Frame, Serializer};
use simurgh_proto::ws::{self, CloseCode, Compressed, Event, FrameError, OpCode, Role};
use simurgh_reactor::{Key, Slice};
use simurgh_socket::SHORT_TEXT_BYTES;

use super::unfinished::is_costly;
use super::waiting::Long;
use crate::shard::{Io, Shard};

/// Longer binary frames are decoded outside the shard.
const BINARY_BYTES_MAX: usize = 64 << 10;
/// Longer compressed messages are inflated outside the shard: a byte of them may take 100 ns.
const COMPRESSED_BYTES_MAX: usize = 16 << 10;
/// The same for messages that become longer.
const INFLATED_BYTES_MAX: usize = 64 << 10;

impl Shard {
    /// Handles the messages in `data`; the decoder keeps an incomplete one.
    pub(crate) fn frames(&mut self, io: &mut Io, key: Key, data: &mut [u8]) {
        let ticks = io.now().tick;
        let own = self.user_socket(io, key).and_then(|user_socket| user_socket.parts().limits);
        let mut limits = own.unwrap_or(self.server.config.limits);
        // A message that could not be broadcast is too large.
        limits.message_bytes_max =
            limits.message_bytes_max.min(self.server.limits.broadcast_bytes_max());
        let (mut rest, mut slice) = (data, Slice::default());
        loop {
            let Some(conn) = io.conn(key) else { return };
            let phase = conn.socket.phase();
            match phase {
                Phase::Open => conn.socket.heard(ticks),
                Phase::Closing => {}
                Phase::Connecting | Phase::Waiting => return self.stash(io, key, rest),
                Phase::Head | Phase::Full | Phase::Relay | Phase::Ending => return,
            }
            let is_open = phase == Phase::Open;
            let mut is_worth_a_look = false;
            let has_deflate = conn.socket.wire().has_deflate();
            let mut decoder = std::mem::take(&mut conn.decoder);
            let event = decoder.next_with_deflate(Role::Server, &limits, has_deflate, &mut rest);
            if let Some(conn) = io.conn(key) {
                conn.decoder = decoder;
            }
            match event {
                Ok(None) => return,
                Ok(Some(Event::Close(frame))) => {
                    let (core, mut out) = self.parts(io);
                    return core.peer_closed(&mut out, key, frame.map(|frame| frame.code));
                }
                // While our close waits for its answer, messages are ignored.
                Ok(Some(_)) if !is_open => {}
                Ok(Some(Event::Text(text))) => {
                    self.inbound.is_whole = true;
                    is_worth_a_look |= is_costly(text.len());
                    // Without a look at the user socket.
                    if text.len() <= SHORT_TEXT_BYTES {
                        self.message(io, key, Frame::Text(&text));
                    } else {
                        self.text(io, key, text);
                    }
                }
                Ok(Some(Event::Binary(data))) => {
                    self.inbound.is_whole = true;
                    is_worth_a_look |= is_costly(data.len());
                    self.message(io, key, Frame::Binary(&data));
                }
                Ok(Some(Event::Ping(payload))) => {
                    io.send_with(key, |out| ws::encode(OpCode::Pong, &payload, None, out));
                }
                Ok(Some(Event::Pong(_))) => {}
                Ok(Some(Event::Compressed(message))) => {
                    self.inbound.is_whole = true;
                    is_worth_a_look = true;
                    let done = self.compressed(io, key, message, limits.message_bytes_max);
                    if let Err(error) = done {
                        return self.frame_error(io, key, error);
                    }
                }
                Err(error) => return self.frame_error(io, key, error),
            }
            is_worth_a_look |= !rest.is_empty();
            if is_worth_a_look && io.is_over(&mut slice) && !rest.is_empty() {
                return self.finish_later(io, key, rest);
            }
        }
    }

    /// A compressed message; if inflating takes long, another thread does it.
    #[cold]
    fn compressed(
        &mut self,
        io: &mut Io,
        key: Key,
        message: Compressed<'_>,
        bytes_max: usize,
    ) -> Result<(), FrameError> {
        let bytes = message.payload().len();
        let short_max = bytes_max.min(INFLATED_BYTES_MAX);
        if bytes <= COMPRESSED_BYTES_MAX {
            let inflated = message.inflate(self.inflater.get_or_insert_default(), short_max);
            if inflated != Err(FrameError::MessageTooBig) || short_max == bytes_max {
                return self.inflated(io, key, bytes, inflated);
            }
        }
        self.inflate_elsewhere(io, key, message.into_owned(), bytes_max);
        Ok(())
    }

    /// A message that had this many bytes compressed.
    pub(super) fn inflated(
        &mut self,
        io: &mut Io,
        key: Key,
        bytes: usize,
        inflated: Result<Event<'_>, FrameError>,
    ) -> Result<(), FrameError> {
        let event = inflated?;
        let inflated_bytes = match &event {
            Event::Text(text) => text.len(),
            Event::Binary(data) => data.len(),
            _ => return Ok(()),
        };
        self.metrics.inflated_messages.add(1);
        self.metrics.inflated_in_bytes.add(bytes as u64);
        self.metrics.inflated_out_bytes.add(inflated_bytes as u64);
        match event {
            Event::Text(text) => self.text(io, key, text),
            Event::Binary(data) => self.message(io, key, Frame::Binary(&data)),
            _ => {}
        }
        Ok(())
    }

    /// A text: decoded here, or outside the shard if it is long.
    pub(super) fn text(&mut self, io: &mut Io, key: Key, text: Cow<'_, str>) {
        let Some(wire) = io.conn_ref(key).map(|conn| conn.socket.wire()) else { return };
        let is_long = text.len() > SHORT_TEXT_BYTES
            && self.user_socket(io, key).is_some_and(|own| text.len() > own.text_bytes_max());
        match wire.serializer().filter(|_| is_long) {
            Some(serializer) => {
                self.count_message(key);
                self.read_elsewhere(io, key, serializer, Long::Text(text.into_owned()));
            }
            None => self.message(io, key, Frame::Text(&text)),
        }
    }

    pub(super) fn message(&mut self, io: &mut Io, key: Key, frame: Frame<'_>) {
        self.count_message(key);
        let Some(wire) = io.conn_ref(key).map(|conn| conn.socket.wire()) else { return };
        match wire.serializer() {
            Some(serializer) => match serializer.decode(frame) {
                Ok(message) => self.received(io, key, Some(Received::from(message))),
                Err(_) => self.not_phoenix(io, key, serializer, frame),
            },
            None => {
                let (core, mut out) = self.parts(io);
                core.plain_message(&mut out, key, frame);
            }
        }
    }

    /// A message that is not Phoenix's may be Supabase's, where those are accepted.
    #[inline(never)]
    fn not_phoenix(&mut self, io: &mut Io, key: Key, serializer: Serializer, frame: Frame<'_>) {
        let user_socket = self.user_socket(io, key).filter(|it| it.speaks_supabase());
        match (frame, user_socket) {
            // Its data is JSON that has to be parsed.
            (Frame::Binary(data), Some(_)) if data.len() > BINARY_BYTES_MAX => {
                self.read_elsewhere(io, key, serializer, Long::Binary(data.to_vec()));
            }
            (Frame::Binary(_), Some(user_socket)) => {
                let message = user_socket.decode(serializer, frame);
                self.received(io, key, message.map(Received::from));
            }
            _ => self.received(io, key, None),
        }
    }

    /// Handles a decoded message; closes the socket if it is malformed.
    #[inline]
    pub(crate) fn received(&mut self, io: &mut Io, key: Key, received: Option<Received<'_>>) {
        match received {
            Some(received) => {
                let (core, mut out) = self.parts(io);
                core.message(&mut out, key, received);
            }
            None => {
                self.metrics.errors_bad_message.add(1);
                self.fail(io, key, CloseCode::INTERNAL);
            }
        }
    }

    /// Counts a message of a client; per connection only during observation.
    #[inline(always)]
    pub(crate) fn count_message(&mut self, key: Key) {
        self.metrics.messages_in.add(1);
        if let Some(observed) = &mut self.observed {
            observed.count(key);
        }
    }

    pub(super) fn frame_error(&mut self, io: &mut Io, key: Key, error: FrameError) {
        let code = error.close_code();
        let counter = match code {
            CloseCode::TOO_BIG => &self.metrics.errors_too_big,
            CloseCode::INVALID_DATA => &self.metrics.errors_utf8,
            _ => &self.metrics.errors_protocol,
        };
        counter.add(1);
        self.fail(io, key, code);
    }
}
