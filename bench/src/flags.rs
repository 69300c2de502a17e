//! Values of flags.

use std::str::FromStr;
use std::time::Duration;

/// A number, in which `_` may group digits.
pub(crate) fn number<T: FromStr>(text: &str) -> Result<T, String> {
    text.replace('_', "").parse().map_err(|_| format!("{text}: no number"))
}

/// A number from `LEAST` on.
pub(crate) fn at_least<const LEAST: usize>(text: &str) -> Result<usize, String> {
    let found = number(text)?;
    if found >= LEAST { Ok(found) } else { Err(format!("it is at least {LEAST}")) }
}

/// A number of milliseconds.
pub(crate) fn milliseconds(text: &str) -> Result<Duration, String> {
    number(text).map(Duration::from_millis)
}
