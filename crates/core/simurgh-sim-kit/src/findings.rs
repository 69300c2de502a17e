//! What a run has found: the first failure, and how often what has happened.

use std::collections::BTreeMap;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// What is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The rule that is broken.
    pub rule: &'static str,
    /// How.
    pub text: String,
    /// After so many steps.
    pub step: u32,
}

/// How often what has happened, to see that it does.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts(BTreeMap<String, u64>);

impl Counts {
    /// So many more of something.
    pub fn count(&mut self, what: &str, more: u64) {
        match self.0.get_mut(what) {
            Some(count) => *count += more,
            None => drop(self.0.insert(what.to_owned(), more)),
        }
    }

    /// How many there are of something.
    pub fn of(&self, what: &str) -> u64 {
        self.0.get(what).copied().unwrap_or(0)
    }

    /// Adds those of another run.
    pub fn add(&mut self, other: &Self) {
        other.0.iter().for_each(|(what, more)| self.count(what, *more));
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words: Vec<String> =
            self.0.iter().map(|(what, count)| format!("{count} {what}")).collect();
        f.write_str(&words.join(", "))
    }
}

/// What a run has found so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Findings {
    /// The first failure.
    pub failure: Option<Failure>,
    /// Steps so far.
    pub step: u32,
    /// How often what has happened.
    pub counts: Counts,
    /// The log of what happens, if there is one.
    pub log: Option<Vec<String>>,
}

impl Findings {
    /// Notes what is wrong; only the first failure counts.
    #[cold]
    pub fn fail(&mut self, rule: &'static str, text: impl Into<String>) {
        let step = self.step;
        self.failure.get_or_insert_with(|| Failure { rule, text: text.into(), step });
    }

    /// Notes something for a story.
    #[inline]
    pub fn note(&mut self, text: impl FnOnce() -> String) {
        if let Some(log) = &mut self.log {
            log.push(text());
        }
    }
}

/// Runs something whose panics, other than an application's, are failures.
///
/// # Errors
/// It has panicked.
pub fn guarded<T>(run: impl FnOnce() -> T) -> Result<T, Failure> {
    catch_unwind(AssertUnwindSafe(run)).map_err(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(|it| (*it).to_owned()));
        let text = text.unwrap_or_else(|| "of another kind".to_owned());
        Failure { rule: "panic", text, step: 0 }
    })
}
