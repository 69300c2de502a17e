//! Timeouts of sockets, channels and topics.

use std::sync::Arc;
use std::time::Duration;

use simurgh_channel::{Node, Reason, TICK, wall_tick};
use simurgh_proto::ws::CloseCode;
use simurgh_reactor::{Key, Next};

use crate::core::{Core, in_time};
use crate::socket::{Phase, Socket};
use crate::sockets::{AbandonReason, Sockets};
use crate::time::{Cursor, Drain, Expiry, Hibernation, Step};

/// Records visited in one turn.
const SWEEP_RECORDS: usize = 2048;
/// How long one turn may close sockets, whose channels end with them.
const CLOSES_NS: u64 = 500_000;
/// Sweeps of [`SWEEP_RECORDS`] in a step of a drain.
const DRAIN_SWEEPS: usize = 4;

impl<N: Node> Core<N> {
    pub(crate) fn sweep_sockets(&mut self, out: &mut impl Sockets) -> Next {
        if out.count() == 0 {
            self.sweep.give_up();
            if let Some(meters) = &mut self.meters {
                meters.clear();
            }
            return Next::Idle;
        }
        let now = out.now();
        if self.sweep.found.is_empty() {
            if let Err(wait) = self.sweep.begin(now.ns) {
                return Next::After(wait);
            }
            self.find_overdue(out);
        }
        let until_ns = out.clock_ns().saturating_add(CLOSES_NS);
        while let Some(key) = self.sweep.found.pop() {
            self.overdue(out, key);
            if out.clock_ns() >= until_ns && !self.sweep.found.is_empty() {
                return Next::Now;
            }
        }
        if self.sweep.cursor == 0 {
            self.expiry.end();
            if let Some(meters) = &mut self.meters {
                meters.age(now.ns);
            }
        }
        self.sweep.end(now.ns).map_or(Next::Now, Next::After)
    }

    fn find_overdue(&mut self, out: &mut impl Sockets) {
        let (now, node) = (out.now(), Arc::clone(&self.node));
        let (expiry, passed) = (&mut *self.expiry, wall_tick(now));
        if self.sweep.cursor == 0 {
            expiry.begin(passed);
        }
        let is_found = |_: Key, socket: &mut Socket| {
            socket.keep_age(now.tick);
            has_expired(socket, passed, expiry) || is_overdue(socket, now.tick, &*node)
        };
        out.sweep(&mut self.sweep.cursor, SWEEP_RECORDS, is_found, &mut self.sweep.found);
    }

    fn overdue(&mut self, out: &mut impl Sockets, key: Key) {
        let now = out.now();
        let tick = now.tick;
        // Unread bytes count as a sign of life.
        let has_spoken = out.has_input(key);
        let is_late = self.is_decision_overdue(out, key);
        let Some(socket) = out.socket_mut(key) else { return };
        if has_expired(socket, wall_tick(now), &mut self.expiry) {
            self.metrics.expirations.add(1);
            return self.close(out, key, CloseCode::UNAUTHORIZED);
        }
        // It was found in an earlier turn.
        if !is_overdue(socket, tick, &*self.node) {
            return;
        }
        match socket.phase {
            Phase::Head | Phase::Full => {
                self.metrics.handshake_timeouts.add(1);
                out.abandon(key, AbandonReason::Late);
            }
            Phase::Connecting if is_late => {
                self.metrics.errors_decision_timeout.add(1);
                out.abandon(key, AbandonReason::Late);
            }
            Phase::Waiting if is_late => self.wait_overdue(out, key),
            Phase::Connecting | Phase::Waiting => {}
            Phase::Open | Phase::Closing if has_spoken => socket.heard(tick),
            // A publisher that is held back is silent because its socket is not read.
            Phase::Open if self.fanout.holds_back(key) => socket.heard(tick),
            Phase::Open => {
                self.metrics.idle_timeouts.add(1);
                self.close(out, key, CloseCode::PROTOCOL);
            }
            Phase::Closing | Phase::Ending => out.abort(key),
        }
    }

    /// A wait has taken too long: for a broadcast to be kept, for the decision about a join, or for
    /// a channel that handles messages so slowly that its socket is not read.
    fn wait_overdue(&mut self, out: &mut impl Sockets, key: Key) {
        if self.barriers.holds_socket(key) {
            return self.unconfirmed(out, key);
        }
        let full = out.socket(key).and_then(|socket| socket.own.as_ref()?.full);
        match full.and_then(|channel| self.registry.live(channel)) {
            Some(membership) => {
                self.metrics.errors_decision_timeout.add(1);
                self.end_channel(out, membership, Reason::Crashed);
            }
            None => self.join_overdue(out, key),
        }
    }

    /// Whether a socket has waited too long for the application; if its peer has hung up, the limit
    /// is that for the answer to a close.
    fn is_decision_overdue(&self, out: &impl Sockets, key: Key) -> bool {
        let Some(socket) = out.socket(key) else { return false };
        let config = self.node.config();
        let limit = match out.peer_has_shut(key) {
            true => config.close_timeout,
            false if self.barriers.holds_socket(key) => config.history.confirm_timeout,
            false => config.decision_timeout,
        };
        TICK * out.now().tick.wrapping_sub(socket.last_heard) > limit
    }

