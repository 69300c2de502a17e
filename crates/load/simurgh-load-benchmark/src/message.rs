//! Messages between a runner and its workers.

use std::sync::mpsc::Sender;

use simurgh_load_report::control::Command;

use super::tally::Tally;

#[derive(Clone, Copy, Debug)]
pub(super) enum WorkerCommand {
    /// The first requests are sent at this time of the workers' clock.
    Start {
        at_ns: u64,
    },
    Stop,
}

#[derive(Debug)]
pub(super) enum WorkerEvent {
    /// All its connections are open, or could not be opened.
    Ready {
        opened: usize,
        error: Option<String>,
    },
    Done(Box<Tally>),
}

#[derive(Debug)]
pub(super) enum RunEvent {
    /// Of a worker of the pool with this number.
    Worker(u64, WorkerEvent),
    /// Of its [`Control`](simurgh_load_report::control::Control).
    Control(Command),
}

#[derive(Clone, Debug)]
pub(super) struct EventSender {
    pub(super) sender: Sender<RunEvent>,
    pub(super) pool: u64,
}

impl EventSender {
    pub(super) fn send(&self, event: WorkerEvent) {
        // There is no receiver only if the run was given up.
        let _ = self.sender.send(RunEvent::Worker(self.pool, event));
    }
}
