//! A user's way through its session: one operation after the other, until it has to wait.
//!
//! [`Worker::advance`] runs operations; each says whether the user goes on at once, elsewhere, or
//! waits. What ends a wait (an answer, a timer, a lost connection) calls [`Worker::done`], which
//! goes on with the next operation.

use std::rc::Rc;
use std::time::Duration;

use simurgh_load_record::{Count, ErrorKind, Metric, MetricId};
use simurgh_load_scenario::Reply;

use super::program::{EachOp, LoopOp, Op, Program, ReceiveOp, RepeatOp, SendOp, ThinkOp};
use super::user::{User, UserState, Value};
use super::values::Maker;
use super::worker::{Net, Worker, WorkerEvent};

/// What comes after an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flow {
    /// The next one, at once.
    Next,
    /// Another one, at once.
    Goto(u32),
    /// Nothing until something ends the wait. The user may be gone.
    Wait,
}

/// Operations in a row before the others get their turn; a loop without any wait in it would
/// never end otherwise.
const OPS_MAX: u32 = 10_000;
/// Ends of thinking that nobody can see are put together in steps of this, milliseconds.
const LAZY_MS: u32 = 128;

impl Worker {
    /// Runs the user's operations until it has to wait.
    pub(crate) fn advance(&mut self, io: &mut Net, u: u32) {
        let program = Rc::clone(&self.program);
        for _ in 0..OPS_MAX {
            let Some(user) = self.users.get(u) else { return };
            user.state = UserState::Running;
            user.set_awaits(0);
            let at = user.at;
            let flow = self.run_op(io, u, &program, at);
            let Some(user) = self.users.get(u) else { return };
            match flow {
                Flow::Next => user.at = at + 1,
                Flow::Goto(to) => user.at = to,
                Flow::Wait => return,
            }
        }
        let now_ms = (io.clock_ns() / 1_000_000) as u32;
        if let Some(user) = self.users.get(u) {
            user.state = UserState::Pacing;
            user.since_us = (now_ms + 1).wrapping_mul(1000);
            self.set_timer(u, now_ms + 1);
        }
    }

    /// What the user waited for has come: on with the next operation, whose time is now.
    pub(crate) fn done(&mut self, io: &mut Net, u: u32) {
        let now_us = Self::us(io.clock_ns());
        self.unset_timer(u);
        let Some(user) = self.users.get(u) else { return };
        user.since_us = now_us;
        user.set_awaits(0);
        if user.is_resuming() {
            return self.go_on_resuming(io, u);
        }
        user.at += 1;
        self.advance(io, u);
    }

    /// The user goes on at `to`, now.
    pub(crate) fn goto(&mut self, io: &mut Net, u: u32, to: u32) {
        let now_us = Self::us(io.clock_ns());
        self.unset_timer(u);
        let Some(user) = self.users.get(u) else { return };
        user.since_us = now_us;
        user.at = to;
        self.advance(io, u);
    }

