//! Compiled checks and captures of answers.

use std::time::Duration;

use simurgh_load_scenario::answer::{CompiledCheck, CompiledFind};
use simurgh_load_scenario::{Action, Answer, Capture};

pub(crate) struct AnswerOp {
    pub(crate) timeout: Option<Duration>,
    pub(crate) captures: Vec<(Capture, CompiledFind)>,
    pub(crate) checks: Vec<CompiledCheck>,
    /// Names and actions of the checks, for `match.log`.
    pub(crate) check_names: Vec<(String, Action)>,
}

impl AnswerOp {
    pub(crate) fn new(answer: &Answer) -> Result<Self, String> {
        let capture = |one: &Capture| Ok((one.clone(), CompiledFind::new(&one.from)?));
        Ok(Self {
            timeout: answer.timeout,
            captures: answer.captures.iter().map(capture).collect::<Result<_, String>>()?,
            checks: answer.checks.iter().map(CompiledCheck::new).collect::<Result<_, _>>()?,
            check_names: answer.checks.iter().map(|c| (c.name.clone(), c.action)).collect(),
        })
    }

    /// Whether a check may make the user repeat earlier steps.
    pub(crate) fn sends_back(&self) -> bool {
        let goes_back = |action| matches!(action, Action::Restart { .. } | Action::Loop { .. });
        self.check_names.iter().any(|(_, action)| goes_back(*action))
    }

    /// Whether nothing uses the answer.
    pub(crate) fn is_none(&self) -> bool {
        self.captures.is_empty() && self.checks.is_empty()
    }
}
