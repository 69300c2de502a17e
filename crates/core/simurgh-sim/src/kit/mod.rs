//! The common base of the simulations of whole servers: real cores in one thread, with a transport,
//! mailboxes and clocks that a seed controls.
//!
//! ```text
//!   seed ─► plan ─► operations ─► simulation ─► findings: what is wrong, what was met
//!                                    │
//!       clients ⇄ transport ⇄ cores ⇄ mailboxes ⇄ … other shards
//! ```
//!
//! A run is a list of operations, each complete by itself, so leaving some out shrinks it.

pub(crate) mod client;
pub(crate) mod delivery;
pub(crate) mod fault;
pub(crate) mod findings;
pub(crate) mod payload;
pub(crate) mod peer;
pub(crate) mod presence;
pub(crate) mod presences;
pub(crate) mod refs;
pub(crate) mod run;
pub(crate) mod topics;
pub(crate) mod transport;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use simurgh_core::Config;

use self::fault::Faults;
use self::topics::Topics;

/// What the transports of a run share.
#[derive(Debug, Default)]
pub(crate) struct Setup {
    pub(crate) config: Config,
    /// Most nanoseconds between two readings of the clock.
    pub(crate) jump_ns: u32,
    pub(crate) topics: Topics,
    pub(crate) faults: Arc<Faults>,
}

/// Locks, also after a panic: applications panic on purpose.
pub(crate) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// No payload, channel or connection.
pub(crate) const NONE: u32 = u32::MAX;
/// Events of broadcasts; interceptors take the first, or the first two.
pub(crate) const EVENTS: [&str; 3] = ["a", "b", "c"];
