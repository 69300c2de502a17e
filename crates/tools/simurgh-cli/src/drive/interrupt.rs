//! Ctrl-C: the first stops the running command, a second one ends the process.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use simurgh::Signals;

/// Why a command ended early.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Failure {
    /// Ctrl-C.
    Stopped,
    Because(String),
}

impl From<simurgh::driver::DriverError> for Failure {
    fn from(error: simurgh::driver::DriverError) -> Self {
        Self::Because(error.to_string())
    }
}

#[derive(Clone)]
pub(super) struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// Call before any other thread is started.
    pub(super) fn on_signals() -> std::io::Result<Self> {
        let signals = Signals::block_without_hangup()?;
        let stop = Self(Arc::new(AtomicBool::new(false)));
        let stopped = Arc::clone(&stop.0);
        let terminal = rustix::termios::tcgetattr(std::io::stdin()).ok();
        signals.each(move |signal, status| {
            if signal != "SIGINT" || stopped.swap(true, Relaxed) {
                // A prompt may have changed the mode of the terminal.
                if let Some(terminal) = &terminal {
                    let now = rustix::termios::OptionalActions::Now;
                    let _ = rustix::termios::tcsetattr(std::io::stdin(), now, terminal);
                }
                std::process::exit(status);
            }
        })?;
        Ok(stop)
    }

    /// Fails after Ctrl-C; loops call it.
    pub(super) fn check(&self) -> Result<(), Failure> {
        if self.0.load(Relaxed) { Err(Failure::Stopped) } else { Ok(()) }
    }

    /// Called when a command has stopped; the next signal is for the next command.
    pub(super) fn reset(&self) {
        self.0.store(false, Relaxed);
    }

    /// Waits until a condition is met, or the time is over.
    pub(super) fn wait(&self, most: Duration, is_met: impl Fn() -> bool) -> Result<(), Failure> {
        let until = Instant::now() + most;
        while !is_met() && Instant::now() < until {
            self.check()?;
            std::thread::sleep(Duration::from_millis(1).min(most));
        }
        Ok(())
    }
}
