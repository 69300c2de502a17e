//! What a user does when something fails: it tries again, comes back after a while, or ends.

use std::rc::Rc;
use std::time::Duration;

use simurgh_load_record::{Count, ErrorKind};
use simurgh_load_scenario::Dialect;

use super::program::Op;
use super::rejoin;
use super::steps::{Ended, Flow};
use super::user::{ConnState, Rest, Resume, UserState};
use super::worker::{Net, Worker};

impl Worker {
    /// A step that needs a connection finds none. Tsung's users get a new one, with a handshake;
    /// others have made a mistake or were closed, which was counted when it happened.
    pub(crate) fn not_connected(&mut self, io: &mut Net, u: u32) -> Flow {
        let program = Rc::clone(&self.program);
        let Some(user) = self.users.get(u) else { return Flow::Wait };
        let session = program.session_at(user.at);
        let reopens = session.is_some_and(|session| session.dialect == Dialect::Tsung);
        let at = user.at;
        if reopens && self.connect_before(at).is_some() {
            let Some(user) = self.users.get(u) else { return Flow::Wait };
            // Back to this very step, once the connection is there.
            user.extra().resume = Some(Resume { steps: Vec::new(), lost_at: at, at, rest: None });
            self.reopen(io, u);
            return Flow::Wait;
        }
        self.fail(io, u, ErrorKind::Send, || "there is no open socket".to_owned());
        Flow::Wait
    }

    /// What a user does is over because of an error: it tries again where that is the rule, or
    /// ends.
    pub(crate) fn fail(
        &mut self,
        io: &mut Net,
        u: u32,
        kind: ErrorKind,
        text: impl FnOnce() -> String,
    ) {
        let Some(user) = self.users.get(u) else { return };
        let opening = user.state == UserState::Opening || user.link == ConnState::None;
        let origin = user.origin();
        self.recorder.error_with(kind, origin, text);
        if kind.is_connect() {
            self.recorder.at(user.aim.index()).refused += 1;
        }
        self.unset_timer(u);
        self.give_up_request(u);
        self.let_go(io, u);
        if kind.is_of_connection() {
            self.go_elsewhere(u);
        }
        let program = Rc::clone(&self.program);
        let timeouts = program.scenario.timeouts;
        let Some(user) = self.users.get(u) else { return };
        user.state = UserState::Running;
        let resuming = user.is_resuming();
        let attempts = user.extra.as_ref().map_or(0, |extra| extra.attempts);
        if opening && !resuming && kind.is_connect() && attempts < timeouts.retries {
            user.extra().attempts = attempts + 1;
            let wait = timeouts.retry_wait.saturating_mul(attempts + 1);
            self.wait_until(io, u, UserState::BackingOff, Some(wait));
            return;
        }
        self.come_back(io, u, None, None);
    }

    /// The connection is lost; `kind` is the error, unless that was counted before.
    pub(crate) fn lost(
        &mut self,
        io: &mut Net,
        u: u32,
        kind: Option<ErrorKind>,
        text: impl FnOnce() -> String,
    ) {
        let program = Rc::clone(&self.program);
        let Some(user) = self.users.get(u) else { return };
        if let Some(kind) = kind {
            self.recorder.error_with(kind, user.origin(), text);
        }
        self.recorder.at(user.aim.index()).lost += 1;
        let session = program.session_at(user.at);
        let is_tsung = session.is_some_and(|session| session.dialect == Dialect::Tsung);
        let rest = user.rest();
        self.give_up_request(u);
        self.let_go(io, u);
        self.go_elsewhere(u);
        if is_tsung && rest.is_some() {
            return;
        }
        self.unset_timer(u);
        let Some(user) = self.users.get(u) else { return };
        user.state = UserState::Running;
        self.come_back(io, u, rest, None);
    }

