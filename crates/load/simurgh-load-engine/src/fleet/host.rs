//! A host of a run as its coordinator sees it: this one, or an agent.

use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use simurgh_load_report::control::Command;

use super::clock::{Skew, difference};
use super::controller::Link;
use crate::command::{WorkerCommand, WorkerEvent};
use crate::pool::{EventSender, WorkerPool};

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

/// What a host tells the coordinator.
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

/// HostEvent, and from which host.
pub(crate) type Report = (u16, HostEvent);

pub(crate) enum Host {
    /// This one, and how far its workers' clock is behind the run's.
    Local(WorkerPool, i64),
    /// An agent.
    Remote(Link),
}

impl Host {
    /// Workers of this host that wait.
    pub(crate) fn local(pool: WorkerPool, clock: RunClock) -> Self {
        let offset_ns = difference(clock.ns(), pool.clock_ns());
        Self::Local(pool, offset_ns)
    }

    /// The run begins at this time of its clock.
    pub(crate) fn start(&self, at_ns: u64) {
        match self {
            Self::Local(pool, offset_ns) => {
                let at_ns = at_ns.saturating_add_signed(offset_ns.saturating_neg());
                pool.tell(WorkerCommand::Start { at_ns, clock_offset_ns: *offset_ns });
            }
            Self::Remote(link) => link.start(at_ns),
        }
    }

    /// The next phase begins at this time of the run's clock.
    pub(crate) fn next_phase(&self, at_ns: u64) {
        match self {
            Self::Local(pool, offset_ns) => {
                let at_ns = at_ns.saturating_add_signed(offset_ns.saturating_neg());
                pool.tell(WorkerCommand::NextPhase { at_ns });
            }
            Self::Remote(link) => link.next_phase(at_ns),
        }
    }

    /// Any other order, which bears no time.
    pub(crate) fn tell(&self, command: WorkerCommand) {
        match self {
            Self::Local(pool, _) => pool.tell(command),
            Self::Remote(link) => link.tell(command),
        }
    }

    /// How long an order is on its way at most, so far as is known.
    pub(crate) fn way(&self) -> Duration {
        match self {
            Self::Local(..) => Duration::ZERO,
            Self::Remote(link) => link.way(),
        }
    }

    /// Threads here that have ended by themselves: which, and why. Each once; an agent tells them.
    pub(crate) fn take_lost(&mut self) -> Vec<(u16, String)> {
        match self {
            Self::Local(pool, _) => pool.take_lost(),
            Self::Remote(_) => Vec::new(),
        }
    }

    /// Its end is worth waiting for: that thread has said that it stops.
    pub(crate) fn has_stopped(&mut self, thread: u16) {
        if let Self::Local(pool, _) = self {
            pool.has_stopped(thread);
        }
    }

    /// The run is over: an agent is told first, and waited for by [`Host::end`].
    pub(crate) fn dismiss(&self) {
        if let Self::Remote(link) = self {
            link.dismiss();
        }
    }

    /// Ends its workers, whatever their users do.
    pub(crate) fn end(self) {
        match self {
            Self::Local(pool, _) => pool.end(),
            Self::Remote(link) => link.end(),
        }
    }
}

/// What workers of this host say, as reports.
pub(crate) fn event_sender(host: u16, reports: &Sender<Report>) -> EventSender {
    let reports = reports.clone();
    Arc::new(move |event| {
        // The coordinator is gone only when the run is.
        let _ = reports.send((host, HostEvent::Worker(event)));
    })
}
