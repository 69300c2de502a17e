//! Waiting with an end.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

/// Asks every `interval` until `true`; after `within` an error that names what was waited for.
pub fn until(
    what: &str,
    within: Duration,
    interval: Duration,
    mut is_so: impl FnMut() -> Result<bool>,
) -> Result<()> {
    let deadline = Instant::now() + within;
    while !is_so()? {
        ensure!(Instant::now() < deadline, "{what}: not within {within:?}");
        thread::sleep(interval);
    }
    Ok(())
}

/// Sleeps until that moment, if it has not passed.
pub fn sleep_until(then: Instant) {
    thread::sleep(then.saturating_duration_since(Instant::now()));
}
