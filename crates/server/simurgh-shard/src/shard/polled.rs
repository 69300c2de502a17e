//! Long-poll sessions of a shard: local connections whose frames wait to be polled.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use simurgh_core::{Phase, Received, nanoseconds};
use simurgh_proto::ws::handshake::{HeadLimits, Request};
use simurgh_proto::ws::{CloseCode, Decoder, Event, FrameLimits, Role};
use simurgh_reactor::{Key, Next, Slice};
use simurgh_socket::{Connect, ConnectKind, Transport, address_key};
use tokio::sync::oneshot;

use super::peers::half;
use super::poll_sources::{Held, Sources};
use super::{Conn, Io, Requester, Shard};
use crate::mail::POLLED;
use crate::mail::poll::{
    Delivery, Line, Messages, Nonce, Opener, Opening, PollAnswer, PollCommand, Post, Underway,
};

/// When to retry answers that the busy request threads did not accept.
const AGAIN: Duration = Duration::from_millis(1);
/// Longest slice of answering polls.
const SLICE: Duration = Duration::from_micros(400);
/// Answers between two reads of the clock.
const STRIDE: usize = 16;
/// Messages of one session that are handled at once.
const LINES_MAX: usize = 64;
/// Bytes of a waiting message besides its text.
const MESSAGE_BYTES: usize = size_of::<Box<str>>() + 16;
/// Bytes of a session without what the application keeps for it; that may be this many times what
/// its client has sent: claims as JSON values.
const SESSION_BYTES: usize = 384;
const STATE_FACTOR: usize = 5;

/// The long-poll sessions of a shard; made for the first of them.
#[derive(Default)]
pub(crate) struct Polled {
    sessions: HashMap<Key, Box<Session>>,
    /// Sessions that have both messages and a waiting poll.
    ready: VecDeque<Key>,
    /// When each session is checked next for its last poll, ns.
    due: BinaryHeap<Reverse<(u64, Key)>>,
    sources: Sources,
    /// Bytes of messages that wait to be handled.
    inbound_bytes: usize,
    underway: Underway,
}

#[derive(Default)]
struct Session {
    nonce: Nonce,
    window_ns: u64,
    /// When its last poll ended; for a waiting poll, the latest time at which it will.
    polled_ns: u64,
    messages: Messages,
    /// Bytes of `messages`, and what it keeps.
    held: Held,
    /// Whether its answers are numbered: they may hold messages with positions, or may be lost
    /// between nodes.
    is_counted: bool,
    /// The number of the last answer.
    given: u32,
    /// The waiting poll, whose request may be gone.
    poll: Option<oneshot::Sender<Delivery>>,
    /// Posts that wait because a join is being decided or a publisher is held back.
    posts: VecDeque<Post>,
}

impl Session {
    /// When it ends without a poll: one and a half windows after its last one.
    fn due_ns(&self) -> u64 {
        self.polled_ns.saturating_add(self.window_ns.saturating_mul(3) / 2)
    }

    fn next_number(&self) -> u32 {
        self.given.wrapping_add(u32::from(self.is_counted))
    }

    /// Answers the waiting poll with all messages; returns whether they are gone.
    fn answer(&mut self, now_ns: u64, underway: &Underway) -> bool {
        if self.messages.is_empty() {
            return false;
        }
        let Some(poll) = self.poll.take() else { return false };
        self.polled_ns = self.polled_ns.min(now_ns);
        let number = self.next_number();
        let messages = std::mem::take(&mut self.messages);
        match poll.send(Delivery::Messages(underway.batch(number, messages, self.held.waiting))) {
            Ok(()) => {
                self.given = number;
                true
            }
            Err(Delivery::Messages(mut given)) => {
                // The poll is gone: the next gets them.
                self.messages = std::mem::take(&mut given.messages);
                false
            }
            Err(Delivery::Newer) => false,
        }
    }
}

