//! HTTP requests and raw bytes: what a user may send besides WebSocket frames.

use std::time::Duration;

use simurgh_load_client::http::{
    self, Challenge, DigestAnswer, Done, Event, Jar, Kept, Request, Response, Url, append_cookie,
    asks_to_close, basic_of_url, header_values,
};
use simurgh_load_record::{Count, ErrorKind, Metric};
use simurgh_load_scenario::answer::AnswerText;
use simurgh_load_scenario::{Dialect, Http, HttpAuth, Part, Reply, Target, Template};

use super::dump::Exchange;
use super::machine::Flow;
use super::values::Values;
use super::{ConnState, Machine, Outputs, User, UserState};
use crate::chance::{mix, pick, sums};
use crate::program::{Op, Program, SendOp};
use crate::time::us;

/// Bytes of a body that are searched.
const BODY_BYTES_MAX: usize = 4 << 20;

#[derive(Default)]
pub(crate) struct HttpState {
    jar: Jar,
    response: Option<Response>,
    /// The answer so far, if it is used.
    kept: Option<Kept>,
    /// Path of the request, for its cookies.
    path: String,
    challenge: Option<Challenge>,
    nonce_uses: u32,
    requests: u32,
    /// When the connection for a repeated request was begun: the server had closed the last one.
    pub(super) again_us: Option<u32>,
}

