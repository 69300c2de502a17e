//! What the steps of a scenario want of an answer, compiled; and how a user takes one.

use std::rc::Rc;
use std::time::Duration;

use simurgh_load_record::{Count, ErrorKind, MatchLine};
use simurgh_load_scenario::answer::{
    AnswerText, CompiledCheck, CompiledFind, CompiledMatcher, decode_html, run_checks,
};
use simurgh_load_scenario::{Action, Answer, Find, Matcher, VarId};
use simurgh_proto::serializer::{Frame, ServerMessage};

use super::program::Op;
use super::steps::{Ended, nanos};
use super::user::{User, UserState, Value};
use super::values::Maker;
use super::worker::{Net, Worker, WorkerEvent};

/// A compiled [`Answer`].
pub(crate) struct AnswerOp {
    pub(crate) timeout: Option<Duration>,
    captures: Vec<Capture>,
    checks: Vec<CompiledCheck>,
    /// Names and actions of the checks, for `match.log`.
    check_names: Vec<(String, Action)>,
}

struct Capture {
    var: VarId,
    find: CompiledFind,
    decode_html: bool,
}

impl AnswerOp {
    pub(crate) fn new(answer: &Answer) -> Result<Self, String> {
        let capture = |capture: &simurgh_load_scenario::Capture| {
            let find = CompiledFind::new(&capture.from)?;
            Ok(Capture { var: capture.var, find, decode_html: capture.decode_html })
        };
        Ok(Self {
            timeout: answer.timeout,
            captures: answer.captures.iter().map(capture).collect::<Result<_, String>>()?,
            checks: answer.checks.iter().map(CompiledCheck::new).collect::<Result<_, _>>()?,
            check_names: answer.checks.iter().map(|c| (c.name.clone(), c.action)).collect(),
        })
    }

    /// Whether a check may have the user do again what it has done.
    pub(crate) fn sends_back(&self) -> bool {
        let goes_back = |action| matches!(action, Action::Restart { .. } | Action::Loop { .. });
        self.check_names.iter().any(|(_, action)| goes_back(*action))
    }

    /// Whether nobody looks at the answer.
    pub(crate) fn is_none(&self) -> bool {
        self.captures.is_empty() && self.checks.is_empty()
    }
}

/// A compiled [`Matcher`].
pub(crate) struct MatcherOp(CompiledMatcher);

impl MatcherOp {
    pub(crate) fn new(matcher: &Matcher) -> Result<Self, String> {
        CompiledMatcher::new(matcher).map(Self)
    }

    pub(crate) fn matches(
        &self,
        maker: &mut Maker,
        user: &mut User,
        frame: Frame<'_>,
        message: Option<&ServerMessage<'_>>,
    ) -> bool {
        self.0.matches(frame, message, &mut |template, out| maker.render(user, template, out))
    }
}

/// What a JSON path finds in a text, as a variable's value.
pub(crate) fn find_json(path: &str, text: &[u8]) -> Option<Value> {
    let find = CompiledFind::new(&Find::Json(path.to_owned())).ok()?;
    value(find.find(&AnswerText::body_only(text)))
}

fn value(mut found: Vec<String>) -> Option<Value> {
    match found.len() {
        0 => None,
        1 => found.pop().map(|only| Value::One(only.into_bytes().into())),
        _ => Some(Value::List(found.into_iter().map(|each| each.into_bytes().into()).collect())),
    }
}

impl Worker {
    /// An answer has come that the step wanted: takes from it, holds it against the checks, and
    /// goes on as they say.
    pub(crate) fn answered(
        &mut self,
        io: &mut Net,
        u: u32,
        op: &AnswerOp,
        answer: &AnswerText<'_>,
    ) {
        match self.digest(io, u, op, answer) {
            None => self.done(io, u),
            Some(action) => self.take_action(io, u, action),
        }
    }

    /// Takes from an answer what is to be taken and holds it against the checks; says what they
    /// want to be done, if it is not just to go on.
    pub(crate) fn digest(
        &mut self,
        io: &Net,
        u: u32,
        op: &AnswerOp,
        answer: &AnswerText<'_>,
    ) -> Option<Action> {
        self.capture(u, op, answer);
        if op.checks.is_empty() { None } else { self.check(io, u, op, answer) }
    }

    fn capture(&mut self, u: u32, op: &AnswerOp, answer: &AnswerText<'_>) {
        for capture in &op.captures {
            let mut found = capture.find.find(answer);
            if capture.decode_html {
                for text in &mut found {
                    *text = decode_html(text).into_owned();
                }
            }
            let Some(user) = self.users.get(u) else { return };
            match value(found) {
                Some(value) => user.set(capture.var, value),
                None => {
                    // As in Tsung the variable is empty then, not what it was before.
                    user.set(capture.var, Value::One(Box::default()));
                    let origin = user.origin();
                    self.recorder.error(ErrorKind::CaptureEmpty, origin);
                }
            }
        }
    }