    pub(crate) fn run_op(&mut self, io: &mut Net, u: u32, program: &Program, at: u32) -> Flow {
        match program.op(at) {
            Op::Connect(_) => self.connect(io, u),
            Op::Send(send) => self.send_message(io, u, send),
            Op::Raw(send) => self.send_raw(io, u, send),
            Op::Wait(matcher, answer) => self.wait_frame(io, u, matcher, answer),
            Op::Receive(receive) => self.receive(io, u, receive),
            Op::Think(think) => self.think(io, u, *think),
            Op::Channel(channel) => self.channel(io, u, channel),
            Op::Http(http) => self.request(io, u, http),
            Op::Close(code) => self.close(io, u, *code),
            Op::Set(set) => {
                self.maker.now_ns = self.run_ns(io.clock_ns());
                self.with_user(u, |maker, user| maker.set(user, set));
                Flow::Next
            }
            Op::LoopStart(start) => self.loop_start(u, start),
            Op::LoopEnd(end) => self.loop_end(io, u, end),
            Op::Each(each) => self.next_element(u, each),
            Op::RepeatEnd(repeat) => self.repeat_end(u, repeat),
            Op::Unless(condition, to) => {
                let holds = self.with_user(u, |maker, user| maker.holds(user, condition));
                if holds == Some(true) { Flow::Next } else { Flow::Goto(*to) }
            }
            Op::Jump(to) => Flow::Goto(*to),
            Op::TransactionStart(metric) => {
                if let Some(user) = self.users.get(u) {
                    let since_us = user.since_us;
                    user.extra().transactions.push((*metric, since_us));
                }
                Flow::Next
            }
            Op::TransactionEnd(metric) => self.transaction_end(io, u, *metric),
            Op::Switch(switch) => self.switch(io, u, switch),
            Op::Gather(users, timeout) => self.gather(io, u, *users, *timeout),
            Op::InteractionSend(id) => {
                self.maker.shared.interaction_sent(id, io.clock_ns());
                Flow::Next
            }
            Op::InteractionReceive(id, metric) => {
                if let Some(sent_ns) = self.maker.shared.interaction(id) {
                    self.recorder.time(*metric, io.clock_ns().saturating_sub(sent_ns) / 1000);
                }
                Flow::Next
            }
            Op::WaitServer => self.wait_until(io, u, UserState::AwaitServer, None),
            Op::Abort => {
                self.end_user(io, u, Ended::Aborted);
                Flow::Wait
            }
            Op::AbortRun => {
                self.say(WorkerEvent::AbortRun);
                self.end_user(io, u, Ended::Aborted);
                Flow::Wait
            }
            Op::End => {
                self.end_user(io, u, Ended::Finished);
                Flow::Wait
            }
        }
    }

    /// Calls `work` with the user and what makes its values.
    pub(crate) fn with_user<R>(
        &mut self,
        u: u32,
        work: impl FnOnce(&mut Maker, &mut User) -> R,
    ) -> Option<R> {
        let Self { users, maker, .. } = self;
        users.get(u).map(|user| work(maker, user))
    }

    /// Has the user wait, for an answer at most as long as said.
    pub(crate) fn wait_until(
        &mut self,
        io: &mut Net,
        u: u32,
        state: UserState,
        timeout: Option<Duration>,
    ) -> Flow {
        if let Some(user) = self.users.get(u) {
            user.state = state;
        }
        if let Some(timeout) = timeout {
            let due_ns = io.clock_ns().saturating_add(nanos(timeout));
            self.set_timer(u, ms_after(due_ns));
        }
        Flow::Wait
    }

    fn think(&mut self, io: &mut Net, u: u32, op: ThinkOp) -> Flow {
        let time = match op.think {
            simurgh_load_scenario::Think::Constant(time) => Some(time),
            drawn => self.with_user(u, |maker, user| maker.think(user, drawn)),
        };
        self.rest(io, u, time.unwrap_or_default(), op.lazy, UserState::Thinking)
    }

    /// Has the user rest from when the operation was meant to begin; what has passed of that time
    /// already is not added.
    fn rest(&mut self, io: &mut Net, u: u32, time: Duration, lazy: bool, state: UserState) -> Flow {
        let now_ns = io.clock_ns();
        let Some(user) = self.users.get(u) else { return Flow::Wait };
        let since_ns = now_ns.saturating_sub(Self::elapsed_us(user.since_us, now_ns) * 1000);
        let end_ns = since_ns.saturating_add(nanos(time));
        user.state = state;
        if lazy {
            // The end is kept exactly; only the waking is not punctual.
            user.since_us = Self::us(end_ns);
            let end_ms = ms_after(end_ns);
            self.set_timer(u, (end_ms | (LAZY_MS - 1)).min(u32::MAX - 2));
            return Flow::Wait;
        }
        // Steps begin on whole milliseconds, which the timer keeps exactly.
        let end_ms = u32::try_from(end_ns.saturating_add(500_000) / 1_000_000);
        let end_ms = end_ms.unwrap_or(u32::MAX - 2);
        user.since_us = Self::us(u64::from(end_ms) * 1_000_000);
        self.set_timer(u, end_ms);
        Flow::Wait
    }

    fn receive(&mut self, io: &mut Net, u: u32, op: &ReceiveOp) -> Flow {
        let count = op.receive.count.map_or(0, |count| u32::try_from(count).unwrap_or(u32::MAX));
        if let Some(user) = self.users.get(u) {
            user.set_awaits(count);
        }
        match op.receive.time {
            None => self.wait_until(io, u, UserState::Receiving, None),
            Some(time) => {
                let time = self.with_user(u, |maker, user| maker.think(user, time));
                self.rest(io, u, time.unwrap_or_default(), false, UserState::Receiving)
            }
        }
    }

