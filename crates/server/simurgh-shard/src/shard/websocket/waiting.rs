//! Waits during which a connection is not read: for the application's decision on its connect, or
//! for the decoding of a message too long for a turn. Bytes that came after it wait as well, so
//! that all is handled in order (PROTOCOL §5.4). The core waits for joins; bytes after those are
//! kept here, too.
//!
//! Every wait is bounded: what the application has not decided in `decision_timeout` is refused,
//! and a peer that has hung up is waited for no longer than for the answer to a close.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use simurgh_core::{AbandonReason, Decision, Phase, Received};
use simurgh_proto::serializer::{Frame, Serializer};
use simurgh_proto::ws::{Compressed, Inflater};
use simurgh_reactor::Key;
use simurgh_socket::{Connect, UserSocket};

use crate::mail::{Mail, Read};
use crate::server::Server;
use crate::shard::{Io, Passing, Requester, Shard, Waiting};

/// A message that is decoded outside the shard.
pub enum Long {
    Text(String),
    Binary(Vec<u8>),
}

impl Long {
    fn len(&self) -> usize {
        match self {
            Self::Text(text) => text.len(),
            Self::Binary(bytes) => bytes.len(),
        }
    }
}

impl Shard {
    /// Holds a connection until the application decides its connect; `rest` came after its request.
    pub(crate) fn await_connect(
        &mut self,
        io: &mut Io,
        key: Key,
        response: Vec<u8>,
        requester: Option<Requester>,
        rest: &[u8],
        decision: Decision<Connect>,
    ) {
        let waiting = self.ticket(rest);
        let ticket = waiting.ticket;
        let passing = Passing::Connecting { response, requester, waiting, waits: None };
        if !self.wait(io, key, Phase::Connecting, passing) {
            return;
        }
        let shard = self.index;
        let decided = move |connect| Mail::Connected(key, ticket, connect);
        match decision {
            Decision::Work(work) => {
                self.server.decide_and(usize::from(shard), "connect", work, decided);
            }
            Decision::Call(ask) => {
                let server = Arc::clone(&self.server);
                let asked = ask(Box::new(move |it| server.post_to(shard, decided(Some(it)))));
                let passing = io.conn(key).and_then(|conn| conn.passing.as_deref_mut());
                if let Some(Passing::Connecting { waits, .. }) = passing {
                    *waits = Some(asked);
                }
            }
        }
    }

    pub(crate) fn read_elsewhere(
        &mut self,
        io: &mut Io,
        key: Key,
        serializer: Serializer,
        long: Long,
    ) {
        let user_socket = io.conn_ref(key).map(|conn| usize::from(conn.socket.user_socket()));
        self.elsewhere(io, key, long.len(), move |server| {
            let user_socket = user_socket.and_then(|at| server.user_sockets.get(at));
            Read::Decoded(receive(user_socket, serializer, long))
        });
    }

    pub(super) fn inflate_elsewhere(
        &mut self,
        io: &mut Io,
        key: Key,
        message: Compressed<'static>,
        bytes_max: usize,
    ) {
        self.elsewhere(io, key, message.payload().len(), move |_| {
            Read::Inflated(message.inflate(&mut Inflater::default(), bytes_max))
        });
    }

    /// Holds a connection while another thread reads its message of this many bytes.
    fn elsewhere(
        &mut self,
        io: &mut Io,
        key: Key,
        bytes: usize,
        read: impl FnOnce(&Server) -> Read + Send + 'static,
    ) {
        let waiting = self.ticket(&[]);
        let ticket = waiting.ticket;
        if !self.wait(io, key, Phase::Waiting, Passing::Reading { bytes, waiting }) {
            return;
        }
        let (server, shard) = (Arc::clone(&self.server), self.index);
        self.server.spawn(async move {
            // At most one per core at a time: others wait here, not each on a thread.
            let _permit = server.readers.acquire().await;
            let reader = Arc::clone(&server);
            let read = move || catch_unwind(AssertUnwindSafe(|| read(&reader))).ok();
            let read = tokio::task::spawn_blocking(read).await.ok().flatten();
            server.post_to(shard, Mail::Read(key, ticket, read.unwrap_or(Read::Decoded(None))));
        });
    }

    fn ticket(&mut self, rest: &[u8]) -> Waiting {
        self.tickets = self.tickets.wrapping_add(1);
        Waiting { ticket: self.tickets, behind: rest.to_vec() }
    }

    /// Holds a connection; returns whether it exists.
    fn wait(&self, io: &mut Io, key: Key, phase: Phase, passing: Passing) -> bool {
        let tick = io.now().tick;
        let Some(conn) = io.conn(key) else { return false };
        conn.socket.enter(phase, tick);
        conn.passing = Some(Box::new(passing));
        io.hold(key);
        true
    }

    /// The application has decided a connect, or panicked (`None`).
    pub(crate) fn connected(
        &mut self,
        io: &mut Io,
        key: Key,
        ticket: u32,
        connect: Option<Connect>,
    ) {
        let is_it = |passing: &Passing| passing.ticket() == Some(ticket);
        let Some((before, passing)) = take_passing(io, key, is_it) else {
            return self.drop_guarded(connect);
        };
        let Passing::Connecting { response, requester, mut waiting, .. } = passing else { return };
        if connect.is_none() {
            self.metrics.errors_callback_panic.add(1);
        }
        match requester {
            Some(Requester::Driver(answer)) => {
                if let Some(outcome) = self.driven_decided(io, key, &answer, connect) {
                    // The driver may be gone.
                    let _ = answer.send(vec![outcome]);
                }
                return;
            }
            Some(Requester::Poll(opener)) => return self.polled_decided(io, key, opener, connect),
            None => self.read_again(io, key),
        }
        match connect {
            Some(connect) => self.answer_connect(io, key, response, connect, &mut waiting.behind),
            None => self.refuse(io, key, 500, ""),
        }
        self.account_inbound(io, key, before);
    }

