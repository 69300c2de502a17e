//! A user's connection: opened, upgraded, written to, lost.

use std::rc::Rc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use simurgh_load_client::tls::{TlsClient, TlsError};
use simurgh_load_record::{Count, ErrorKind, Metric};
use simurgh_load_scenario::{Target, Template, Transport};
use simurgh_proto::session::client::Client;
use simurgh_proto::ws::{self, CloseCode, Decoder, Limits, OpCode, Role};
use simurgh_reactor::{Closed, ConnectOptions, Key};

use super::steps::Flow;
use super::user::{ConnState, NO_KEY, UserState};
use super::worker::{LINGER_NS, NOBODY, Net, Worker};

/// TLS on a user's connection.
pub(crate) type Tls = TlsClient;

/// Largest message taken: what servers send to a user.
const LIMITS: Limits = Limits { frame_bytes_max: 16 << 20, message_bytes_max: 16 << 20 };
/// How long a close waits for the server's half.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);

impl Worker {
    /// Runs a `Connect`.
    pub(crate) fn connect(&mut self, io: &mut Net, u: u32) -> Flow {
        self.let_go(io, u);
        if let Some(user) = self.users.get(u).filter(|user| !user.is_resuming()) {
            // What was joined before was left with the connection.
            user.client = Client::new(user.client.serializer());
            if let Some(extra) = &mut user.extra {
                extra.joins.clear();
            }
            user.tidy();
            self.follow_end(u, io.clock_ns());
        }
        self.open(io, u, ConnState::Connecting)
    }

    /// Opens a connection to the user's server, or to the one whose turn it is.
    pub(crate) fn open(&mut self, io: &mut Net, u: u32, link: ConnState) -> Flow {
        self.take_turn(u);
        match self.dial(io, u) {
            Ok(key) => {
                let timeout = self.program.scenario.timeouts.connect;
                if let Some(user) = self.users.get(u) {
                    user.conn = key;
                    user.link = link;
                }
                self.wait_until(io, u, UserState::Opening, Some(timeout))
            }
            Err((kind, text)) => {
                self.fail(io, u, kind, || text);
                Flow::Wait
            }
        }
    }

    /// Begins a connection to the user's server.
    pub(super) fn dial(&mut self, io: &mut Net, u: u32) -> Result<Key, (ErrorKind, String)> {
        let program = Rc::clone(&self.program);
        let scenario = &program.scenario;
        let index = self.users.get(u).map_or(0, |user| user.aim.index());
        let Some(target) = scenario.targets.get(usize::from(index)) else {
            return Err((ErrorKind::Internal, "there is no such server".to_owned()));
        };
        self.recorder.count(Count::ConnectsTried, 1);
        self.recorder.at(index).connects_tried += 1;
        let how = ConnectOptions {
            receive_buffer_bytes: scenario.sources.receive_buffer_bytes,
            send_buffer_bytes: scenario.sources.send_buffer_bytes,
            ..ConnectOptions::default()
        };
        let dialled = self.sources.connect(io, target.address, how, u);
        dialled.map_err(|error| (ErrorKind::of_connect(&error), error.to_string()))
    }

    /// The TCP connection is there.
    pub(crate) fn link_up(&mut self, io: &mut Net, key: Key) {
        let Some(u) = io.conn(key).copied() else { return };
        let program = Rc::clone(&self.program);
        let Some(user) = self.users.get(u) else { return };
        if user.conn != key {
            return self.post_link_up(io, u, key);
        }
        let Some(target) = program.scenario.targets.get(user.aim.place()) else { return };
        if !target.tls {
            return self.ready(io, u);
        }
        let Some(config) = &self.tls else { return };
        let mut out = Vec::new();
        match TlsClient::begin(config, &target.host, &mut out) {
            Ok(tls) => {
                user.extra().tls = Some(Box::new(tls));
                io.send(key, &out);
            }
            Err(error) => self.fail(io, u, ErrorKind::Tls, || error),
        }
    }

