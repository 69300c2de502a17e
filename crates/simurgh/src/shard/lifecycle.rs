//! What comes with time: deadlines, closing, draining, and the end of a connection.
//!
//! No connection has a timer. Its record bears the tick at which it was last heard, and a sweep
//! over the records, a slice a turn, finds those whose time is up.

use std::time::{Duration, Instant};

use simurgh_proto::ws::CloseCode;
use simurgh_reactor::{Key, Next};

use super::callback::Speaker;
use super::conn::{Awaited, Conn, NO_MEMBERSHIP, NOBODY, Phase};
use super::{Io, Shard};
use crate::channel::Reason;
use crate::hub::Hub;

/// One tick of the coarse clock.
pub(super) const TICK: Duration = Duration::from_millis(100);
/// Records looked at in one turn.
const SWEEP_RECORDS: usize = 2048;
/// A drain ends this long after its last close at the latest.
pub(crate) const DRAIN_GRACE: Duration = Duration::from_secs(5);
/// Sockets a drain closes in one turn at most, however short its time.
const DRAIN_TURN: usize = 128;
/// How many times [`SWEEP_RECORDS`] a step of a drain looks at.
const DRAIN_SWEEPS: usize = 4;
/// So many connections that ended are a crowd.
const CROWD: usize = 256;
/// Bytes of free pages that are kept for the next connections.
const FREE_KEPT: usize = 256 << 10;
/// How long after the last of fewer has left memory is given back.
const FEW_AFTER: Duration = Duration::from_secs(30);
/// How long after one has left memory is given back: others may still be busy with their part.
const TIDY_AFTER: Duration = Duration::from_secs(4);
/// So much later by each shard than by the one before: while one has the allocator give memory
/// back, the same asked by another does nothing.
const TIDY_APART: Duration = Duration::from_millis(5);
/// How often a drain closes a part.
const DRAIN_STEP: Duration = Duration::from_millis(5);

pub(super) struct Lifecycle {
    /// How often every record is looked at.
    sweep_every: Duration,
    next_sweep: Instant,
    sweep_at: u32,
    is_sweeping: bool,
    found: Vec<Key>,
    /// Whose channels are brought up to date, to be closed next.
    closing: Option<Key>,
    drain: Option<Drain>,
    /// Connections and memberships that ended since memory was last given back.
    pub(super) left: usize,
    /// How many of them that were when last looked at, and until when nobody more may leave for
    /// memory to be given back although they are few.
    few: (usize, Option<Instant>),
    /// When it is given back next.
    tidy_at: Option<Instant>,
}

struct Drain {
    began: Instant,
    over: Duration,
    /// Connections there were at its beginning.
    total: usize,
    closed: usize,
    at: u32,
    next_step: Instant,
}

impl Lifecycle {
    pub(super) fn new(hub: &Hub) -> Self {
        let config = &hub.config;
        let shortest = hub
            .mounts
            .iter()
            .filter_map(|mount| mount.idle_timeout.unwrap_or(config.idle_timeout))
            .chain([config.handshake_timeout, config.close_timeout, config.decision_timeout])
            .min()
            .unwrap_or(config.close_timeout);
        let sweep_every = (shortest / 8).clamp(TICK, Duration::from_secs(5));
        Self {
            sweep_every,
            next_sweep: Instant::now() + sweep_every,
            sweep_at: 0,
            is_sweeping: false,
            found: Vec::new(),
            closing: None,
            drain: None,
            left: 0,
            few: (0, None),
            tidy_at: None,
        }
    }
}

impl Shard {
    /// The timed part of a turn; says when it has to run again.
    pub(super) fn keep_time(&mut self, io: &mut Io) -> Next {
        let now = Instant::now();
        let swept = self.sweep(io, now);
        let judged = self.judge_inbound(io, now);
        let drained = self.drain_step(io, now);
        let hibernated = self.hibernate(io, now);
        let tidied = self.tidy(now);
        let now = io.now();
        let swept = swept.sooner(judged, now);
        swept.sooner(drained, now).sooner(tidied, now).sooner(hibernated, now)
    }

