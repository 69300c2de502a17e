//! From bytes to WebSocket messages, and what the protocol itself answers: pongs, closes, errors.

use simurgh_proto::ws::{self, CloseCode, Event, FrameError, OpCode, Role};
use simurgh_reactor::Key;

use super::conn::{Passing, Phase, Wire};
use super::{Io, Shard};
use simurgh_proto::serializer::Frame;

impl Shard {
    /// Handles the messages in `data`; what is incomplete stays with the decoder.
    pub(crate) fn frames(&mut self, io: &mut Io, key: Key, data: &mut [u8]) {
        let ticks = io.now().tick;
        let Some(conn) = io.conn_ref(key) else { return };
        let own = self.hub.mounts.get(usize::from(conn.mount)).and_then(|mount| mount.limits);
        let limits = own.unwrap_or(self.hub.config.limits);
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
                Ok(Some(Event::Text(text))) => self.message(io, key, Frame::Text(&text)),
                Ok(Some(Event::Binary(data))) => self.message(io, key, Frame::Binary(&data)),
                Ok(Some(Event::Ping(payload))) => {
                    io.send_with(key, |out| ws::encode(OpCode::Pong, &payload, None, out));
                }
                Ok(Some(Event::Pong(_))) => {}
                Err(error) => return self.frame_error(io, key, error),
            }
        }
    }

    /// Keeps what came behind a connect or join that is still being decided. The socket is held, so
    /// this is at most what one read brought.
    pub(super) fn stash(&mut self, io: &mut Io, key: Key, data: &[u8]) {
        let Some(conn) = io.conn(key) else { return };
        match conn.passing.as_deref_mut() {
            Some(Passing::Connect(pending)) => pending.stash.extend_from_slice(data),
            Some(Passing::Join(pending)) => pending.stash.extend_from_slice(data),
            Some(Passing::Head { .. }) | None => {}
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

    /// Keeps the shard's count of half-received bytes, and its budget.
    pub(super) fn account_inbound(&mut self, io: &mut Io, key: Key, before: usize) {
        let after = io.conn(key).map_or(0, |conn| conn.inbound_bytes());
        if after == before {
            return;
        }
        self.inbound_bytes = (self.inbound_bytes + after).saturating_sub(before);
        if after > before && self.inbound_bytes > self.hub.config.inbound_budget_bytes {
            self.metrics.errors_inbound_budget.add(1);
            self.fail(io, key, CloseCode::TRY_AGAIN);
            if let Some(conn) = io.conn(key) {
                let freed = conn.inbound_bytes();
                conn.decoder = ws::Decoder::new();
                conn.passing = None;
                self.inbound_bytes = self.inbound_bytes.saturating_sub(freed);
            }
        }
        self.metrics.inbound_bytes.set(self.inbound_bytes as u64);
    }
}