    /// A timer is due: a rest is over, or a wait.
    pub(crate) fn timer_due(&mut self, io: &mut Net, u: u32) {
        let now_ns = io.clock_ns();
        let Some(user) = self.users.get(u) else { return };
        let (state, since_us) = (user.state, user.since_us);
        match state {
            UserState::Thinking | UserState::Receiving => {
                if !matches!(self.program.op(user.at), Op::Think(think) if think.lazy) {
                    self.recorder.step_lag(Self::elapsed_us(since_us, now_ns));
                }
                self.rest_over(io, u);
            }
            UserState::Pacing => {
                self.recorder.step_lag(Self::elapsed_us(since_us, now_ns));
                self.rest_over(io, u);
            }
            UserState::BackingOff => self.reopen(io, u),
            UserState::Opening => self.timed_out(io, u, ErrorKind::ConnectTimeout),
            UserState::AwaitUpgrade => self.timed_out(io, u, ErrorKind::UpgradeTimeout),
            UserState::AwaitRef => {
                let program = Rc::clone(&self.program);
                let joins = matches!(program.op(user.at), Op::Channel(channel)
                    if channel.command == super::program::ChannelCommand::Join);
                let kind = if joins { ErrorKind::JoinTimeout } else { ErrorKind::ReplyTimeout };
                self.timed_out(io, u, kind);
            }
            UserState::AwaitFirst | UserState::AwaitHttp => {
                self.timed_out(io, u, ErrorKind::ReplyTimeout);
            }
            UserState::AwaitMatch | UserState::AwaitServer => {
                self.timed_out(io, u, ErrorKind::WaitTimeout);
            }
            UserState::Gathering => {
                let origin = user.origin();
                self.gathering.retain(|waiting| *waiting != u);
                self.recorder.error(ErrorKind::WaitTimeout, origin);
                self.done(io, u);
            }
            // The server has not answered the close: the connection ends all the same.
            UserState::Closing => {
                self.let_go(io, u);
                self.done(io, u);
            }
            UserState::Running => {}
        }
    }

    /// A rest is over: on with what follows, whose time is the end of the rest.
    pub(crate) fn rest_over(&mut self, io: &mut Net, u: u32) {
        let Some(user) = self.users.get(u) else { return };
        if user.state != UserState::Pacing
            && matches!(self.program.op(user.at), Op::Think(_) | Op::Receive(_))
        {
            user.at += 1;
        }
        self.advance(io, u);
    }

    /// An answer did not come. The time waited is a lower bound of the latency, so it counts.
    fn timed_out(&mut self, io: &mut Net, u: u32, kind: ErrorKind) {
        let now_ns = io.clock_ns();
        let Some(user) = self.users.get(u) else { return };
        let waited_us = Self::elapsed_us(user.since_us, now_ns);
        let metric = self.awaited_metric(u);
        if let Some(metric) = metric {
            self.recorder.time(metric, waited_us);
        }
        self.fail(io, u, kind, String::new);
    }

    /// The request that the user waits for is over without an answer, if there is one.
    pub(crate) fn give_up_request(&mut self, u: u32) {
        self.follow_reply(u, false);
        let awaited = self.awaited_metric(u).is_some_and(|metric| metric != Metric::Connect.into());
        if awaited {
            self.recorder.count(Count::RequestsUnanswered, 1);
        }
    }

    /// The metric of what the user waits for.
    fn awaited_metric(&mut self, u: u32) -> Option<MetricId> {
        use super::program::ChannelCommand as C;
        let program = Rc::clone(&self.program);
        let user = self.users.get(u)?;
        let metric = match (user.state, program.op(user.at)) {
            (UserState::Opening, _) => Metric::Connect,
            (UserState::AwaitUpgrade, _) => Metric::Upgrade,
            (UserState::AwaitHttp, _) => Metric::Http,
            (UserState::AwaitRef, Op::Channel(channel)) => match channel.command {
                C::Join => Metric::Join,
                C::Push => Metric::Push,
                C::Leave => Metric::Leave,
            },
            (UserState::AwaitFirst | UserState::AwaitMatch, Op::Send(_) | Op::Raw(_)) => {
                Metric::Message
            }
            _ => return None,
        };
        Some(metric.into())
    }