impl Shard {
    pub(crate) fn take_poll_command(&mut self, io: &mut Io, command: PollCommand) {
        match command {
            PollCommand::Open(opening) => self.open_polled(io, opening),
            PollCommand::Poll { key, nonce, heard, is_elsewhere, answer } => {
                let answered = self.poll(io, key, &nonce, heard, is_elsewhere);
                let Err(PollAnswer::Messages(mut given)) = answer.send(answered) else { return };
                // The request is gone: the next poll gets them.
                if let Some(polled) = self.polled.as_deref_mut()
                    && let Some(session) = polled.sessions.get_mut(&key)
                {
                    polled.sources.set_waiting(key, &mut session.held, given.bytes);
                    session.messages = std::mem::take(&mut given.messages);
                    session.given = heard;
                }
            }
            PollCommand::Post { key, nonce, post } => self.take_post(io, key, &nonce, post),
        }
    }

    fn open_polled(&mut self, io: &mut Io, opening: Opening) {
        let server = Arc::clone(&self.server);
        let Opening { head, user_socket: at, wire, params, auth_token, opener } = opening;
        let peer = opener.peer;
        let limits = HeadLimits { bytes_max: usize::MAX, ..server.config.http.head_limits() };
        let parsed = Request::parse(&head, &limits);
        let (Ok(Some((request, _))), Some(user_socket)) =
            (parsed, server.user_sockets.get(usize::from(at)))
        else {
            return opener.refuse(400);
        };
        let auth_token = auth_token.as_deref();
        let has_state = user_socket.parts().connect.is_some();
        let sent = request.query().len() + auth_token.map_or(0, str::len);
        let kept = SESSION_BYTES + if has_state { sent * STATE_FACTOR } else { 0 };
        let source = half(&server.client_hasher, address_key(peer.ip()));
        let kept = u32::try_from(kept).unwrap_or(u32::MAX);
        let held = Held { source, kept, ..Held::default() };
        let mut conn = Conn::new(Phase::Head, io.now().tick, POLLED);
        conn.socket.lead_to(at, wire);
        let polled = self.polled.get_or_insert_default();
        // The other half is for messages.
        let kept_max = server.config.inbound_budget_bytes / 2;
        let has_place = polled.sources.has_place(&held, io.capacity(), kept_max);
        let Some(key) = has_place.then(|| io.open_local(conn).ok()).flatten() else {
            self.metrics.refused_full.add(1);
            return self.refuse_polled(opener, 503);
        };
        polled.sources.enter(&held);
        let session = Session { nonce: opener.nonce, held, ..Session::default() };
        polled.sessions.insert(key, Box::new(session));
        self.metrics.longpoll_sessions.set(polled.sessions.len() as u64);
        self.note_source(key, || Some(peer.ip()));
        if self.count_address(key, || peer.ip()).is_err() {
            self.end_unopened(io, key);
            return self.refuse_polled(opener, 503);
        }
        let transport = Transport::LongPoll;
        let connection = self.connection_name(user_socket, key);
        let info =
            user_socket.connect_info(&request, params, auth_token, peer, transport, connection);
        let connect = self.ask_connect(user_socket, &info);
        self.polled_decided(io, key, opener, connect);
    }

    /// The application has decided about a session; `None`: it panicked.
    pub(crate) fn polled_decided(
        &mut self,
        io: &mut Io,
        key: Key,
        opener: Opener,
        connect: Option<Connect>,
    ) {
        let refused = match connect.map(|connect| self.without_denied(connect).0) {
            Some(ConnectKind::Later(work)) => {
                let requester = Some(Requester::Poll(opener));
                return self.await_connect(io, key, Vec::new(), requester, &[], work);
            }
            Some(ConnectKind::Ok(state)) if self.count_user(key, state.id.as_deref()).is_err() => {
                self.drop_guarded(state);
                503
            }
            Some(ConnectKind::Ok(state)) if self.server.connection_limit.take() => {
                self.read_again(io, key);
                self.open(io, key, &[], state);
                return self.begin_polled(io, key, opener);
            }
            Some(ConnectKind::Ok(state)) => {
                self.drop_guarded(state);
                self.metrics.refused_full.add(1);
                503
            }
            Some(ConnectKind::Refuse { status, .. }) => status,
            None => 500,
        };
        self.end_unopened(io, key);
        self.refuse_polled(opener, refused);
    }

