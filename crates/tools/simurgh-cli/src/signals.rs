//! Signals that a command handles itself, with errors in words.

use simurgh::Signals;

/// Blocks them. First of all in a command: threads inherit what is blocked.
pub(crate) fn block() -> Result<Signals, String> {
    Signals::block().map_err(|error| format!("cannot block signals: {error}"))
}

/// When no thread can be started for them.
pub(crate) fn no_thread(error: std::io::Error) -> String {
    format!("cannot start the thread that waits for signals: {error}")
}
