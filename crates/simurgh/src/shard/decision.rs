//! What a socket waits for: the application's word on a connect or a join, or the reading of a
//! message too long for a turn. It is not read meanwhile, and what came behind waits with it; so
//! everything is handled in the order in which it came (PROTOCOL §5.4).
//!
//! No wait is for ever: what the application has not decided in `decision_timeout` is refused, and
//! a peer that has hung up is not waited for longer than for the answer to a close.

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;

use simurgh_proto::message::{Message, Payload};
use simurgh_proto::serializer::Serializer;
use simurgh_proto::ws::CloseCode;
use simurgh_reactor::Key;

use super::conn::{Awaited, Joining, Passing, Phase, Waiting};
use super::lifecycle::TICK;
use super::{Io, Mail, Shard};
use crate::channel::Join;
use crate::socket::{Connect, Mount, Prepared};

/// Longer texts are read elsewhere: one of escapes or blanks takes 8 ns a byte.
pub(super) const TEXT_BYTES_MAX: usize = 64 << 10;

/// What was awaited has come; `None` when deciding it panicked, or the text is no message.
pub(crate) enum Decided {
    Connect(Option<Connect>),
    Join(Option<Join>),
    Message(Option<Received<'static>>),
}

/// A message of a client, as it was read.
pub(crate) struct Received<'a> {
    pub(crate) message: Message<'a>,
    /// What its channel's definition has made of it, if it is a long one.
    pub(crate) prepared: Option<Prepared>,
}

impl<'a> From<Message<'a>> for Received<'a> {
    fn from(message: Message<'a>) -> Self {
        Self { message, prepared: None }
    }
}