    pub(crate) fn begin_drain(&mut self, out: &mut impl Sockets, over: Duration) {
        out.stop_listening();
        self.drain = Some(Box::new(Drain::new(over, out.count(), out.now().ns)));
    }

    /// Closes as many sockets as the drain should have closed by now.
    pub(crate) fn drain_sockets(&mut self, out: &mut impl Sockets) -> Next {
        let (left, now_ns) = (out.count(), out.now().ns);
        let Some(drain) = &mut self.drain else { return Next::Idle };
        let count = match drain.step(left, now_ns) {
            Step::Wait(time) => return Next::After(time),
            Step::Close(count) => count,
            Step::End => {
                out.stop();
                return Next::Idle;
            }
        };
        let (mut keys, mut seen) = (Vec::new(), 0);
        // Stops as soon as enough are found: looking at all records would be a long turn.
        for _ in 0..DRAIN_SWEEPS {
            let is_next = |_: Key, socket: &mut Socket| {
                let is_left = !matches!(socket.phase, Phase::Closing | Phase::Ending);
                let is_next = is_left && seen < count;
                seen += usize::from(is_next);
                is_next
            };
            out.sweep(&mut drain.cursor, SWEEP_RECORDS, is_next, &mut keys);
            if drain.cursor == 0 || seen >= count {
                break;
            }
        }
        let until_ns = out.clock_ns().saturating_add(CLOSES_NS);
        let mut closed = 0;
        for key in keys {
            // Those that are left are found again.
            if out.clock_ns() >= until_ns {
                break;
            }
            closed += 1;
            match out.socket(key).map(Socket::phase) {
                Some(Phase::Open | Phase::Waiting | Phase::Connecting) => {
                    self.close(out, key, CloseCode::RESTART);
                }
                Some(_) => out.close(key),
                None => {}
            }
        }
        self.drain.as_mut().map_or(Next::Idle, |drain| Next::After(drain.note_closed(closed)))
    }

    pub(crate) fn hibernate_channels(&mut self, out: &mut impl Sockets) -> Next {
        let now_ns = out.now().ns;
        let mut cursor = match self.hibernation.begin(self.registry.awake(), now_ns) {
            Ok(cursor) => cursor,
            Err(wait) => return in_time(wait),
        };
        let deadline_ns = Hibernation::deadline_ns(out.clock_ns());
        loop {
            cursor = match cursor {
                Cursor::Membership(id) if id < self.registry.end() => {
                    self.hibernate_one(out, id);
                    Cursor::Membership(id + 1)
                }
                Cursor::Membership(_) => Cursor::Topic(0),
                Cursor::Topic(place) if place < self.registry.topics.slots() => {
                    self.hibernation.has_released |= self.registry.topics.shrink(place);
                    Cursor::Topic(place + 1)
                }
                Cursor::Topic(_) => break,
            };
            if self.hibernation.is_stride() && out.clock_ns() >= deadline_ns {
                self.hibernation.pause(cursor);
                return Next::Now;
            }
        }
        in_time(self.hibernation.end(self.registry.awake(), now_ns))
    }

    fn hibernate_one(&mut self, out: &mut impl Sockets, membership: u32) {
        let Some(channel) = self.registry.send_to_sleep(membership) else { return };
        self.hibernation.has_released = true;
        if !self.application.hibernate(channel) {
            self.end_channel(out, membership, Reason::Crashed);
        }
    }
}

/// Whether a socket's lifetime is over by this tick of [`wall_tick`], in a round that reads
/// deadlines.
fn has_expired(socket: &Socket, tick: u32, expiry: &mut Expiry) -> bool {
    if !expiry.is_looking() || !socket.is_open() {
        return false;
    }
    let deadline = socket.own.as_ref().and_then(|own| own.expires);
    deadline.is_some_and(|deadline| expiry.is_over(deadline, tick))
}

fn is_overdue(socket: &Socket, tick: u32, node: &impl Node) -> bool {
    let config = node.config();
    let limit = match socket.phase {
        Phase::Head | Phase::Full => Some(config.handshake_timeout),
        // The exact limit depends on whether the peer has hung up: see `is_decision_overdue`.
        Phase::Connecting | Phase::Waiting => {
            Some(config.close_timeout.min(config.decision_timeout))
        }
        // A socket within the process cannot be lost.
        Phase::Open if socket.is_driven() => None,
        Phase::Open => node
            .user_socket(socket.user_socket)
            .and_then(|user_socket| user_socket.idle_timeout.unwrap_or(config.idle_timeout)),
        Phase::Closing | Phase::Ending => Some(config.close_timeout),
    };
    let silent = TICK * tick.wrapping_sub(socket.last_heard);
    limit.is_some_and(|limit| silent > limit)
}

#[cfg(test)]
mod tests;
