//! One second of the whole run: the unit of the journal and of all outputs.

use serde::{Deserialize, Serialize};

use super::{Broadcast, Delta, Sample, WorkerId};

/// One second, merged over all workers. All ticks of a run make its [`super::Record`] again.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Tick {
    /// When it was closed, milliseconds since the start.
    pub at_ms: u64,
    /// Since the tick before: usually 1000, more when the collector was late.
    pub span_ms: u64,
    /// Sums over all workers; `broadcasts`, `samples` and `dump` are empty.
    pub all: Delta,
    /// The workers that reported, by number.
    pub workers: Vec<WorkerTick>,
    /// The slowest broadcasts that became complete in this second.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub broadcasts: Vec<Broadcast>,
    /// Single times, where the scenario wants each one kept; not in the journal.
    #[serde(skip)]
    pub samples: Vec<Sample>,
    /// Lines of traffic for `tsung.dump`; not in the journal.
    #[serde(skip)]
    pub dump: Vec<String>,
    /// Only in the last tick: how the run ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ending: Option<Ending>,
}

/// One worker's second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct WorkerTick {
    /// The worker.
    pub worker: WorkerId,
    /// Users alive now.
    pub users: u64,
    /// Connections open now.
    pub connected: u64,
    /// Users started.
    pub started: u64,
    /// Errors.
    pub errors: u64,
    /// Frames received.
    pub frames_in: u64,
    /// Frames sent.
    pub frames_out: u64,
    /// CPU time, nanoseconds.
    pub cpu_ns: u64,
    /// The span in which that CPU time was used, milliseconds.
    pub span_ms: u64,
    /// It is lost: killed, or its agent does not answer.
    pub lost: bool,
}

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ending {
    /// The last user has ended.
    Finished,
    /// The scenario's duration has passed.
    Duration,
    /// The operator stopped it.
    Stopped,
    /// The scenario ended it (`abort`).
    Aborted,
    /// No worker was left.
    Failed,
}

impl Ending {
    /// A text for people.
    pub fn describe(self) -> &'static str {
        match self {
            Self::Finished => "finished: the last user has ended",
            Self::Duration => "finished: the time was over",
            Self::Stopped => "stopped by the operator",
            Self::Aborted => "ended by the scenario",
            Self::Failed => "failed: no worker was left",
        }
    }
}
