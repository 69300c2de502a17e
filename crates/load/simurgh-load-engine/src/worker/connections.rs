//! Data of users' connections: decrypted, split into frames, and given to the user.

use simurgh_load_client::connection::{begin_tls, receive_tls};
use simurgh_load_client::tls::TlsError;
use simurgh_load_record::{Count, ErrorKind, Metric};
use simurgh_proto::ws::{CloseCode, Decoder, FrameLimits, Role};
use simurgh_reactor::{Closed, Key};

use super::Worker;
use super::services::{NOBODY, Net};
use crate::user::{ConnState, Input, Purpose};

const LIMITS: FrameLimits = FrameLimits { frame_bytes_max: 16 << 20, message_bytes_max: 16 << 20 };

impl Worker {
    pub(super) fn established(&mut self, io: &mut Net, key: Key) {
        let Some(u) = io.conn_ref(key).copied() else { return };
        let now_ns = io.clock_ns();
        let Some(user) = self.users.get(u) else { return };
        let Some(purpose) = user.purpose_of(key) else { return };
        let target = self.program.scenario.targets.get(user.server.place());
        let Some(target) = target else { return };
        if !target.tls {
            return self.step(io, u, now_ns, Input::Connected(purpose));
        }
        let Some(config) = &self.services.tls else { return };
        match begin_tls(io, key, config, &target.host, &mut self.services.cipher) {
            Ok(tls) => user.set_tls(purpose, tls),
            Err(error) => self.step(io, u, now_ns, Input::Failed(purpose, ErrorKind::Tls, error)),
        }
    }

    pub(super) fn bytes_in(&mut self, io: &mut Net, key: Key, data: &mut [u8]) {
        let Some(u) = io.conn_ref(key).copied() else { return };
        let received_ns = self.received_ns(io);
        let Some(user) = self.users.get(u) else { return };
        let purpose = user.purpose_of(key).filter(|purpose| *purpose != Purpose::Stored);
        let Some(purpose) = purpose else { return };
        let Some(mut tls) = user.take_tls(purpose) else {
            return self.plain_in(io, u, (key, purpose), data, received_ns);
        };
        let (mut plain, cipher) = (Vec::new(), &mut self.services.cipher);
        let was_open = tls.progress().handshake_done;
        let (is_ready, error) = receive_tls(io, key, &mut tls, data, &mut plain, cipher);
        let is_closed = tls.progress().closed;
        user.set_tls(purpose, tls);
        if is_ready {
            self.step(io, u, received_ns, Input::Connected(purpose));
        }
        if !plain.is_empty() {
            self.plain_in(io, u, (key, purpose), &mut plain, received_ns);
        }
        if let Some(error) = error
            && self.users.get(u).is_some_and(|user| user.purpose_of(key) == Some(purpose))
        {
            let kind = if was_open { ErrorKind::ConnectionReset } else { ErrorKind::Tls };
            let text = TlsError::to_string(&error);
            self.step(io, u, received_ns, Input::Failed(purpose, kind, text));
        } else if is_closed {
            // An end as with a FIN (RFC 8446 §6.1).
            self.ended(io, key, u, Closed::PeerEof);
            if let Some(place) = io.conn(key) {
                *place = NOBODY;
            }
            io.close(key);
        }
    }

    /// When the current bytes were received: by the kernel, if its stamps are enabled.
    fn received_ns(&mut self, io: &Net) -> u64 {
        let now_ns = io.clock_ns();
        if self.receive_stamps
            && let Some(stamp_ns) = io.received_at()
        {
            let error_us = now_ns.saturating_sub(stamp_ns) / 1000;
            self.services.recorder.time(Metric::StampError, error_us);
        }
        now_ns
    }

    /// A user that reads slowly on purpose is not read for a while.
    fn throttle(&mut self, io: &mut Net, u: u32, key: Key, bytes: usize) {
        if !self.program.throttled {
            return;
        }
        let Some(user) = self.users.get(u) else { return };
        let session = self.program.session_at(user.at);
        if let Some(rate) = session.and_then(|session| session.read_rate_max) {
            let pause_ns = (bytes as u64).saturating_mul(1_000_000_000) / rate.max(1);
            io.hold(key);
            self.sweeps.release_at(io.now().ns + pause_ns, key);
        }
    }

