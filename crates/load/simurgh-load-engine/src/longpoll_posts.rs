//! What a long-poll user says: POSTs over a connection of their own, one at a time.
//!
//! As in the official client what is said while a POST is under way is gathered for the next. The
//! connection is kept for later messages, as browsers do, until the server closes it.

use std::collections::VecDeque;
use std::rc::Rc;

use simurgh_load_client::http::{Done, LongPollPost};
use simurgh_load_client::tls::TlsClient;
use simurgh_load_record::{Count, ErrorKind, Metric};
use simurgh_proto::ws::OpCode;
use simurgh_reactor::{Closed, Key};

use super::connection::{Tls, closed_kind};
use super::longpoll::{Call, abandon};
use super::requests::user_agent;
use super::user::{ConnState, NO_KEY};
use super::worker::{Net, Worker};

/// The POSTs of a session.
pub(crate) struct Posts {
    conn: Key,
    /// The connection can be used.
    is_up: bool,
    tls: Option<Box<Tls>>,
    call: Call,
    /// The one that was sent, or waits for its connection.
    under_way: Option<LongPollPost>,
    waiting: VecDeque<LongPollPost>,
}

impl Default for Posts {
    fn default() -> Self {
        Self {
            conn: NO_KEY,
            is_up: false,
            tls: None,
            call: Call::default(),
            under_way: None,
            waiting: VecDeque::new(),
        }
    }
}

impl Posts {
    /// Since when one is under way.
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

impl Worker {
    /// Sends a message over whatever the user has; `false` if the user has lost it by that.
    pub(super) fn put_message(
        &mut self,
        io: &mut Net,
        u: u32,
        opcode: OpCode,
        message: &[u8],
    ) -> bool {
        let is_poll = self.users.get(u).is_some_and(|user| user.link == ConnState::Poll);
        let Some(poller) = self.poller(u).filter(|_| is_poll) else {
            self.put_frame(io, u, opcode, message);
            return true;
        };
        poller.posts.add(LongPollPost::new(opcode == OpCode::Binary, message));
        self.recorder.count(
            match opcode {
                OpCode::Binary => Count::FramesOutBinary,
                _ => Count::FramesOutText,
            },
            1,
        );
        self.post(io, u)
    }

    /// Sends what waits, unless a POST is under way; `false` if the session was lost by that.
    fn post(&mut self, io: &mut Net, u: u32) -> bool {
        let now_us = Self::us(io.clock_ns());
        let Some(poller) = self.poller(u) else { return true };
        let posts = &mut poller.posts;
        if posts.under_way.is_some() || posts.waiting.is_empty() {
            return true;
        }
        posts.under_way = posts.waiting.pop_front();
        posts.call.since_us = now_us;
        match (posts.conn, posts.is_up) {
            (NO_KEY, _) => self.dial_post(io, u),
            (_, true) => {
                self.send_post(io, u);
                true
            }
            (_, false) => true,
        }
    }

    fn dial_post(&mut self, io: &mut Net, u: u32) -> bool {
        let now_us = Self::us(io.clock_ns());
        match self.dial(io, u) {
            Ok(key) => {
                if let Some(poller) = self.poller(u) {
                    poller.posts.conn = key;
                    poller.posts.call.dialed(now_us);
                }
                true
            }
            Err((kind, text)) => {
                self.session_failed(io, u, kind, || text);
                false
            }
        }
    }

    fn send_post(&mut self, io: &mut Net, u: u32) {
        let program = Rc::clone(&self.program);
        let now_us = Self::us(io.clock_ns());
        let Some(user) = self.users.get(u) else { return };
        let Some(server) = program.scenario.targets.get(user.aim.place()) else { return };
        let agent = user_agent(&program, self.maker.seed, user.id);
        let Some(poller) = self.poller(u) else { return };
        let Some(post) = &poller.posts.under_way else { return };
        let bytes = poller.request(server, agent, Some(post));
        poller.posts.call.sent(now_us);
        let (key, mut cipher) = (poller.posts.conn, Vec::new());
        let sent = match &mut poller.posts.tls {
            None => bytes.as_slice(),
            Some(tls) => match tls.send(&bytes, &mut cipher) {
                Ok(()) => cipher.as_slice(),
                // The connection is over, which its end will tell.
                Err(_) => &[],
            },
        };
        self.recorder.count(Count::BytesOut, bytes.len() as u64);
        self.recorder.count(Count::Posts, 1);
        io.send(key, sent);
    }

    /// The TCP connection for POSTs is there.
    pub(super) fn post_link_up(&mut self, io: &mut Net, u: u32, key: Key) {
        let program = Rc::clone(&self.program);
        let Some(user) = self.users.get(u) else { return };
        let Some(server) = program.scenario.targets.get(user.aim.place()) else { return };
        if self.poller(u).is_none_or(|poller| poller.posts.conn != key) {
            return;
        }
        if !server.tls {
            return self.post_ready(io, u);
        }
        let Some(config) = &self.tls else { return };
        let mut out = Vec::new();
        match TlsClient::begin(config, &server.host, &mut out) {
            Ok(tls) => {
                if let Some(poller) = self.poller(u) {
                    poller.posts.tls = Some(Box::new(tls));
                }
                io.send(key, &out);
            }
            Err(error) => self.session_failed(io, u, ErrorKind::Tls, || error),
        }
    }

