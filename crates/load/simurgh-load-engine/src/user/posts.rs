//! What a long-poll user says: POSTs over a connection of their own, one at a time.
//!
//! As in the official client what is said while a POST is under way is gathered for the next. The
//! connection is kept for later messages, as browsers do, until the server closes it.

use std::collections::VecDeque;

use simurgh_load_client::http::{Done, LongPollPost};
use simurgh_load_client::tls::TlsClient;
use simurgh_load_record::{Count, ErrorKind};
use simurgh_proto::ws::OpCode;
use simurgh_reactor::Key;

use super::http::user_agent;
use super::longpoll::{Call, Sent};
use super::machine::Flow;
use super::{ConnState, HangUp, Machine, NO_KEY, Outputs};
use crate::time::us;

/// The POSTs of a session.
pub(crate) struct Posts {
    pub(crate) key: Key,
    /// The connection can be used.
    is_up: bool,
    pub(crate) tls: Option<Box<TlsClient>>,
    call: Call,
    /// The one that was sent, or waits for its connection.
    under_way: Option<LongPollPost>,
    waiting: VecDeque<LongPollPost>,
}

impl Default for Posts {
    fn default() -> Self {
        Self {
            key: NO_KEY,
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

impl<O: Outputs> Machine<'_, O> {
    /// Sends a message over whatever the user has.
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

    /// Sends what waits, unless a POST is under way.
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
        let targets = &self.program.scenario.targets;
        let Some(target) = targets.get(self.user.server.place()) else { return };
        let agent = user_agent(self.program, self.user.id);
        let Some(poller) = self.user.poller() else { return };
        let Some(post) = &poller.posts.under_way else { return };
        let bytes = poller.request(target, agent, Some(post));
        poller.posts.call.sent(us(self.now_ns));
        self.out.count(Count::Posts, 1);
        self.out.send(poller.posts.key, poller.posts.tls.as_deref_mut(), &bytes);
    }

    /// The connection for POSTs can be used.
    pub(super) fn posts_connected(&mut self) -> Flow {
        let Some(poller) = self.user.poller() else { return Flow::Wait };
        poller.posts.is_up = true;
        let since_us = poller.posts.call.since_us;
        self.connection_made(since_us);
        self.send_post();
        Flow::Wait
    }

    /// Bytes have come on the connection for POSTs.
    pub(super) fn posts_in(&mut self, data: &[u8]) -> Flow {
        let Some(poller) = self.user.poller() else { return Flow::Wait };
        match poller.posts.call.take(data) {
            Ok(None) => Flow::Wait,
            Ok(Some(done)) => self.posted(done),
            Err(text) => self.session_failed(ErrorKind::HttpMalformed, || text),
        }
    }

    /// An answer to a POST is whole.
    fn posted(&mut self, done: Done) -> Flow {
        self.out.status(done.status);
        if !done.keep_alive {
            self.drop_posts();
        }
        if done.status != 200 {
            return self.session_failed(ErrorKind::HttpStatus(done.status), String::new);
        }
        let Some(poller) = self.user.poller() else { return Flow::Wait };
        match poller.posts.call.answer().map(|(answer, _)| answer.status) {
            Ok(200) => {
                poller.posts.under_way = None;
                self.post().err().unwrap_or(Flow::Wait)
            }
            Ok(status) => {
                self.session_failed(ErrorKind::LongPollStatus(status), || "a POST".to_owned())
            }
            Err(text) => self.session_failed(ErrorKind::HttpMalformed, || text),
        }
    }

    /// The connection for POSTs has ended.
    pub(super) fn posts_ended(&mut self, kind: ErrorKind) -> Flow {
        let Some(poller) = self.user.poller() else { return Flow::Wait };
        let posts = &mut poller.posts;
        let was_up = std::mem::take(&mut posts.is_up);
        (posts.key, posts.tls) = (NO_KEY, None);
        let end = posts.under_way.is_some().then(|| posts.call.end());
        self.out.count(Count::Disconnects, u64::from(was_up));
        match end {
            // Nothing was asked: servers close what is idle.
            None => Flow::Wait,
            Some(None) => self.dial_posts().err().unwrap_or(Flow::Wait),
            Some(Some(Ok(done))) => self.posted(done),
            Some(Some(Err(text))) => self.session_failed(kind, || text),
        }
    }

    /// Ends the connection for POSTs, if there is one.
    fn drop_posts(&mut self) {
        let Some(poller) = self.user.poller() else { return };
        let posts = &mut poller.posts;
        let key = std::mem::replace(&mut posts.key, NO_KEY);
        let was_up = std::mem::take(&mut posts.is_up);
        posts.tls = None;
        if key == NO_KEY {
            return;
        }
        self.out.hang_up(key, if was_up { HangUp::Close } else { HangUp::Abort });
        self.out.count(Count::Disconnects, u64::from(was_up));
    }

    /// Forgets the user's session, which ends at the server when it is polled no longer.
    pub(super) fn end_session(&mut self) {
        if self.user.poller().is_none() {
            return;
        }
        self.drop_posts();
        self.user.extra().poller = None;
        self.user.tidy();
    }
}
