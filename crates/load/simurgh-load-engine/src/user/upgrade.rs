//! How a user's connection becomes a WebSocket.

use simurgh_load_client::http::Request;
use simurgh_load_record::{Count, ErrorKind, Metric};
use simurgh_load_scenario::answer::AnswerText;
use simurgh_load_scenario::{Connect, Dialect, Target};
use simurgh_proto::session::client::Client;
use simurgh_proto::ws::handshake::{DEFLATE_OFFER, check_response, client_key};

use super::dump::Exchange;
use super::http::unusual_port;
use super::machine::Flow;
use super::values::Values;
use super::{ConnState, Machine, Outputs, User, UserState};
use crate::chance::mix;
use crate::program::{AnswerOp, Op};
use crate::time::us;

pub(super) struct Parts {
    pub(super) target: String,
    /// The origin, if there is one, and those of the scenario.
    pub(super) headers: Vec<(String, Vec<u8>)>,
    pub(super) has_origin: bool,
    pub(super) cookies: Vec<u8>,
}

impl<O: Outputs> Machine<'_, O> {
    pub(super) fn send_upgrade(&mut self) -> Flow {
        let Op::Connect(connect, answer_op) = self.op() else { return Flow::Wait };
        let Some(target) = self.target() else { return Flow::Wait };
        let parts = self.connect_parts(connect);
        let subprotocols = connect.offers(self.other_protocol());
        let key = upgrade_key(&self.context.values, self.user);
        let mut headers: Vec<(&str, &[u8])> =
            vec![("Upgrade", b"websocket"), ("Connection", b"Upgrade")];
        let (origin, own) = parts.headers.split_at(usize::from(parts.has_origin));
        headers.extend(borrowed(origin));
        headers.push(("Sec-WebSocket-Key", key.as_bytes()));
        headers.push(("Sec-WebSocket-Version", b"13"));
        if !subprotocols.is_empty() {
            headers.push(("Sec-WebSocket-Protocol", subprotocols.as_bytes()));
        }
        if connect.compress {
            headers.push(("Sec-WebSocket-Extensions", DEFLATE_OFFER.as_bytes()));
        }
        headers.extend(borrowed(own));
        self.user.conn = ConnState::Upgrading;
        // The request's time starts when it can be sent.
        self.user.since_us = us(self.now_ns);
        let is_tsung = self.is_tsung();
        let request = Request {
            method: "GET",
            target: parts.target.as_bytes(),
            host: &target.host,
            // Tsung's has no port.
            port: unusual_port(target).filter(|_| !is_tsung),
            keep_alive: true,
            headers: &headers,
            cookies: &parts.cookies,
            ..Request::default()
        };
        let mut out = std::mem::take(&mut self.context.message);
        out.clear();
        request.write(&mut out);
        self.send(&out);
        self.context.message = out;
        self.wait_for_answer(UserState::AwaitUpgrade, answer_op.timeout)
    }

    pub(super) fn connect_parts(&mut self, connect: &Connect) -> Parts {
        let dialect = self.session().map_or(Dialect::Raw, |session| session.dialect);
        let server = self.target();
        let (values, user) = (&mut self.context.values, &mut *self.user);
        let mut target = values.text(user, &connect.path);
        for (name, value) in dialect.query() {
            add_parameter(&mut target, name, value);
        }
        if !target.starts_with('/') {
            target.insert(0, '/');
        }
        let origin = match &connect.origin {
            Some(origin) => Some(values.bytes(user, origin)),
            None => server
                .filter(|_| dialect == Dialect::Tsung)
                .map(|server| server.host.clone().into_bytes()),
        };
        let has_origin = origin.is_some();
        let origin = origin.map(|origin| ("Origin".to_owned(), origin));
        let own = connect.headers.iter();
        let own = own.map(|(name, value)| (name.clone(), values.bytes(user, value)));
        let mut headers: Vec<_> = origin.into_iter().chain(own).collect();
        let is_own = headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("authorization"));
        let authorization = server.filter(|_| !is_own).and_then(Target::authorization);
        let authorization = authorization.map(String::into_bytes);
        headers.extend(authorization.map(|value| ("authorization".to_owned(), value)));
        let cookies = self.cookies(&target);
        Parts { target, headers, has_origin, cookies }
    }

    pub(super) fn upgrade_in(&mut self, data: &[u8]) -> Flow {
        let Op::Connect(connect, answer_op) = self.op() else { return Flow::Wait };
        let wanted = upgrade_key(&self.context.values, self.user);
        let mut gathered = match self.user.extra_mut() {
            Some(extra) => std::mem::take(&mut extra.head),
            None => Vec::new(),
        };
        let mut head = match gathered.is_empty() {
            true => data,
            false => {
                gathered.extend_from_slice(data);
                &gathered
            }
        };
        let offered = connect.offers(self.other_protocol());
        let offered: Vec<&str> =
            offered.split(',').map(str::trim).filter(|name| !name.is_empty()).collect();
        // Other answers may come before (RFC 9110 §15.2).
        let answer = loop {
            match check_response(head, &wanted, &offered, connect.compress) {
                Ok(Some((answer, bytes))) if matches!(answer.status, 100 | 102..=199) => {
                    head = head.get(bytes..).unwrap_or_default();
                }
                answer => break answer,
            }
        };
        match answer {
            Ok(None) => {
                self.user.extra().head = head.to_vec();
                Flow::Wait
            }
            Ok(Some((answer, head_bytes))) if answer.status == 101 => {
                if answer.deflate {
                    self.out.deflate(self.user.key);
                }
                let (head, rest) = head.split_at(head_bytes);
                self.out.unread(rest.len());
                let path = connect.path.constant().and_then(|path| str::from_utf8(path).ok());
                self.take_cookies(head, path.unwrap_or("/"));
                if let Some(protocol) = self.other_protocol() {
                    self.opened(ConnState::WebSocket);
                    self.greet(protocol, connect);
                    return Flow::Wait;
                }
                self.upgraded(answer_op, head)
            }
            Ok(Some((answer, _))) => {
                self.upgrade_answered();
                self.fail(ErrorKind::UpgradeStatus(answer.status), String::new)
            }
            Err(error) => self.fail(ErrorKind::UpgradeWrong, || error.to_string()),
        }
    }

    /// Records the time of an answer, which may be a refusal.
    pub(super) fn upgrade_answered(&mut self) -> u64 {
        self.user.state = UserState::Running;
        let took_us = self.elapsed_us();
        self.out.time(Metric::Upgrade, took_us);
        took_us
    }

    fn upgraded(&mut self, op: &AnswerOp, head: &[u8]) -> Flow {
        self.opened(ConnState::WebSocket);
        let took_us = self.upgrade_answered();
        let bytes = head.len() as u64;
        let (method, what, status) = ("connect", "websocket", "101");
        self.dump_exchange(&Exchange { method, what, status, bytes, took_us });
        self.session_begins();
        self.user.tidy();
        self.reset_abandoned();
        self.answered(op, &AnswerText::http(head, head.len()))
    }

    /// A Channels session begins, or continues over another connection.
    pub(super) fn session_begins(&mut self) {
        self.out.count(Count::Upgrades, 1);
        self.user.client = match self.user.is_resuming() {
            true => self.user.client.anew(),
            false => Client::new(self.user.client.serializer()),
        };
    }
}

/// The key of a user's current upgrade; computed again when its answer comes.
pub(super) fn upgrade_key(values: &Values, user: &User) -> String {
    let attempt = user.extra_ref().map_or(0, |extra| extra.attempts);
    let low = mix(values.seed ^ u64::from(values.run) << 32, u64::from(user.id));
    let high = mix(low, u64::from(attempt) << 32 | u64::from(user.at));
    let mut nonce = [0; 16];
    nonce[..8].copy_from_slice(&low.to_le_bytes());
    nonce[8..].copy_from_slice(&high.to_le_bytes());
    client_key(nonce)
}

/// Adds a parameter of the query, unless the scenario has it.
fn add_parameter(path: &mut String, name: &str, value: &str) {
    let query = path.split_once('?').map(|(_, query)| query);
    let is_it = |pair: &str| pair.split('=').next() == Some(name);
    if query.is_some_and(|query| query.split('&').any(is_it)) {
        return;
    }
    path.push(if query.is_some() { '&' } else { '?' });
    path.push_str(&format!("{name}={value}"));
}

fn borrowed(headers: &[(String, Vec<u8>)]) -> impl Iterator<Item = (&str, &[u8])> {
    headers.iter().map(|(name, value)| (name.as_str(), value.as_slice()))
}
