//! Mistakes in settings, collected so that all are shown at once.

use std::fmt;
use std::process::ExitCode;

use simurgh_text::output::{WRONG_SETTINGS, complain};

/// A key of a table, and its mistake.
pub(crate) type Mistake = (&'static str, String);

#[derive(Debug, Default)]
pub(crate) struct Mistakes(pub(crate) Vec<Mistake>);

impl Mistakes {
    pub(crate) fn add(&mut self, key: &'static str, text: impl Into<String>) {
        self.0.push((key, text.into()));
    }

    /// Adds a mistake; returns `None` for the value.
    pub(crate) fn refuse<T>(&mut self, key: &'static str, text: impl Into<String>) -> Option<T> {
        self.add(key, text);
        None
    }

    /// The value if it is valid; else adds the error.
    pub(crate) fn note<T>(
        &mut self,
        key: &'static str,
        found: Result<T, impl ToString>,
    ) -> Option<T> {
        found.map_err(|error| self.add(key, error.to_string())).ok()
    }
}

/// All mistakes, a line each.
#[derive(Debug)]
pub(crate) struct Refusal(pub(crate) Vec<String>);

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.join("\n"))
    }
}

impl Refusal {
    /// Prints all mistakes and the consequence, and returns the exit status.
    pub(crate) fn refuse(&self, consequence: &str) -> ExitCode {
        let count = match self.0.len() {
            1 => "1 mistake".to_owned(),
            n => format!("{n} mistakes"),
        };
        complain(&format!("{self}\n{count}; {consequence}"));
        ExitCode::from(WRONG_SETTINGS)
    }
}
