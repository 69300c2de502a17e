//! A user without a WebSocket: its long-poll session (PROTOCOL §9), as the official client has it.
//!
//! The user's connection polls: a GET waits for messages, and the next one follows each answer at
//! once. What the user says goes over a second connection ([`super::posts`]).

use std::time::Duration;

use simurgh_load_client::http::{
    Done, Event, Limits, LongPollAnswer, LongPollPost, Request, Response, ResponseError,
    longpoll_path, with_token,
};
use simurgh_load_record::{Count, ErrorKind};
use simurgh_load_scenario::Target;
use simurgh_load_scenario::answer::AnswerText;

use super::http::user_agent;
use super::machine::Flow;
use super::posts::Posts;
use super::{ConnState, HangUp, Machine, NO_KEY, Outputs, UserState};
use crate::program::Op;
use crate::time::{elapsed_us, nanos, us};

/// Largest answer taken.
const ANSWER_BYTES_MAX: usize = 16 << 20;
/// How often it is looked whether requests were answered.
pub(crate) const POLL_CHECK_INTERVAL: Duration = Duration::from_secs(5);
/// How long the official client waits for an answer; a scenario's time-out may be longer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(20);

/// A user's long-poll session.
#[derive(Default)]
pub(crate) struct Poller {
    /// Path and query of all its requests, but for the token.
    target: String,
    /// What it is called; empty before it has begun.
    token: String,
    headers: Vec<(String, String)>,
    poll: Call,
    pub(crate) posts: Posts,
}

/// Requests on one connection, one after the other.
#[derive(Default)]
pub(super) struct Call {
    /// The answer that is to come.
    response: Option<Response>,
    body: Vec<u8>,
    /// When the request was sent, or its connection begun.
    pub(super) since_us: u32,
    /// Requests on this connection.
    sent: u32,
    /// This request was sent before, on a connection that the server had closed.
    is_again: bool,
}

impl Call {
    /// A connection has been begun.
    pub(super) fn dialed(&mut self, now_us: u32) {
        self.response = None;
        (self.sent, self.since_us) = (0, now_us);
    }

    /// A request has been sent.
    pub(super) fn sent(&mut self, now_us: u32) {
        self.response = Some(Response::new(false, Limits::default()));
        self.sent += 1;
        self.since_us = now_us;
    }

    /// Takes bytes; the answer's numbers when it is whole, its body is [`Call::body`] then.
    pub(super) fn take(&mut self, mut bytes: &[u8]) -> Result<Option<Done>, String> {
        let Some(response) = &mut self.response else {
            return Err("an answer to no request".to_owned());
        };
        loop {
            match response.next(&mut bytes).map_err(|error| error.to_string())? {
                Event::Head(_) => {}
                Event::Body(piece) => self.body.extend_from_slice(piece),
                Event::More => return Ok(None),
                Event::Done(done) => {
                    self.response = None;
                    self.is_again = false;
                    return Ok(Some(done));
                }
            }
            if self.body.len() > ANSWER_BYTES_MAX {
                return Err(format!("an answer of over {ANSWER_BYTES_MAX} bytes"));
            }
        }
    }

    /// The connection has ended: what that makes of the answer. `None`: the request is to be sent
    /// again, since a server may close a connection just as the next request comes.
    pub(super) fn end(&mut self) -> Option<Result<Done, String>> {
        let response = self.response.take();
        let end = response.map(|response| response.end());
        match end {
            Some(Err(ResponseError::NoAnswer)) if self.sent > 1 && !self.is_again => {
                self.is_again = true;
                None
            }
            Some(end) => Some(end.map_err(|error| error.to_string())),
            // The connection did not come about, which its end says better.
            None => Some(Err(String::new())),
        }
    }