    pub(crate) fn refuse_polled(&self, opener: Opener, status: u16) {
        self.metrics.upgrades_refused.add(1);
        opener.refuse(status);
    }

    fn begin_polled(&mut self, io: &mut Io, key: Key, opener: Opener) {
        let Some(user_socket) = self.user_socket(io, key) else { return };
        let window_ns = nanoseconds(user_socket.parts().longpoll.unwrap_or_default().window_time());
        let Some(polled) = self.polled.as_deref_mut() else { return };
        let Some(session) = polled.sessions.get_mut(&key) else { return };
        (session.window_ns, session.polled_ns) = (window_ns, io.now().ns);
        polled.due.push(Reverse((session.due_ns(), key)));
        // If the request is gone, the session ends as no poll follows.
        let _ = opener.answer.send(Ok(key));
    }

    fn session(&mut self, io: &Io, key: Key, nonce: &Nonce) -> Option<&mut Session> {
        let is_open = io.conn_ref(key).is_some_and(|conn| conn.socket.is_open());
        let session = self.polled.as_deref_mut()?.sessions.get_mut(&key)?;
        (is_open && session.nonce == *nonce).then_some(session)
    }

    /// `heard` is the number of the last answer that the client has received.
    fn poll(
        &mut self,
        io: &mut Io,
        key: Key,
        nonce: &Nonce,
        heard: u32,
        is_elsewhere: bool,
    ) -> PollAnswer {
        let now_ns = io.now().ns;
        let is_full = self.polled.as_ref().is_some_and(|polled| polled.underway.is_full());
        let Some(session) = self.session(io, key, nonce) else { return PollAnswer::Gone };
        if heard != session.given {
            self.metrics.longpoll_lost.add(1);
            let (core, mut out) = self.parts(io);
            core.peer_closed(&mut out, key, None);
            return PollAnswer::Lost;
        }
        session.is_counted |= is_elsewhere;
        session.polled_ns = now_ns;
        if let Some(older) = session.poll.take() {
            // The older poll may be gone.
            let _ = older.send(Delivery::Newer);
        }
        let has_messages = !session.messages.is_empty();
        if is_full || !has_messages {
            session.polled_ns = now_ns.saturating_add(session.window_ns);
            let (poll, heard) = oneshot::channel();
            session.poll = Some(poll);
            if has_messages && let Some(polled) = self.polled.as_deref_mut() {
                polled.ready.push_back(key);
            }
            return PollAnswer::Waits(heard);
        }
        session.given = session.next_number();
        let number = session.given;
        let messages = std::mem::take(&mut session.messages);
        let Some(polled) = self.polled.as_deref_mut() else { return PollAnswer::Gone };
        let Some(session) = polled.sessions.get_mut(&key) else { return PollAnswer::Gone };
        let bytes = session.held.waiting;
        polled.sources.set_waiting(key, &mut session.held, 0);
        PollAnswer::Messages(polled.underway.batch(number, messages, bytes))
    }

    /// Queues the messages of a POST; above the limit none of them is handled.
    fn take_post(&mut self, io: &mut Io, key: Key, nonce: &Nonce, post: Post) {
        let budget = self.server.config.inbound_budget_bytes;
        let most = usize::try_from(self.server.config.http.body_bytes_max).unwrap_or(usize::MAX);
        let held = self.polled.as_deref();
        let held = held.map_or(0, |polled| polled.inbound_bytes + polled.sources.kept);
        // The sender of the answer is dropped: the session is gone.
        let Some(session) = self.session(io, key, nonce) else { return self.drop_guarded(post) };
        let waiting: usize = session.posts.iter().map(|post| post.bytes).sum();
        let bytes = post.bytes;
        if waiting > 0 && (waiting + bytes > most || held + bytes > budget) {
            let _ = post.answer.send(408);
            return;
        }
        session.posts.push_back(post);
        if let Some(polled) = self.polled.as_deref_mut() {
            polled.inbound_bytes += bytes;
        }
        self.resume_polled(io, key);
    }

