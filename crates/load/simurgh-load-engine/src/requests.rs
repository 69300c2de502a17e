//! HTTP requests and plain bytes: the other things a user may say than WebSocket frames.

use std::rc::Rc;

use simurgh_load_client::http::{
    self, Challenge, DigestAnswer, Done, Event, Jar, Kept, Request, Response, Url,
};
use simurgh_load_record::{Count, ErrorKind, Metric};
use simurgh_load_scenario::answer::AnswerText;
use simurgh_load_scenario::{Dialect, Http, HttpAuth, Reply, Switch, Target};
use simurgh_proto::session::client::Client;
use simurgh_reactor::Key;

use super::answers::AnswerOp;
use super::connection::unix_time;
use super::dump::Exchange;
use super::program::{Op, Program, SendOp};
use super::schedule::mix;
use super::steps::Flow;
use super::user::{ConnState, NO_KEY, StoredConnection, User, UserState};
use super::values::Maker;
use super::worker::{Net, Worker};

/// Bytes of a body that captures and checks can look at.
const BODY_BYTES_MAX: usize = 1 << 20;

/// A compiled [`Http`].
pub(crate) struct HttpOp {
    pub(crate) http: Http,
    pub(crate) answer: AnswerOp,
}

impl HttpOp {
    pub(crate) fn new(http: &Http) -> Result<Self, String> {
        Ok(Self { http: http.clone(), answer: AnswerOp::new(&http.answer)? })
    }
}

/// What an HTTP user remembers.
#[derive(Default)]
pub(crate) struct HttpState {
    jar: Jar,
    response: Option<Response>,
    /// The answer so far, where somebody will look at it.
    kept: Option<Kept>,
    /// Path of the request, for its cookies.
    path: String,
    challenge: Option<Challenge>,
    /// Requests that used the challenge's nonce.
    nonce_uses: u32,
    /// Requests on this connection.
    requests: u32,
    /// This request was sent before, on a connection that the server had closed.
    is_again: bool,
}

impl Worker {
    /// Runs an `Http`.
    pub(crate) fn request(&mut self, io: &mut Net, u: u32, op: &HttpOp) -> Flow {
        let program = Rc::clone(&self.program);
        let Some(user) = self.users.get(u) else { return Flow::Wait };
        if matches!(user.link, ConnState::WebSocket | ConnState::WebSocketClosing | ConnState::Poll)
        {
            let text = || "an HTTP request needs the socket to be closed first".to_owned();
            self.fail(io, u, ErrorKind::Internal, text);
            return Flow::Wait;
        }
        let url = self.with_user(u, |maker, user| maker.text(user, &op.http.url));
        let url = url.unwrap_or_default();
        if Url::is_absolute(&url) {
            let target = Url::parse(&url).and_then(|url| target_of(&program, &url));
            let target = match target {
                Ok(target) => target,
                Err(error) => {
                    self.fail(io, u, ErrorKind::Internal, || error);
                    return Flow::Wait;
                }
            };
            let Some(user) = self.users.get(u) else { return Flow::Wait };
            if user.aim.index() != target {
                self.let_go(io, u);
            }
            let Some(user) = self.users.get(u) else { return Flow::Wait };
            user.aim.name(target);
        }
        let Some(user) = self.users.get(u) else { return Flow::Wait };
        let link = user.link;
        let state = user.extra().http.get_or_insert_default();
        state.is_again = false;
        if link == ConnState::Http {
            self.send_request(io, u);
            return Flow::Wait;
        }
        state.requests = 0;
        self.open(io, u, ConnState::ConnectingHttp)
    }

    /// Sends the request of the user's operation on its open connection.
    pub(crate) fn send_request(&mut self, io: &mut Net, u: u32) {
        let program = Rc::clone(&self.program);
        let sent_ns = self.run_ns(io.clock_ns());
        let before = self.maker.stamps;
        let Self { users, maker, recorder, .. } = self;
        let Some(user) = users.get(u) else { return };
        let Op::Http(op) = program.op(user.at) else { return };
        maker.now_ns = sent_ns;
        let mut bytes = Vec::new();
        write_request(maker, user, &program, op, &mut bytes);
        for number in before..maker.stamps {
            recorder.published(user.id, number, sent_ns, 0);
        }
        let state = user.extra().http.get_or_insert_default();
        state.requests += 1;
        state.response = Some(Response::new(op.http.method == "HEAD", http::Limits::default()));
        state.kept = (!op.answer.is_none()).then(|| Kept::new(BODY_BYTES_MAX));
        recorder.count(Count::Requests, 1);
        self.put(io, u, &bytes);
        let timeout = op.answer.timeout.unwrap_or(program.scenario.timeouts.reply);
        self.wait_until(io, u, UserState::AwaitHttp, Some(timeout));
    }

