//! A user without a WebSocket: its long-poll session (PROTOCOL §9), as in the official client.
//!
//! The user's connection polls: a GET waits for messages, and the next one follows each answer at
//! once. The user's messages are sent by POSTs over a second connection, one at a time: messages
//! during a POST are gathered for the next. That connection is kept, as in browsers, until the
//! server closes it.

use std::collections::VecDeque;
use std::time::Duration;

use simurgh_load_client::http::{
    Done, Event, Limits, LongPollAnswer, LongPollPost, Request, Response, ResponseError,
    longpoll_path, with_token,
};
use simurgh_load_record::{Count, ErrorKind};
use simurgh_load_scenario::Target;
use simurgh_load_scenario::answer::AnswerText;
use simurgh_proto::ws::OpCode;
use simurgh_reactor::Key;

use super::http::{unusual_port, user_agent};
use super::machine::{Flow, Sent};
use super::{ConnState, HangUp, Machine, NO_KEY, Outputs, Purpose, UserState};
use crate::program::Op;
use crate::time::{elapsed_us, nanos, us};

const ANSWER_BYTES_MAX: usize = 16 << 20;
/// How often unanswered requests are checked for.
pub(crate) const POLL_CHECK_INTERVAL: Duration = Duration::from_secs(5);
/// How long the official client waits for an answer; a scenario's time-out may be longer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(20);

#[derive(Default)]
pub(crate) struct Poller {
    /// Path and query of all its requests, without the token.
    target: String,
    token: String,
    headers: Vec<(String, Vec<u8>)>,
    poll: Call,
    pub(crate) posts: Posts,
}

impl Poller {
    /// Whether a request was sent on the polling connection.
    pub(super) fn is_connected(&self) -> bool {
        self.poll.sent > 0
    }

    fn call(&mut self, purpose: Purpose) -> &mut Call {
        match purpose {
            Purpose::Posts => &mut self.posts.call,
            _ => &mut self.poll,
        }
    }

    /// When the poll's connection was begun, or its request sent.
    pub(super) fn poll_since_us(&self) -> u32 {
        self.poll.since_us
    }

