//! How a user's connection becomes a WebSocket.

use std::rc::Rc;

use simurgh_load_record::{Count, ErrorKind, Metric};
use simurgh_load_scenario::answer::AnswerText;
use simurgh_load_scenario::{Dialect, Vsn};
use simurgh_proto::session::client::Client;
use simurgh_proto::ws::handshake::{ClientRequest, check_response, client_key};
use simurgh_reactor::Key;

use super::connection::host_header;
use super::dump::Exchange;
use super::program::{ConnectOp, Op};
use super::schedule::mix;
use super::user::{ConnState, User, UserState};
use super::values::Maker;
use super::worker::{Net, Worker};

/// What a connect says of its request.
pub(super) struct Parts {
    /// Path and query.
    pub(super) target: String,
    pub(super) origin: Option<String>,
    pub(super) headers: Vec<(String, String)>,
}

impl Worker {
    /// Asks for the upgrade of a connection that has just come about.
    pub(super) fn send_upgrade(&mut self, io: &mut Net, u: u32) {
        let program = Rc::clone(&self.program);
        let now_ns = io.clock_ns();
        let Some(user) = self.users.get(u) else { return };
        let Op::Connect(op) = program.op(user.at) else { return };
        let Some(target) = program.scenario.targets.get(user.aim.place()) else { return };
        let dialect = program.session_at(user.at).map(|s| s.dialect);
        let bare = dialect == Some(Dialect::Tsung);
        let Some(parts) = self.connect_parts(u, op, now_ns) else { return };
        let headers: Vec<(&str, &str)> =
            parts.headers.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        let subprotocols: Vec<&str> = op.connect.subprotocols.iter().map(String::as_str).collect();
        let Some(user) = self.users.get(u) else { return };
        user.link = ConnState::Upgrading;
        // The request's own time starts when it can be sent.
        user.since_us = Self::us(now_ns);
        let key = upgrade_key(&self.maker, user);
        let request = ClientRequest {
            host: &host_header(target, bare),
            target: &parts.target,
            origin: parts.origin.as_deref(),
            subprotocols: &subprotocols,
            key: &key,
            headers: &headers,
        };
        let mut out = std::mem::take(&mut self.frame);
        out.clear();
        request.write(&mut out);
        self.put(io, u, &out);
        self.frame = out;
        self.recorder.count(Count::Requests, 1);
        let timeout = op.answer.timeout.unwrap_or(program.scenario.timeouts.reply);
        self.wait_until(io, u, UserState::AwaitUpgrade, Some(timeout));
    }

    /// What a connect says of its request, with the user's values.
    pub(super) fn connect_parts(&mut self, u: u32, op: &ConnectOp, now_ns: u64) -> Option<Parts> {
        let program = Rc::clone(&self.program);
        let user = self.users.get(u)?;
        let server = program.scenario.targets.get(user.aim.place())?;
        let dialect = program.session_at(user.at).map(|s| s.dialect);
        let dialect = dialect.unwrap_or(Dialect::Raw);
        self.maker.now_ns = now_ns;
        let mut target = self.maker.text(user, &op.connect.path);
        add_vsn(&mut target, dialect);
        make_target(&mut target);
        let origin = match &op.connect.origin {
            Some(origin) => Some(self.maker.text(user, origin)),
            None if dialect == Dialect::Tsung => Some(server.host.clone()),
            None => None,
        };
        let headers = op.connect.headers.iter();
        let headers = headers.map(|(name, value)| (name.clone(), self.maker.text(user, value)));
        Some(Parts { target, origin, headers: headers.collect() })
    }