    /// Bytes of an answer.
    pub(crate) fn http_in(&mut self, io: &mut Net, u: u32, key: Key, data: &[u8]) {
        let mut bytes = data;
        let program = Rc::clone(&self.program);
        let Some(user) = self.users.get(u).filter(|user| user.conn == key) else { return };
        let host = program.scenario.targets.get(user.aim.place()).map(|t| t.host.as_str());
        let extra = user.extra();
        let Some(state) = extra.http.as_deref_mut() else { return };
        let Some(mut response) = state.response.take() else {
            // Nothing was asked: such a connection is of no use.
            return self.let_go(io, u);
        };
        let outcome = loop {
            match response.next(&mut bytes) {
                Ok(Event::Done(done)) => break Ok(Some(done)),
                Ok(Event::More) => break Ok(None),
                Ok(event) => {
                    if let Event::Head(head) = &event {
                        state.note_head(head, host.unwrap_or_default());
                    }
                    if let Some(kept) = &mut state.kept {
                        kept.take(&event);
                    }
                }
                Err(error) => break Err(error),
            }
        };
        match outcome {
            Ok(None) => state.response = Some(response),
            Ok(Some(done)) => self.http_done(io, u, done),
            Err(error) => self.fail(io, u, ErrorKind::HttpMalformed, || error.to_string()),
        }
    }

    /// An answer is whole.
    fn http_done(&mut self, io: &mut Net, u: u32, done: Done) {
        let program = Rc::clone(&self.program);
        let now_ns = io.clock_ns();
        let Some(user) = self.users.get(u) else { return };
        let Op::Http(op) = program.op(user.at) else { return };
        let (origin, since_us) = (user.origin(), user.since_us);
        user.state = UserState::Running;
        let state = user.extra().http.get_or_insert_default();
        let kept = state.kept.take();
        let took_us = Self::elapsed_us(since_us, now_ns);
        let path = std::mem::take(&mut state.path);
        self.recorder.time(Metric::Http, took_us);
        let status = done.status.to_string();
        let (method, bytes) = (op.http.method.as_str(), done.head_bytes + done.body_bytes);
        let exchange = Exchange { method, what: &path, status: &status, bytes, took_us };
        self.dump_exchange(u, &exchange);
        self.recorder.status(done.status);
        if !op.http.status.is_empty() && !op.http.status.contains(&done.status) {
            self.recorder.error(ErrorKind::HttpStatus(done.status), origin);
        }
        if !done.keep_alive {
            self.let_go(io, u);
        }
        match kept {
            Some(kept) => self.answered(io, u, &op.answer, &AnswerText::kept(&kept)),
            None => self.done(io, u),
        }
    }

    /// The connection of an HTTP user has ended.
    pub(crate) fn http_end(&mut self, io: &mut Net, u: u32, kind: ErrorKind) {
        let Some(user) = self.users.get(u) else { return };
        let is_awaited = user.state == UserState::AwaitHttp;
        let Some(state) = user.extra.as_mut().and_then(|extra| extra.http.as_deref_mut()) else {
            return;
        };
        let used = std::mem::take(&mut state.requests) > 1;
        let Some(response) = state.response.take() else { return };
        if !is_awaited {
            return;
        }
        match response.end() {
            Ok(done) => self.http_done(io, u, done),
            // A server may close a connection that was idle, just as the next request comes.
            Err(http::ResponseError::NoAnswer) if used && !state.is_again => {
                state.is_again = true;
                // The request is sent, and counted, once more.
                self.give_up_request(u);
                self.open(io, u, ConnState::ConnectingHttp);
            }
            Err(error) => self.fail(io, u, kind, || error.to_string()),
        }
    }