    /// A connection that is not open yet waits no more.
    pub(crate) fn read_again(&self, io: &mut Io, key: Key) {
        let tick = io.now().tick;
        if let Some(conn) = io.conn(key) {
            conn.socket.enter(Phase::Head, tick);
        }
        io.release(key);
    }

    pub(crate) fn end_unopened(&self, io: &mut Io, key: Key) {
        let tick = io.now().tick;
        if let Some(conn) = io.conn(key) {
            conn.socket.enter(Phase::Ending, tick);
        }
        io.close(key);
    }

    /// A long message was read on another thread.
    pub(crate) fn was_read(&mut self, io: &mut Io, key: Key, ticket: u32, read: Read) {
        let is_it = |passing: &Passing| passing.ticket() == Some(ticket);
        let Some((before, passing)) = take_passing(io, key, is_it) else {
            return self.drop_guarded(read);
        };
        let Passing::Reading { bytes, mut waiting } = passing else { return };
        let (core, mut out) = self.parts(io);
        core.resume(&mut out, key);
        match read {
            Read::Decoded(received) => self.received(io, key, received),
            Read::Inflated(inflated) => {
                if let Err(error) = self.inflated(io, key, bytes, inflated) {
                    self.frame_error(io, key, error);
                }
            }
        }
        self.frames(io, key, &mut waiting.behind);
        self.account_inbound(io, key, before);
    }

    /// Keeps bytes after something that is awaited. The connection is held, so this is at most the
    /// size of one read.
    pub(crate) fn stash(&mut self, io: &mut Io, key: Key, data: &[u8]) {
        let Some(conn) = io.conn(key).filter(|_| !data.is_empty()) else { return };
        match conn.passing.as_deref_mut() {
            Some(passing) => passing.stash(data),
            None => conn.passing = Some(Box::new(Passing::Backlog(data.to_vec()))),
        }
    }

    /// A connection is read again: its kept bytes are handled first, unless it has ended.
    pub(crate) fn resume(&mut self, io: &mut Io, key: Key) {
        let waits = |phase: Phase| phase.is_pending() || phase == Phase::Head;
        if io.conn_ref(key).is_none_or(|conn| waits(conn.socket.phase())) {
            return;
        }
        let Some((before, passing)) = take_passing(io, key, |_| true) else { return };
        if let Passing::Backlog(mut behind) = passing {
            self.frames(io, key, &mut behind);
        }
        self.account_inbound(io, key, before);
    }

    /// The core has given up a connection without a session.
    pub(crate) fn abandoned(&mut self, io: &mut Io, key: Key, why: AbandonReason) {
        let Some(conn) = io.conn_ref(key) else { return };
        let is_connecting = conn.socket.phase() == Phase::Connecting;
        let Some((before, passing)) = take_passing(io, key, |_| true) else {
            // A client that sent nothing gets no answer.
            return io.close(key);
        };
        match passing {
            Passing::Connecting { requester: Some(Requester::Poll(opener)), .. } => {
                self.end_unopened(io, key);
                self.refuse_polled(opener, 503);
            }
            Passing::Connecting { requester: Some(Requester::Driver(answer)), .. } => {
                self.end_unopened(io, key);
                // The driver may be gone.
                let _ = answer.send(vec![self.refuse_driven(503, String::new())]);
            }
            _ if why == AbandonReason::Drain => {
                self.refuse(io, key, 503, "");
                io.release(key);
            }
            _ if is_connecting => {
                self.read_again(io, key);
                self.refuse_for_now(io, key);
            }
            // A client that began a request gets an answer.
            _ => self.refuse(io, key, 408, ""),
        }
        self.account_inbound(io, key, before);
    }
}

/// Takes `passing` of a connection if its ticket matches, with the bytes held before.
pub(super) fn take_passing(
    io: &mut Io,
    key: Key,
    is_it: impl FnOnce(&Passing) -> bool,
) -> Option<(usize, Passing)> {
    let conn = io.conn(key)?;
    let before = conn.inbound_bytes();
    Some((before, *conn.passing.take_if(|passing| is_it(passing))?))
}

/// Decodes a long message of a client; `None` if it is malformed.
pub fn receive(
    user_socket: Option<&UserSocket>,
    serializer: Serializer,
    long: Long,
) -> Option<Received<'static>> {
    let mut message = match long {
        Long::Text(text) => serializer.decode_owned(text).ok()?,
        Long::Binary(bytes) => user_socket?.decode(serializer, Frame::Binary(&bytes))?.into_owned(),
    };
    let route =
        user_socket.and_then(|user_socket| user_socket.parts().channels.route(&message.topic));
    let prepare = route.and_then(|route| route.prepare.as_ref());
    let bytes = message.payload.len();
    let prepared = prepare.map(|prepare| prepare(&mut message));
    let taken_bytes = bytes.saturating_sub(message.payload.len());
    Some(Received { message, prepared, taken_bytes })
}