    /// After a crowd has left, has the allocator give back what it keeps for the next.
    fn tidy(&mut self, now: Instant) -> Next {
        // The last few empty the pages on which they were left behind.
        let more = self.lifecycle.tidy_at.is_none() && simurgh_reactor::free_memory() >= FREE_KEPT;
        if self.lifecycle.left >= CROWD || more {
            self.lifecycle.left = 0;
            self.tidy_soon(now + TIDY_AFTER);
        } else if let Some(at) = self.few_left(now)
            && at <= now
        {
            self.lifecycle.left = 0;
            self.tidy_soon(now);
        }
        let lifecycle = &mut self.lifecycle;
        match lifecycle.tidy_at {
            None if lifecycle.left > 0 => lifecycle
                .few
                .1
                .map_or(Next::Idle, |at| Next::After(at.saturating_duration_since(now))),
            None => Next::Idle,
            Some(at) if at > now => Next::After(at - now),
            Some(_) => {
                let is_done = simurgh_reactor::give_back_memory();
                lifecycle.tidy_at = (!is_done).then_some(now);
                if is_done { Next::Idle } else { Next::Now }
            }
        }
    }

    /// Until when nobody more may leave for memory to be given back after a few have.
    fn few_left(&mut self, now: Instant) -> Option<Instant> {
        let lifecycle = &mut self.lifecycle;
        if lifecycle.left == 0 || lifecycle.tidy_at.is_some() {
            return None;
        }
        if lifecycle.few.0 != lifecycle.left || lifecycle.few.1.is_none() {
            lifecycle.few = (lifecycle.left, Some(now + FEW_AFTER));
        }
        lifecycle.few.1
    }

    /// Has memory given back at this time, or a little later.
    pub(super) fn tidy_soon(&mut self, at: Instant) {
        self.lifecycle.few = (0, None);
        self.lifecycle.tidy_at = Some(at + TIDY_APART * u32::from(self.index));
    }

    fn sweep(&mut self, io: &mut Io, now: Instant) -> Next {
        if io.is_empty() {
            self.lifecycle.is_sweeping = false;
            return Next::Idle;
        }
        if !self.lifecycle.is_sweeping {
            if now < self.lifecycle.next_sweep {
                return Next::After(self.lifecycle.next_sweep - now);
            }
            self.lifecycle.is_sweeping = true;
            self.lifecycle.sweep_at = 0;
        }
        let ticks = io.now().tick;
        let hub = std::sync::Arc::clone(&self.hub);
        let mut found = std::mem::take(&mut self.lifecycle.found);
        io.sweep(
            &mut self.lifecycle.sweep_at,
            SWEEP_RECORDS,
            |_, conn| {
                conn.keep_age(ticks);
                is_overdue(conn, ticks, &hub)
            },
            &mut found,
        );
        for key in found.drain(..) {
            self.overdue(io, key);
        }
        self.lifecycle.found = found;
        if self.lifecycle.sweep_at != 0 {
            return Next::Now;
        }
        self.lifecycle.is_sweeping = false;
        self.lifecycle.next_sweep = now + self.lifecycle.sweep_every;
        Next::After(self.lifecycle.sweep_every)
    }

    fn overdue(&mut self, io: &mut Io, key: Key) {
        let tick = io.now().tick;
        // What lies unread in its socket is word of it, too: it has not been silent.
        let has_spoken = io.has_input(key);
        let Some(conn) = io.conn(key) else { return };
        match conn.phase {
            Phase::Pending => {
                if self.is_decision_overdue(io, key) {
                    self.decision_overdue(io, key);
                }
            }
            Phase::Open | Phase::Closing if has_spoken => conn.last_heard = tick,
            Phase::Head | Phase::Full => {
                self.metrics.handshake_timeouts.add(1);
                // Who has begun to ask is told; who has said nothing hears nothing.
                match conn.passing {
                    Some(_) => {
                        self.forget_passing(io, key);
                        self.refuse(io, key, 408, "");
                    }
                    None => io.close(key),
                }
            }
            // A publisher that is held back is not heard because nobody listens.
            Phase::Open if self.is_held_back(key) => conn.last_heard = tick,
            Phase::Open => {
                self.metrics.idle_timeouts.add(1);
                self.close_socket(io, key, CloseCode::PROTOCOL);
            }
            Phase::Closing | Phase::Ending => io.abort(key),
        }
    }