    pub(super) fn request(
        &self,
        server: &Target,
        agent: Option<&str>,
        post: Option<&LongPollPost>,
    ) -> Vec<u8> {
        let mut headers: Vec<(&str, &[u8])> = vec![("Accept", b"application/json")];
        if let Some(post) = post {
            headers.push(("Content-Type", post.content_type().as_bytes()));
        }
        headers.extend(self.headers.iter().map(|(name, value)| (&**name, value.as_slice())));
        let mut out = Vec::new();
        Request {
            method: if post.is_some() { "POST" } else { "GET" },
            target: with_token(&self.target, &self.token).as_bytes(),
            host: &server.host,
            port: unusual_port(server),
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

pub(crate) struct Posts {
    pub(crate) key: Key,
    is_up: bool,
    pub(super) call: Call,
    /// The POST that was sent, or waits for its connection.
    under_way: Option<LongPollPost>,
    waiting: VecDeque<LongPollPost>,
}

impl Default for Posts {
    fn default() -> Self {
        Self {
            key: NO_KEY,
            is_up: false,
            call: Call::default(),
            under_way: None,
            waiting: VecDeque::new(),
        }
    }
}

impl Posts {
    /// Since when a POST is being sent.
    pub(super) fn since_us(&self) -> Option<u32> {
        self.under_way.as_ref().map(|_| self.call.since_us)
    }

    fn add(&mut self, post: LongPollPost) {
        let rest = match self.waiting.back_mut() {
            Some(last) => last.join(post).err(),
            None => Some(post),
        };
        self.waiting.extend(rest);
    }
}

#[derive(Default)]
pub(crate) struct Call {
    response: Option<Response>,
    body: Vec<u8>,
    /// When the request was sent, or its connection begun.
    pub(super) since_us: u32,
    pub(super) sent: u32,
    /// The request is repeated, since the server had closed the connection.
    is_again: bool,
}

impl Call {
    pub(super) fn dialed(&mut self, now_us: u32) {
        self.response = None;
        (self.sent, self.since_us) = (0, now_us);
    }

    pub(super) fn sent(&mut self, now_us: u32) {
        self.response = Some(Response::new(false, Limits::default()));
        self.sent += 1;
        self.since_us = now_us;
    }

    /// Handles bytes; `Some` when the answer is complete, with its body in [`Call::body`].
    pub(super) fn take(&mut self, mut bytes: &[u8]) -> Result<Option<Done>, String> {
        let Some(response) = &mut self.response else {
            return Err("an answer without a request".to_owned());
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

    /// The connection has ended: the answer that this means. `None`: the request must be sent
    /// again, since a server may close a connection just as the next request is sent.
    pub(super) fn end(&mut self) -> Option<Result<Done, String>> {
        let response = self.response.take();
        let end = response.map(|response| response.end());
        match end {
            Some(Err(ResponseError::NoAnswer)) if self.sent > 1 && !self.is_again => {
                self.is_again = true;
                None
            }
            Some(end) => Some(end.map_err(|error| error.to_string())),
            // The connection was not established: how it ended is the error.
            None => Some(Err(String::new())),
        }
    }

    pub(super) fn answer(&mut self) -> Result<(LongPollAnswer, Vec<u8>), String> {
        let body = std::mem::take(&mut self.body);
        match serde_json::from_slice(&body) {
            Ok(answer) => Ok((answer, body)),
            Err(error) => Err(format!("invalid answer to long polling: {error}")),
        }
    }
}

impl<O: Outputs> Machine<'_, O> {
    /// Begins the session of a user whose connection was just established.
    pub(super) fn open_session(&mut self) -> Flow {
        let Op::Connect(connect, answer) = self.op() else { return Flow::Wait };
        let parts = self.connect_parts(connect);
        let mut headers = parts.headers;
        let has_own = headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("cookie"));
        if !parts.cookies.is_empty() && !has_own {
            headers.push(("Cookie".to_owned(), parts.cookies));
        }
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
        let Some(target) = self.target() else { return Ok(()) };
        let agent = user_agent(self.program, self.user.id);
        let Some(poller) = self.user.poller() else { return Ok(()) };
        let bytes = poller.request(target, agent, None);
        poller.poll.sent(now_us);
        self.out.count(Count::Polls, 1);
        self.send(&bytes);
        Ok(())
    }

    pub(super) fn call_in(&mut self, purpose: Purpose, data: &[u8]) -> Flow {
        let Some(poller) = self.user.poller() else { return Flow::Wait };
        match poller.call(purpose).take(data) {
            Ok(None) => Flow::Wait,
            Ok(Some(done)) => self.call_answered(purpose, done),
            Err(text) => self.session_failed(ErrorKind::HttpMalformed, || text),
        }
    }

    pub(super) fn poll_ended(&mut self, kind: ErrorKind) -> Flow {
        self.user.key = NO_KEY;
        let Some(poller) = self.user.poller() else { return Flow::Wait };
        self.out.count(Count::Disconnects, u64::from(poller.is_connected()));
        match poller.poll.end() {
            None => self.send_poll().err().unwrap_or(Flow::Wait),
            Some(Ok(done)) => self.call_answered(Purpose::User, done),
            Some(Err(text)) => self.session_failed(kind, || text),
        }
    }

    pub(super) fn call_answered(&mut self, purpose: Purpose, done: Done) -> Flow {
        self.out.status(done.status);
        if !done.keep_alive {
            match purpose {
                Purpose::Posts => self.drop_posts(),
                _ => self.drop_poll(),
            }
        }
        if done.status != 200 {
            return self.session_failed(ErrorKind::HttpStatus(done.status), String::new);
        }
        let Some(poller) = self.user.poller() else { return Flow::Wait };
        match (poller.call(purpose).answer(), purpose) {
            (Ok((answer, _)), Purpose::Posts) => self.posted(answer.status),
            (Ok((answer, body)), _) => self.polled(answer, &body),
            (Err(text), _) => self.session_failed(ErrorKind::HttpMalformed, || text),
        }
    }

    fn polled(&mut self, answer: LongPollAnswer, body: &[u8]) -> Flow {
        let Some(poller) = self.user.poller() else { return Flow::Wait };
        let begins = poller.token.is_empty();
        if let Some(token) = answer.token {
            poller.token = token;
        }
        match answer.status {
            410 if begins && !poller.token.is_empty() => self.session_open(body),
            status if begins => {
                self.upgrade_answered();
                self.session_failed(ErrorKind::UpgradeStatus(status), String::new)
            }
            200 | 204 => {
                // The next poll is sent first, as in the official client.
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

    fn session_open(&mut self, body: &[u8]) -> Flow {
        let Op::Connect(_, answer) = self.op() else { return Flow::Wait };
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

    /// The session has ended, or did not begin.
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

    /// Closes a connection on which the server accepts no more requests.
    fn drop_poll(&mut self) {
        let key = std::mem::replace(&mut self.user.key, NO_KEY);
        if key == NO_KEY {
            return;
        }
        self.out.hang_up(key, HangUp::Close);
        self.out.count(Count::Disconnects, 1);
    }

    /// Sends a message over the user's WebSocket or long-poll session.
    pub(super) fn send_to_channel(&mut self, opcode: OpCode, message: &[u8]) -> Sent {
        let polls = self.user.conn == ConnState::Poll;
        let Some(poller) = self.user.poller().filter(|_| polls) else {
            self.send_frame(opcode, message);
            return Ok(());
        };
        poller.posts.add(LongPollPost::new(opcode == OpCode::Binary, message));
        let count = match opcode {
            OpCode::Binary => Count::FramesOutBinary,
            _ => Count::FramesOutText,
        };
        self.out.count(count, 1);
        self.post()
    }

    fn post(&mut self) -> Sent {
        let now_us = us(self.now_ns);
        let Some(poller) = self.user.poller() else { return Ok(()) };
        let posts = &mut poller.posts;
        if posts.under_way.is_some() || posts.waiting.is_empty() {
            return Ok(());
        }
        posts.under_way = posts.waiting.pop_front();
        posts.call.since_us = now_us;
        match (posts.key, posts.is_up) {
            (NO_KEY, _) => return self.dial_posts(),
            (_, true) => self.send_post(),
            (_, false) => {}
        }
        Ok(())
    }

    fn dial_posts(&mut self) -> Sent {
        match self.out.dial(self.user.server.index()) {
            Ok(key) => {
                if let Some(poller) = self.user.poller() {
                    poller.posts.key = key;
                    poller.posts.call.dialed(us(self.now_ns));
                }
                Ok(())
            }
            Err((kind, text)) => Err(self.session_failed(kind, || text)),
        }
    }

    fn send_post(&mut self) {
        let Some(target) = self.target() else { return };
        let agent = user_agent(self.program, self.user.id);
        let Some(poller) = self.user.poller() else { return };
        let Some(post) = &poller.posts.under_way else { return };
        let bytes = poller.request(target, agent, Some(post));
        poller.posts.call.sent(us(self.now_ns));
        self.out.count(Count::Posts, 1);
        self.out.send(poller.posts.key, &bytes);
    }

    pub(super) fn posts_connected(&mut self) -> Flow {
        let Some(poller) = self.user.poller() else { return Flow::Wait };
        poller.posts.is_up = true;
        let since_us = poller.posts.call.since_us;
        self.connection_made(since_us);
        self.send_post();
        Flow::Wait
    }

    /// A POST was answered, with this status in its body.
    pub(super) fn posted(&mut self, status: u16) -> Flow {
        if status != 200 {
            let text = || "a POST".to_owned();
            return self.session_failed(ErrorKind::LongPollStatus(status), text);
        }
        if let Some(poller) = self.user.poller() {
            poller.posts.under_way = None;
        }
        self.post().err().unwrap_or(Flow::Wait)
    }

    pub(super) fn posts_ended(&mut self, kind: ErrorKind) -> Flow {
        let Some(poller) = self.user.poller() else { return Flow::Wait };
        let posts = &mut poller.posts;
        let was_up = std::mem::take(&mut posts.is_up);
        posts.key = NO_KEY;
        let end = posts.under_way.is_some().then(|| posts.call.end());
        self.out.count(Count::Disconnects, u64::from(was_up));
        match end {
            // No request is open: servers close idle connections.
            None => Flow::Wait,
            Some(None) => self.dial_posts().err().unwrap_or(Flow::Wait),
            Some(Some(Ok(done))) => self.call_answered(Purpose::Posts, done),
            Some(Some(Err(text))) => self.session_failed(kind, || text),
        }
    }

    pub(super) fn drop_posts(&mut self) {
        let Some(poller) = self.user.poller() else { return };
        let posts = &mut poller.posts;
        let key = std::mem::replace(&mut posts.key, NO_KEY);
        let was_up = std::mem::take(&mut posts.is_up);
        if key == NO_KEY {
            return;
        }
        self.out.hang_up(key, if was_up { HangUp::Close } else { HangUp::Abort });
        self.out.count(Count::Disconnects, u64::from(was_up));
    }

    /// Drops the user's session, which ends at the server when it is no longer polled.
    pub(super) fn end_session(&mut self) {
        if self.user.poller().is_none() {
            return;
        }
        self.drop_posts();
        self.user.extra().poller = None;
        self.user.tidy();
    }
}
