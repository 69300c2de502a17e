//! What the parts of a simulation share.

use std::sync::{Mutex, MutexGuard, PoisonError};

use simurgh_core::Config;

use crate::kit::fault::Faults;
use crate::kit::topics::Topics;

/// The configuration of the shards of a run.
#[derive(Debug, Default)]
pub(crate) struct Setup {
    pub(crate) config: Config,
    /// Most nanoseconds between two readings of the clock.
    pub(crate) jump_ns: u32,
    /// Topics, for sockets that take values instead of bytes.
    pub(crate) topics: Topics,
    pub(crate) faults: Faults,
}

/// Locks, also after a panic: applications panic on purpose.
pub(crate) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
