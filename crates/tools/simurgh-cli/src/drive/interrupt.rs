//! Ctrl-C: the first stops what runs, a second one ends the process.

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

impl From<simurgh::driver::Error> for Failure {
    fn from(error: simurgh::driver::Error) -> Self {
        Self::Because(error.to_string())
    }
}

/// Whether Ctrl-C was pressed.
#[derive(Clone)]
pub(super) struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// Listens to signals from now on. Before any other thread is started.
    pub(super) fn on_signals() -> std::io::Result<Self> {
        let signals = Signals::block()?;
        let stop = Self(Arc::new(AtomicBool::new(false)));
        let stopped = Arc::clone(&stop.0);
        let terminal = rustix::termios::tcgetattr(std::io::stdin()).ok();
        signals.each(move |signal, status| {
            if signal != "SIGINT" || stopped.swap(true, Relaxed) {
                // A prompt has changed the mode of the terminal.
                if let Some(terminal) = &terminal {
                    let now = rustix::termios::OptionalActions::Now;
                    let _ = rustix::termios::tcsetattr(std::io::stdin(), now, terminal);
                }
                std::process::exit(status);
            }
        })?;
        Ok(stop)
    }

    /// An error once Ctrl-C was pressed; loops call it.
    pub(super) fn check(&self) -> Result<(), Failure> {
        if self.0.load(Relaxed) { Err(Failure::Stopped) } else { Ok(()) }
    }

    /// Called when the command has stopped; the next signal is for the next one.
    pub(super) fn reset(&self) {
        self.0.store(false, Relaxed);
    }

    /// Waits until a condition is met, at most this long.
    pub(super) fn wait(&self, most: Duration, is_met: impl Fn() -> bool) -> Result<(), Failure> {
        let until = Instant::now() + most;
        while !is_met() && Instant::now() < until {
            self.check()?;
            std::thread::sleep(Duration::from_millis(1).min(most));
        }
        Ok(())
    }
}
