//! Commands to the workers of a host, and their events.

use serde::{Deserialize, Serialize};
use simurgh_load_record::Delta;

/// A command to the workers of a host. Times are of that host's workers' clock.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum WorkerCommand {
    /// The run begins; what is added to the clock makes it the controller's.
    Start { at_ns: u64, clock_offset_ns: i64 },
    /// Clocks drift: this is added from now on.
    Clock { clock_offset_ns: i64 },
    /// The phase that waited for its users is followed by the next.
    NextPhase { at_ns: u64 },
    /// No arrivals from now on.
    Pause,
    /// Arrivals go on.
    Resume,
    /// So many times the scenario's rates.
    Rate(f64),
    /// As many users as others waited for have come.
    Gathered,
    /// The run is over, users and all.
    Stop,
}

/// What a worker reports.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum WorkerEvent {
    /// What has happened in the last second.
    Delta(Box<Delta>),
    /// The phase is over, and the next one waits until no users are left.
    PhaseOver { thread: u16 },
    /// Nobody will come any more and nobody is there.
    Idle { thread: u16 },
    /// A user came to where it waits for others, until they are so many.
    Came { users: u64 },
    /// The scenario ends the run.
    AbortRun,
    /// All users have ended after [`WorkerCommand::Stop`]; nothing follows.
    Stopped { thread: u16 },
}
