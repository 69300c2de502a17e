//! Why a run did not begin.

use std::io;

/// Why a run did not begin.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The scenario cannot be run.
    #[error("the scenario cannot be run: {0}")]
    Scenario(String),
    /// What the system refused, and how.
    #[error("{0}: {1}")]
    System(&'static str, io::Error),
    /// A worker did not start.
    #[error("a worker did not start: {0}")]
    Worker(String),
    /// Agents that cannot take part: each with its name, what is wrong and what to do.
    #[error("{}", .0.join("\n"))]
    Agents(Vec<String>),
}
