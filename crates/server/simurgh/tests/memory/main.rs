//! What connections, channels and polls cost. A process of its own: its allocator counts for all
//! threads, so one test runs at a time.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
#![allow(clippy::disallowed_types, reason = "these sockets never meet a shard's table")]

mod asynchronous;
mod heartbeat;
mod longpoll;
mod presence;
#[path = "../it/support/mod.rs"]
#[allow(dead_code, reason = "three of its functions are used here")]
mod support;

use std::sync::{Mutex, MutexGuard, PoisonError};

#[global_allocator]
static ALLOCATOR: dhat::Alloc = dhat::Alloc;

/// While it lives, no other test of this process runs, and allocations are counted.
struct Alone {
    _profiler: dhat::Profiler,
    _lock: MutexGuard<'static, ()>,
}

fn alone() -> Alone {
    static LOCK: Mutex<()> = Mutex::new(());
    let lock = LOCK.lock().unwrap_or_else(PoisonError::into_inner);
    Alone { _profiler: dhat::Profiler::builder().testing().build(), _lock: lock }
}

fn heap() -> usize {
    dhat::HeapStats::get().curr_bytes
}
