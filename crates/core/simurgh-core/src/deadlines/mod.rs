//! Timeouts of sockets, drains, and when channels and topics are asked to release memory. What is
//! due is found at the end of a turn, so nothing needs a timer.

mod drain;
mod expiry;
mod hibernation;
mod sweep;

use core::time::Duration;

use simurgh_channel::metrics::ShardMetrics;
use simurgh_channel::{Node, TICK, wall_tick};
use simurgh_data::{Key, Next, Now};
use simurgh_proto::ws::CloseCode;

pub use self::drain::DRAIN_GRACE;
use self::drain::{Drain, Step};
pub(crate) use self::expiry::Expiry;
use self::hibernation::{Cursor, Hibernation};
use self::sweep::Sweep;
use crate::application::Application;
use crate::fanout::Registry;
use crate::socket::{Phase, Socket};
use crate::sockets::{AbandonReason, Sockets};
use simurgh_data::prelude::*;

/// Records visited in one turn.
const SWEEP_RECORDS: usize = 2048;
/// How long one turn may close sockets, whose channels end with them.
const CLOSES_NS: u64 = 500_000;
/// Sweeps of [`SWEEP_RECORDS`] in a step of a drain.
const DRAIN_SWEEPS: usize = 4;

pub(crate) struct Deadlines {
    sweep: Sweep,
    hibernation: Hibernation,
    drain: Option<Box<Drain>>,
}

/// What a socket has been found for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Due {
    Close(CloseCode),
    /// It has waited too long: for a broadcast to be kept, for the decision about a join, or for a
    /// channel that wants no more messages for now.
    EndWait,
}

/// What the core knows of a socket that was silent.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Excuses {
    /// A channel waits for its broadcast to be kept, or for a replay.
    pub(crate) waits_on_history: bool,
    /// It is not read because of what it has published.
    pub(crate) is_held_back: bool,
}

impl Deadlines {
    pub(crate) fn new(node: &impl Node) -> Self {
        let hibernation = Hibernation::new(node.config().hibernate_after);
        Self { sweep: Sweep::new(shortest(node)), hibernation, drain: None }
    }

    /// A drain and rounds that have begun go on.
    pub(crate) fn reload(&mut self, node: &impl Node) {
        self.sweep.set_shortest(shortest(node));
        self.hibernation.set_every(node.config().hibernate_after);
    }

    /// Looks for sockets that are due, unless some are found. Returns when to do that, if not now.
    pub(crate) fn find(
        &mut self,
        out: &mut impl Sockets,
        expiry: &mut Expiry,
        node: &impl Node,
    ) -> Option<Next> {
        if out.count() == 0 {
            self.sweep.give_up();
            return Some(Next::Idle);
        }
        if !self.sweep.found.is_empty() {
            return None;
        }
        let now = out.now();
        if let Err(wait) = self.sweep.begin(now.ns) {
            return Some(Next::After(wait));
        }
        let Sweep { cursor, found, .. } = &mut self.sweep;
        let passed = wall_tick(now);
        if *cursor == 0 {
            expiry.begin(passed);
        }
        let is_found = |_: Key, socket: &mut Socket| {
            socket.keep_age(now.tick);
            has_expired(socket, passed, expiry) || is_overdue(socket, now.tick, node)
        };
        out.sweep(cursor, SWEEP_RECORDS, is_found, found);
        None
    }

    /// The next socket that was found.
    pub(crate) fn next(&mut self) -> Option<Key> {
        self.sweep.found.pop()
    }

    /// All that were found are handled, unless the turn has become too long. Returns when to look
    /// for others, and whether a round is over.
    pub(crate) fn end(&mut self, expiry: &mut Expiry, now: Now) -> (Next, bool) {
        if !self.sweep.found.is_empty() {
            return (Next::Now, false);
        }
        let is_round = self.sweep.cursor == 0;
        if is_round {
            expiry.end();
        }
        (self.sweep.end(now.ns).map_or(Next::Now, Next::After), is_round)
    }

    /// What to do with a socket that was found. What needs no channel is done here.
    pub(crate) fn judge(
        out: &mut impl Sockets,
        key: Key,
        excuses: Excuses,
        expiry: &mut Expiry,
        node: &impl Node,
        metrics: &ShardMetrics,
    ) -> Option<Due> {
        let now = out.now();
        let tick = now.tick;
        // Unread bytes count as a sign of life.
        let has_spoken = out.has_input(key);
        let is_late = is_decision_overdue(out, key, excuses, node);
        let socket = out.socket_mut(key)?;
        if has_expired(socket, wall_tick(now), expiry) {
            metrics.expirations.add(1);
            return Some(Due::Close(CloseCode::UNAUTHORIZED));
        }
        // It was found in an earlier turn.
        if !is_overdue(socket, tick, node) {
            return None;
        }
        match socket.phase {
            Phase::Head | Phase::Full => {
                metrics.handshake_timeouts.add(1);
                out.abandon(key, AbandonReason::Late);
            }
            Phase::Connecting if is_late => {
                metrics.errors_decision_timeout.add(1);
                out.abandon(key, AbandonReason::Late);
            }
            Phase::Waiting if is_late => return Some(Due::EndWait),
            Phase::Connecting | Phase::Waiting | Phase::Relay => {}
            Phase::Open | Phase::Closing if has_spoken => socket.heard(tick),
            // A publisher that is held back is silent because its socket is not read.
            Phase::Open if excuses.is_held_back => socket.heard(tick),
            Phase::Open => {
                metrics.idle_timeouts.add(1);
                return Some(Due::Close(CloseCode::PROTOCOL));
            }
            Phase::Closing | Phase::Ending => out.abort(key),
        }
        None
    }