    /// Closes a socket from our side and waits a while for the peer's answer.
    pub(super) fn close_socket(&mut self, io: &mut Io, key: Key, code: CloseCode) {
        let Some(conn) = io.conn(key) else { return };
        if !matches!(conn.phase, Phase::Open | Phase::Pending)
            || self.lifecycle.closing == Some(key)
        {
            return;
        }
        if matches!(conn.awaited(), Some(Awaited::Connect { .. })) {
            // It has not been told yet that it speaks WebSocket.
            self.forget_passing(io, key);
            self.refuse(io, key, 503, "");
            return io.release(key);
        }
        // An interceptor that is brought up to date may want to close this socket, too.
        self.lifecycle.closing = Some(key);
        let mut next = conn.memberships;
        while let Some(membership) = self.members.get(next) {
            let current = next;
            next = membership.next;
            if membership.is_joined() {
                self.catch_up(io, current);
            }
        }
        self.lifecycle.closing = None;
        self.end_channels(io, key);
        self.forget_passing(io, key);
        let tick = io.now().tick;
        let Some(conn) = io.conn(key) else { return };
        conn.phase = Phase::Closing;
        conn.last_heard = tick;
        let is_driven = conn.driver != NOBODY;
        self.say_close(io, key, Some(code), close_reason(code));
        // A held socket has to hear the answer; a driven one answers by having heard it.
        match is_driven {
            true => io.close(key),
            false => io.release(key),
        }
    }

    /// Drops what a socket waits for, and gives the bytes it was charged for back.
    fn forget_passing(&mut self, io: &mut Io, key: Key) {
        if let Some(passing) = io.conn(key).and_then(|conn| conn.passing.take()) {
            self.forget_inbound(key, passing.bytes());
        }
    }

    /// Closes a socket whose peer broke the protocol: what else it sends is not looked at.
    pub(super) fn fail(&mut self, io: &mut Io, key: Key, code: CloseCode) {
        self.end_channels(io, key);
        let tick = io.now().tick;
        let Some(conn) = io.conn(key) else { return };
        let connects = matches!(conn.awaited(), Some(Awaited::Connect { .. }));
        if connects || matches!(conn.phase, Phase::Head | Phase::Full) {
            return io.close(key);
        }
        conn.phase = Phase::Ending;
        conn.last_heard = tick;
        self.say_close(io, key, Some(code), close_reason(code));
        io.shutdown_write(key);
        io.release(key);
    }

    /// Ends all channels of a socket that is about to close; nothing is said to the client any
    /// more.
    pub(super) fn end_channels(&mut self, io: &mut Io, key: Key) {
        let Some(conn) = io.conn(key) else { return };
        if !conn.is_upgraded() {
            return;
        }
        conn.phase = Phase::Ending;
        conn.channels = 0;
        let first = std::mem::replace(&mut conn.memberships, NO_MEMBERSHIP);
        let socket = conn.socket.take();
        self.count_one_less();
        self.end_memberships(io, first, socket);
    }

    /// The connection is gone; its record is all that is left.
    pub(super) fn gone(&mut self, io: &mut Io, key: Key, mut conn: Conn) {
        self.forget_inbound(key, conn.inbound_bytes());
        self.forget_held(key);
        self.lifecycle.left += 1;
        self.driven_gone(key, &conn);
        if conn.is_upgraded() {
            self.count_one_less();
        }
        let first = std::mem::replace(&mut conn.memberships, NO_MEMBERSHIP);
        self.end_memberships(io, first, conn.socket.take());
    }

    /// A socket that was open is open no more.
    fn count_one_less(&self) {
        self.metrics.sockets.set(self.metrics.sockets.value().saturating_sub(1));
        self.hub.seats.give_back();
    }

    fn end_memberships(
        &mut self,
        io: &mut Io,
        first: u32,
        socket: Option<Box<crate::socket::SocketState>>,
    ) {
        let mut next = first;
        while let Some(membership) = self.members.get(next) {
            let current = next;
            next = membership.next;
            let speaker = if membership.is_joined() { self.speaker(io, current) } else { None };
            let channel = self.forget(current);
            if let Some(speaker) = speaker {
                let effects = self.terminate(socket.as_deref(), &speaker, channel, Reason::Closed);
                self.apply_posthumously(io, &speaker, effects);
            }
        }
        if let Some(socket) = socket {
            self.drop_guarded(socket);
        }
    }

