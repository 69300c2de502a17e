//! How a user handles a failure or a broken connection: it tries again, reconnects after a delay,
//! or ends. Also decides which joins it repeats after a reconnect.
//!
//! In most sessions each join has a separate topic, the same for all users. Then their Channels
//! session shows what they have joined, and a waiting user needs no further memory for it; only a
//! join that the server has ended or refused is noted. In other sessions all joins are noted.

use std::time::Duration;

use simurgh_load_record::{Count, ErrorKind};
use simurgh_load_scenario::{Cut, Drop};

use super::machine::{Ended, Flow};
use super::{ConnState, HangUp, Machine, NO_KEY, Outputs, Rest, Resume, User, UserState};
use crate::chance::mix;
use crate::program::{ChannelCommand, Op, Program, SessionInfo};
use crate::time::{tick, us};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Interruptible {
    Yes,
    /// Not now: it is in the middle of something.
    Later,
    /// It has no connection.
    No,
}

impl<O: Outputs> Machine<'_, O> {
    /// A step that needs a connection has none. Tsung's users get a new one, with a handshake; for
    /// others it is a mistake of the scenario or follows a close, which was counted when it
    /// happened.
    pub(super) fn not_connected(&mut self) -> Flow {
        let at = self.user.at;
        if self.is_tsung() && self.connect_before(at).is_some() {
            // Continues with this step once the connection is established.
            let resume = Resume { steps: Vec::new(), lost_at: at, at, rest: None, cut_us: None };
            self.user.extra().resume = Some(resume);
            return self.reopen();
        }
        self.fail(ErrorKind::Send, || "there is no open socket".to_owned())
    }

    /// An error ended the current operation: the user tries again by the scenario, or ends.
    pub(super) fn fail(&mut self, kind: ErrorKind, text: impl FnOnce() -> String) -> Flow {
        let opening = self.user.state == UserState::Opening || self.user.conn == ConnState::None;
        self.out.error(kind, self.user.origin(), text);
        if kind.is_connect() {
            self.out.server(self.user.server.index()).refused += 1;
        }
        self.out.set_timer(None);
        self.give_up_request();
        self.hang_up();
        if kind.is_of_connection() {
            self.change_server();
        }
        self.user.state = UserState::Running;
        let timeouts = self.program.scenario.timeouts;
        let attempts = self.user.extra_ref().map_or(0, |extra| extra.attempts);
        let may_retry = opening && !self.user.is_resuming() && kind.is_connect();
        if may_retry && attempts < timeouts.retries {
            self.user.extra().attempts = attempts + 1;
            let wait = timeouts.retry_wait.saturating_mul(attempts + 1);
            return self.wait(UserState::BackingOff, Some(wait));
        }
        self.come_back(None, None)
    }

    /// The connection is lost; `kind` is the error, unless it was counted before.
    pub(super) fn lost(&mut self, kind: Option<ErrorKind>, text: impl FnOnce() -> String) -> Flow {
        if let Some(kind) = kind {
            self.out.error(kind, self.user.origin(), text);
        }
        self.out.server(self.user.server.index()).lost += 1;
        let rest = self.user.rest();
        self.give_up_request();
        self.hang_up();
        self.change_server();
        if self.is_tsung() && rest.is_some() {
            return Flow::Wait;
        }
        self.out.set_timer(None);
        self.user.state = UserState::Running;
        self.come_back(rest, None)
    }

    /// Takes the next server after a broken or refused connection, if the scenario says so.
    fn change_server(&mut self) {
        let server = self.user.server.index();
        if self.context.spread.broke(&mut self.user.server) {
            self.out.server(server).left += 1;
        }
    }

    /// The user reconnects, after its back-off or its time away; or it ends.
    fn come_back(&mut self, rest: Option<Rest>, away: Option<Duration>) -> Flow {
        let program = self.program;
        let at = self.user.at;
        let policy = self.session().and_then(|session| session.reconnect);
        let (Some(policy), Some(connect_at)) = (policy, self.connect_before(at)) else {
            return self.leave(Ended::Aborted);
        };
        note_all(program, self.user);
        let extra = self.user.extra();
        // A cut does not count as a failed attempt.
        extra.attempts += u32::from(away.is_none());
        let attempts = extra.attempts;
        if policy.attempts_max.is_some_and(|most| attempts > most) {
            return self.leave(Ended::Aborted);
        }
        // The operation that was interrupted is not repeated.
        let go_on_at = if rest.is_some() { at } else { at + 1 };
        let cut_us = away.map(|_| us(self.now_ns));
        let fresh = || Resume { steps: Vec::new(), lost_at: at, at: go_on_at, rest, cut_us };
        let resume = extra.resume.get_or_insert_with(fresh);
        // If the connection broke during a repetition, it starts from the first step again.
        if policy.rejoin {
            resume.steps = steps_again(&program.ops, connect_at, resume.lost_at, &extra.joins);
        }
        let doubled = attempts.saturating_sub(1).min(20);
        let longest = policy.min.saturating_mul(1 << doubled).min(policy.max);
        let back_off = longest.mul_f64(0.5 + self.context.values.draw(self.user).f64() / 2.0);
        self.wait(UserState::BackingOff, Some(away.unwrap_or(back_off)));
        if !policy.rejoin {
            self.follow_end();
        }
        Flow::Wait
    }

    fn connect_before(&self, at: u32) -> Option<u32> {
        let start = self.program.session_at(at)?.start;
        (start..=at).rev().find(|at| matches!(self.program.op(*at), Op::Connect(..)))
    }

    pub(super) fn reopen(&mut self) -> Flow {
        let resume = self.user.extra_ref().and_then(|extra| extra.resume.as_ref());
        let Some(lost_at) = resume.map(|resume| resume.lost_at) else {
            return Flow::Goto(self.user.at);
        };
        let Some(connect_at) = self.connect_before(lost_at) else {
            return self.leave(Ended::Aborted);
        };
        self.user.at = connect_at;
        self.user.since_us = us(self.now_ns);
        self.connect()
    }

    /// The connection is back: repeats the remaining steps, and then continues.
    pub(super) fn go_on_resuming(&mut self) -> Flow {
        let user = &mut *self.user;
        let Some(mut resume) = user.extra().resume.take() else { return Flow::Wait };
        if let Some(step) = resume.steps.pop() {
            user.extra().resume = Some(resume);
            return self.run(step);
        }
        user.extra().attempts = 0;
        forget_held(self.program, user);
        user.tidy();
        user.at = resume.at;
        self.out.count(Count::Reconnects, 1);
        self.out.server(user.server.index()).reconnects += 1;
        if let Some(cut_us) = resume.cut_us {
            self.put_off_since(cut_us, resume.rest);
        }
        let user = &mut *self.user;
        let Some(rest) = resume.rest else { return Flow::Goto(resume.at) };
        (user.state, user.since_us) = (rest.state, rest.since_us);
        user.set_awaits(rest.awaits);
        match rest.due_tick {
            // The rest has ended meanwhile: the server is late, not this tool.
            Some(due_tick)
                if due_tick <= tick(self.now_ns) && rest.state != UserState::Gathering =>
            {
                if resume.cut_us.is_some() {
                    user.since_us = us(self.now_ns);
                }
                return self.rest_over();
            }
            Some(due_tick) => self.out.set_timer(Some(due_tick)),
            None => {}
        }
        Flow::Wait
    }

    pub(super) fn cut(&mut self, drop: &Drop) -> Flow {
        if self.user.interruptible(self.program) != Interruptible::Yes {
            return Flow::Wait;
        }
        let (key, rest) = (self.user.key, self.user.rest());
        let is_silent = match drop.how {
            Cut::Reset => false,
            Cut::Silence => true,
            // A bit that does not influence the cut's times.
            Cut::Both => {
                let of_user = cut_seed(self.program.scenario.seed, self.user.id);
                mix(of_user, 1) & 1 == 1
            }
        };
        self.out.server(self.user.server.index()).cut += 1;
        self.forget_request();
        self.forget_connection();
        self.change_server();
        self.out.set_timer(None);
        let (count, how) = match is_silent {
            true => (Count::DropsSilent, HangUp::Abandon),
            false => (Count::DropsReset, HangUp::Abort),
        };
        self.out.hang_up(key, how);
        if is_silent {
            self.user.extra().abandoned = Some(key);
        }
        self.out.count(count, 1);
        self.user.state = UserState::Running;
        let (shortest, longest) = drop.reconnect;
        let part = self.context.values.draw(self.user).f64();
        let more = longest.saturating_sub(shortest).mul_f64(part);
        self.come_back(rest, Some(drop.away + shortest + more))
    }

    /// Resets the connection that was cut silently; the server may now notice.
    pub(super) fn reset_abandoned(&mut self) {
        let Some(extra) = self.user.extra_mut() else { return };
        if let Some(key) = extra.abandoned.take().filter(|key| *key != NO_KEY) {
            self.out.hang_up(key, HangUp::Abort);
        }
    }

    /// Notes a join for a later reconnect, if the session has one; drops it when its topic is left.
    pub(super) fn note_join(&mut self, command: ChannelCommand) {
        let (program, at) = (self.program, self.user.at);
        let Some(session) = rejoining(program, at) else { return };
        let topic = |at: u32| match program.op(at) {
            Op::Channel(channel) => Some(&channel.push.topic),
            _ => None,
        };
        match (command, self.user.extra_mut()) {
            (ChannelCommand::Join, _) if !session.plain_joins => add(self.user, at),
            // If the connection is lost again, all steps are repeated again.
            (ChannelCommand::Join, Some(extra)) if extra.resume.is_none() => {
                extra.joins.retain(|join| *join != at);
            }
            (ChannelCommand::Leave, Some(extra)) => {
                extra.joins.retain(|join| topic(*join) != topic(at));
            }
            _ => {}
        }
        self.user.tidy();
    }

    /// The server has refused or ended a channel, which is joined again after a reconnect.
    pub(super) fn note_ended(&mut self, topic: &str) {
        let (program, at) = (self.program, self.user.at);
        if rejoining(program, at).is_some_and(|session| session.plain_joins) {
            let is_it = |at: &u32| program.joined_topic(*at).is_some_and(|known| **known == *topic);
            if let Some(join) = program.joins_of(at).find(is_it) {
                add(self.user, join);
            }
        }
    }
}

