//! Why a run did not begin.

use std::io;

/// Why a run did not begin.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The scenario cannot be run.
    #[error("the scenario cannot be run: {0}")]
    Scenario(String),
    /// A failed system call: what was tried, and the error.
    #[error("{0}: {1}")]
    System(&'static str, io::Error),
    /// A worker did not start.
    #[error("a worker did not start: {0}")]
    Worker(String),
    /// Agents that cannot join the run: name, problem and remedy.
    #[error("{}", .0.join("\n"))]
    Agents(Vec<String>),
}