    fn send_message(&mut self, io: &mut Net, u: u32, op: &SendOp) -> Flow {
        let Some(user) = self.users.get(u) else { return Flow::Wait };
        if !user.link.is_open() {
            return self.not_connected(io, u);
        }
        let opcode = if op.message.binary {
            simurgh_proto::ws::OpCode::Binary
        } else {
            simurgh_proto::ws::OpCode::Text
        };
        if !self.send_rendered(io, u, opcode, &op.message.data) {
            return Flow::Wait;
        }
        let (state, timeout) = match &op.message.reply {
            Reply::None => {
                self.recorder.count(Count::RequestsNoAck, 1);
                return Flow::Next;
            }
            Reply::First => (UserState::AwaitFirst, op.answer.timeout),
            Reply::Match(_) => (UserState::AwaitMatch, op.answer.timeout),
        };
        self.recorder.count(Count::Requests, 1);
        let timeout = timeout.unwrap_or(self.program.scenario.timeouts.reply);
        self.wait_until(io, u, state, Some(timeout))
    }

    fn loop_start(&mut self, u: u32, op: &LoopOp) -> Flow {
        let Some(user) = self.users.get(u) else { return Flow::Wait };
        user.set_register(op.round, 0);
        if let Some((_, began)) = op.every {
            let since_us = user.since_us;
            user.set_register(began, since_us);
        }
        if !op.at_least_once && !self.round_follows(u, op, 0) {
            return Flow::Goto(op.to);
        }
        self.set_loop_var(u, op, 0);
        Flow::Next
    }

    fn loop_end(&mut self, io: &mut Net, u: u32, op: &LoopOp) -> Flow {
        let Some(user) = self.users.get(u) else { return Flow::Wait };
        let round = user.register(op.round).saturating_add(1);
        user.set_register(op.round, round);
        if !self.round_follows(u, op, round) {
            return Flow::Next;
        }
        self.set_loop_var(u, op, round);
        let Some((every, began)) = op.every else { return Flow::Goto(op.to) };
        let now_ns = io.clock_ns();
        let Some(user) = self.users.get(u) else { return Flow::Wait };
        // The next round's time is set by the first one's, not by when this one ended.
        let next_us = user.register(began).wrapping_add((every.as_micros()) as u32);
        user.set_register(began, next_us);
        user.since_us = next_us;
        user.at = op.to;
        let ahead_us = next_us.wrapping_sub(Self::us(now_ns));
        if ahead_us == 0 || ahead_us > u32::MAX / 2 {
            // The round before took longer than it should: the server is late, not this tool.
            return Flow::Goto(op.to);
        }
        user.state = UserState::Pacing;
        let due_ns = now_ns + u64::from(ahead_us) * 1000;
        self.set_timer(u, ms_after(due_ns));
        Flow::Wait
    }

    /// Whether a loop has a round of this number.
    fn round_follows(&mut self, u: u32, op: &LoopOp, round: u32) -> bool {
        let bounds = self
            .with_user(u, |maker, user| (maker.bound(user, op.first), maker.bound(user, op.last)));
        match bounds {
            Some((first, Some(last))) => {
                let value = first.unwrap_or(0).saturating_add(op.step.saturating_mul(round.into()));
                if op.step < 0 { value >= last } else { value <= last }
            }
            Some((_, None)) => true,
            None => false,
        }
    }

    fn set_loop_var(&mut self, u: u32, op: &LoopOp, round: u32) {
        let Some(var) = op.var else { return };
        let first = self.with_user(u, |maker, user| maker.bound(user, op.first)).flatten();
        let value = first.unwrap_or(0).saturating_add(op.step.saturating_mul(round.into()));
        if let Some(user) = self.users.get(u) {
            user.set(var, Value::One(value.to_string().into_bytes().into()));
        }
    }