impl User {
    pub(crate) fn interruptible(&self, program: &Program) -> Interruptible {
        match (self.conn, self.state) {
            (ConnState::WebSocket, _) if self.is_resuming() => Interruptible::Later,
            (ConnState::WebSocket, state) if state.is_rest() => Interruptible::Yes,
            // A cut may also lose the reply.
            (ConnState::WebSocket, UserState::AwaitRef) => match program.op(self.at) {
                Op::Channel(op) if op.command == ChannelCommand::Push => Interruptible::Yes,
                _ => Interruptible::Later,
            },
            (ConnState::WebSocket | ConnState::Connecting | ConnState::Upgrading, _) => {
                Interruptible::Later
            }
            _ => Interruptible::No,
        }
    }
}

/// A number that is the same for the user in each run with the same seed: when and how it is cut.
pub(crate) fn cut_seed(seed: u64, id: u32) -> u64 {
    mix(seed ^ 0xc075, u64::from(id)) >> 1
}

/// Notes all that a user has joined: its connection and its Channels session are lost.
fn note_all(program: &Program, user: &mut User) {
    // It was noted when the repetition began.
    if user.is_resuming() || !rejoining(program, user.at).is_some_and(|it| it.plain_joins) {
        return;
    }
    let noted = user.extra_mut().map(|extra| std::mem::take(&mut extra.joins));
    let noted = noted.unwrap_or_default();
    let wanted = |at: &u32| noted.contains(at) || holds(program, user, *at);
    let joins: Vec<u32> = program.joins_of(user.at).filter(wanted).collect();
    user.extra().joins = joins;
}