    /// Runs a `Raw`: bytes over a connection of their own.
    pub(crate) fn send_raw(&mut self, io: &mut Net, u: u32, op: &SendOp) -> Flow {
        let Some(user) = self.users.get(u) else { return Flow::Wait };
        if user.link != ConnState::Raw {
            self.let_go(io, u);
            return self.open(io, u, ConnState::ConnectingRaw);
        }
        let mut bytes = std::mem::take(&mut self.scratch);
        bytes.clear();
        self.render(io, u, &op.message.data, &mut bytes);
        self.put(io, u, &bytes);
        self.scratch = bytes;
        if op.message.reply == Reply::None {
            self.recorder.count(Count::RequestsNoAck, 1);
            return Flow::Next;
        }
        self.recorder.count(Count::Requests, 1);
        let timeout = op.answer.timeout.unwrap_or(self.program.scenario.timeouts.reply);
        self.wait_until(io, u, UserState::AwaitFirst, Some(timeout))
    }

    /// Bytes on a connection without a protocol.
    pub(crate) fn raw_in(&mut self, io: &mut Net, u: u32, data: &[u8], received_ns: u64) {
        let program = Rc::clone(&self.program);
        let Some(user) = self.users.get(u) else { return };
        match (user.state, program.op(user.at)) {
            (UserState::AwaitFirst, Op::Raw(op)) => {
                let took_us = Self::elapsed_us(user.since_us, received_ns);
                user.state = UserState::Running;
                self.recorder.time(Metric::Message, took_us);
                self.answered(io, u, &op.answer, &AnswerText::body_only(data));
            }
            (UserState::AwaitServer, _) => self.done(io, u),
            _ => {}
        }
    }

    /// Runs a `Switch`: on with another server, or with the connection that was laid aside.
    pub(crate) fn switch(&mut self, io: &mut Net, u: u32, op: &Switch) -> Flow {
        let Some(user) = self.users.get(u) else { return Flow::Wait };
        let is_open = matches!(user.link, ConnState::WebSocket | ConnState::Http | ConnState::Raw);
        let restored = match op.restore {
            true => user.extra.as_mut().and_then(|extra| extra.stored.take()),
            false => None,
        };
        if op.store && is_open {
            let serializer = user.client.serializer();
            let aside = StoredConnection {
                target: user.aim.index(),
                conn: std::mem::replace(&mut user.conn, NO_KEY),
                link: std::mem::replace(&mut user.link, ConnState::None),
                client: std::mem::replace(&mut user.client, Client::new(serializer)),
                decoder: std::mem::take(&mut user.extra().decoder),
                tls: user.extra().tls.take(),
            };
            io.hold(aside.conn);
            self.drop_stored(io, u);
            let Some(user) = self.users.get(u) else { return Flow::Wait };
            user.extra().stored = Some(Box::new(aside));
        } else {
            self.let_go(io, u);
        }
        let Some(user) = self.users.get(u) else { return Flow::Wait };
        user.aim.name(u16::try_from(op.target).unwrap_or(user.aim.index()));
        if let Some(aside) = restored {
            let StoredConnection { conn, target: _, link, client, decoder, tls } = *aside;
            (user.conn, user.link, user.client) = (conn, link, client);
            (user.extra().decoder, user.extra().tls) = (decoder, tls);
            io.release(conn);
        }
        user.tidy();
        Flow::Next
    }
}

impl HttpState {
    /// Keeps what the head of an answer says for later requests.
    fn note_head(&mut self, head: &http::Head<'_>, host: &str) {
        for cookie in head.values("set-cookie") {
            self.jar.take(cookie, host, &self.path, unix_time());
        }
        if head.status == 401 {
            let challenge = head.values("www-authenticate").find_map(Challenge::parse);
            if challenge.is_some() {
                self.challenge = challenge;
                self.nonce_uses = 0;
            }
        }
    }
}

/// The server that a URL means: one that the scenario knows, since names are resolved before the
/// run.
fn target_of(program: &Program, url: &Url<'_>) -> Result<u16, String> {
    let is_it = |target: &Target| {
        target.host.eq_ignore_ascii_case(url.host)
            && target.address.port() == url.port
            && target.tls == url.tls
    };
    let index = program.scenario.targets.iter().position(is_it);
    index.and_then(|index| u16::try_from(index).ok()).ok_or_else(|| {
        format!("{}:{} is no target of the scenario: add it, with weight 0", url.host, url.port)
    })
}

