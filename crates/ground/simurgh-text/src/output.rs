//! What a command prints, and the status it ends with.

use std::io::Write;
use std::process::ExitCode;

/// Exit status for wrong flags and settings, as clap has it.
pub const WRONG_SETTINGS: u8 = 2;

/// Writes to standard output. That its reader has gone away is not an error of the command.
pub fn print(text: &str) {
    let mut out = std::io::stdout().lock();
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}

/// Writes a line to standard error. Not for threads of shards: their descriptor tables differ.
pub fn complain(text: &str) {
    let _ = writeln!(std::io::stderr(), "{text}");
}

/// Says why the command failed, and returns the status for that.
pub fn fail(why: &str) -> ExitCode {
    complain(&format!("simurgh: {why}"));
    ExitCode::FAILURE
}