    /// The body of the answer that has come, read.
    pub(super) fn answer(&mut self) -> Result<(LongPollAnswer, Vec<u8>), String> {
        let body = std::mem::take(&mut self.body);
        match serde_json::from_slice(&body) {
            Ok(answer) => Ok((answer, body)),
            Err(error) => Err(format!("no answer of long polling: {error}")),
        }
    }
}

impl Poller {
    /// Whether the connection that polls, if there is one, has come about.
    pub(super) fn is_connected(&self) -> bool {
        self.poll.sent > 0
    }

    /// When the poll's connection was begun, or its request sent.
    pub(super) fn poll_since_us(&self) -> u32 {
        self.poll.since_us
    }

    /// Writes one of its requests.
    pub(super) fn request(
        &self,
        server: &Target,
        agent: Option<&str>,
        post: Option<&LongPollPost>,
    ) -> Vec<u8> {
        let usual = if server.tls { 443 } else { 80 };
        let mut headers: Vec<(&str, &[u8])> = vec![("Accept", b"application/json")];
        if let Some(post) = post {
            headers.push(("Content-Type", post.content_type().as_bytes()));
        }
        headers.extend(self.headers.iter().map(|(name, value)| (&**name, value.as_bytes())));
        let mut out = Vec::new();
        Request {
            method: if post.is_some() { "POST" } else { "GET" },
            target: with_token(&self.target, &self.token).as_bytes(),
            host: &server.host,
            port: Some(server.address.port()).filter(|port| *port != usual),
            keep_alive: true,
            user_agent: agent,
            headers: &headers,
            body: post.map(|post| post.body.as_slice()),
            ..Request::default()
        }
        .write(&mut out);
        out
    }
}

/// Whether something was sent; if not, the user lost its session by that, and what follows.
pub(super) type Sent = Result<(), Flow>;