    fn check(
        &mut self,
        io: &Net,
        u: u32,
        op: &AnswerOp,
        answer: &AnswerText<'_>,
    ) -> Option<Action> {
        let at_us = io.clock_ns().saturating_sub(self.arrivals.started_at_ns()) / 1000;
        let request = self.request_number(u);
        let Self { users, maker, recorder, patterns, program, .. } = self;
        let user = users.get(u)?;
        let session = program.session_of(user.at) as u16;
        let (id, origin) = (u64::from(user.id), user.origin());
        let transaction = user.extra.as_ref().and_then(|extra| extra.transactions.last());
        let transaction = transaction.map(|(metric, _)| *metric);
        let mut expand = |template: &_, out: &mut Vec<u8>| maker.render(user, template, out);
        let each = |index: usize, verdict: simurgh_load_scenario::answer::Verdict| {
            let count = if verdict.found { Count::Matches } else { Count::NoMatches };
            recorder.count(count, 1);
            if verdict.is_broken {
                recorder.error(ErrorKind::Condition, origin);
            }
            let Some(action) = verdict.action.filter(|action| *action != Action::Continue) else {
                return;
            };
            let event = event_name(verdict.found, action);
            let name = op.check_names.get(index).map_or("-", |(name, _)| name);
            recorder.match_line(MatchLine {
                at_us,
                user: id,
                session,
                request,
                event: event.to_owned(),
                transaction,
                name: name.to_owned(),
            });
            if action == Action::Dump {
                let text = String::from_utf8_lossy(answer.whole());
                recorder.dump(format!("{id}:{name}:{text}"));
            }
        };
        run_checks(&op.checks, answer, patterns, &mut expand, each).map(|(_, action)| action)
    }

    pub(crate) fn take_action(&mut self, io: &mut Net, u: u32, action: Action) {
        let program = Rc::clone(&self.program);
        let Some(user) = self.users.get(u) else { return };
        let (at, origin) = (user.at, user.origin());
        match action {
            Action::Continue | Action::Log | Action::Dump => self.done(io, u),
            Action::Abort => {
                self.recorder.error(ErrorKind::CheckFailed, origin);
                self.end_user(io, u, Ended::Aborted);
            }
            Action::AbortRun => {
                self.recorder.error(ErrorKind::CheckFailed, origin);
                self.say(WorkerEvent::AbortRun);
                self.end_user(io, u, Ended::Aborted);
            }
            Action::Restart { times_max } => {
                let start = program.session_at(at).map_or(0, |s| s.start);
                // Counted under the session's first operation, which no loop counts under.
                if !self.once_more(u, start, times_max) {
                    self.recorder.error(ErrorKind::CheckFailed, origin);
                    return self.end_user(io, u, Ended::Aborted);
                }
                self.let_go(io, u);
                self.drop_stored(io, u);
                if let Some(user) = self.users.get(u)
                    && let Some(extra) = &mut user.extra
                {
                    let repeats = std::mem::take(&mut extra.repeats);
                    **extra = super::user::Extra { repeats, ..Default::default() };
                }
                self.goto(io, u, start);
            }
            Action::Loop { times_max, sleep, back } => {
                if !self.once_more(u, at, times_max) {
                    if let Some(user) = self.users.get(u)
                        && let Some(extra) = &mut user.extra
                    {
                        extra.repeats.retain(|(known, _)| *known != at);
                    }
                    return self.done(io, u);
                }
                let to = requests_back(&program.ops, at, back);
                let begins_us = Self::us(io.clock_ns().saturating_add(nanos(sleep)));
                if let Some(user) = self.users.get(u) {
                    user.at = to;
                    user.since_us = begins_us;
                }
                self.wait_until(io, u, UserState::Pacing, Some(sleep));
            }
        }
    }

    /// Counts a repetition; `false` when there were enough.
    fn once_more(&mut self, u: u32, at: u32, times_max: u32) -> bool {
        let Some(user) = self.users.get(u) else { return false };
        let repeats = &mut user.extra().repeats;
        let index = repeats.iter().position(|(known, _)| *known == at).unwrap_or_else(|| {
            repeats.push((at, 0));
            repeats.len() - 1
        });
        let Some((_, times)) = repeats.get_mut(index) else { return false };
        *times += 1;
        *times <= times_max
    }

    /// The number of the user's request in its session, from 1.
    fn request_number(&mut self, u: u32) -> u32 {
        let Some(user) = self.users.get(u) else { return 0 };
        let program = &self.program;
        let start = program.session_at(user.at).map_or(0, |s| s.start);
        let requests = (start..=user.at).filter(|at| is_request(program.op(*at))).count();
        u32::try_from(requests).unwrap_or(u32::MAX)
    }
}

/// What `match.log` calls it.
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
    matches!(op, Op::Connect(_) | Op::Send(_) | Op::Raw(_) | Op::Channel(_) | Op::Http(_))
}

/// The operation that is `back` requests before the one at `at`.
fn requests_back(ops: &[Op], at: u32, back: u32) -> u32 {
    let before = (0..=at).rev().filter(|at| ops.get(*at as usize).is_some_and(is_request));
    before.take(back as usize + 1).last().unwrap_or(at)
}
