//! Signals that a command handles itself, with errors in words.

use simurgh::Signals;

/// Call first in a command: threads inherit blocked signals.
pub(crate) fn block() -> Result<Signals, String> {
    Signals::block_without_hangup().map_err(refused)
}

/// The same for `serve`, which reloads at SIGHUP.
pub(crate) fn block_with_hangup() -> Result<Signals, String> {
    Signals::block().map_err(refused)
}

fn refused(error: std::io::Error) -> String {
    format!("cannot block signals: {error}")
}

pub(crate) fn no_thread(error: std::io::Error) -> String {
    format!("cannot start the thread that waits for signals: {error}")
}