impl<O: Outputs> Machine<'_, O> {
    pub(super) fn request(&mut self, http: &Http) -> Flow {
        let conn = self.user.conn;
        if conn.is_websocket() || conn == ConnState::Poll {
            let text = || "an HTTP request needs the socket to be closed first".to_owned();
            return self.fail(ErrorKind::Internal, text);
        }
        let url = self.start_of_url(&http.url);
        if Url::is_absolute(&url) && !uses_proxy(self.program) {
            let target = Url::parse(&url).and_then(|url| target_of(self.program, &url));
            let target = match target {
                Ok(target) => target,
                Err(error) => return self.fail(ErrorKind::Internal, || error),
            };
            if self.user.server.index() != target {
                self.hang_up();
            }
            self.user.server.pin(target);
        }
        let is_open = self.user.conn == ConnState::Http;
        let state = self.user.extra().http.get_or_insert_default();
        state.again_us = None;
        if is_open {
            return self.send_request();
        }
        state.requests = 0;
        self.open(ConnState::ConnectingHttp)
    }

    /// The part of a URL that decides which server gets the request. The request renders the URL
    /// again, and only then counts variables without a value.
    fn start_of_url(&mut self, url: &Template) -> String {
        let values = &mut self.context.values;
        if let Some(Part::Literal(start)) = url.parts.first() {
            let start = String::from_utf8_lossy(start);
            let path = start.split_once("://").map_or(&*start, |(_, path)| path);
            if path.contains('/') {
                return start.into_owned();
            }
        }
        let undefined = values.undefined;
        let url = values.text(self.user, url);
        values.undefined = undefined;
        url
    }

    pub(super) fn send_request(&mut self) -> Flow {
        let program = self.program;
        let Op::Http(http, answer) = program.op(self.user.at) else { return Flow::Wait };
        let values = &mut self.context.values;
        let before = values.stamps;
        let mut bytes = Vec::new();
        write_request(values, self.user, program, http, &mut bytes);
        for number in before..values.stamps {
            self.out.published(self.user.id, number, values.run_ns(self.now_ns));
        }
        let state = self.user.extra().http.get_or_insert_default();
        state.requests += 1;
        state.response = Some(Response::new(http.method == "HEAD", http::Limits::default()));
        state.kept = (!answer.is_none()).then(|| Kept::new(BODY_BYTES_MAX));
        self.send(&bytes);
        self.wait_for_answer(UserState::AwaitHttp, answer.timeout)
    }

    pub(super) fn http_in(&mut self, mut bytes: &[u8]) -> Flow {
        let host = self.target().map_or("", |target| target.host.as_str());
        let (unix, is_tsung) = (self.context.values.unix(), self.is_tsung());
        let Some(state) = self.user.extra().http.as_deref_mut() else { return Flow::Wait };
        let Some(mut response) = state.response.take() else {
            // No request is open, so the connection cannot be used.
            self.hang_up();
            return Flow::Wait;
        };
        loop {
            match response.next(&mut bytes) {
                Ok(Event::Done(done)) => return self.http_done(done),
                Ok(Event::More) => {
                    state.response = Some(response);
                    return Flow::Wait;
                }
                Ok(event) => {
                    if let Event::Head(head) = &event {
                        state.note_cookies(head.bytes, host, unix, is_tsung);
                        state.note_challenge(head);
                    }
                    if let Some(kept) = &mut state.kept {
                        kept.take(&event);
                    }
                }
                Err(error) => return self.fail(ErrorKind::HttpMalformed, || error.to_string()),
            }
        }
    }

    fn http_done(&mut self, done: Done) -> Flow {
        let Op::Http(http, answer) = self.op() else { return Flow::Wait };
        let took_us = self.elapsed_us();
        self.user.state = UserState::Running;
        let state = self.user.extra().http.get_or_insert_default();
        let kept = state.kept.take();
        let path = std::mem::take(&mut state.path);
        self.out.time(Metric::Http, took_us);
        let status = done.status.to_string();
        let (method, bytes) = (http.method.as_str(), done.head_bytes + done.body_bytes);
        let exchange = Exchange { method, what: &path, status: &status, bytes, took_us };
        self.dump_exchange(&exchange);
        self.out.status(done.status);
        if !http.status.is_empty() && !http.status.contains(&done.status) {
            let kind = ErrorKind::HttpStatus(done.status);
            self.out.error(kind, self.user.origin(), String::new);
        }
        let closes = http
            .headers
            .iter()
            .any(|(name, value)| value.constant().is_some_and(|value| asks_to_close(name, value)));
        // In Tsung only the answer decides.
        if !done.keep_alive || (closes && !self.is_tsung()) {
            self.hang_up();
        }
        match kept {
            Some(mut kept) => {
                kept.decompress();
                if kept.is_cut() {
                    self.out.count(Count::AnswersCut, 1);
                }
                self.answered(answer, &AnswerText::kept(&kept))
            }
            None => Flow::Done,
        }
    }

    pub(super) fn http_ended(&mut self, kind: ErrorKind) -> Flow {
        let is_awaited = self.user.state == UserState::AwaitHttp;
        let Some(state) = self.user.extra_mut().and_then(|extra| extra.http.as_deref_mut()) else {
            return Flow::Wait;
        };
        let used = std::mem::take(&mut state.requests) > 1;
        let Some(response) = state.response.take().filter(|_| is_awaited) else {
            return Flow::Wait;
        };
        let may_repeat = used && state.again_us.is_none() && self.is_repeatable();
        match response.end() {
            Ok(done) => self.http_done(done),
            // A server may close an idle connection just as the next request is sent.
            Err(http::ResponseError::NoAnswer) if may_repeat => {
                let now_us = us(self.now_ns);
                self.user.extra().http.get_or_insert_default().again_us = Some(now_us);
                // The request is sent, and counted, once more.
                self.forget_request();
                self.open(ConnState::ConnectingHttp)
            }
            Err(error) => self.fail(kind, || error.to_string()),
        }
    }

    /// Whether the request has the same effect if the server gets it twice (RFC 9110 §9.2.2), since
    /// the client cannot know whether the server read it. Tsung repeats all.
    fn is_repeatable(&self) -> bool {
        const IDEMPOTENT: [&str; 7] = ["GET", "HEAD", "OPTIONS", "TRACE", "PUT", "DELETE", "PURGE"];
        match self.op() {
            Op::Http(http, _) => self.is_tsung() || IDEMPOTENT.contains(&http.method.as_str()),
            _ => false,
        }
    }

    pub(super) fn send_raw(&mut self, op: &SendOp) -> Flow {
        if self.user.conn != ConnState::Raw {
            self.hang_up();
            return self.open(ConnState::ConnectingRaw);
        }
        let mut bytes = std::mem::take(&mut self.context.rendered);
        bytes.clear();
        self.render(&op.message.data, &mut bytes);
        self.send(&bytes);
        self.context.rendered = bytes;
        if op.message.reply == Reply::None {
            self.out.count(Count::RequestsNoAck, 1);
            return Flow::Next;
        }
        self.wait_for_answer(UserState::AwaitFirst, op.answer.timeout)
    }

    pub(super) fn raw_in(&mut self, data: &[u8]) -> Flow {
        match (self.user.state, self.op()) {
            (UserState::AwaitFirst, Op::Raw(op)) => {
                let took_us = self.elapsed_us();
                self.user.state = UserState::Running;
                self.out.time(Metric::Message, took_us);
                self.answered(&op.answer, &AnswerText::body_only(data))
            }
            (UserState::AwaitServer, _) => Flow::Done,
            _ => Flow::Wait,
        }
    }
}

impl<O: Outputs> Machine<'_, O> {
    /// The cookies of the user for the upgrade of its connection; Tsung sends none.
    pub(super) fn cookies(&self, target: &str) -> Vec<u8> {
        let mut cookies = Vec::new();
        let http = self.user.extra_ref().and_then(|extra| extra.http.as_deref());
        if let (Some(http), Some(server)) = (http.filter(|_| !self.is_tsung()), self.target()) {
            let now = self.context.values.unix();
            http.jar.write(&server.host, target, server.tls, now, &mut cookies);
        }
        cookies
    }

    /// Keeps the cookies of the answer to an upgrade.
    pub(super) fn take_cookies(&mut self, head: &[u8], target: &str) {
        let Some(server) = self.target().filter(|_| !self.is_tsung()) else { return };
        if header_values(head, "set-cookie").next().is_some() {
            let now = self.context.values.unix();
            let state = self.user.extra().http.get_or_insert_default();
            target.clone_into(&mut state.path);
            state.note_cookies(head, &server.host, now, false);
        }
    }
}

