//! A user without a WebSocket: its long-poll session (PROTOCOL §9), as the official client has it.
//!
//! The user's connection polls: a GET waits for messages, and the next one follows each answer at
//! once. What the user says goes over a second connection ([`super::longpoll_posts`]).

use std::rc::Rc;
use std::time::Duration;

use simurgh_load_client::http::{
    Done, Event, Limits, LongPollAnswer, Request, Response, ResponseError, longpoll_path,
    with_token,
};
use simurgh_load_record::{Count, ErrorKind};
use simurgh_load_scenario::Target;
use simurgh_load_scenario::answer::AnswerText;
use simurgh_proto::serializer::Frame;
use simurgh_proto::session::client::Client;
use simurgh_reactor::Key;

use super::longpoll_posts::Posts;
use super::program::Op;
use super::requests::user_agent;
use super::steps::nanos;
use super::user::{ConnState, NO_KEY, UserState};
use super::worker::{NOBODY, Net, Worker};

/// Largest answer taken.
const ANSWER_BYTES_MAX: usize = 16 << 20;
/// How often it is looked whether requests were answered.
pub(super) const POLL_INTERVAL: Duration = Duration::from_secs(5);
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
    pub(super) posts: Posts,
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

    /// Writes one of its requests.
    pub(super) fn request(
        &self,
        server: &Target,
        agent: Option<&str>,
        post: Option<&simurgh_load_client::http::LongPollPost>,
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

impl Worker {
    /// Begins the session of a user whose connection has just come about.
    pub(super) fn open_session(&mut self, io: &mut Net, u: u32) {
        let program = Rc::clone(&self.program);
        let now_ns = io.clock_ns();
        let Some(user) = self.users.get(u) else { return };
        let Op::Connect(op) = program.op(user.at) else { return };
        let Some(parts) = self.connect_parts(u, op, now_ns) else { return };
        let mut headers = parts.headers;
        headers.extend(parts.origin.map(|origin| ("Origin".to_owned(), origin)));
        let target = longpoll_path(&parts.target);
        let Some(user) = self.users.get(u) else { return };
        user.link = ConnState::PollOpening;
        user.since_us = Self::us(now_ns);
        user.extra().poller = Some(Box::new(Poller { target, headers, ..Poller::default() }));
        self.recorder.count(Count::Requests, 1);
        self.send_poll(io, u);
        let timeout = op.answer.timeout.unwrap_or(program.scenario.timeouts.reply);
        self.wait_until(io, u, UserState::AwaitUpgrade, Some(timeout));
    }

    /// Polls, over a new connection if the last one was closed.
    pub(super) fn send_poll(&mut self, io: &mut Net, u: u32) {
        let program = Rc::clone(&self.program);
        let now_us = Self::us(io.clock_ns());
        let Some(user) = self.users.get(u) else { return };
        if user.conn == NO_KEY {
            return match self.dial(io, u) {
                Ok(key) => {
                    let Some(user) = self.users.get(u) else { return };
                    user.conn = key;
                    if let Some(poller) = &mut user.extra().poller {
                        poller.poll.dialed(now_us);
                    }
                }
                Err((kind, text)) => self.session_failed(io, u, kind, || text),
            };
        }
        let Some(server) = program.scenario.targets.get(user.aim.place()) else { return };
        let agent = user_agent(&program, self.maker.seed, user.id);
        let Some(poller) = user.extra.as_mut().and_then(|extra| extra.poller.as_mut()) else {
            return;
        };
        let bytes = poller.request(server, agent, None);
        poller.poll.sent(now_us);
        self.recorder.count(Count::Polls, 1);
        self.put(io, u, &bytes);
    }

    /// When the poll's connection was begun.
    pub(super) fn poll_since_us(&mut self, u: u32) -> Option<u32> {
        self.poller(u).map(|poller| poller.poll.since_us)
    }

    pub(super) fn poller(&mut self, u: u32) -> Option<&mut Poller> {
        self.users.get(u)?.extra.as_mut()?.poller.as_deref_mut()
    }

    /// Bytes of an answer to a poll.
    pub(super) fn poll_in(&mut self, io: &mut Net, u: u32, data: &[u8], received_ns: u64) {
        let Some(poller) = self.poller(u) else { return };
        match poller.poll.take(data) {
            Ok(None) => {}
            Ok(Some(done)) => self.polled(io, u, done, received_ns),
            Err(text) => self.session_failed(io, u, ErrorKind::HttpMalformed, || text),
        }
    }

    /// The poll's connection has ended.
    pub(super) fn poll_down(&mut self, io: &mut Net, u: u32, kind: ErrorKind) {
        let Some(user) = self.users.get(u) else { return };
        user.conn = NO_KEY;
        let extra = user.extra();
        extra.tls = None;
        let Some(poller) = &mut extra.poller else { return };
        self.recorder.count(Count::Disconnects, u64::from(poller.is_connected()));
        match poller.poll.end() {
            None => self.send_poll(io, u),
            Some(Ok(done)) => self.polled(io, u, done, io.clock_ns()),
            Some(Err(text)) => self.session_failed(io, u, kind, || text),
        }
    }

    /// An answer to a poll is whole.
    fn polled(&mut self, io: &mut Net, u: u32, done: Done, received_ns: u64) {
        self.recorder.status(done.status);
        if !done.keep_alive {
            self.drop_poll_connection(io, u);
        }
        if done.status != 200 {
            return self.session_failed(io, u, ErrorKind::HttpStatus(done.status), String::new);
        }
        let Some(poller) = self.poller(u) else { return };
        let (answer, body) = match poller.poll.answer() {
            Ok(read) => read,
            Err(text) => return self.session_failed(io, u, ErrorKind::HttpMalformed, || text),
        };
        let begins = poller.token.is_empty();
        if let Some(token) = answer.token {
            poller.token = token;
        }
        match answer.status {
            410 if begins && !poller.token.is_empty() => {
                self.session_open(io, u, &body, received_ns)
            }
            status if begins => {
                let opening = ErrorKind::UpgradeStatus(status);
                self.upgrade_answered(u, received_ns);
                self.session_failed(io, u, opening, String::new);
            }
            200 | 204 => self.messages_in(io, u, &answer.messages, received_ns),
            status => {
                let kind = ErrorKind::LongPollStatus(status);
                self.session_failed(io, u, kind, || "a poll".to_owned());
            }
        }
    }

    /// The server has begun the session.
    fn session_open(&mut self, io: &mut Net, u: u32, body: &[u8], received_ns: u64) {
        let program = Rc::clone(&self.program);
        let Some(user) = self.users.get(u) else { return };
        let Op::Connect(op) = program.op(user.at) else { return };
        user.link = ConnState::Poll;
        user.client = match user.is_resuming() {
            true => user.client.anew(),
            false => Client::new(user.client.serializer()),
        };
        self.count_in(u);
        self.upgrade_answered(u, received_ns);
        self.recorder.count(Count::Upgrades, 1);
        self.send_poll(io, u);
        if !self.is_polling(u) {
            return;
        }
        match op.answer.is_none() {
            true => self.done(io, u),
            false => self.answered(io, u, &op.answer, &AnswerText::body_only(body)),
        }
    }

    /// What a poll has brought. The next one goes out first, as the official client has it.
    fn messages_in(&mut self, io: &mut Net, u: u32, messages: &[String], received_ns: u64) {
        self.send_poll(io, u);
        let Some(key) = self.users.get(u).map(|user| user.conn) else { return };
        for message in messages {
            // What one message leads to may end the session.
            if !self.is_polling(u) || self.users.get(u).is_none_or(|user| user.conn != key) {
                return;
            }
            self.recorder.count(Count::FramesInText, 1);
            self.frame_in(io, u, Frame::Text(message), received_ns);
        }
    }

    fn is_polling(&mut self, u: u32) -> bool {
        self.users.get(u).is_some_and(|user| user.link == ConnState::Poll)
    }

    /// Ends sessions whose server does not answer.
    pub(super) fn look_after_session(&mut self, io: &mut Net, u: u32) {
        let now_ns = io.clock_ns();
        let longest = ANSWER_TIMEOUT.max(self.program.scenario.timeouts.reply);
        if !self.is_polling(u) {
            return;
        }
        let Some(poller) = self.poller(u) else { return };
        let late = |since_us| Self::elapsed_us(since_us, now_ns) > nanos(longest) / 1000;
        let what = if late(poller.poll.since_us) {
            "a poll was not answered"
        } else if poller.posts.since_us().is_some_and(late) {
            "a POST was not answered"
        } else {
            return;
        };
        self.session_failed(io, u, ErrorKind::ReplyTimeout, || what.to_owned());
    }

    /// The session is over, or did not begin.
    pub(super) fn session_failed(
        &mut self,
        io: &mut Net,
        u: u32,
        kind: ErrorKind,
        text: impl FnOnce() -> String,
    ) {
        let Some(user) = self.users.get(u) else { return };
        let begins = user.link == ConnState::PollOpening;
        if user.conn == NO_KEY {
            self.forget_link(u);
        }
        if begins {
            self.fail(io, u, kind, text);
        } else {
            self.lost(io, u, Some(kind), text);
        }
    }

    /// Ends a connection that the server wants no more requests on.
    fn drop_poll_connection(&mut self, io: &mut Net, u: u32) {
        let Some(user) = self.users.get(u) else { return };
        let key = std::mem::replace(&mut user.conn, NO_KEY);
        if key == NO_KEY {
            return;
        }
        user.extra().tls = None;
        abandon(io, key, true);
        self.recorder.count(Count::Disconnects, 1);
    }
}

/// Ends a connection, of which the user is not told any more.
pub(super) fn abandon(io: &mut Net, key: Key, is_up: bool) {
    if let Some(conn) = io.conn(key) {
        *conn = NOBODY;
    }
    match is_up {
        true => io.close(key),
        false => io.abort(key),
    }
}
