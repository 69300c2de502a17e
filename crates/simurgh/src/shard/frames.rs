//! From bytes to WebSocket messages, and what the protocol itself answers: pongs, closes, errors.

use std::borrow::Cow;

use simurgh_proto::serializer::Frame;
use simurgh_proto::ws::{self, CloseCode, Event, FrameError, OpCode, Role};
use simurgh_reactor::Key;

use super::conn::{Passing, Phase, Wire};
use super::decision::TEXT_BYTES_MAX;
use super::{Io, Shard};

impl Shard {
    /// Handles the messages in `data`; what is incomplete stays with the decoder.
    pub(crate) fn frames(&mut self, io: &mut Io, key: Key, data: &mut [u8]) {
        let ticks = io.now().tick;
        let Some(conn) = io.conn_ref(key) else { return };
        let own = self.hub.mounts.get(usize::from(conn.mount)).and_then(|mount| mount.limits);
        let mut limits = own.unwrap_or(self.hub.config.limits);
        // What could not be passed on is not taken.
        limits.message_bytes_max = limits.message_bytes_max.min(self.hub.broadcast_bytes_max());
        let mut rest = data;
        loop {
            let Some(conn) = io.conn(key) else { return };
            match conn.phase {
                Phase::Open => conn.last_heard = ticks,
                Phase::Closing => {}
                Phase::Pending => return self.stash(io, key, rest),
                Phase::Head | Phase::Full | Phase::Ending => return,
            }
            let is_open = conn.phase == Phase::Open;
            let mut decoder = std::mem::take(&mut conn.decoder);
            let event = decoder.next(Role::Server, &limits, &mut rest);
            if let Some(conn) = io.conn(key) {
                conn.decoder = decoder;
            }
            match event {
                Ok(None) => return,
                Ok(Some(Event::Close(frame))) => {
                    let code = frame.map(|frame| frame.code);
                    return self.peer_closes(io, key, code, is_open);
                }
                // While our close waits for its answer nothing else is listened to.
                Ok(Some(_)) if !is_open => {}
                Ok(Some(Event::Text(text))) => {
                    self.inbound.is_whole = true;
                    self.text(io, key, text);
                }
                Ok(Some(Event::Binary(data))) => {
                    self.inbound.is_whole = true;
                    self.message(io, key, Frame::Binary(&data));
                }
                Ok(Some(Event::Ping(payload))) => {
                    io.send_with(key, |out| ws::encode(OpCode::Pong, &payload, None, out));
                }
                Ok(Some(Event::Pong(_))) => {}
                Err(error) => return self.frame_error(io, key, error),
            }
        }
    }

    /// A text: read here, or elsewhere if it is long.
    fn text(&mut self, io: &mut Io, key: Key, text: Cow<'_, str>) {
        let Some(wire) = io.conn_ref(key).map(|conn| conn.wire) else { return };
        match wire.serializer().filter(|_| text.len() > TEXT_BYTES_MAX) {
            Some(serializer) => {
                self.count_message(key);
                self.read_elsewhere(io, key, serializer, text.into_owned());
            }
            None => self.message(io, key, Frame::Text(&text)),
        }
    }

    /// Keeps what came behind something that is awaited. The socket is held, so this is at most
    /// what one read brought.
    pub(super) fn stash(&mut self, io: &mut Io, key: Key, data: &[u8]) {
        let Some(conn) = io.conn(key) else { return };
        if let Some(Passing::Waiting(waiting)) = conn.passing.as_deref_mut() {
            waiting.stash.extend_from_slice(data);
        }
    }

    /// The client closes, or answers our close.
    pub(super) fn peer_closes(
        &mut self,
        io: &mut Io,
        key: Key,
        code: Option<CloseCode>,
        is_open: bool,
    ) {
        if is_open {
            self.end_channels(io, key);
            self.say_close(io, key, code, "");
        }
        io.close(key);
    }

    /// Tells a socket that it is closed.
    pub(super) fn say_close(
        &mut self,
        io: &mut Io,
        key: Key,
        code: Option<CloseCode>,
        reason: &str,
    ) {
        let Some(conn) = io.conn_ref(key) else { return };
        if conn.wire == Wire::Values {
            let driver = conn.driver;
            return self.hand_out_close(driver, key, code);
        }
        io.send_with(key, |out| match code {
            Some(code) => ws::encode_close(code, reason, None, out),
            None => ws::encode(OpCode::Close, &[], None, out),
        });
    }

    fn frame_error(&mut self, io: &mut Io, key: Key, error: FrameError) {
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