impl HttpState {
    /// Keeps the cookies of an answer for later requests.
    fn note_cookies(&mut self, head: &[u8], host: &str, unix: Duration, is_tsung: bool) {
        let cookies = header_values(head, "set-cookie");
        if is_tsung {
            return self.jar.take_as_tsung(cookies, host);
        }
        cookies.for_each(|cookie| self.jar.take(cookie, host, &self.path, unix));
    }

    /// Keeps the challenge of an answer for later requests.
    fn note_challenge(&mut self, head: &http::Head<'_>) {
        if head.status == 401 {
            let challenge = head.values("www-authenticate").find_map(Challenge::parse);
            if challenge.is_some() {
                self.challenge = challenge;
                self.nonce_uses = 0;
            }
        }
    }
}

/// Whether requests with a whole URL go to the servers of the file as to proxies.
fn uses_proxy(program: &Program) -> bool {
    program.scenario.tsung.as_ref().is_some_and(|run| run.proxy)
}

/// The server of a URL; it must be in the scenario, since names are resolved before the run.
fn target_of(program: &Program, url: &Url<'_>) -> Result<u16, String> {
    let is_it = |target: &Target| {
        target.host.eq_ignore_ascii_case(url.host)
            && target.address.port() == url.port
            && target.tls == url.tls
    };
    let index = program.scenario.targets.iter().position(is_it);
    index.and_then(|index| u16::try_from(index).ok()).ok_or_else(|| {
        format!("{}:{} is not a target of the scenario: add it, with weight 0", url.host, url.port)
    })
}

fn write_request(
    values: &mut Values,
    user: &mut User,
    program: &Program,
    http: &Http,
    out: &mut Vec<u8>,
) {
    let Some(target) = program.scenario.targets.get(user.server.place()) else { return };
    let url = values.bytes(user, &http.url);
    let text = String::from_utf8_lossy(&url);
    let (path, line, of_url) = match Url::parse(&text) {
        Ok(url) if !uses_proxy(program) => {
            let line = url.target.as_bytes().to_vec();
            (url.target.into_owned(), line, url.credentials.map(basic_of_url))
        }
        _ => (text.into_owned(), url, None),
    };
    let headers = values.pairs(user, &http.headers);
    let headers: Vec<(&str, &[u8])> =
        headers.iter().map(|(name, value)| (*name, value.as_slice())).collect();
    let body = http.body.as_ref().map(|body| values.bytes(user, body));
    let own = values.pairs(user, &http.cookies);
    let session = program.session_at(user.at);
    let is_tsung = session.is_some_and(|session| session.dialect == Dialect::Tsung);
    let port = unusual_port(target);
    let authorization = match &http.auth {
        Some(auth) => Some(authorize(values, user, auth, http, &path)),
        None => of_url.or_else(|| target.authorization()),
    };
    let agent = user_agent(program, user.id).or(is_tsung.then_some("tsung"));
    let state = user.extra().http.get_or_insert_default();
    let mut cookies = Vec::new();
    if is_tsung {
        state.jar.write_as_tsung(&target.host, &path, &mut cookies);
        own.iter().for_each(|(name, value)| append_cookie(name.as_bytes(), value, &mut cookies));
    } else {
        own.iter().for_each(|(name, value)| state.jar.set(name.as_bytes(), value, &target.host));
        state.jar.write(&target.host, &path, target.tls, values.unix(), &mut cookies);
    }
    state.path = path;
    Request {
        method: &http.method,
        target: &line,
        host: &target.host,
        port,
        version_1_0: http.version_1_0,
        keep_alive: true,
        user_agent: agent,
        headers: &headers,
        cookies: &cookies,
        authorization: authorization.as_deref(),
        body: body.as_deref(),
        tsung: is_tsung,
    }
    .write(out);
}

fn authorize(
    values: &mut Values,
    user: &mut User,
    auth: &HttpAuth,
    http: &Http,
    path: &str,
) -> String {
    let name = values.text(user, &auth.user);
    let password = values.bytes(user, &auth.password);
    if !auth.digest {
        return http::basic(name.as_bytes(), &password);
    }
    let known = user.extra().http.get_or_insert_default().challenge.clone();
    let mut challenge = known.unwrap_or_default();
    let mut take = |place: &mut String, template: &Option<Template>| {
        if let Some(template) = template {
            *place = values.text(user, template);
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
    let cnonce = format!("{:016x}", mix(values.seed, u64::from(user.id) << 16));
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

/// The port of a server, unless it is the default.
pub(super) fn unusual_port(target: &Target) -> Option<u16> {
    let usual = if target.tls { 443 } else { 80 };
    Some(target.address.port()).filter(|port| *port != usual)
}

pub(super) fn user_agent(program: &Program, id: u32) -> Option<&str> {
    let agents = &program.scenario.user_agents;
    let drawn = mix(program.scenario.seed ^ 0xa6e2, u64::from(id));
    let at = pick(&sums(agents.iter().map(|(_, weight)| *weight)), drawn);
    agents.get(usize::from(at)).map(|(agent, _)| agent.as_str())
}