    /// The connection can be used.
    fn ready(&mut self, io: &mut Net, u: u32) {
        let now_ns = io.clock_ns();
        let Some(user) = self.users.get(u) else { return };
        let (link, since_us) = (user.link, user.since_us);
        // A session that goes on has other steps under way than its connect.
        let since_us = match link {
            ConnState::Poll => self.poll_since_us(u).unwrap_or(since_us),
            _ => since_us,
        };
        let took_us = Self::elapsed_us(since_us, now_ns);
        self.recorder.time(Metric::Connect, took_us);
        self.connection_made(u);
        let polls = self.polls(u);
        let Some(user) = self.users.get(u) else { return };
        if !user.is_resuming()
            && let Some(extra) = &mut user.extra
        {
            extra.attempts = 0;
        }
        match link {
            ConnState::Connecting if polls => self.open_session(io, u),
            ConnState::Connecting => self.send_upgrade(io, u),
            ConnState::Poll => self.send_poll(io, u),
            ConnState::ConnectingHttp => {
                user.link = ConnState::Http;
                self.count_in(u);
                self.send_request(io, u);
            }
            ConnState::ConnectingRaw => {
                user.link = ConnState::Raw;
                user.since_us = Self::us(now_ns);
                self.count_in(u);
                self.advance(io, u);
            }
            _ => {}
        }
    }

    /// Writes bytes to the user's connection, encrypted where it is.
    pub(crate) fn put(&mut self, io: &mut Net, u: u32, bytes: &[u8]) {
        let Some(user) = self.users.get(u) else { return };
        let key = user.conn;
        self.recorder.count(Count::BytesOut, bytes.len() as u64);
        match user.extra.as_mut().and_then(|extra| extra.tls.as_mut()) {
            None => io.send(key, bytes),
            Some(tls) => {
                let mut cipher = Vec::new();
                // An error means that the connection is over, which its end will tell.
                if tls.send(bytes, &mut cipher).is_ok() {
                    io.send(key, &cipher);
                }
            }
        }
    }

    /// Sends one WebSocket frame.
    pub(crate) fn put_frame(&mut self, io: &mut Net, u: u32, opcode: OpCode, payload: &[u8]) {
        let mask = Some(self.mask.u32(..).to_ne_bytes());
        let Some(user) = self.users.get(u) else { return };
        if io.conn_ref(user.conn).is_none() {
            // Gone within this turn, which is told at its end.
            return;
        }
        match opcode {
            OpCode::Text => self.recorder.count(Count::FramesOutText, 1),
            OpCode::Binary => self.recorder.count(Count::FramesOutBinary, 1),
            _ => {}
        }
        if user.extra.as_ref().is_none_or(|extra| extra.tls.is_none()) {
            let written = io.write_with(user.conn, |_, out| {
                let before = out.len();
                ws::encode(opcode, payload, mask, out);
                out.len() - before
            });
            self.recorder.count(Count::BytesOut, written.unwrap_or(0) as u64);
            return;
        }
        let mut frame = std::mem::take(&mut self.frame);
        frame.clear();
        ws::encode(opcode, payload, mask, &mut frame);
        self.put(io, u, &frame);
        self.frame = frame;
    }

    /// Sends what a template comes to as one message; `false` if the user's connection is lost by
    /// that.
    pub(crate) fn send_rendered(
        &mut self,
        io: &mut Net,
        u: u32,
        opcode: OpCode,
        data: &Template,
    ) -> bool {
        let mut payload = std::mem::take(&mut self.scratch);
        payload.clear();
        self.render(io, u, data, &mut payload);
        self.dump_bytes(u, true, &payload);
        let is_there = self.put_message(io, u, opcode, &payload);
        self.scratch = payload;
        is_there
    }

    /// Appends what a template comes to; a stamp in it is taken down as sent.
    pub(crate) fn render(&mut self, io: &mut Net, u: u32, data: &Template, out: &mut Vec<u8>) {
        let sent_ns = self.run_ns(io.clock_ns());
        let before = self.maker.stamps;
        self.maker.now_ns = sent_ns;
        let Some(user) = self.users.get(u) else { return };
        self.maker.render(user, data, out);
        for number in before..self.maker.stamps {
            self.recorder.published(user.id, number, sent_ns, 0);
        }
    }

