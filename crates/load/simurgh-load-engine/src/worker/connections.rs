//! Data of users' connections: split into frames, and given to the user.

use simurgh_load_client::tls;
use simurgh_load_record::{Count, ErrorKind, Metric};
use simurgh_proto::ws::{CloseCode, Decoder, Event, FrameLimits, Role};
use simurgh_reactor::{Closed, Key};

use super::Worker;
use super::services::{DEFLATE, Net};
use crate::user::{ConnState, Input, Purpose};

const LIMITS: FrameLimits = FrameLimits { frame_bytes_max: 16 << 20, message_bytes_max: 16 << 20 };

impl Worker {
    pub(super) fn established(&mut self, io: &mut Net, key: Key) {
        let Some((u, _)) = self.owner(io, key) else { return };
        let place = self.users.get(u).map_or(0, |user| user.server.place());
        let target = self.program.scenario.targets.get(place).filter(|target| target.tls);
        let (Some(target), Some(tls)) = (target, &self.services.tls) else {
            return self.usable(io, key);
        };
        if let Err(text) = tls.begin(io, key, &target.host) {
            self.failed(io, key, text);
        }
    }

    /// A connection is established, with TLS where it is used.
    pub(super) fn usable(&mut self, io: &mut Net, key: Key) {
        if let Some((u, purpose)) = self.owner(io, key) {
            self.step_now(io, u, Input::Connected(purpose));
        }
    }

    /// TLS of a connection could not be established.
    pub(super) fn failed(&mut self, io: &mut Net, key: Key, text: String) {
        if let Some((u, purpose)) = self.owner(io, key) {
            self.step_now(io, u, Input::Failed(purpose, ErrorKind::Tls, text));
        }
    }

    /// The place of a connection's user, and what the connection is for.
    fn owner(&mut self, io: &Net, key: Key) -> Option<(u32, Purpose)> {
        let u = io.conn_ref(key)?.owner & !DEFLATE;
        Some((u, self.users.get(u)?.purpose_of(key)?))
    }

    pub(super) fn bytes_in(&mut self, io: &mut Net, key: Key, data: &mut [u8]) {
        let received_ns = self.received_ns(io);
        let Some((u, purpose)) = self.owner(io, key) else { return };
        if purpose == Purpose::Stored {
            return;
        }
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

    fn is_websocket(&mut self, u: u32, key: Key) -> bool {
        self.users.get(u).is_some_and(|user| user.key == key && user.conn.is_websocket())
    }

    fn frames_in(&mut self, io: &mut Net, u: u32, key: Key, data: &mut [u8], received_ns: u64) {
        let Some(user) = self.users.get(u) else { return };
        let mut decoder = match user.extra_mut() {
            Some(extra) => std::mem::take(&mut extra.decoder),
            None => Decoder::new(),
        };
        let has_deflate = io.conn_ref(key).is_some_and(|conn| conn.owner & DEFLATE != 0);
        let mut input = data;
        loop {
            let event = decoder.next_with_deflate(Role::Client, &LIMITS, has_deflate, &mut input);
            let event = match event {
                Ok(Some(Event::Compressed(message))) => {
                    let inflater = self.services.inflater.get_or_insert_default();
                    message.inflate(inflater, LIMITS.message_bytes_max).map(Some)
                }
                event => event,
            };
            match event {
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
            Closed::Reset(_) | Closed::Alert(_) => ErrorKind::ConnectionReset,
            Closed::PeerEof | Closed::Local => ErrorKind::EndOfStream,
        };
        let now_ns = io.clock_ns();
        let Some(user) = self.users.get(u) else { return };
        let Some(purpose) = user.purpose_of(key) else { return };
        let in_handshake = !matches!(why, Closed::Unconnected(_));
        let input = match tls::fault(why).filter(|_| purpose != Purpose::Stored) {
            Some(text) => Input::Failed(purpose, kind, text),
            None => Input::Ended { purpose, kind, in_handshake },
        };
        self.step(io, u, now_ns, input);
        self.give_polled(io, u, now_ns);
    }
}
