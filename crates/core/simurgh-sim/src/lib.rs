//! Whole servers in one thread, from one seed: nodes of real cores with their shards, clients, and
//! the network between them.
//!
//! ```text
//!   seed ─► plan ─► operations ─► simulation ─► findings: what is wrong, what was met
//!                                    │
//!       clients ⇄ transport ⇄ cores ⇄ mailboxes ⇄ … other shards, the cluster
//!          │                    │
//!          └─── what they get ──┴─ what callbacks do ──► ledger: what clients may get
//! ```
//!
//! A run is a list of operations, each of which is complete by itself; so a failing one is
//! shrunk by leaving operations out, and a fuzzer may write them.

mod cli;
mod findings;
mod fuzz;
mod payload;
mod presence;
#[cfg(test)]
mod tests;
mod wire;
mod world;

use std::sync::{Mutex, MutexGuard, PoisonError};

pub use cli::main;
pub use fuzz::fuzz;

/// Locks, also after a panic: applications panic on purpose.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