    /// Bytes have come.
    pub(crate) fn bytes_in(&mut self, io: &mut Net, key: Key, data: &mut [u8]) {
        let Some(u) = io.conn(key).copied() else { return };
        let received_ns = self.received_ns(io);
        let Some(user) = self.users.get(u) else { return };
        if user.conn != key {
            return self.post_bytes_in(io, u, key, data);
        }
        let Some(mut tls) = user.extra.as_mut().and_then(|extra| extra.tls.take()) else {
            self.recorder.count(Count::BytesIn, data.len() as u64);
            self.throttle(io, u, key, data.len());
            return self.plain_in(io, u, key, data, received_ns);
        };
        let (mut plain, mut out) = (Vec::new(), Vec::new());
        let was_open = tls.progress().handshake_done;
        let outcome = tls.receive(data, &mut plain, &mut out);
        user.extra().tls = Some(tls);
        if !out.is_empty() {
            io.send(key, &out);
        }
        let is_open = matches!(&outcome, Ok(progress) if progress.handshake_done);
        if is_open && !was_open {
            self.ready(io, u);
        }
        if !plain.is_empty() {
            self.recorder.count(Count::BytesIn, plain.len() as u64);
            self.throttle(io, u, key, plain.len());
            self.plain_in(io, u, key, &mut plain, received_ns);
        }
        if let Err(error) = outcome
            && self.users.get(u).is_some_and(|user| user.conn == key)
        {
            let text = || TlsError::to_string(&error);
            match self.users.get(u).map(|user| user.link) {
                _ if !was_open => self.fail(io, u, ErrorKind::Tls, text),
                Some(ConnState::WebSocket | ConnState::WebSocketClosing | ConnState::Poll) => {
                    self.lost(io, u, Some(ErrorKind::ConnectionReset), text);
                }
                _ => self.fail(io, u, ErrorKind::ConnectionReset, text),
            }
        }
    }

    /// When the bytes at hand were received: by the kernel, if it says so.
    fn received_ns(&mut self, io: &Net) -> u64 {
        let now_ns = io.clock_ns();
        if self.receive_stamps
            && let Some(stamp_ns) = io.received_at()
        {
            self.recorder.time(Metric::StampError, now_ns.saturating_sub(stamp_ns) / 1000);
        }
        now_ns
    }

    /// A user that reads slowly on purpose does not read again for a while.
    fn throttle(&mut self, io: &mut Net, u: u32, key: Key, bytes: usize) {
        if !self.program.throttled {
            return;
        }
        let program = Rc::clone(&self.program);
        let Some(user) = self.users.get(u) else { return };
        let session = program.session_at(user.at);
        if let Some(rate) = session.and_then(|session| session.read_rate_max) {
            let pause_ns = (bytes as u64).saturating_mul(1_000_000_000) / rate.max(1);
            io.hold(key);
            self.sweeps.release_at(io.now().ns + pause_ns, key);
        }
    }

