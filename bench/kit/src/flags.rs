//! Flags that several measurements have, and values of flags.

use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use clap::Args;

/// Where programs and figures are.
#[derive(Args, Clone, Debug, Default, PartialEq)]
pub struct Paths {
    /// The program under test; default: beside this one
    #[arg(long, value_name = "PATH")]
    pub server_bin: Option<PathBuf>,
    /// Where the raw runs go; default: bench/runs/DATE-MACHINE
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
}

/// A number, in which `_` may group digits.
pub fn number<T: FromStr>(text: &str) -> Result<T, String> {
    text.replace('_', "").parse().map_err(|_| format!("{text}: no number"))
}

/// A number from `LEAST` on.
pub fn at_least<const LEAST: usize>(text: &str) -> Result<usize, String> {
    let found = number(text)?;
    if found >= LEAST { Ok(found) } else { Err(format!("it is at least {LEAST}")) }
}

/// A number of milliseconds.
pub fn milliseconds(text: &str) -> Result<Duration, String> {
    number(text).map(Duration::from_millis)
}