fn write_request(
    maker: &mut Maker,
    user: &mut User,
    program: &Program,
    op: &HttpOp,
    out: &mut Vec<u8>,
) {
    let Some(target) = program.scenario.targets.get(user.aim.place()) else { return };
    let http = &op.http;
    let url = maker.text(user, &http.url);
    let path = match Url::parse(&url) {
        Ok(url) => url.target.into_owned(),
        Err(_) => url,
    };
    let mut render = |template: &_| {
        let mut text = Vec::new();
        maker.render(user, template, &mut text);
        text
    };
    let headers: Vec<(&str, Vec<u8>)> =
        http.headers.iter().map(|(name, value)| (name.as_str(), render(value))).collect();
    let headers: Vec<(&str, &[u8])> =
        headers.iter().map(|(name, value)| (*name, value.as_slice())).collect();
    let body = http.body.as_ref().map(&mut render);
    let own: Vec<(&str, Vec<u8>)> =
        http.cookies.iter().map(|(name, value)| (name.as_str(), render(value))).collect();
    let session = program.session_at(user.at);
    let is_tsung = session.is_some_and(|session| session.dialect == Dialect::Tsung);
    let usual = if target.tls { 443 } else { 80 };
    let port = Some(target.address.port()).filter(|port| !is_tsung && *port != usual);
    let authorization = http.auth.as_ref().map(|auth| authorize(maker, user, auth, http, &path));
    let agent = user_agent(program, maker.seed, user.id);
    let state = user.extra().http.get_or_insert_default();
    for (name, value) in &own {
        state.jar.set(name.as_bytes(), value, &target.host);
    }
    let mut cookies = Vec::new();
    state.jar.write(&target.host, &path, target.tls, unix_time(), &mut cookies);
    state.path.clone_from(&path);
    Request {
        method: &http.method,
        target: path.as_bytes(),
        host: &target.host,
        port,
        version_1_0: http.version_1_0,
        keep_alive: true,
        user_agent: agent,
        headers: &headers,
        cookies: &cookies,
        authorization: authorization.as_deref(),
        body: body.as_deref(),
    }
    .write(out);
}

/// Value of `Authorization`.
fn authorize(
    maker: &mut Maker,
    user: &mut User,
    auth: &HttpAuth,
    http: &Http,
    path: &str,
) -> String {
    let name = maker.text(user, &auth.user);
    let mut password = Vec::new();
    maker.render(user, &auth.password, &mut password);
    if !auth.digest {
        return http::basic(name.as_bytes(), &password);
    }
    let known = user.extra().http.get_or_insert_default().challenge.clone();
    let mut challenge = known.unwrap_or_default();
    let mut take = |place: &mut String, template: &Option<simurgh_load_scenario::Template>| {
        if let Some(template) = template {
            *place = maker.text(user, template);
        }
    };
    take(&mut challenge.realm, &auth.realm);
    take(&mut challenge.nonce, &auth.nonce);
    if auth.opaque.is_some() {
        let mut opaque = String::new();
        take(&mut opaque, &auth.opaque);
        challenge.opaque = Some(opaque);
    }
    challenge.qop_auth |= auth.qop.as_deref() == Some("auth");
    let cnonce = format!("{:016x}", mix(maker.seed, u64::from(user.id) << 16));
    let state = user.extra().http.get_or_insert_default();
    state.nonce_uses += 1;
    DigestAnswer {
        challenge: &challenge,
        user: &name,
        password: &password,
        method: &http.method,
        target: path,
        count: state.nonce_uses,
        cnonce: &cnonce,
    }
    .header()
}

/// The user agent of a user, by weight.
pub(super) fn user_agent(program: &Program, seed: u64, id: u32) -> Option<&str> {
    let agents = &program.scenario.user_agents;
    let all: f64 = agents.iter().map(|(_, weight)| weight).sum();
    let mut point = fastrand::Rng::with_seed(mix(seed ^ 0xa6e2, u64::from(id))).f64() * all;
    for (agent, weight) in agents {
        if point < *weight {
            return Some(agent);
        }
        point -= weight;
    }
    agents.last().map(|(agent, _)| agent.as_str())
}