    /// The user comes back, after its back-off or the time that it was to be away; or it ends.
    pub(super) fn come_back(
        &mut self,
        io: &mut Net,
        u: u32,
        rest: Option<Rest>,
        away: Option<Duration>,
    ) {
        let program = Rc::clone(&self.program);
        let Some(user) = self.users.get(u) else { return };
        let session = program.session_at(user.at);
        let policy = session.and_then(|session| session.reconnect);
        let (Some(policy), at) = (policy, user.at) else {
            return self.end_user(io, u, Ended::Aborted);
        };
        let Some(connect_at) = self.connect_before(at) else {
            return self.end_user(io, u, Ended::Aborted);
        };
        let Some(user) = self.users.get(u) else { return };
        rejoin::note_all(&program, user);
        let extra = user.extra();
        // To be cut off is no attempt that failed.
        extra.attempts += u32::from(away.is_none());
        let attempts = extra.attempts;
        if policy.attempts_max.is_some_and(|most| attempts > most) {
            return self.end_user(io, u, Ended::Aborted);
        }
        // What was under way when the connection broke is not done again.
        let go_on_at = if rest.is_some() { at } else { at + 1 };
        let fresh = || Resume { steps: Vec::new(), lost_at: at, at: go_on_at, rest };
        let resume = extra.resume.get_or_insert_with(fresh);
        // From the first again, where some were repeated already on a connection that broke too.
        if policy.rejoin {
            resume.steps = rejoin::steps(&program.ops, connect_at, resume.lost_at, &extra.joins);
        }
        let doubled = attempts.saturating_sub(1).min(20);
        let longest = policy.min.saturating_mul(1 << doubled).min(policy.max);
        let back_off = longest.mul_f64(0.5 + self.maker.draw(user).f64() / 2.0);
        self.wait_until(io, u, UserState::BackingOff, Some(away.unwrap_or(back_off)));
        if !policy.rejoin {
            self.follow_end(u, io.clock_ns());
        }
    }

    /// The `Connect` that comes before an operation in its session.
    fn connect_before(&self, at: u32) -> Option<u32> {
        let start = self.program.session_at(at)?.start;
        (start..=at).rev().find(|at| matches!(self.program.op(*at), Op::Connect(_)))
    }

    /// Tries again to connect.
    pub(crate) fn reopen(&mut self, io: &mut Net, u: u32) {
        let now_us = Self::us(io.clock_ns());
        let Some(user) = self.users.get(u) else { return };
        if !user.is_resuming() {
            return self.advance(io, u);
        }
        let at = user.extra.as_ref().and_then(|extra| extra.resume.as_ref()).map(|r| r.lost_at);
        let Some(connect_at) = at.and_then(|at| self.connect_before(at)) else {
            return self.end_user(io, u, Ended::Aborted);
        };
        let Some(user) = self.users.get(u) else { return };
        user.at = connect_at;
        user.since_us = now_us;
        self.connect(io, u);
    }

    /// The connection is there again: what is left to be repeated, and then where it was.
    pub(crate) fn go_on_resuming(&mut self, io: &mut Net, u: u32) {
        let Some(user) = self.users.get(u) else { return };
        let Some(mut resume) = user.extra().resume.take() else { return };
        if let Some(step) = resume.steps.pop() {
            user.at = step;
            user.extra().resume = Some(resume);
            return self.advance_one(io, u);
        }
        user.extra().attempts = 0;
        rejoin::forget_held(&self.program, user);
        user.tidy();
        user.at = resume.at;
        self.recorder.count(Count::Reconnects, 1);
        self.recorder.at(user.aim.index()).reconnects += 1;
        let Some(rest) = resume.rest else {
            return self.advance(io, u);
        };
        (user.state, user.since_us) = (rest.state, rest.since_us);
        user.set_awaits(rest.awaits);
        let now_ms = (io.clock_ns() / 1_000_000) as u32;
        match rest.due_ms {
            // Over meanwhile: the server is late, not this tool.
            Some(due_ms) if due_ms <= now_ms && rest.state != UserState::Gathering => {
                self.rest_over(io, u);
            }
            Some(due_ms) => self.set_timer(u, due_ms),
            None => {}
        }
    }

    /// Runs one operation that is repeated after a reconnect.
    fn advance_one(&mut self, io: &mut Net, u: u32) {
        let program = Rc::clone(&self.program);
        let Some(at) = self.users.get(u).map(|user| user.at) else { return };
        if self.run_op(io, u, &program, at) != Flow::Wait {
            self.done(io, u);
        }
    }
}
