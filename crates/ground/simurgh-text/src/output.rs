//! The output of a command, and its exit status.

use std::io::Write;
use std::process::ExitCode;

/// Exit status for wrong flags and settings, as in clap.
pub const WRONG_SETTINGS: u8 = 2;

/// Writes to standard output. A closed reader is not an error of the command.
pub fn print(text: &str) {
    let mut out = std::io::stdout().lock();
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}

/// Writes a line to standard error. Not for threads of shards: their descriptor tables differ.
pub fn complain(text: &str) {
    let _ = writeln!(std::io::stderr(), "{text}");
}

/// Reports why the command failed, and returns the status for that.
pub fn fail(why: &str) -> ExitCode {
    complain(&format!("simurgh: {why}"));
    ExitCode::FAILURE
}