    /// A piece of the answer to an upgrade.
    pub(super) fn upgrade_in(
        &mut self,
        io: &mut Net,
        u: u32,
        key: Key,
        data: &mut [u8],
        received_ns: u64,
    ) {
        let program = Rc::clone(&self.program);
        let Some(user) = self.users.get(u) else { return };
        let Op::Connect(op) = program.op(user.at) else { return };
        let wanted = upgrade_key(&self.maker, user);
        let mut gathered = match &mut user.extra {
            Some(extra) if !extra.head.is_empty() => std::mem::take(&mut extra.head),
            _ => Vec::new(),
        };
        let head: &mut [u8] = if gathered.is_empty() {
            data
        } else {
            gathered.extend_from_slice(data);
            &mut gathered
        };
        let offered: Vec<&str> = op.connect.subprotocols.iter().map(String::as_str).collect();
        match check_response(head, &wanted, &offered) {
            Ok(None) => {
                let rest = head.to_vec();
                if let Some(user) = self.users.get(u) {
                    user.extra().head = rest;
                }
            }
            Ok(Some((answer, head_bytes))) => {
                if answer.status != 101 {
                    self.upgrade_answered(u, received_ns);
                    return self.fail(io, u, ErrorKind::UpgradeStatus(answer.status), String::new);
                }
                let (head, rest) = head.split_at_mut(head_bytes);
                if self.upgraded(io, u, op, head, received_ns) {
                    self.plain_in(io, u, key, rest, received_ns);
                }
            }
            Err(error) => self.fail(io, u, ErrorKind::UpgradeWrong, || error.to_string()),
        }
    }

    /// Takes down the time of an answer, which may be a refusal.
    pub(super) fn upgrade_answered(&mut self, u: u32, received_ns: u64) -> u64 {
        let Some(user) = self.users.get(u) else { return 0 };
        user.state = UserState::Running;
        let took_us = Self::elapsed_us(user.since_us, received_ns);
        self.recorder.time(Metric::Upgrade, took_us);
        took_us
    }

    /// The WebSocket is open; `false` if the user has left it at once.
    fn upgraded(&mut self, io: &mut Net, u: u32, op: &ConnectOp, head: &[u8], now_ns: u64) -> bool {
        let Some(user) = self.users.get(u) else { return false };
        let key = user.conn;
        user.link = ConnState::WebSocket;
        self.count_in(u);
        let took_us = self.upgrade_answered(u, now_ns);
        self.recorder.count(Count::Upgrades, 1);
        self.dump_exchange(
            u,
            &Exchange {
                method: "connect",
                what: "websocket",
                status: "101",
                bytes: head.len() as u64,
                took_us,
            },
        );
        let Some(user) = self.users.get(u) else { return false };
        let serializer = user.client.serializer();
        user.client = match user.is_resuming() {
            true => user.client.anew(),
            false => Client::new(serializer),
        };
        user.tidy();
        self.reset_abandoned(io, u);
        if op.answer.is_none() {
            self.done(io, u);
        } else {
            let text = AnswerText::http(head, head.len());
            self.answered(io, u, &op.answer, &text);
        }
        self.users.get(u).is_some_and(|user| user.conn == key)
    }
}

/// The key of the upgrade that a user has under way: the same again when its answer comes.
fn upgrade_key(maker: &Maker, user: &User) -> String {
    let attempt = user.extra.as_ref().map_or(0, |extra| extra.attempts);
    let low = mix(maker.seed ^ u64::from(maker.run) << 32, u64::from(user.id));
    let high = mix(low, u64::from(attempt) << 32 | u64::from(user.at));
    let mut nonce = [0; 16];
    nonce[..8].copy_from_slice(&low.to_le_bytes());
    nonce[8..].copy_from_slice(&high.to_le_bytes());
    client_key(nonce)
}

/// The `vsn` parameter, unless the scenario has one.
fn add_vsn(path: &mut String, dialect: Dialect) {
    let Dialect::Phoenix(vsn) = dialect else { return };
    let query = path.split_once('?').map(|(_, query)| query);
    if query.is_some_and(|query| query.split('&').any(|pair| pair.starts_with("vsn="))) {
        return;
    }
    path.push(if query.is_some() { '&' } else { '?' });
    path.push_str(match vsn {
        Vsn::V1 => "vsn=1.0.0",
        Vsn::V2 => "vsn=2.0.0",
    });
}

/// Makes what templates came to a target that can stand in a request line.
fn make_target(path: &mut String) {
    if !path.starts_with('/') {
        path.insert(0, '/');
    }
    if path.bytes().any(|byte| byte <= b' ' || byte >= 0x7f) {
        let mut encoded = String::with_capacity(path.len() + 16);
        for byte in path.bytes() {
            match byte {
                0x21..=0x7e => encoded.push(byte as char),
                _ => {
                    use std::fmt::Write;
                    // Writing to a string does not fail.
                    let _ = write!(encoded, "%{byte:02X}");
                }
            }
        }
        *path = encoded;
    }
}