impl<O: Outputs> Machine<'_, O> {
    /// Begins the session of a user whose connection has just come about.
    pub(super) fn open_session(&mut self) -> Flow {
        let program = self.program;
        let Op::Connect(connect, answer) = program.op(self.user.at) else { return Flow::Wait };
        let parts = self.connect_parts(connect);
        let mut headers = parts.headers;
        headers.extend(parts.origin.map(|origin| ("Origin".to_owned(), origin)));
        let target = longpoll_path(&parts.target);
        self.user.conn = ConnState::PollOpening;
        self.user.since_us = us(self.now_ns);
        self.user.extra().poller = Some(Box::new(Poller { target, headers, ..Poller::default() }));
        match self.send_poll() {
            Ok(()) => self.wait_for_answer(UserState::AwaitUpgrade, answer.timeout),
            Err(lost) => lost,
        }
    }

    /// Polls, over a new connection if the last one was closed.
    pub(super) fn send_poll(&mut self) -> Sent {
        let now_us = us(self.now_ns);
        if self.user.key == NO_KEY {
            match self.out.dial(self.user.server.index()) {
                Ok(key) => {
                    self.user.key = key;
                    if let Some(poller) = self.user.poller() {
                        poller.poll.dialed(now_us);
                    }
                    return Ok(());
                }
                Err((kind, text)) => return Err(self.session_failed(kind, || text)),
            }
        }
        let targets = &self.program.scenario.targets;
        let Some(target) = targets.get(self.user.server.place()) else { return Ok(()) };
        let agent = user_agent(self.program, self.user.id);
        let Some(poller) = self.user.poller() else { return Ok(()) };
        let bytes = poller.request(target, agent, None);
        poller.poll.sent(now_us);
        self.out.count(Count::Polls, 1);
        self.send(&bytes);
        Ok(())
    }

    /// Bytes of an answer to a poll.
    pub(super) fn poll_in(&mut self, data: &[u8]) -> Flow {
        let Some(poller) = self.user.poller() else { return Flow::Wait };
        match poller.poll.take(data) {
            Ok(None) => Flow::Wait,
            Ok(Some(done)) => self.polled(done),
            Err(text) => self.session_failed(ErrorKind::HttpMalformed, || text),
        }
    }

    /// The poll's connection has ended.
    pub(super) fn poll_ended(&mut self, kind: ErrorKind) -> Flow {
        self.user.key = NO_KEY;
        let extra = self.user.extra();
        extra.tls = None;
        let Some(poller) = &mut extra.poller else { return Flow::Wait };
        self.out.count(Count::Disconnects, u64::from(poller.is_connected()));
        match poller.poll.end() {
            None => self.send_poll().err().unwrap_or(Flow::Wait),
            Some(Ok(done)) => self.polled(done),
            Some(Err(text)) => self.session_failed(kind, || text),
        }
    }

    /// An answer to a poll is whole.
    fn polled(&mut self, done: Done) -> Flow {
        self.out.status(done.status);
        if !done.keep_alive {
            self.drop_poll_connection();
        }
        if done.status != 200 {
            return self.session_failed(ErrorKind::HttpStatus(done.status), String::new);
        }
        let Some(poller) = self.user.poller() else { return Flow::Wait };
        let (answer, body) = match poller.poll.answer() {
            Ok(read) => read,
            Err(text) => return self.session_failed(ErrorKind::HttpMalformed, || text),
        };
        let begins = poller.token.is_empty();
        if let Some(token) = answer.token {
            poller.token = token;
        }
        match answer.status {
            410 if begins && !poller.token.is_empty() => self.session_open(&body),
            status if begins => {
                self.upgrade_answered();
                self.session_failed(ErrorKind::UpgradeStatus(status), String::new)
            }
            200 | 204 => {
                // The next one goes out first, as the official client has it.
                let sent = self.send_poll();
                if sent.is_ok() {
                    self.out.messages(answer.messages);
                }
                sent.err().unwrap_or(Flow::Wait)
            }
            status => {
                self.session_failed(ErrorKind::LongPollStatus(status), || "a poll".to_owned())
            }
        }
    }

    /// The server has begun the session.
    fn session_open(&mut self, body: &[u8]) -> Flow {
        let program = self.program;
        let Op::Connect(_, answer) = program.op(self.user.at) else { return Flow::Wait };
        self.opened(ConnState::Poll);
        self.session_begins();
        self.upgrade_answered();
        match self.send_poll() {
            Ok(()) => self.answered(answer, &AnswerText::body_only(body)),
            Err(lost) => lost,
        }
    }

    /// Ends sessions whose server does not answer.
    pub(super) fn check_polls(&mut self) -> Flow {
        let longest = ANSWER_TIMEOUT.max(self.program.scenario.timeouts.reply);
        let now_ns = self.now_ns;
        let late = |since_us| elapsed_us(since_us, now_ns) > nanos(longest) / 1000;
        let what = match self.user.poller() {
            Some(poller) if late(poller.poll.since_us) => "a poll was not answered",
            Some(poller) if poller.posts.since_us().is_some_and(late) => "a POST was not answered",
            _ => return Flow::Wait,
        };
        if self.user.conn != ConnState::Poll {
            return Flow::Wait;
        }
        self.session_failed(ErrorKind::ReplyTimeout, || what.to_owned())
    }

    /// The session is over, or did not begin.
    pub(super) fn session_failed(
        &mut self,
        kind: ErrorKind,
        text: impl FnOnce() -> String,
    ) -> Flow {
        let begins = self.user.conn == ConnState::PollOpening;
        if self.user.key == NO_KEY {
            self.forget_connection();
        }
        if begins { self.fail(kind, text) } else { self.lost(Some(kind), text) }
    }

    /// Ends a connection that the server wants no more requests on.
    fn drop_poll_connection(&mut self) {
        let key = std::mem::replace(&mut self.user.key, NO_KEY);
        if key == NO_KEY {
            return;
        }
        self.user.extra().tls = None;
        self.out.hang_up(key, HangUp::Close);
        self.out.count(Count::Disconnects, 1);
    }
}
