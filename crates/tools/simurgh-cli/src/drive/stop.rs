//! Ctrl-C: stops what runs; what does not stop at once ends with the next one.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use simurgh::Signals;

use super::Failure;

/// Whether somebody has asked to stop.
#[derive(Clone)]
pub(super) struct Stop(Arc<AtomicBool>);

impl Stop {
    /// Listens to signals from now on. Before any other thread is started.
    pub(super) fn on_signals() -> std::io::Result<Self> {
        let signals = Signals::block()?;
        let stop = Self(Arc::new(AtomicBool::new(false)));
        let asked = Arc::clone(&stop.0);
        let terminal = rustix::termios::tcgetattr(std::io::stdin()).ok();
        signals.each(move |signal, status| {
            if signal != "SIGINT" || asked.swap(true, Relaxed) {
                // At a prompt the terminal is not as it was.
                if let Some(terminal) = &terminal {
                    let now = rustix::termios::OptionalActions::Now;
                    let _ = rustix::termios::tcsetattr(std::io::stdin(), now, terminal);
                }
                std::process::exit(status);
            }
        })?;
        Ok(stop)
    }

    /// For what waits or repeats: an error once somebody has asked to stop.
    pub(super) fn check(&self) -> Result<(), Failure> {
        if self.0.load(Relaxed) { Err(Failure::Stopped) } else { Ok(()) }
    }

    /// What was to stop has stopped; from here on a signal is about something else.
    pub(super) fn heard(&self) {
        self.0.store(false, Relaxed);
    }
}
