//! Outcomes of questions.

use std::sync::Arc;

use crate::answer::Answer;
use crate::breaker::Fault;

/// The outcome of a question.
#[derive(Clone, Debug)]
pub enum Verdict {
    /// The application allows it.
    Allowed(Arc<Answer>),
    /// The application refuses it.
    Refused(Arc<Refusal>),
    /// There is no answer.
    Failed(Failure),
}

/// Why the application refuses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Its text `reason`, else `unauthorized`.
    pub reason: String,
    /// The JSON object for error replies.
    pub response: String,
}

/// Why there is no answer, and when to ask again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Why.
    pub kind: FailureKind,
    /// Milliseconds until it makes sense to ask again.
    pub retry_after_ms: u64,
    /// As if the hook were not configured ([`OnFailure`](crate::OnFailure)).
    pub allows: bool,
}

impl Failure {
    /// There is nobody who could answer.
    pub const NOBODY: Self =
        Self { kind: FailureKind::Failed, retry_after_ms: RETRY_MS, allows: false };
}

/// The shortest time after which it makes sense to ask again.
pub(crate) const RETRY_MS: u64 = 1_000;

/// Why there is no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailureKind {
    /// None came in time.
    Timeout,
    /// Too many questions wait.
    Overloaded,
    /// The breaker is open: the last questions failed.
    Open,
    /// No connection, or an answer that decides nothing.
    Failed,
    /// The application answers with a status 4xx: [`OnFailure`](crate::OnFailure) allows nothing.
    Rejected,
}

impl From<Fault> for FailureKind {
    fn from(fault: Fault) -> Self {
        match fault {
            Fault::Late => Self::Timeout,
            Fault::Rejected => Self::Rejected,
            Fault::Away | Fault::Silent | Fault::Wrong => Self::Failed,
        }
    }
}
