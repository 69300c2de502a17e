//! What a host reports to its run, and the clock that they share.

use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::Instant;

use simurgh_load_report::control::Command;

use super::clock::Skew;
use crate::command::WorkerEvent;
use crate::pool::EventSender;

/// The run's clock: nanoseconds since the run was prepared.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RunClock(Instant);

impl RunClock {
    /// It is 0 now.
    pub(crate) fn new() -> Self {
        Self(Instant::now())
    }

    pub(crate) fn ns(self) -> u64 {
        u64::try_from(self.0.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }
}

/// What a host reports.
#[derive(Debug)]
pub(crate) enum HostEvent {
    /// One of its workers.
    Worker(WorkerEvent),
    /// An agent's workers wait, and can hold so many connections each.
    Prepared { capacity: usize },
    /// An agent has none.
    Failed { why: String },
    /// One of its threads has ended.
    WorkerLost { thread: u16, why: String },
    /// Its clock is not known well, or drifts.
    Skew(Skew),
    /// It does not answer any more; nothing follows.
    Lost { why: String },
    /// Whoever steers the run wants this.
    Control(Command),
}

/// What is reported, and by which host.
pub(crate) type Report = (u16, HostEvent);

/// Passes the events of this host's workers on as reports.
pub(crate) fn event_sender(host: u16, reports: &Sender<Report>) -> EventSender {
    let reports = reports.clone();
    Arc::new(move |event| {
        // Nobody takes it once the run is over.
        let _ = reports.send((host, HostEvent::Worker(event)));
    })
}
