//! Errors in a file, with their lines.

use std::fmt;

/// An error, or a warning about something that was repaired or is ignored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Diagnostic {
    /// Line of the text, from 1; 0 if it is about the whole.
    pub line: u32,
    /// The error, with the name of the element, attribute or key.
    pub what: String,
    /// How to correct it; may be empty.
    pub help: String,
}

impl Diagnostic {
    /// An error at `line`.
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

impl fmt::Display for Diagnostic {
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

/// All errors of a text; never empty when returned as an error. Shown one a line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Diagnostics(pub Vec<Diagnostic>);

impl fmt::Display for Diagnostics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lines: Vec<String> = self.0.iter().map(Diagnostic::to_string).collect();
        f.write_str(&lines.join("\n"))
    }
}

impl std::error::Error for Diagnostics {}
