//! What is wrong with a scenario's text, or was put right in it.

use std::fmt;

/// A mistake, or with a warning something that was repaired or is ignored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Line of the text, from 1; 0 if it is about the whole.
    pub line: u32,
    /// What is wrong, with the name of the element, attribute or key.
    pub what: String,
    /// What to do about it; may be empty.
    pub help: String,
}

impl Fault {
    /// A fault at `line`.
    pub fn at(line: u32, what: impl Into<String>) -> Self {
        Self { line, what: what.into(), help: String::new() }
    }

    /// The same with advice.
    #[must_use]
    pub fn help(mut self, help: impl Into<String>) -> Self {
        self.help = help.into();
        self
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.line > 0 {
            write!(f, "line {}: ", self.line)?;
        }
        f.write_str(&self.what)?;
        if !self.help.is_empty() {
            write!(f, " ({})", self.help)?;
        }
        Ok(())
    }
}

/// All mistakes of a text: never empty where it is an error.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Faults(pub Vec<Fault>);

impl fmt::Display for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, fault) in self.0.iter().enumerate() {
            if index > 0 {
                f.write_str("\n")?;
            }
            fault.fmt(f)?;
        }
        Ok(())
    }
}

impl std::error::Error for Faults {}

/// A scenario that can be run, and what its reader should know.
#[derive(Clone, Debug, PartialEq)]
pub struct Loaded {
    /// The scenario.
    pub scenario: super::Scenario,
    /// Repairs and things ignored.
    pub warnings: Vec<Fault>,
}