    /// Handles queued messages, until the socket is not read.
    pub(crate) fn resume_polled(&mut self, io: &mut Io, key: Key) {
        let mut slice = Slice::default();
        for _ in 0..LINES_MAX {
            let Some(phase) = io.conn_ref(key).map(|conn| conn.socket.phase()) else { return };
            let is_held = phase.is_pending() || io.is_held(key);
            let Some(polled) = self.polled.as_deref_mut() else { return };
            let Some(session) = polled.sessions.get_mut(&key) else { return };
            let Some(post) = session.posts.front_mut() else { return };
            if is_held {
                break;
            }
            // Messages of a request that is gone are dropped.
            let next = if post.answer.is_closed() { None } else { post.lines.next() };
            let Some(line) = next else {
                if let Some(post) = session.posts.pop_front() {
                    polled.inbound_bytes = polled.inbound_bytes.saturating_sub(post.bytes);
                    let _ = post.answer.send(200);
                }
                if session.posts.is_empty() {
                    session.posts = VecDeque::new();
                }
                continue;
            };
            if phase != Phase::Open {
                return;
            }
            match line {
                Line::Message(received) => self.handle_polled(io, key, *received),
                Line::Malformed => self.crash_polled(io, key, CloseCode::INTERNAL),
                Line::TooBig => self.crash_polled(io, key, CloseCode::TOO_BIG),
            }
            if io.is_over(&mut slice) {
                break;
            }
        }
        io.announce_local(key);
    }

    fn handle_polled(&mut self, io: &mut Io, key: Key, received: Received<'static>) {
        let tick = io.now().tick;
        if let Some(conn) = io.conn(key) {
            conn.socket.heard(tick);
        }
        self.count_message(key);
        self.received(io, key, Some(received));
    }

    fn crash_polled(&mut self, io: &mut Io, key: Key, code: CloseCode) {
        let counter = match code {
            CloseCode::TOO_BIG => &self.metrics.errors_too_big,
            _ => &self.metrics.errors_bad_message,
        };
        counter.add(1);
        let session = self.polled.as_deref_mut().and_then(|it| it.sessions.get_mut(&key));
        if let Some(post) = session.and_then(|session| session.posts.pop_front()) {
            let _ = post.answer.send(408);
        }
        self.fail(io, key, code);
    }

    /// Collects what this turn has sent to a session.
    pub(crate) fn collect_polled(&mut self, io: &mut Io, key: Key, mut data: &mut [u8]) {
        let limits = FrameLimits { frame_bytes_max: usize::MAX, message_bytes_max: usize::MAX };
        self.count_if_positions(io, key);
        // Each call has whole frames, so no state is kept for the next.
        let mut decoder = Decoder::new();
        while let Ok(Some(event)) = decoder.next(Role::Client, &limits, &mut data) {
            match event {
                Event::Text(text) => self.keep_for_poll(io, key, text.into()),
                // Binary frames have no form in long polling (PROTOCOL §4).
                Event::Binary(_) => self.metrics.longpoll_binary_dropped.add(1),
                Event::Close(_) => return io.close(key),
                Event::Compressed(_) | Event::Ping(_) | Event::Pong(_) => {}
            }
        }
    }

    /// Answers are numbered from the first message with a position on.
    fn count_if_positions(&mut self, io: &Io, key: Key) {
        let Some(polled) = self.polled.as_deref_mut() else { return };
        let Some(session) = polled.sessions.get_mut(&key) else { return };
        session.is_counted |=
            io.conn_ref(key).is_some_and(|conn| self.core.has_positions(&conn.socket));
    }

    fn keep_for_poll(&mut self, io: &mut Io, key: Key, text: Box<str>) {
        let Some(polled) = self.polled.as_deref_mut() else { return };
        let Some(session) = polled.sessions.get_mut(&key) else { return };
        let is_first = session.messages.is_empty();
        if is_first {
            session.held.since_ns = io.now().ns;
        }
        let bytes = session.held.waiting + weight(&text);
        polled.sources.set_waiting(key, &mut session.held, bytes);
        session.messages.push(text);
        if is_first && session.poll.is_some() {
            polled.ready.push_back(key);
        }
        if bytes > self.server.config.outbound_bytes_max {
            self.cut_polled(io, key);
        }
        while let Some(key) = self.over_budget(key) {
            self.cut_polled(io, key);
        }
    }