    /// The connection for POSTs can be used.
    fn post_ready(&mut self, io: &mut Net, u: u32) {
        let now_ns = io.clock_ns();
        let Some(poller) = self.poller(u) else { return };
        poller.posts.is_up = true;
        let took_us = Self::elapsed_us(poller.posts.call.since_us, now_ns);
        self.recorder.time(Metric::Connect, took_us);
        self.connection_made(u);
        self.send_post(io, u);
    }

    /// Bytes have come on the connection for POSTs.
    pub(super) fn post_bytes_in(&mut self, io: &mut Net, u: u32, key: Key, data: &mut [u8]) {
        let Some(poller) = self.poller(u).filter(|poller| poller.posts.conn == key) else { return };
        let Some(mut tls) = poller.posts.tls.take() else {
            return self.post_in(io, u, data);
        };
        let (mut plain, mut out) = (Vec::new(), Vec::new());
        let was_open = tls.progress().handshake_done;
        let outcome = tls.receive(data, &mut plain, &mut out);
        poller.posts.tls = Some(tls);
        if !out.is_empty() {
            io.send(key, &out);
        }
        if !was_open && matches!(&outcome, Ok(progress) if progress.handshake_done) {
            self.post_ready(io, u);
        }
        if !plain.is_empty() {
            self.post_in(io, u, &plain);
        }
        if let Err(error) = outcome
            && self.poller(u).is_some_and(|poller| poller.posts.conn == key)
        {
            let kind = if was_open { ErrorKind::ConnectionReset } else { ErrorKind::Tls };
            self.session_failed(io, u, kind, || error.to_string());
        }
    }

    fn post_in(&mut self, io: &mut Net, u: u32, data: &[u8]) {
        self.recorder.count(Count::BytesIn, data.len() as u64);
        let Some(poller) = self.poller(u) else { return };
        match poller.posts.call.take(data) {
            Ok(None) => {}
            Ok(Some(done)) => self.posted(io, u, done),
            Err(text) => self.session_failed(io, u, ErrorKind::HttpMalformed, || text),
        }
    }

    /// An answer to a POST is whole.
    fn posted(&mut self, io: &mut Net, u: u32, done: Done) {
        self.recorder.status(done.status);
        if !done.keep_alive {
            self.drop_posts(io, u);
        }
        if done.status != 200 {
            return self.session_failed(io, u, ErrorKind::HttpStatus(done.status), String::new);
        }
        let Some(poller) = self.poller(u) else { return };
        match poller.posts.call.answer().map(|(answer, _)| answer.status) {
            Ok(200) => {
                poller.posts.under_way = None;
                self.post(io, u);
            }
            Ok(status) => {
                let kind = ErrorKind::LongPollStatus(status);
                self.session_failed(io, u, kind, || "a POST".to_owned());
            }
            Err(text) => self.session_failed(io, u, ErrorKind::HttpMalformed, || text),
        }
    }

    /// The connection for POSTs has ended.
    pub(super) fn post_down(&mut self, io: &mut Net, u: u32, key: Key, why: Closed) {
        let Some(poller) = self.poller(u).filter(|poller| poller.posts.conn == key) else { return };
        let posts = &mut poller.posts;
        let was_up = std::mem::take(&mut posts.is_up);
        (posts.conn, posts.tls) = (NO_KEY, None);
        let end = posts.under_way.is_some().then(|| posts.call.end());
        if was_up {
            self.recorder.count(Count::Disconnects, 1);
        }
        match end {
            // Nothing was asked: servers close what is idle.
            None => {}
            Some(None) => {
                self.dial_post(io, u);
            }
            Some(Some(Ok(done))) => self.posted(io, u, done),
            Some(Some(Err(text))) => self.session_failed(io, u, closed_kind(why), || text),
        }
    }

    /// Ends the connection for POSTs, if there is one.
    fn drop_posts(&mut self, io: &mut Net, u: u32) {
        let Some(poller) = self.poller(u) else { return };
        let posts = &mut poller.posts;
        let key = std::mem::replace(&mut posts.conn, NO_KEY);
        let was_up = std::mem::take(&mut posts.is_up);
        posts.tls = None;
        if key == NO_KEY {
            return;
        }
        abandon(io, key, was_up);
        if was_up {
            self.recorder.count(Count::Disconnects, 1);
        }
    }

    /// Forgets the user's session, which ends at the server when it is polled no longer.
    pub(super) fn end_session(&mut self, io: &mut Net, u: u32) {
        if self.poller(u).is_none() {
            return;
        }
        self.drop_posts(io, u);
        if let Some(user) = self.users.get(u) {
            user.extra().poller = None;
            user.tidy();
        }
    }
}
