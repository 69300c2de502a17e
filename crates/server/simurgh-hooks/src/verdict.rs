//! Outcomes of questions.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use crate::answer::Answer;

/// The result of [`Hook::ask`](crate::Hook::ask).
pub enum Asked {
    /// Known at once: from the cache, or because nothing can be asked now.
    Now(Verdict),
    /// The answer of the application. Dropping the future removes a waiting question unsent.
    Later(Pin<Box<dyn Future<Output = Verdict> + Send>>),
}

impl fmt::Debug for Asked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Now(verdict) => f.debug_tuple("Now").field(verdict).finish(),
            Self::Later(_) => f.write_str("Later"),
        }
    }
}

/// The outcome of a question.
#[derive(Clone, Debug)]
pub enum Verdict {
    /// The application allows it.
    Allowed(Arc<Answer>),
    /// The application refuses it.
    Refused(Arc<Refusal>),
    /// There is no answer: [`OnFailure`](crate::OnFailure) decides.
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
}

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
}
