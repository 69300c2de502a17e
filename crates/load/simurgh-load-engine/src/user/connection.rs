//! A user's connection: opening, readiness, closing and loss.

use std::time::Duration;

use simurgh_load_record::{Count, ErrorKind, Metric};
use simurgh_load_scenario::{Dialect, Switch, Target, Transport};
use simurgh_proto::session::client::Client;
use simurgh_proto::ws::{CloseCode, Decoder};

use super::machine::Flow;
use super::{ConnState, HangUp, Machine, NO_KEY, Outputs, Purpose, StoredConnection, UserState};
use crate::program::{Op, SessionInfo};
use crate::time::{elapsed_us, us};

/// How long a close waits for the server's answer.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);

impl<O: Outputs> Machine<'_, O> {
    pub(super) fn connect(&mut self) -> Flow {
        self.hang_up();
        if !self.user.is_resuming() {
            // Joined channels ended with the old connection.
            self.user.client = Client::new(self.user.client.serializer());
            if let Some(extra) = self.user.extra_mut() {
                extra.joins.clear();
            }
            self.user.tidy();
            self.follow_end();
        }
        self.open(ConnState::Connecting)
    }

    pub(super) fn open(&mut self, conn: ConnState) -> Flow {
        if self.user.server.begin() {
            self.out.server(self.user.server.index()).users += 1;
        } else {
            self.context.spread.again(&mut self.user.server);
        }
        match self.out.dial(self.user.server.index()) {
            Ok(key) => {
                (self.user.key, self.user.conn) = (key, conn);
                let timeout = self.program.scenario.timeouts.connect;
                self.measure();
                self.wait(UserState::Opening, Some(timeout))
            }
            Err((kind, text)) => self.fail(kind, || text),
        }
    }

    pub(super) fn connected(&mut self) -> Flow {
        let conn = self.user.conn;
        let since_us = self.connect_since_us();
        self.connection_made(since_us);
        if !self.user.is_resuming()
            && let Some(extra) = self.user.extra_mut()
        {
            extra.attempts = 0;
        }
        let polls = self.session().is_some_and(|it| it.transport == Transport::LongPoll);
        match conn {
            ConnState::Connecting if polls => self.open_session(),
            ConnState::Connecting => self.send_upgrade(),
            ConnState::Poll => self.send_poll().err().unwrap_or(Flow::Wait),
            ConnState::ConnectingHttp => {
                self.opened(ConnState::Http);
                self.send_request()
            }
            ConnState::ConnectingRaw => {
                self.user.since_us = us(self.now_ns);
                self.opened(ConnState::Raw);
                Flow::Goto(self.user.at)
            }
            _ => Flow::Wait,
        }
    }

    /// When the connect that is under way was due: not with the current step, if that step has used
    /// another connection before.
    pub(super) fn connect_since_us(&mut self) -> u32 {
        if self.user.conn == ConnState::Poll
            && let Some(poller) = self.user.poller()
        {
            return poller.poll_since_us();
        }
        let http = self.user.extra_ref().and_then(|extra| extra.http.as_ref());
        let again_us = http.filter(|_| self.user.conn == ConnState::ConnectingHttp);
        again_us.and_then(|http| http.again_us).unwrap_or(self.user.since_us)
    }

    /// A TCP connection is established, with TLS where it is used.
    pub(super) fn connection_made(&mut self, since_us: u32) {
        self.out.time(Metric::Connect, elapsed_us(since_us, self.now_ns));
        self.out.count(Count::Connects, 1);
        self.out.server(self.user.server.index()).connects += 1;
    }

    /// The connection can be used, in state `conn`.
    pub(super) fn opened(&mut self, conn: ConnState) {
        self.user.conn = conn;
        self.out.opened(self.user.server.index());
    }

    pub(super) fn closed(&mut self, server: u16) {
        self.out.closed(server);
        self.out.count(Count::Disconnects, 1);
    }

    pub(super) fn send(&mut self, bytes: &[u8]) {
        self.out.send(self.user.key, bytes);
    }

    pub(super) fn bytes_in(&mut self, data: &[u8]) -> Flow {
        match self.user.conn {
            ConnState::Upgrading => self.upgrade_in(data),
            ConnState::PollOpening | ConnState::Poll => self.call_in(Purpose::User, data),
            ConnState::Http => self.http_in(data),
            ConnState::Raw => self.raw_in(data),
            _ => Flow::Wait,
        }
    }

    pub(super) fn protocol_error(
        &mut self,
        code: CloseCode,
        kind: ErrorKind,
        text: String,
    ) -> Flow {
        self.out.send_close(self.user.key, code, "");
        self.user.conn = ConnState::WebSocketClosing;
        self.lost(Some(kind), || text)
    }

    pub(super) fn connection_failed(&mut self, kind: ErrorKind, text: String) -> Flow {
        let conn = self.user.conn;
        let is_in_use = conn.is_websocket() || conn == ConnState::Poll;
        match is_in_use && kind != ErrorKind::Tls {
            true => self.lost(Some(kind), || text),
            false => self.fail(kind, || text),
        }
    }

    pub(super) fn ended(&mut self, kind: ErrorKind, in_handshake: bool) -> Flow {
        let (conn, state) = (self.user.conn, self.user.state);
        if conn.polls() {
            return self.poll_ended(kind);
        }
        self.forget_connection();
        match conn {
            // A plain connection leaves this state when it is established.
            conn if conn.is_connecting() && in_handshake => {
                self.fail(ErrorKind::Tls, || format!("{kind} in the handshake"))
            }
            ConnState::WebSocket => self.lost(Some(kind), String::new),
            ConnState::WebSocketClosing if state == UserState::Closing => Flow::Done,
            ConnState::WebSocketClosing => self.lost(None, String::new),
            ConnState::Http => self.http_ended(kind),
            ConnState::Raw => match state {
                UserState::AwaitFirst | UserState::AwaitMatch | UserState::AwaitServer => {
                    self.fail(kind, String::new)
                }
                _ => Flow::Wait,
            },
            ConnState::None => Flow::Wait,
            _ => self.fail(kind, String::new),
        }
    }

    pub(super) fn forget_connection(&mut self) {
        let conn = std::mem::replace(&mut self.user.conn, ConnState::None);
        let key = std::mem::replace(&mut self.user.key, NO_KEY);
        let server = self.user.server.index();
        match conn {
            ConnState::Http | ConnState::Raw => self.closed(server),
            conn if conn.is_websocket() => self.closed(server),
            ConnState::Upgrading => self.out.count(Count::Disconnects, 1),
            conn if conn.polls() => {
                // Its session may have no connection, or one that is not established yet.
                let is_up = self.user.poller().is_some_and(|poller| poller.is_connected());
                self.out.count(Count::Disconnects, u64::from(is_up && key != NO_KEY));
                if conn == ConnState::Poll {
                    self.out.closed(server);
                }
            }
            _ => {}
        }
        if let Some(extra) = self.user.extra_mut() {
            extra.decoder = Decoder::new();
            extra.head = Vec::new();
            extra.kept.clear();
            extra.lists.clear();
            if let Some(positions) = &mut extra.positions {
                positions.forget_next();
            }
        }
        self.user.tidy();
    }

    /// Closes the user's connection, if there is one; a stored connection is kept.
    pub(super) fn hang_up(&mut self) {
        let (key, conn) = (self.user.key, self.user.conn);
        if key == NO_KEY {
            return self.end_session();
        }
        // Tsung leaves without a close frame.
        let is_tsung = self.is_tsung();
        if conn == ConnState::WebSocket && !is_tsung {
            self.out.send_close(key, CloseCode::NORMAL, "");
        }
        let is_up = self.user.poller().is_none_or(|poller| poller.is_connected());
        self.forget_connection();
        self.end_session();
        let how = match conn {
            ConnState::Poll if !is_up => HangUp::Abort,
            conn if conn.is_connecting() => HangUp::Abort,
            ConnState::WebSocket if is_tsung => HangUp::Close,
            conn if conn.is_websocket() => HangUp::Linger,
            _ => HangUp::Close,
        };
        self.out.hang_up(key, how);
    }

    pub(super) fn close(&mut self, code: u16) -> Flow {
        if self.user.conn != ConnState::WebSocket {
            self.hang_up();
            return Flow::Next;
        }
        let reason = if self.is_tsung() { "close" } else { "" };
        self.out.send_close(self.user.key, CloseCode(code), reason);
        self.user.conn = ConnState::WebSocketClosing;
        self.wait(UserState::Closing, Some(CLOSE_TIMEOUT))
    }

    pub(super) fn switch(&mut self, op: &Switch) -> Flow {
        let user = &mut *self.user;
        let is_open = matches!(user.conn, ConnState::WebSocket | ConnState::Http | ConnState::Raw);
        let restored = match op.restore {
            true => user.extra_mut().and_then(|extra| extra.stored.take()),
            false => None,
        };
        if op.store && is_open {
            let serializer = user.client.serializer();
            let stored = StoredConnection {
                server: user.server.index(),
                key: std::mem::replace(&mut user.key, NO_KEY),
                conn: std::mem::replace(&mut user.conn, ConnState::None),
                client: std::mem::replace(&mut user.client, Client::new(serializer)),
                decoder: std::mem::take(&mut user.extra().decoder),
            };
            self.out.hold(stored.key, true);
            self.drop_stored();
            self.user.extra().stored = Some(Box::new(stored));
        } else {
            self.hang_up();
        }
        if !op.store && !op.restore && self.is_tsung() {
            // As in Tsung, cookies belong to a session of one type.
            self.user.extra().http = None;
        }
        let user = &mut *self.user;
        user.server.pin(u16::try_from(op.target).unwrap_or(user.server.index()));
        if let Some(stored) = restored {
            let StoredConnection { key, server: _, conn, client, decoder } = *stored;
            (user.key, user.conn, user.client) = (key, conn, client);
            user.extra().decoder = decoder;
            self.out.hold(key, false);
        }
        user.tidy();
        Flow::Next
    }

    pub(super) fn stored_ended(&mut self) -> Flow {
        if let Some(stored) = self.user.extra_mut().and_then(|extra| extra.stored.take()) {
            self.closed(stored.server);
        }
        Flow::Wait
    }

    pub(super) fn drop_stored(&mut self) {
        let stored = self.user.extra_mut().and_then(|extra| extra.stored.take());
        let Some(stored) = stored else { return };
        self.user.tidy();
        self.closed(stored.server);
        self.out.hang_up(stored.key, HangUp::Close);
    }
}

impl<'a, O> Machine<'a, O> {
    pub(super) fn op(&self) -> &'a Op {
        self.program.op(self.user.at)
    }

    pub(super) fn session(&self) -> Option<&'a SessionInfo> {
        self.program.session_at(self.user.at)
    }

    pub(super) fn is_tsung(&self) -> bool {
        self.session().is_some_and(|session| session.dialect == Dialect::Tsung)
    }

    pub(super) fn target(&self) -> Option<&'a Target> {
        self.program.scenario.targets.get(self.user.server.place())
    }
}
