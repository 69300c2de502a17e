//! Three `simurgh serve` on a real engine, and what goes wrong between them: engines and nodes that
//! are killed, frozen and started again, clocks that are wrong, neighbours that are too near,
//! envelopes nobody of us made, and networks that are cut.
//!
//! They need a nats-server (`SIMURGH_NATS_SERVER`, see `cargo xtask engine`), and some of them root;
//! without that they say so and test nothing. After each fault the same holds: whoever hears a
//! publisher hears it in order and nothing of it twice, what is missing is known to have been lost,
//! and all members have the same presences.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
#![allow(clippy::disallowed_types, reason = "clients outside of all descriptor tables")]

mod client;
mod clocks;
mod engine;
mod engine_faults;
mod hostile;
mod hosts;
mod neighbours;
mod network;
mod node;
mod node_faults;
mod room;

use std::time::{Duration, Instant};

/// Longest wait for anything that should happen at once, on a machine that has other work.
pub(crate) const WAIT: Duration = Duration::from_secs(30);

/// Waits for something that should happen.
#[track_caller]
pub(crate) fn until<T>(what: &str, there: impl FnMut() -> Option<T>) -> T {
    within(WAIT, what, there)
}

/// The same, in a time that says something.
#[track_caller]
pub(crate) fn within<T>(time: Duration, what: &str, mut there: impl FnMut() -> Option<T>) -> T {
    let began = Instant::now();
    loop {
        if let Some(it) = there() {
            return it;
        }
        assert!(began.elapsed() < time, "not within {time:?}: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}
