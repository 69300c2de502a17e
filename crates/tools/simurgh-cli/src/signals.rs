//! Signals that a command handles itself, with errors in words.

use simurgh::Signals;

/// Call first in a command: threads inherit blocked signals.
pub(crate) fn block() -> Result<Signals, String> {
    Signals::block().map_err(|error| format!("cannot block signals: {error}"))
}

pub(crate) fn no_thread(error: std::io::Error) -> String {
    format!("cannot start the thread that waits for signals: {error}")
}