/// All steps have been repeated: what the Channels session shows need not be noted.
fn forget_held(program: &Program, user: &mut User) {
    if rejoining(program, user.at).is_some_and(|session| session.plain_joins)
        && let Some(extra) = user.extra_mut()
    {
        let mut joins = std::mem::take(&mut extra.joins);
        joins.retain(|at| !holds(program, user, *at));
        user.extra().joins = joins;
    }
}

/// The steps to repeat after a reconnect, the last one first: the joins of a Channels session, in
/// others all messages between the connect and the current operation.
fn steps_again(ops: &[Op], connect_at: u32, at: u32, joins: &[u32]) -> Vec<u32> {
    if !joins.is_empty() {
        return joins.iter().rev().copied().collect();
    }
    let between = (connect_at + 1..at).rev();
    between.filter(|at| matches!(ops.get(*at as usize), Some(Op::Send(_)))).collect()
}

/// The session at an operation, if its joins are repeated after a reconnect.
fn rejoining(program: &Program, at: u32) -> Option<&SessionInfo> {
    let session = program.session_at(at)?;
    session.reconnect.is_some_and(|policy| policy.rejoin).then_some(session)
}

fn holds(program: &Program, user: &User, join: u32) -> bool {
    program.joined_topic(join).is_some_and(|topic| user.client.holds(topic))
}

fn add(user: &mut User, join: u32) {
    let joins = &mut user.extra().joins;
    if !joins.contains(&join) {
        joins.push(join);
    }
}
