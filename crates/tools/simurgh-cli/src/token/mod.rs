//! `simurgh token`: makes tokens like a back end, and inspects them.
//!
//! `key` reads keys, `sign` and `inspect` are the commands. `simurgh-token` makes and verifies
//! tokens, and gets the time as an argument.

mod inspect;
mod key;
mod sign;

use std::io::Read;
use std::process::ExitCode;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use clap::{Args, Subcommand};
use simurgh_text::output::{WRONG_SETTINGS, complain};

#[derive(Debug, Args)]
pub(crate) struct Token {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Makes a JWT, or with --phoenix-salt a Phoenix.Token.
    Sign(sign::Sign),
    /// Shows a token, and verifies it if a key is given.
    Inspect(inspect::Inspect),
}

pub(crate) fn token(token: &Token) -> ExitCode {
    let done = match &token.command {
        Command::Sign(flags) => sign::sign(flags, now()).map(|()| ExitCode::SUCCESS),
        Command::Inspect(flags) => inspect::inspect(flags, now()),
    };
    done.unwrap_or_else(|why| {
        complain(&format!("simurgh token: {why}"));
        ExitCode::from(WRONG_SETTINGS)
    })
}

/// The time since the Unix epoch; zero before it.
fn now() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// Reads standard input, up to the size limit of a key or a token.
fn standard_input() -> Result<Vec<u8>, String> {
    let mut bytes = Vec::new();
    let read = std::io::stdin().lock().take(INPUT_BYTES_MAX).read_to_end(&mut bytes);
    read.map_err(|error| format!("cannot read standard input: {error}"))?;
    Ok(bytes)
}

/// The most bytes of a key or a token.
const INPUT_BYTES_MAX: u64 = 1 << 20;