impl Shard {
    /// Has a socket wait for `work`; `rest` is what came behind what is to be decided.
    pub(super) fn await_decision<T: Send + 'static>(
        &mut self,
        io: &mut Io,
        key: Key,
        what: Awaited,
        rest: &[u8],
        work: Pin<Box<dyn Future<Output = T> + Send>>,
        decided: impl FnOnce(Option<T>) -> Decided + Send + 'static,
    ) {
        let Some(ticket) = self.wait_for(io, key, what, rest) else { return };
        let (hub, shard) = (Arc::clone(&self.hub), self.index);
        // By then the shard has given up; the work need not go on for nobody.
        let longest = 2 * self.hub.config.decision_timeout;
        self.hub.spawn(async move {
            if let Ok(result) = tokio::time::timeout(longest, tokio::spawn(work)).await {
                hub.post(shard, Mail::Decided(key, ticket, decided(result.ok())));
            }
        });
    }

    /// Has a long text read where nobody else waits for it.
    pub(super) fn read_elsewhere(
        &mut self,
        io: &mut Io,
        key: Key,
        serializer: Serializer,
        text: String,
    ) {
        let Some(ticket) = self.wait_for(io, key, Awaited::Message(text.len()), &[]) else {
            return;
        };
        let (hub, shard) = (Arc::clone(&self.hub), self.index);
        let mount = io.conn_ref(key).map(|conn| usize::from(conn.mount));
        self.hub.spawn(async move {
            // As many at once as there are cores: others wait here and not on a thread each.
            let _permit = hub.readers.acquire().await;
            let mounts = Arc::clone(&hub);
            let read = move || {
                let mount = mount.and_then(|mount| mounts.mounts.get(mount));
                let read = || receive(mount, serializer, text);
                catch_unwind(AssertUnwindSafe(read)).ok().flatten()
            };
            let received = tokio::task::spawn_blocking(read).await.ok().flatten();
            hub.post(shard, Mail::Decided(key, ticket, Decided::Message(received)));
        });
    }

    /// Holds a socket; names what it waits for.
    fn wait_for(&mut self, io: &mut Io, key: Key, what: Awaited, rest: &[u8]) -> Option<u32> {
        self.tickets = self.tickets.wrapping_add(1);
        let (ticket, tick) = (self.tickets, io.now().tick);
        let conn = io.conn(key)?;
        conn.phase = Phase::Pending;
        conn.last_heard = tick;
        let waiting = Waiting { what, ticket, stash: rest.to_vec() };
        conn.passing = Some(Box::new(Passing::Waiting(waiting)));
        io.hold(key);
        Some(ticket)
    }

    /// What was awaited has come, or something that is not awaited any more.
    pub(super) fn decided(&mut self, io: &mut Io, key: Key, ticket: u32, decided: Decided) {
        let Some(conn) = io.conn(key) else { return self.drop_guarded(decided) };
        let is_it = |passing: &mut Box<Passing>| match &**passing {
            Passing::Waiting(waiting) => waiting.ticket == ticket,
            Passing::Head { .. } => false,
        };
        let before = conn.inbound_bytes();
        let Some(Passing::Waiting(waiting)) = conn.passing.take_if(is_it).map(|it| *it) else {
            return self.drop_guarded(decided);
        };
        self.go_on(io, key, waiting, before, decided);
    }

    fn go_on(&mut self, io: &mut Io, key: Key, waiting: Waiting, before: usize, decided: Decided) {
        let Waiting { what, mut stash, .. } = waiting;
        match (what, decided) {
            (Awaited::Connect { answer: Some(answer), .. }, Decided::Connect(connect)) => {
                return self.driven_decided(io, key, &answer, connect);
            }
            (Awaited::Connect { response, .. }, Decided::Connect(connect)) => {
                self.is_open_again(io, key, Phase::Head);
                match connect {
                    Some(connect) => self.answer_connect(io, key, response, connect, &mut stash),
                    None => {
                        self.metrics.errors_callback_panic.add(1);
                        self.refuse(io, key, 500, "");
                    }
                }
                return self.account_inbound(io, key, before);
            }
            (Awaited::Join { topic, join_ref, message, replaced }, Decided::Join(join)) => {
                self.is_open_again(io, key, Phase::Open);
                let joining = Joining { topic: &topic, join_ref, message, replaced };
                self.answer_join(io, key, joining, join.map(|join| (join, Vec::new())));
            }
            (Awaited::Message(_), Decided::Message(received)) => {
                self.is_open_again(io, key, Phase::Open);
                self.received(io, key, received);
            }
            // Tickets are not given twice.
            (_, decided) => self.drop_guarded(decided),
        }
        self.frames(io, key, &mut stash);
        self.account_inbound(io, key, before);
    }

    /// A socket waits no more; it is read again, unless it is held for what it published.
    pub(super) fn is_open_again(&self, io: &mut Io, key: Key, phase: Phase) {
        let tick = io.now().tick;
        if let Some(conn) = io.conn(key) {
            conn.phase = phase;
            conn.last_heard = tick;
        }
        if !self.is_held_back(key) {
            io.release(key);
        }
    }

    /// Whether a socket has waited too long; if its peer has hung up, that is as long as for the
    /// answer to a close.
    pub(super) fn is_decision_overdue(&self, io: &Io, key: Key) -> bool {
        let Some(conn) = io.conn_ref(key) else { return false };
        let config = &self.hub.config;
        let limit = match conn.awaited() {
            // Reading has an end of its own.
            None | Some(Awaited::Message(_)) => return false,
            Some(_) if io.peer_has_shut(key) => config.close_timeout,
            Some(_) => config.decision_timeout,
        };
        TICK * io.now().tick.wrapping_sub(conn.last_heard) > limit
    }

    /// A socket has waited too long: it is told so, and what it waits for is not awaited any more.
    pub(super) fn decision_overdue(&mut self, io: &mut Io, key: Key) {
        let Some(conn) = io.conn(key) else { return };
        let before = conn.inbound_bytes();
        let Some(Passing::Waiting(waiting)) = conn.passing.take().map(|it| *it) else { return };
        let Waiting { what, mut stash, .. } = waiting;
        self.metrics.errors_decision_timeout.add(1);
        match what {
            Awaited::Connect { answer: None, .. } => {
                self.is_open_again(io, key, Phase::Head);
                self.refuse_for_now(io, key);
            }
            Awaited::Connect { answer: Some(answer), .. } => {
                if let Some(conn) = io.conn(key) {
                    conn.phase = Phase::Ending;
                }
                io.close(key);
                // Who asked may have gone.
                let _ = answer.send(vec![self.turn_away(503, String::new())]);
            }
            Awaited::Join { topic, join_ref, message, replaced } => {
                self.is_open_again(io, key, Phase::Open);
                let joining = Joining { topic: &topic, join_ref, message, replaced };
                let reason = Payload::Json(r#"{"reason":"join timed out"}"#.into());
                self.metrics.joins_refused.add(1);
                self.refuse_join(io, key, joining, reason);
                self.frames(io, key, &mut stash);
            }
            // Never asked for: reading has an end of its own.
            Awaited::Message(_) => self.fail(io, key, CloseCode::INTERNAL),
        }
        self.account_inbound(io, key, before);
    }
}

/// Reads a long text of a client; none if it is no message.
fn receive(
    mount: Option<&Mount>,
    serializer: Serializer,
    text: String,
) -> Option<Received<'static>> {
    let mut message = serializer.decode_owned(text).ok()?;
    let route = mount.and_then(|mount| mount.route(&message.topic));
    let prepare = route.and_then(|route| route.prepare.as_ref());
    let prepared = prepare.map(|prepare| prepare(&mut message));
    Some(Received { message, prepared })
}
