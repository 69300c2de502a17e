//! Events of a host, and the clock of the run.

use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::Instant;

use simurgh_load_report::control::Command;

use super::clock::Skew;
use crate::command::WorkerEvent;
use crate::pool::EventSender;
use crate::time::nanos;

/// The run's clock: nanoseconds since the run was prepared.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RunClock(Instant);

impl RunClock {
    pub(crate) fn new() -> Self {
        Self(Instant::now())
    }

    pub(crate) fn ns(self) -> u64 {
        nanos(self.0.elapsed())
    }
}

#[derive(Debug)]
pub(crate) enum HostEvent {
    /// An event of one of its workers.
    Worker(WorkerEvent),
    /// An agent's workers are ready; connections that each of them can hold.
    Prepared { capacity: usize },
    /// An agent could not start workers.
    Failed { why: String },
    /// The thread of a worker has ended unexpectedly.
    WorkerLost { thread: u16, why: String },
    /// The agent's clock is not known well, or drifts.
    Skew(Skew),
    /// The agent does not answer any more; nothing follows.
    Lost { why: String },
    /// A command of the operator or the dashboard.
    Control(Command),
}

/// An event, with the number of its host.
pub(crate) type Report = (u16, HostEvent);

/// Forwards the events of this host's workers as reports.
pub(crate) fn event_sender(host: u16, reports: &Sender<Report>) -> EventSender {
    let reports = reports.clone();
    Arc::new(move |event| {
        // No one receives it after the end of the run.
        let _ = reports.send((host, HostEvent::Worker(event)));
    })
}
