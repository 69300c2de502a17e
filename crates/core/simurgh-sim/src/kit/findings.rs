//! Findings of a run: the first failure, and counts of what happened.

use std::collections::BTreeMap;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// A broken rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    pub(crate) rule: &'static str,
    pub(crate) text: String,
    /// The number of steps before it.
    pub(crate) step: u32,
}

/// Counts of events, to see that they occur.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts(BTreeMap<String, u64>);

impl Counts {
    pub(crate) fn count(&mut self, what: &str, more: u64) {
        match self.0.get_mut(what) {
            Some(count) => *count += more,
            None => drop(self.0.insert(what.to_owned(), more)),
        }
    }

    #[cfg(test)]
    pub(crate) fn of(&self, what: &str) -> u64 {
        self.0.get(what).copied().unwrap_or(0)
    }

    pub(crate) fn add(&mut self, other: &Self) {
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

/// The findings of a run so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Findings {
    pub(crate) failure: Option<Failure>,
    pub(crate) step: u32,
    pub(crate) counts: Counts,
    /// A hash of everything that was sent.
    pub(crate) hash: u64,
    /// The log, if there is one.
    pub(crate) log: Option<Vec<String>>,
}

impl Findings {
    /// Notes a failure; only the first counts.
    #[cold]
    pub(crate) fn fail(&mut self, rule: &'static str, text: impl Into<String>) {
        let step = self.step;
        self.failure.get_or_insert_with(|| Failure { rule, text: text.into(), step });
    }

    /// Adds a line to the log, if there is one.
    #[inline]
    pub(crate) fn note(&mut self, text: impl FnOnce() -> String) {
        if let Some(log) = &mut self.log {
            log.push(text());
        }
    }
}

/// Runs a function whose panics, other than an application's, are failures.
///
/// # Errors
/// If it panics.
pub(crate) fn guarded<T>(run: impl FnOnce() -> T) -> Result<T, Failure> {
    catch_unwind(AssertUnwindSafe(run)).map_err(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(|it| (*it).to_owned()));
        let text = text.unwrap_or_else(|| "of another kind".to_owned());
        Failure { rule: "panic", text, step: 0 }
    })
}