    fn plain_in(
        &mut self,
        io: &mut Net,
        u: u32,
        (key, purpose): (Key, Purpose),
        data: &mut [u8],
        received_ns: u64,
    ) {
        self.services.recorder.count(Count::BytesIn, data.len() as u64);
        if purpose != Purpose::User {
            return self.step(io, u, received_ns, Input::Bytes(purpose, data));
        }
        self.throttle(io, u, key, data.len());
        if self.is_websocket(u, key) {
            return self.frames_in(io, u, key, data, received_ns);
        }
        self.step(io, u, received_ns, Input::Bytes(purpose, data));
        self.give_polled(io, u, received_ns);
        let unread = std::mem::take(&mut self.services.unread);
        if let Some(at) = data.len().checked_sub(unread).filter(|_| self.is_websocket(u, key)) {
            self.frames_in(io, u, key, data.split_at_mut(at).1, received_ns);
        }
    }

    fn is_websocket(&mut self, u: u32, key: Key) -> bool {
        self.users.get(u).is_some_and(|user| user.key == key && user.conn.is_websocket())
    }

    fn frames_in(&mut self, io: &mut Net, u: u32, key: Key, data: &mut [u8], received_ns: u64) {
        let Some(user) = self.users.get(u) else { return };
        let mut decoder = match &mut user.extra {
            Some(extra) => std::mem::take(&mut extra.decoder),
            None => Decoder::new(),
        };
        let mut input = data;
        loop {
            match decoder.next(Role::Client, &LIMITS, &mut input) {
                Ok(Some(event)) => {
                    self.step(io, u, received_ns, Input::Event(event));
                    if self.users.get(u).is_none_or(|user| user.key != key) {
                        return;
                    }
                }
                Ok(None) => break,
                Err(error) => {
                    let kind = match error.close_code() {
                        CloseCode::TOO_BIG => ErrorKind::MessageTooLarge,
                        _ => ErrorKind::FrameError,
                    };
                    let text = error.to_string();
                    let input = Input::ProtocolError(error.close_code(), kind, text);
                    return self.step(io, u, received_ns, input);
                }
            }
        }
        if let Some(user) = self.users.get(u) {
            if decoder.in_message() {
                user.extra().decoder = decoder;
            } else {
                user.tidy();
            }
        }
    }

    /// Gives a user the messages of its poll, as long as its session lasts.
    fn give_polled(&mut self, io: &mut Net, u: u32, received_ns: u64) {
        if self.services.polled.is_empty() {
            return;
        }
        let messages = std::mem::take(&mut self.services.polled);
        let Some(key) = self.users.get(u).map(|user| user.key) else { return };
        for message in &messages {
            // A message may end the session.
            let user = self.users.get(u);
            if user.is_none_or(|user| user.conn != ConnState::Poll || user.key != key) {
                return;
            }
            self.step(io, u, received_ns, Input::Polled(message));
        }
    }

    pub(super) fn ended(&mut self, io: &mut Net, key: Key, u: u32, why: Closed) {
        let kind = match why {
            Closed::Unconnected(kind) => ErrorKind::of_unconnected(kind),
            Closed::Slow => ErrorKind::SendStalled,
            Closed::Reset(_) => ErrorKind::ConnectionReset,
            Closed::PeerEof | Closed::Local => ErrorKind::EndOfStream,
        };
        let now_ns = io.clock_ns();
        let Some(user) = self.users.get(u) else { return };
        let Some(purpose) = user.purpose_of(key) else { return };
        let in_handshake = !matches!(why, Closed::Unconnected(_));
        self.step(io, u, now_ns, Input::Ended { purpose, kind, in_handshake });
        self.give_polled(io, u, now_ns);
    }
}
