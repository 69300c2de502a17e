//! Checks answers against patterns.

use regex::bytes::Regex;

use super::{AnswerText, Expand, compile_pattern, with};
use crate::{Action, Check, Template};

/// Compiled patterns that a worker caches.
const PATTERNS_MAX: usize = 64;

/// A [`Check`], ready for use.
#[derive(Clone, Debug)]
pub struct CompiledCheck {
    pattern: Pattern,
    when_found: bool,
    action: Action,
    skip_headers: bool,
}

#[derive(Clone, Debug)]
enum Pattern {
    Constant(Regex),
    Template(Template),
}

/// The result of one check.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Verdict {
    /// The pattern was found: counted as `match`, else as `nomatch`.
    pub found: bool,
    /// The action to take, if any.
    pub action: Option<Action>,
    /// With its values, the pattern is not a valid regular expression; counts as not found.
    pub is_broken: bool,
}

/// A worker's cache of patterns with values, compiled.
#[derive(Debug, Default)]
pub struct PatternCache {
    /// The most recently used first.
    patterns: Vec<(Box<[u8]>, Option<Regex>)>,
}

impl PatternCache {
    pub(super) fn regex(&mut self, pattern: &[u8]) -> Option<&Regex> {
        let known = self.patterns.iter().position(|(text, _)| **text == *pattern);
        let entry = match known {
            Some(at) => self.patterns.remove(at),
            None => {
                self.patterns.truncate(PATTERNS_MAX - 1);
                let text = std::str::from_utf8(pattern).ok();
                (pattern.into(), text.and_then(|text| compile_pattern(text).ok()))
            }
        };
        self.patterns.insert(0, entry);
        self.patterns.first().and_then(|(_, regex)| regex.as_ref())
    }
}

impl CompiledCheck {
    /// Compiles a check of a scenario. An error says what is wrong with it, for people.
    pub fn new(check: &Check) -> Result<Self, String> {
        let pattern = match check.pattern.constant() {
            Some(text) => Pattern::Constant(compile_pattern(&String::from_utf8_lossy(text))?),
            None => Pattern::Template(check.pattern.clone()),
        };
        let Check { when_found, action, skip_headers, .. } = *check;
        Ok(Self { pattern, when_found, action, skip_headers })
    }

    /// Checks an answer.
    pub fn verdict(
        &self,
        answer: &AnswerText<'_>,
        patterns: &mut PatternCache,
        expand: &mut Expand<'_>,
    ) -> Verdict {
        let text = if self.skip_headers { answer.body() } else { answer.whole() };
        let found = match &self.pattern {
            Pattern::Constant(regex) => Some(regex.is_match(text)),
            Pattern::Template(template) => with(template, expand, |pattern| {
                patterns.regex(pattern).map(|regex| regex.is_match(text))
            }),
        };
        let is_found = found.unwrap_or(false);
        let action = Some(self.action).filter(|_| is_found == self.when_found);
        Verdict { found: is_found, action, is_broken: found.is_none() }
    }
}

/// Runs an answer's checks as Tsung does: in order, up to the first whose action is more than
/// [`Action::Continue`], [`Action::Log`] or [`Action::Dump`]; that one is returned with its index.
/// `each` gets every verdict with the check's index, to count and to log.
pub fn run_checks(
    checks: &[CompiledCheck],
    answer: &AnswerText<'_>,
    patterns: &mut PatternCache,
    expand: &mut Expand<'_>,
    mut each: impl FnMut(usize, Verdict),
) -> Option<(usize, Action)> {
    for (index, check) in checks.iter().enumerate() {
        let verdict = check.verdict(answer, patterns, expand);
        each(index, verdict);
        match verdict.action {
            None | Some(Action::Continue | Action::Log | Action::Dump) => {}
            Some(action) => return Some((index, action)),
        }
    }
    None
}
