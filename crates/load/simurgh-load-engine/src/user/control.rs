//! Operations without network: think times, stays and loops.

use std::time::Duration;

use simurgh_load_record::{LATE_US, MetricId};
use simurgh_load_scenario::{Compare, Condition, Think};

use super::machine::Flow;
use super::{Machine, Outputs, Rest, UserState, Value};
use crate::program::{EachOp, LoopOp, Op, Paced, ReceiveOp, RepeatOp};
use crate::time::{elapsed_us, nanos, tick_nearest, us};

impl<O: Outputs> Machine<'_, O> {
    pub(super) fn think(&mut self, think: Think) -> Flow {
        let time = match think {
            Think::Constant(time) => time,
            drawn => self.context.values.think(self.user, drawn),
        };
        self.rest(time, UserState::Thinking)
    }

    /// Makes the user wait from the operation's due time on; time that has already passed counts.
    fn rest(&mut self, time: Duration, state: UserState) -> Flow {
        // The exact end: what follows is due then. The timer keeps whole ticks.
        let end_ns = self.due_ns().saturating_add(nanos(time));
        self.user.since_us = us(end_ns);
        self.user.add_rest(time);
        if end_ns < self.now_ns && !self.is_timed {
            // It is over already, since the server was late and not this tool.
            return Flow::Next;
        }
        self.user.state = state;
        self.out.set_timer(Some(tick_nearest(end_ns)));
        Flow::Wait
    }

    pub(super) fn receive(&mut self, op: &ReceiveOp) -> Flow {
        let count = op.receive.count.map_or(0, |count| u32::try_from(count).unwrap_or(u32::MAX));
        self.user.set_awaits(count);
        match op.receive.time {
            None => self.wait(UserState::Receiving, None),
            Some(time) => {
                let time = self.context.values.think(self.user, time);
                self.rest(time, UserState::Receiving)
            }
        }
    }

    pub(super) fn loop_start(&mut self, op: &LoopOp) -> Flow {
        self.user.set_register(op.round, 0);
        if let Some(paced) = op.paced {
            self.begin_round(paced, self.user.since_us);
        }
        if !op.at_least_once && !self.has_round(op, 0) {
            return Flow::Goto(op.to);
        }
        self.set_loop_var(op, 0);
        Flow::Next
    }

    pub(super) fn loop_end(&mut self, op: &LoopOp) -> Flow {
        let round = self.user.register(op.round).saturating_add(1);
        self.user.set_register(op.round, round);
        if !self.has_round(op, round) {
            return Flow::Next;
        }
        self.set_loop_var(op, round);
        let Some(paced) = op.paced else { return Flow::Goto(op.to) };
        // The next round's start depends on the first one's, not on this one's end; but rounds do
        // not overlap, however fast the server.
        let rested_us = self.user.rested_us().wrapping_sub(self.user.register(paced.rested));
        let length_us = rested_us.max(paced.every.as_micros() as u32);
        let next_us = self.user.register(paced.began).wrapping_add(length_us);
        self.begin_round(paced, next_us);
        self.user.since_us = next_us;
        let ahead_us = next_us.wrapping_sub(us(self.now_ns));
        if ahead_us == 0 || ahead_us > u32::MAX / 2 {
            // The previous round took too long: the server is late, not this tool.
            return Flow::Goto(op.to);
        }
        (self.user.at, self.user.state) = (op.to, UserState::Pacing);
        self.out.set_timer(Some(tick_nearest(self.due_ns())));
        Flow::Wait
    }

    fn begin_round(&mut self, paced: Paced, at_us: u32) {
        self.user.set_register(paced.began, at_us);
        self.user.set_register(paced.rested, self.user.rested_us());
    }

    /// A round with `every` begins much later than it was due: so do all later ones. Otherwise this
    /// tool's lateness would be in the times of their requests.
    pub(super) fn put_off_rounds(&mut self, late_us: u64) {
        let before = self.user.at.checked_sub(1).and_then(|at| self.program.ops.get(at as usize));
        if late_us > LATE_US
            && let Some(Op::LoopStart(LoopOp { paced: Some(Paced { began, .. }), .. })) = before
        {
            let began_us = self.user.register(*began);
            self.user.set_register(*began, began_us.wrapping_add(late_us as u32));
        }
    }

    /// This tool had cut the connection: rounds that were due while the user was away begin now or
    /// later, and the time away is in no transaction.
    pub(super) fn put_off_since(&mut self, cut_us: u32, rest: Option<Rest>) {
        if let Some(rest) = rest.filter(|rest| rest.state == UserState::Pacing) {
            self.put_off_rounds(elapsed_us(rest.since_us, self.now_ns));
        }
        let now_us = us(self.now_ns);
        let start = self.session().map_or(0, |session| session.start) as usize;
        let before = self.program.ops.get(start..self.user.at as usize).unwrap_or_default();
        for op in before {
            let Op::LoopStart(LoopOp { paced: Some(paced), .. }) = op else { continue };
            let latest_us = now_us.wrapping_sub(paced.every.as_micros() as u32);
            let began_us = self.user.register(paced.began);
            if latest_us.wrapping_sub(began_us) <= u32::MAX / 2 {
                self.user.set_register(paced.began, latest_us);
            }
        }
        for (_, since_us) in &mut self.user.extra().transactions {
            *since_us = since_us.wrapping_add(now_us.wrapping_sub(cut_us));
        }
        self.user.tidy();
    }

    fn has_round(&mut self, op: &LoopOp, round: u32) -> bool {
        let values = &mut self.context.values;
        let first = values.bound(self.user, op.first).unwrap_or(0);
        let Some(last) = values.bound(self.user, op.last) else { return true };
        let value = first.saturating_add(op.step.saturating_mul(round.into()));
        match op.at_least_once {
            // As in Tsung, the value of the round before decides.
            true => value.saturating_sub(op.step) < last,
            false if op.step < 0 => value >= last,
            false => value <= last,
        }
    }

    fn set_loop_var(&mut self, op: &LoopOp, round: u32) {
        let Some(var) = op.var else { return };
        let first = self.context.values.bound(self.user, op.first).unwrap_or(0);
        let value = first.saturating_add(op.step.saturating_mul(round.into()));
        self.user.set(var, Value::One(value.to_string().into_bytes().into()));
    }

    pub(super) fn next_element(&mut self, op: &EachOp) -> Flow {
        let user = &mut *self.user;
        let mut round = user.register(op.round);
        loop {
            let list = user.value(op.each.list);
            let element = list.and_then(|list| list.element(round as usize));
            let Some(element) = element else {
                user.set_register(op.round, 0);
                return Flow::Goto(op.end);
            };
            round += 1;
            let text = String::from_utf8_lossy(element);
            let wanted = op.include.as_ref().is_none_or(|regex| regex.is_match(&text))
                && op.exclude.as_ref().is_none_or(|regex| !regex.is_match(&text));
            if wanted {
                let element = Value::One(element.into());
                user.set_register(op.round, round);
                user.set(op.each.var, element);
                return Flow::Next;
            }
        }
    }

    pub(super) fn repeat_end(&mut self, op: &RepeatOp) -> Flow {
        // Tsung goes on without a value, and goes back `max_repeat` times.
        let Some(holds) = self.holds(&op.condition) else { return Flow::Next };
        let times_max = op.times_max.saturating_add(self.is_tsung().into());
        let round = self.user.register(op.round).saturating_add(1);
        if u64::from(round) >= times_max {
            return Flow::Next;
        }
        self.user.set_register(op.round, round);
        if holds != op.until { Flow::Goto(op.body) } else { Flow::Next }
    }

    /// Whether a condition holds; `None` in Tsung for a variable without a value.
    pub(super) fn holds(&mut self, condition: &Condition) -> Option<bool> {
        let is_tsung = self.is_tsung();
        let compare = match condition.compare {
            // As in Tsung 1.7.0.
            Compare::Gte if is_tsung => Compare::Gt,
            Compare::Lte if is_tsung => Compare::Lt,
            compare => compare,
        };
        let holds = self.context.values.holds(self.user, condition, compare);
        holds.or((!is_tsung).then_some(compare == Compare::Neq))
    }

    pub(super) fn transaction_end(&mut self, metric: MetricId) -> Flow {
        let open = &mut self.user.extra().transactions;
        if let Some(at) = open.iter().rposition(|(known, _)| *known == metric) {
            let (_, since_us) = open.remove(at);
            self.out.time(metric, elapsed_us(since_us, self.now_ns));
        }
        self.user.tidy();
        Flow::Next
    }
}
