//! Commands to the workers of a host, and their events.

use serde::{Deserialize, Serialize};
use simurgh_load_record::Delta;

/// A command to the workers of a host. Times are of that host's workers' clock.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum WorkerCommand {
    /// The run begins; the offset converts the workers' clock to the controller's.
    Start { at_ns: u64, clock_offset_ns: i64 },
    /// Clocks drift: the new offset.
    Clock { clock_offset_ns: i64 },
    /// The phase that waited until no users were left is followed by the next.
    NextPhase { at_ns: u64 },
    /// No arrivals from now on.
    Pause,
    /// Arrivals continue.
    Resume,
    /// The factor of the scenario's rates.
    Rate(f64),
    /// As many users have gathered as the waiting ones need.
    Gathered,
    /// The run is over; users are ended.
    Stop,
}

impl WorkerCommand {
    /// The same in the time of a clock that is this much ahead.
    pub(crate) fn by_clock(self, ahead_ns: i64) -> Self {
        match self {
            Self::Start { at_ns, clock_offset_ns } => Self::Start {
                at_ns: at_ns.saturating_add_signed(ahead_ns),
                clock_offset_ns: clock_offset_ns.saturating_sub(ahead_ns),
            },
            Self::Clock { clock_offset_ns } => {
                Self::Clock { clock_offset_ns: clock_offset_ns.saturating_sub(ahead_ns) }
            }
            Self::NextPhase { at_ns } => {
                Self::NextPhase { at_ns: at_ns.saturating_add_signed(ahead_ns) }
            }
            other => other,
        }
    }
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum WorkerEvent {
    /// The measurements of the last second.
    Delta(Box<Delta>),
    /// The phase is over, and the next one waits until no users are left.
    PhaseOver { thread: u16 },
    /// No users are left and none will arrive.
    Idle { thread: u16 },
    /// A user waits until this many have gathered.
    Came { users: u64 },
    /// The scenario ends the run.
    AbortRun,
    /// All users have ended after [`WorkerCommand::Stop`]; nothing follows.
    Stopped { thread: u16 },
}
