//! Connections that are cut on purpose: each user's at times of its own, which follow from the
//! seed, and then again and again.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::rc::Rc;

use simurgh_load_record::Count;
use simurgh_load_scenario::{Cut, Drop};

use super::program::{ChannelCommand, Op};
use super::schedule::mix;
use super::steps::nanos;
use super::user::{ConnState, NO_KEY, UserState};
use super::worker::{NOBODY, Net, Worker};

/// A user who is in the middle of something is looked at again after this time.
const AGAIN_NS: u64 = 50_000_000;

/// When users are to be cut off next: time, place, number.
#[derive(Default)]
pub(crate) struct Cuts(BinaryHeap<Reverse<(u64, u32, u32)>>);

impl Cuts {
    /// When the next one is due.
    pub(crate) fn next_ns(&self) -> Option<u64> {
        self.0.peek().map(|first| first.0.0)
    }

    fn pop_due(&mut self, now_ns: u64) -> Option<(u64, u32, u32)> {
        self.next_ns().filter(|due_ns| *due_ns <= now_ns)?;
        self.0.pop().map(|first| first.0)
    }
}

/// What a cut finds.
enum Found {
    /// Nothing to cut.
    Away,
    /// Somebody in the middle of something.
    Busy,
    Ready,
}

impl Worker {
    /// A user has come whose connection may be cut.
    pub(super) fn expect_cuts(&mut self, u: u32, id: u32, drop: &Drop, now_ns: u64) {
        let next_ns = self.next_cut_ns(id, drop, now_ns);
        self.cuts.0.push(Reverse((next_ns, u, id)));
    }

    /// The first time after `now_ns` at which a user is to be cut off.
    fn next_cut_ns(&self, id: u32, drop: &Drop, now_ns: u64) -> u64 {
        let every_ns = nanos(drop.every).max(1);
        let phase_ns = self.of_user(id) % every_ns;
        let first_ns = self.arrivals.started_at_ns().saturating_add(phase_ns);
        let passes = (now_ns + 1).saturating_sub(first_ns).div_ceil(every_ns);
        first_ns.saturating_add(passes.saturating_mul(every_ns))
    }

    /// A number that is the user's in each run with the same seed.
    fn of_user(&self, id: u32) -> u64 {
        mix(self.program.scenario.seed ^ 0xc075, u64::from(id)) >> 1
    }

    /// Cuts those whose time has come.
    pub(super) fn run_cuts(&mut self, io: &mut Net) {
        let now_ns = io.now().ns;
        while let Some((due_ns, u, id)) = self.cuts.pop_due(now_ns) {
            let program = Rc::clone(&self.program);
            // Whoever has this place now has an entry of its own.
            let Some(user) = self.users.get(u).filter(|user| user.id == id) else { continue };
            let Some(drop) = program.session_at(user.at).and_then(|session| session.drop) else {
                continue;
            };
            let is_on = drop.phase.is_none() || drop.phase == self.arrivals.phase_at(due_ns);
            let next_ns = match self.found(u) {
                Found::Busy if is_on => now_ns + AGAIN_NS,
                found => {
                    if is_on && matches!(found, Found::Ready) {
                        self.cut(io, u, &drop);
                    }
                    self.next_cut_ns(id, &drop, now_ns)
                }
            };
            self.cuts.0.push(Reverse((next_ns, u, id)));
        }
    }

    fn found(&mut self, u: u32) -> Found {
        let program = Rc::clone(&self.program);
        let Some(user) = self.users.get(u) else { return Found::Away };
        match (user.link, user.state) {
            (ConnState::WebSocket, _) if user.is_resuming() => Found::Busy,
            (ConnState::WebSocket, state) if state.is_rest() => Found::Ready,
            // That its reply does not come is part of being cut off.
            (ConnState::WebSocket, UserState::AwaitRef) => match program.op(user.at) {
                Op::Channel(op) if op.command == ChannelCommand::Push => Found::Ready,
                _ => Found::Busy,
            },
            (ConnState::WebSocket | ConnState::Connecting | ConnState::Upgrading, _) => Found::Busy,
            _ => Found::Away,
        }
    }

    /// Cuts a user's connection and has it come back.
    fn cut(&mut self, io: &mut Net, u: u32, drop: &Drop) {
        let Some(user) = self.users.get(u) else { return };
        let (key, rest, id, server) = (user.conn, user.rest(), user.id, user.aim.index());
        let is_silent = match drop.how {
            Cut::Reset => false,
            Cut::Silence => true,
            // By a bit that its times do not hang on.
            Cut::Both => mix(self.of_user(id), 1) & 1 == 1,
        };
        self.recorder.at(server).cut += 1;
        self.give_up_request(u);
        self.forget_link(u);
        self.go_elsewhere(u);
        if let Some(conn) = io.conn(key) {
            *conn = NOBODY;
        }
        self.unset_timer(u);
        let Some(user) = self.users.get(u) else { return };
        if is_silent {
            io.hold(key);
            user.extra().abandoned = Some(key);
        } else {
            io.abort(key);
        }
        user.state = UserState::Running;
        let (shortest, longest) = drop.reconnect;
        let more = longest.saturating_sub(shortest).mul_f64(self.maker.draw(user).f64());
        self.recorder.count(if is_silent { Count::DropsSilent } else { Count::DropsReset }, 1);
        self.come_back(io, u, rest, Some(drop.away + shortest + more));
    }

    /// The connection that was cut in silence is not needed any more to keep the server from
    /// hearing of it.
    pub(super) fn reset_abandoned(&mut self, io: &mut Net, u: u32) {
        let Some(extra) = self.users.get(u).and_then(|user| user.extra.as_mut()) else { return };
        if let Some(key) = extra.abandoned.take().filter(|key| *key != NO_KEY) {
            io.abort(key);
        }
    }
}