    /// Bytes have come, as plain as they will get.
    pub(super) fn plain_in(
        &mut self,
        io: &mut Net,
        u: u32,
        key: Key,
        data: &mut [u8],
        received_ns: u64,
    ) {
        match self.users.get(u).map(|user| user.link) {
            Some(ConnState::Upgrading) => self.upgrade_in(io, u, key, data, received_ns),
            Some(ConnState::WebSocket | ConnState::WebSocketClosing) => {
                self.frames_in(io, u, key, data, received_ns);
            }
            Some(ConnState::PollOpening | ConnState::Poll) => {
                self.poll_in(io, u, data, received_ns)
            }
            Some(ConnState::Http) => self.http_in(io, u, key, data),
            Some(ConnState::Raw) => self.raw_in(io, u, data, received_ns),
            _ => {}
        }
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
                    self.event_in(io, u, event, received_ns);
                    if self.users.get(u).is_none_or(|user| user.conn != key) {
                        return;
                    }
                }
                Ok(None) => break,
                Err(error) => {
                    let mut close = Vec::new();
                    let mask = Some(self.mask.u32(..).to_ne_bytes());
                    ws::encode_close(error.close_code(), "", mask, &mut close);
                    self.put(io, u, &close);
                    if let Some(user) = self.users.get(u) {
                        // No second close is sent.
                        user.link = ConnState::WebSocketClosing;
                    }
                    let kind = match error.close_code() {
                        CloseCode::TOO_BIG => ErrorKind::MessageTooLarge,
                        _ => ErrorKind::FrameError,
                    };
                    return self.lost(io, u, Some(kind), || error.to_string());
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

    /// A connection has ended by itself.
    pub(crate) fn link_down(&mut self, io: &mut Net, key: Key, u: u32, why: Closed) {
        let Some(user) = self.users.get(u) else { return };
        if user.conn != key {
            let stored = user.extra.as_mut().map(|extra| &mut extra.stored);
            if let Some(stored) = stored
                && let Some(aside) = stored.take_if(|aside| aside.conn == key)
            {
                self.count_out(aside.target);
            }
            return self.post_down(io, u, key, why);
        }
        let (link, state) = (user.link, user.state);
        // A plain connection leaves this state as soon as it is up.
        let in_handshake = !matches!(why, Closed::Unconnected(_));
        let kind = closed_kind(why);
        if matches!(link, ConnState::PollOpening | ConnState::Poll) {
            return self.poll_down(io, u, kind);
        }
        self.forget_link(u);
        match link {
            ConnState::None | ConnState::PollOpening | ConnState::Poll => {}
            ConnState::Connecting | ConnState::ConnectingHttp | ConnState::ConnectingRaw
                if in_handshake =>
            {
                let text = || format!("{kind} in the handshake");
                self.fail(io, u, ErrorKind::Tls, text);
            }
            ConnState::Connecting
            | ConnState::ConnectingHttp
            | ConnState::ConnectingRaw
            | ConnState::Upgrading => {
                self.fail(io, u, kind, String::new);
            }
            ConnState::WebSocket => self.lost(io, u, Some(kind), String::new),
            ConnState::WebSocketClosing if state == UserState::Closing => self.done(io, u),
            ConnState::WebSocketClosing => self.lost(io, u, None, String::new),
            ConnState::Http => self.http_end(io, u, kind),
            ConnState::Raw => {
                let waits = matches!(
                    state,
                    UserState::AwaitFirst | UserState::AwaitMatch | UserState::AwaitServer
                );
                if waits {
                    self.fail(io, u, kind, String::new);
                }
            }
        }
    }

    /// The user's connection is gone: what is known of it goes too.
    pub(super) fn forget_link(&mut self, u: u32) {
        let Some(user) = self.users.get(u) else { return };
        let link = std::mem::replace(&mut user.link, ConnState::None);
        let key = std::mem::replace(&mut user.conn, NO_KEY);
        let target = user.aim.index();
        match link {
            ConnState::WebSocket
            | ConnState::WebSocketClosing
            | ConnState::Http
            | ConnState::Raw => {
                self.count_out(target);
            }
            ConnState::Upgrading => self.recorder.count(Count::Disconnects, 1),
            ConnState::PollOpening | ConnState::Poll => {
                // Its session may be without a connection, or have one that is not there yet.
                let is_up = self.poller(u).is_some_and(|poller| poller.is_connected());
                self.recorder.count(Count::Disconnects, u64::from(is_up && key != NO_KEY));
                if link == ConnState::Poll {
                    self.connected = self.connected.saturating_sub(1);
                    self.recorder.at(target).disconnected();
                }
            }
            ConnState::None
            | ConnState::Connecting
            | ConnState::ConnectingHttp
            | ConnState::ConnectingRaw => {}
        }
        let Some(user) = self.users.get(u) else { return };
        if let Some(extra) = &mut user.extra {
            extra.tls = None;
            extra.decoder = Decoder::new();
            extra.head = Vec::new();
            extra.kept.clear();
            extra.lists.clear();
            if let Some(positions) = &mut extra.positions {
                positions.forget_next();
            }
        }
        user.tidy();
    }

    /// Whether the user's session is one of long polling.
    fn polls(&mut self, u: u32) -> bool {
        let Some(user) = self.users.get(u) else { return false };
        let session = self.program.session_at(user.at);
        session.is_some_and(|session| session.transport == Transport::LongPoll)
    }

    /// Ends the connection that was laid aside, if there is one.
    pub(crate) fn drop_stored(&mut self, io: &mut Net, u: u32) {
        let Some(user) = self.users.get(u) else { return };
        let Some(aside) = user.extra.as_mut().and_then(|extra| extra.stored.take()) else { return };
        user.tidy();
        if let Some(conn) = io.conn(aside.conn) {
            *conn = NOBODY;
        }
        self.count_out(aside.target);
        io.close(aside.conn);
    }

    /// Ends the user's connection, if there is one, in good order; what is laid aside stays.
    pub(crate) fn let_go(&mut self, io: &mut Net, u: u32) {
        let Some(user) = self.users.get(u) else { return };
        let (key, link) = (user.conn, user.link);
        if key == NO_KEY {
            return self.end_session(io, u);
        }
        if link == ConnState::WebSocket {
            self.put_close(io, u, CloseCode::NORMAL.0);
        }
        let is_up = self.poller(u).is_none_or(|poller| poller.is_connected());
        self.forget_link(u);
        self.end_session(io, u);
        if let Some(conn) = io.conn(key) {
            *conn = NOBODY;
        }
        match link {
            ConnState::Connecting | ConnState::ConnectingHttp | ConnState::ConnectingRaw => {
                io.abort(key)
            }
            ConnState::Poll if !is_up => io.abort(key),
            ConnState::WebSocket | ConnState::WebSocketClosing => {
                // The server closes first (RFC 6455 §7.1.1). Closed from here, what it still sends
                // would be answered by a reset, which takes away what it has not read of ours.
                io.release(key);
                self.leaving.push_back((io.clock_ns() + LINGER_NS, key));
            }
            _ => io.close(key),
        }
    }

    /// Closes connections whose servers have not done so in time.
    pub(crate) fn close_left(&mut self, io: &mut Net) {
        while let Some((due_ns, key)) = self.leaving.front().copied() {
            // Most have ended long before, and are dropped here for it.
            if due_ns > io.now().ns && io.conn_ref(key).is_some() {
                return;
            }
            self.leaving.pop_front();
            io.close(key);
        }
    }

    fn put_close(&mut self, io: &mut Net, u: u32, code: u16) {
        let mut close = Vec::new();
        let mask = Some(self.mask.u32(..).to_ne_bytes());
        ws::encode_close(CloseCode(code), "", mask, &mut close);
        self.put(io, u, &close);
    }

    /// Runs a `Close`.
    pub(crate) fn close(&mut self, io: &mut Net, u: u32, code: u16) -> Flow {
        let Some(user) = self.users.get(u) else { return Flow::Wait };
        if user.link != ConnState::WebSocket {
            self.let_go(io, u);
            return Flow::Next;
        }
        self.put_close(io, u, code);
        if let Some(user) = self.users.get(u) {
            user.link = ConnState::WebSocketClosing;
        }
        self.wait_until(io, u, UserState::Closing, Some(CLOSE_TIMEOUT))
    }
}

/// Value of the `Host` header; Tsung's is without the port.
pub(crate) fn host_header(target: &Target, bare: bool) -> String {
    let host = match target.host.parse::<std::net::Ipv6Addr>() {
        Ok(_) => format!("[{}]", target.host),
        Err(_) => target.host.clone(),
    };
    let port = target.address.port();
    let usual = if target.tls { 443 } else { 80 };
    if bare || port == usual { host } else { format!("{host}:{port}") }
}

/// What the end of a connection is counted as.
pub(super) fn closed_kind(why: Closed) -> ErrorKind {
    match why {
        Closed::Unconnected(kind) => ErrorKind::of_unconnected(kind),
        Closed::Slow => ErrorKind::SendStalled,
        Closed::Reset(_) => ErrorKind::ConnectionReset,
        Closed::PeerEof | Closed::Local => ErrorKind::EndOfStream,
    }
}

/// Time since 1970: for cookies, unique values and dumps.
pub(crate) fn unix_time() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}
