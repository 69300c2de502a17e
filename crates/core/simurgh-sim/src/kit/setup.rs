//! What the parts of a simulation share.

use std::sync::atomic::AtomicI64;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use simurgh_core::{Config, LinkedWork};

use crate::kit::fault::Faults;
use crate::kit::topics::Topics;
use crate::world::{Ledger, Plan};

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

/// What the nodes, applications and clients of a run share: the plan, and a ledger of what has
/// happened, by which the outcome is checked.
pub(crate) struct Shared {
    ledger: Mutex<Ledger>,
    pub(crate) plan: Arc<Plan>,
    pub(crate) setup: Arc<Setup>,
    /// The next work that is linked to a channel.
    pub(crate) linking: Mutex<Option<Box<dyn LinkedWork>>>,
    /// Values kept with sockets, and values prepared from long messages, that are not dropped.
    pub(crate) assigned: AtomicI64,
    pub(crate) ready: AtomicI64,
}

impl Shared {
    pub(crate) fn new(plan: &Plan) -> Self {
        let plan = Arc::new(plan.clone());
        Self {
            ledger: Mutex::new(Ledger::new(Arc::clone(&plan))),
            setup: Arc::new(plan.setup()),
            plan,
            linking: Mutex::default(),
            assigned: AtomicI64::default(),
            ready: AtomicI64::default(),
        }
    }

    pub(crate) fn ledger(&self) -> MutexGuard<'_, Ledger> {
        locked(&self.ledger)
    }

    /// Adds a line to the log, if there is one.
    pub(crate) fn note(&self, text: impl FnOnce() -> String) {
        self.ledger().note(text);
    }

    pub(crate) fn has_failed(&self) -> bool {
        self.ledger().failure.is_some()
    }
}

/// Locks, also after a panic: applications panic on purpose.
pub(crate) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