    fn next_element(&mut self, u: u32, op: &EachOp) -> Flow {
        let Some(user) = self.users.get(u) else { return Flow::Wait };
        let mut round = user.register(op.round);
        loop {
            let element = match user.value(op.each.list) {
                Some(Value::List(list)) => list.get(round as usize).cloned(),
                // A single value is a list of one.
                Some(Value::One(only)) if round == 0 => Some(only.clone()),
                _ => None,
            };
            let Some(element) = element else {
                user.set_register(op.round, 0);
                return Flow::Goto(op.end);
            };
            round += 1;
            let text = String::from_utf8_lossy(&element);
            let wanted = op.include.as_ref().is_none_or(|regex| regex.is_match(&text))
                && op.exclude.as_ref().is_none_or(|regex| !regex.is_match(&text));
            if wanted {
                user.set_register(op.round, round);
                user.set(op.each.var, Value::One(element));
                return Flow::Next;
            }
        }
    }

    fn repeat_end(&mut self, u: u32, op: &RepeatOp) -> Flow {
        let holds = self.with_user(u, |maker, user| maker.holds(user, &op.condition));
        let Some(user) = self.users.get(u) else { return Flow::Wait };
        let round = user.register(op.round).saturating_add(1);
        user.set_register(op.round, round);
        let again = holds != Some(op.until) && u64::from(round) < op.times_max;
        if again { Flow::Goto(op.body) } else { Flow::Next }
    }

    fn transaction_end(&mut self, io: &mut Net, u: u32, metric: MetricId) -> Flow {
        let now_ns = io.clock_ns();
        let Some(user) = self.users.get(u) else { return Flow::Wait };
        let open = &mut user.extra().transactions;
        if let Some(at) = open.iter().rposition(|(known, _)| *known == metric) {
            let (_, since_us) = open.remove(at);
            self.recorder.time(metric, Self::elapsed_us(since_us, now_ns));
        }
        user.tidy();
        Flow::Next
    }

    fn gather(&mut self, io: &mut Net, u: u32, users: u64, timeout: Option<Duration>) -> Flow {
        self.say(WorkerEvent::Came { users });
        self.gathering.push(u);
        self.wait_until(io, u, UserState::Gathering, timeout)
    }

    /// All have come.
    pub(crate) fn gathered(&mut self, io: &mut Net, u: u32) {
        let Some(user) = self.users.get(u) else { return };
        if user.state == UserState::Gathering {
            return self.done(io, u);
        }
        if user.is_gathering()
            && let Some(extra) = &mut user.extra
            && let Some(resume) = &mut extra.resume
        {
            // Its connection is not back yet; nothing is to be waited for then.
            resume.rest = None;
            resume.at = resume.lost_at + 1;
        }
    }

    /// Ends a user: its connection, its record, its count.
    pub(crate) fn end_user(&mut self, io: &mut Net, u: u32, how: Ended) {
        self.unset_timer(u);
        self.give_up_request(u);
        self.let_go(io, u);
        self.drop_stored(io, u);
        self.reset_abandoned(io, u);
        self.follow_no_more(u, io.clock_ns());
        let Some(user) = self.users.remove(u) else { return };
        self.traffic.users = self.traffic.users.saturating_add(1);
        if user.is_gathering() {
            self.gathering.retain(|waiting| *waiting != u);
        }
        let now_ms = (io.clock_ns() / 1_000_000) as u32;
        let life_us = u64::from(now_ms.saturating_sub(user.started_ms)) * 1000;
        let session = self.program.session_of(user.at) as u16;
        match how {
            Ended::Finished => self.recorder.user_finished(user.phase, session, life_us),
            Ended::Aborted => self.recorder.user_aborted(user.phase, session, life_us),
        }
    }

    /// The run is over for this user.
    pub(crate) fn stop_user(&mut self, io: &mut Net, u: u32) {
        let how = match self.users.get(u).map(|user| user.state) {
            // Staying or thinking to the end of the run is what it was there for.
            Some(UserState::Thinking | UserState::Pacing | UserState::Receiving) => Ended::Finished,
            _ => Ended::Aborted,
        };
        self.end_user(io, u, how);
    }
}

/// How a user came to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    /// It did all of its session.
    Finished,
    /// It did not.
    Aborted,
}

/// A duration in nanoseconds.
pub(crate) fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// The first whole millisecond that is not before a time.
fn ms_after(ns: u64) -> u32 {
    u32::try_from(ns.div_ceil(1_000_000)).unwrap_or(u32::MAX - 2)
}