    pub(crate) fn begin_drain(&mut self, out: &mut impl Sockets, over: Duration) {
        out.stop_listening();
        self.drain = Some(Box::new(Drain::new(over, out.count(), out.now().ns)));
    }

    pub(crate) fn is_draining(&self) -> bool {
        self.drain.is_some()
    }

    /// The sockets that the drain should have closed by now, or when it goes on. A shard without
    /// sockets ends if it `may_end`.
    pub(crate) fn drain(
        &mut self,
        out: &mut impl Sockets,
        may_end: bool,
    ) -> Result<Vec<Key>, Next> {
        let (left, now_ns) = (out.count(), out.now().ns);
        let Some(drain) = &mut self.drain else { return Err(Next::Idle) };
        let count = match drain.step(left, may_end, now_ns) {
            Step::Wait(time) => return Err(Next::After(time)),
            Step::Close(count) => count,
            Step::End => {
                out.stop();
                return Err(Next::Idle);
            }
        };
        let (mut keys, mut seen) = (Vec::new(), 0);
        let is_over = drain.is_over(now_ns);
        // Stops as soon as enough are found: looking at all records would be a long turn.
        for _ in 0..DRAIN_SWEEPS {
            let is_next = |_: Key, socket: &mut Socket| {
                let may_close = match socket.phase {
                    Phase::Open | Phase::Waiting => true,
                    // They connected before the drain, and must not find a server that is gone.
                    Phase::Head | Phase::Full | Phase::Connecting => is_over,
                    Phase::Closing | Phase::Ending | Phase::Relay => false,
                };
                let is_next = may_close && seen < count;
                seen += usize::from(is_next);
                is_next
            };
            out.sweep(&mut drain.cursor, SWEEP_RECORDS, is_next, &mut keys);
            if drain.cursor == 0 || seen >= count {
                break;
            }
        }
        Ok(keys)
    }

    /// So many of these sockets were closed: those that are left are found again.
    pub(crate) fn note_drained(&mut self, count: usize) -> Next {
        self.drain.as_mut().map_or(Next::Idle, |drain| Next::After(drain.note_closed(count)))
    }

    /// Has channels and topics release memory, for a slice of time. Returns the memberships of
    /// channels that panicked.
    pub(crate) fn hibernate<N: Node>(
        &mut self,
        out: &impl Sockets,
        registry: &mut Registry,
        application: &Application<N>,
    ) -> (Next, Vec<u32>) {
        let (now_ns, mut crashed) = (out.now().ns, Vec::new());
        let mut cursor = match self.hibernation.begin(registry.awake(), now_ns) {
            Ok(cursor) => cursor,
            Err(wait) => return (in_time(wait), crashed),
        };
        let deadline_ns = Hibernation::deadline_ns(out.clock_ns());
        loop {
            cursor = match cursor {
                Cursor::Membership(id) if id < registry.end() => {
                    if let Some(channel) = registry.send_to_sleep(id) {
                        self.hibernation.has_released = true;
                        let is_well = application.hibernate(channel);
                        crashed.extend((!is_well).then_some(id));
                    }
                    Cursor::Membership(id + 1)
                }
                Cursor::Membership(_) => Cursor::Topic(0),
                Cursor::Topic(place) if place < registry.topics_mut().slots() => {
                    self.hibernation.has_released |= registry.topics_mut().shrink(place);
                    Cursor::Topic(place + 1)
                }
                Cursor::Topic(_) => break,
            };
            if self.hibernation.is_stride() && out.clock_ns() >= deadline_ns {
                self.hibernation.pause(cursor);
                return (Next::Now, crashed);
            }
        }
        (in_time(self.hibernation.end(registry.awake(), now_ns)), crashed)
    }

    /// Whether a pass of hibernation has released memory of channels or topics since the last call.
    pub(crate) fn take_released(&mut self) -> bool {
        self.hibernation.take_released()
    }
}

/// When a turn that closes sockets is long enough.
pub(crate) fn closes_until_ns(out: &impl Sockets) -> u64 {
    out.clock_ns().saturating_add(CLOSES_NS)
}

/// The shortest timeout that the sweep checks.
fn shortest(node: &impl Node) -> Duration {
    let config = node.config();
    let idle = node.user_sockets();
    let idle = idle.filter_map(|it| it.idle_timeout.unwrap_or(config.idle_timeout));
    let others = [config.handshake_timeout, config.close_timeout, config.decision_timeout];
    idle.chain(others).min().unwrap_or_default()
}

fn in_time(time: Option<Duration>) -> Next {
    time.map_or(Next::Idle, Next::After)
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
        Phase::Relay => None,
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

/// Whether a socket has waited too long for the application; if its peer has hung up, the limit is
/// that for the answer to a close.
fn is_decision_overdue(out: &impl Sockets, key: Key, excuses: Excuses, node: &impl Node) -> bool {
    let Some(socket) = out.socket(key) else { return false };
    let config = node.config();
    let limit = match out.peer_has_shut(key) {
        true => config.close_timeout,
        false if excuses.waits_on_history => config.history.confirm_timeout,
        false => config.decision_timeout,
    };
    TICK * out.now().tick.wrapping_sub(socket.last_heard) > limit
}

#[cfg(test)]
mod tests;
