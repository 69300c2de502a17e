//! How a user processes an answer: captures and checks.

use simurgh_load_record::{Count, ErrorKind, MatchLine};
use simurgh_load_scenario::Action;
use simurgh_load_scenario::answer::{AnswerText, Verdict, decode_html, run_checks};

use super::machine::{Ended, Flow};
use super::{Machine, Outputs, UserState, Value};
use crate::program::{AnswerOp, Op};
use crate::time::{nanos, us};

impl<O: Outputs> Machine<'_, O> {
    /// Processes an answer that the step expected, and continues as its checks say.
    pub(super) fn answered(&mut self, op: &AnswerOp, answer: &AnswerText<'_>) -> Flow {
        match self.digest(op, answer) {
            None => Flow::Done,
            Some(action) => self.take_action(action),
        }
    }

    /// Captures values and runs the checks; returns an action that is not just to continue.
    pub(super) fn digest(&mut self, op: &AnswerOp, answer: &AnswerText<'_>) -> Option<Action> {
        self.capture(op, answer);
        if op.checks.is_empty() { None } else { self.check(op, answer) }
    }

    fn capture(&mut self, op: &AnswerOp, answer: &AnswerText<'_>) {
        for (capture, find) in &op.captures {
            let mut found = find.find_bytes(answer);
            if capture.decode_html {
                for value in &mut found {
                    if let Ok(text) = str::from_utf8(value) {
                        *value = decode_html(text).into_owned().into_bytes();
                    }
                }
            }
            let value = Value::found(found).unwrap_or_else(|| {
                // As in Tsung the variable becomes empty and does not keep its old value.
                self.out.error(ErrorKind::CaptureEmpty, self.user.origin(), String::new);
                Value::One(Box::default())
            });
            self.user.set(capture.var, value);
        }
    }

    fn check(&mut self, op: &AnswerOp, answer: &AnswerText<'_>) -> Option<Action> {
        let request = self.request_number();
        let Self { user, context, program, out, now_ns, .. } = self;
        let at_us = now_ns.saturating_sub(context.started_ns) / 1000;
        let session = program.session_of(user.at) as u16;
        let (id, origin) = (u64::from(user.id), user.origin());
        let transaction = user.extra_ref().and_then(|extra| extra.transactions.last());
        let transaction = transaction.map(|(metric, _)| *metric);
        let values = &mut context.values;
        let mut expand = |template: &_, out: &mut Vec<u8>| values.render(user, template, out);
        let each = |index: usize, verdict: Verdict| {
            out.count(if verdict.found { Count::Matches } else { Count::NoMatches }, 1);
            if verdict.is_broken {
                out.error(ErrorKind::Condition, origin, String::new);
            }
            let Some(action) = verdict.action.filter(|action| *action != Action::Continue) else {
                return;
            };
            let event = event_name(verdict.found, action).to_owned();
            let name = op.check_names.get(index).map_or("-", |(name, _)| name).to_owned();
            if action == Action::Dump {
                let text = String::from_utf8_lossy(answer.whole());
                out.dump(format!("{id}:{name}:{text}"));
            }
            out.match_line(MatchLine {
                at_us,
                user: id,
                session,
                request,
                event,
                transaction,
                name,
            });
        };
        let patterns = &mut context.patterns;
        run_checks(&op.checks, answer, patterns, &mut expand, each).map(|(_, action)| action)
    }

    pub(super) fn take_action(&mut self, action: Action) -> Flow {
        let at = self.user.at;
        match action {
            Action::Continue | Action::Log | Action::Dump => Flow::Done,
            Action::Abort => self.check_failed(),
            Action::AbortRun => {
                self.out.abort_run();
                self.check_failed()
            }
            Action::Restart { times_max } => {
                let start = self.session().map_or(0, |session| session.start);
                // Counted under a place that no loop has.
                if !self.once_more(u32::MAX, times_max) {
                    return self.check_failed();
                }
                // In Tsung a user keeps its connection, its cookies and its variables.
                if self.is_tsung() && !self.user.conn.is_websocket() {
                    self.user.extra().transactions.clear();
                    return Flow::Restart(start);
                }
                self.hang_up();
                self.drop_stored();
                self.user.forget();
                Flow::Restart(start)
            }
            Action::Loop { times_max, sleep, back } => {
                if !self.once_more(at, times_max) {
                    self.user.extra().repeats.retain(|(known, _)| *known != at);
                    return Flow::Done;
                }
                self.user.at = requests_back(&self.program.ops, at, back);
                self.user.since_us = us(self.now_ns.saturating_add(nanos(sleep)));
                self.wait(UserState::Pacing, Some(sleep))
            }
        }
    }

    fn check_failed(&mut self) -> Flow {
        self.out.error(ErrorKind::CheckFailed, self.user.origin(), String::new);
        self.leave(Ended::Aborted)
    }

    /// Counts a repetition; `false` at the limit.
    fn once_more(&mut self, at: u32, times_max: u32) -> bool {
        let repeats = &mut self.user.extra().repeats;
        let index = repeats.iter().position(|(known, _)| *known == at).unwrap_or_else(|| {
            repeats.push((at, 0));
            repeats.len() - 1
        });
        let Some((_, times)) = repeats.get_mut(index) else { return false };
        *times += 1;
        *times <= times_max
    }

    fn request_number(&self) -> u32 {
        let start = self.session().map_or(0, |session| session.start);
        let requests = (start..=self.user.at).filter(|at| is_request(self.program.op(*at)));
        u32::try_from(requests.count()).unwrap_or(u32::MAX)
    }
}

fn event_name(found: bool, action: Action) -> &'static str {
    match (action, found) {
        (Action::Loop { .. }, _) => "match_loop",
        (Action::Restart { .. }, _) => "match_restart",
        (Action::Dump, _) => "match_dump",
        (Action::Abort | Action::AbortRun, _) => "match_stop",
        (Action::Continue | Action::Log, true) => "match",
        (Action::Continue | Action::Log, false) => "nomatch",
    }
}

fn is_request(op: &Op) -> bool {
    matches!(op, Op::Connect(..) | Op::Send(_) | Op::Raw(_) | Op::Channel(_) | Op::Http(..))
}

/// The operation that is `back` requests before the one at `at`.
fn requests_back(ops: &[Op], at: u32, back: u32) -> u32 {
    let before = (0..=at).rev().filter(|at| ops.get(*at as usize).is_some_and(is_request));
    before.take(back as usize + 1).last().unwrap_or(at)
}