    /// Of a channel whose socket is gone only what others hear is carried out.
    fn apply_posthumously(
        &mut self,
        io: &mut Io,
        speaker: &Speaker,
        mut effects: Vec<crate::context::Effect>,
    ) {
        effects.retain(|effect| matches!(effect, crate::context::Effect::Broadcast { .. }));
        self.apply(io, speaker, effects);
    }

    /// Stops accepting and begins to close everything, evenly over this time.
    pub(super) fn begin_drain(&mut self, io: &mut Io, over: Duration) {
        io.stop_listening();
        let now = Instant::now();
        let total = io.len();
        self.lifecycle.drain =
            Some(Drain { began: now, over, total, closed: 0, at: 0, next_step: now });
    }

    fn drain_step(&mut self, io: &mut Io, now: Instant) -> Next {
        let Some(drain) = &mut self.lifecycle.drain else { return Next::Idle };
        if io.is_empty() || now > drain.began + drain.over + DRAIN_GRACE {
            io.stop();
            return Next::Idle;
        }
        if now < drain.next_step {
            return Next::After(drain.next_step - now);
        }
        drain.next_step = now + DRAIN_STEP;
        let passed = now.saturating_duration_since(drain.began) + DRAIN_STEP;
        let share = passed.as_secs_f64() / drain.over.as_secs_f64().max(1e-3);
        let due = (drain.total as f64 * share.min(1.0)).ceil() as usize;
        // More than there were at the beginning come from the backlog and from the HTTP side.
        let now_due = if share < 1.0 { due.saturating_sub(drain.closed) } else { DRAIN_TURN };
        let now_due = now_due.min(DRAIN_TURN);
        if now_due == 0 {
            return Next::After(DRAIN_STEP);
        }
        let (mut keys, mut seen) = (Vec::new(), 0);
        // Some records a step, until enough are found: looking at all of them would be a long turn.
        for _ in 0..DRAIN_SWEEPS {
            io.sweep(
                &mut drain.at,
                SWEEP_RECORDS,
                |_, conn| {
                    let is_next =
                        !matches!(conn.phase, Phase::Closing | Phase::Ending) && seen < now_due;
                    seen += usize::from(is_next);
                    is_next
                },
                &mut keys,
            );
            // Back at the first record, or enough.
            if drain.at == 0 || seen >= now_due {
                break;
            }
        }
        drain.closed += keys.len();
        for key in keys {
            match io.conn(key).map(|conn| conn.phase) {
                Some(Phase::Open | Phase::Pending) => {
                    self.close_socket(io, key, CloseCode::RESTART)
                }
                Some(_) => io.close(key),
                None => {}
            }
        }
        Next::After(DRAIN_STEP)
    }
}

fn is_overdue(conn: &Conn, ticks: u32, hub: &Hub) -> bool {
    let config = &hub.config;
    let limit = match conn.phase {
        Phase::Head | Phase::Full => Some(config.handshake_timeout),
        // Looked at again there: whether its peer is still there is the socket's to say.
        Phase::Pending => Some(config.close_timeout.min(config.decision_timeout)),
        // Nothing lies between a driver and its sockets that could lose them.
        Phase::Open if conn.driver != NOBODY => None,
        Phase::Open => hub
            .mounts
            .get(usize::from(conn.mount))
            .and_then(|mount| mount.idle_timeout.unwrap_or(config.idle_timeout)),
        Phase::Closing | Phase::Ending => Some(config.close_timeout),
    };
    let silent = TICK * ticks.wrapping_sub(conn.last_heard);
    limit.is_some_and(|limit| silent > limit)
}

/// What a close frame says beside its code.
fn close_reason(code: CloseCode) -> &'static str {
    match code {
        CloseCode::GOING_AWAY => "disconnected",
        CloseCode::TRY_AGAIN => "too much unfinished",
        CloseCode::RESTART => "server restarts",
        CloseCode::PROTOCOL => "protocol error or idle",
        _ => "",
    }
}