    /// The session to cut if too many bytes wait to be polled; the last of them for session `last`.
    fn over_budget(&self, last: Key) -> Option<Key> {
        let Polled { sessions, sources, .. } = self.polled.as_deref()?;
        if sources.waiting <= self.server.config.outbound_budget_bytes {
            return None;
        }
        let last = sessions.get(&last).map(|session| (&session.held, last));
        let candidates = sources.of_largest(last);
        let weighed = candidates.filter_map(|key| Some((sessions.get(&key)?.held.waiting, key)));
        weighed.max().map(|(_, key)| key)
    }

    /// Ends a session that is polled too slowly, and frees its messages.
    #[cold]
    fn cut_polled(&mut self, io: &mut Io, key: Key) {
        let Some(polled) = self.polled.as_deref_mut() else { return };
        let Some(session) = polled.sessions.get_mut(&key) else { return };
        session.messages = Vec::new();
        polled.sources.set_waiting(key, &mut session.held, 0);
        if io.conn_ref(key).is_some_and(|conn| conn.socket.is_open()) {
            self.metrics.slow_peer_disconnects.add(1);
            self.fail(io, key, CloseCode::TRY_AGAIN);
        }
    }

    /// Answers polls whose sessions have messages, for at most one slice.
    pub(crate) fn answer_polls(&mut self, io: &Io) -> Next {
        let Some(polled) = self.polled.as_deref_mut() else { return Next::Idle };
        if polled.ready.is_empty() {
            return Next::Idle;
        }
        let now_ns = io.now().ns;
        let deadline_ns = io.clock_ns() + nanoseconds(SLICE);
        let mut answered = 0_usize;
        while let Some(key) = polled.ready.pop_front() {
            if polled.underway.is_full() {
                polled.ready.push_front(key);
                return Next::After(AGAIN);
            }
            if let Some(session) = polled.sessions.get_mut(&key)
                && session.answer(now_ns, &polled.underway)
            {
                polled.sources.set_waiting(key, &mut session.held, 0);
            }
            answered += 1;
            if answered.is_multiple_of(STRIDE) && io.clock_ns() >= deadline_ns {
                return Next::Now;
            }
        }
        Next::Idle
    }

    pub(crate) fn expire_polled(&mut self, io: &mut Io) -> Next {
        let now_ns = io.now().ns;
        loop {
            let Some(polled) = self.polled.as_deref_mut() else { return Next::Idle };
            let Some(Reverse((at_ns, key))) = polled.due.peek().copied() else {
                return Next::Idle;
            };
            if at_ns > now_ns {
                return Next::After(Duration::from_nanos(at_ns - now_ns));
            }
            polled.due.pop();
            let Some(session) = polled.sessions.get(&key) else { continue };
            let due_ns = session.due_ns();
            if due_ns > now_ns {
                polled.due.push(Reverse((due_ns, key)));
                continue;
            }
            self.metrics.longpoll_expired.add(1);
            let (core, mut out) = self.parts(io);
            core.peer_closed(&mut out, key, None);
        }
    }

    /// A session has ended: its last messages go to the waiting poll; later requests find it gone.
    pub(crate) fn polled_gone(&mut self, key: Key) {
        let Some(polled) = self.polled.as_deref_mut() else { return };
        let Some(mut session) = polled.sessions.remove(&key) else { return };
        let inbound: usize = session.posts.iter().map(|post| post.bytes).sum();
        polled.inbound_bytes = polled.inbound_bytes.saturating_sub(inbound);
        session.answer(session.polled_ns, &polled.underway);
        polled.sources.leave(key, &mut session.held);
        if polled.sessions.is_empty() {
            // Frees their memory.
            (polled.sessions, polled.ready) = (HashMap::new(), VecDeque::new());
            polled.sources = Sources::default();
        }
        self.metrics.longpoll_sessions.set(polled.sessions.len() as u64);
        self.drop_guarded(session);
    }
}

fn weight(text: &str) -> usize {
    text.len() + MESSAGE_BYTES
}
