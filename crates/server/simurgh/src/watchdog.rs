//! Names a callback that does not give its shard back.
//!
//! A shard notes when it enters application code and when it leaves. A callback that took too long
//! is named by the shard itself once it returns; one that never returns is named by this thread.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Weak};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use simurgh_core::Callback;

use crate::server::Server;

/// How often shards are looked at, and how long a callback may run before it is named.
const PERIOD: Duration = Duration::from_secs(1);

/// What a shard shows the watchdog.
#[derive(Default)]
pub(crate) struct Watch {
    /// When application code was entered, by [`now_ns`]; 0 outside of it.
    entered_ns: AtomicU64,
    callback: AtomicU8,
}

impl Watch {
    pub(crate) fn enter(&self, callback: Callback) {
        self.callback.store(callback as u8, Relaxed);
        self.entered_ns.store(now_ns().max(1), Relaxed);
    }

    /// The shard has left it; after how long.
    pub(crate) fn leave(&self) -> Duration {
        let entered_ns = self.entered_ns.load(Relaxed);
        self.entered_ns.store(0, Relaxed);
        Duration::from_nanos(now_ns().saturating_sub(entered_ns))
    }

    /// The callback the shard has been in for longer than `limit`, and since when (ns).
    fn stuck(&self, limit: Duration) -> Option<(Callback, Duration, u64)> {
        let entered = self.entered_ns.load(Relaxed);
        let index = usize::from(self.callback.load(Relaxed)).checked_sub(1)?;
        let callback = *Callback::ALL.get(index)?;
        let held = Duration::from_nanos(now_ns().saturating_sub(entered));
        (entered != 0 && held > limit).then_some((callback, held, entered))
    }
}

/// The system's monotonic clock. It is read twice for each callback: a difference of `Instant`s
/// takes as long as some callbacks.
fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// The thread that watches, which ends when this is dropped.
pub(crate) struct Watchdog {
    _leash: Sender<()>,
}

/// Starts the thread.
pub(crate) fn start(server: &Arc<Server>) -> std::io::Result<Watchdog> {
    let server = Arc::downgrade(server);
    let (leash, end) = channel();
    std::thread::Builder::new()
        .name("simurgh-watchdog".into())
        .stack_size(128 << 10)
        .spawn(move || watch(&server, &end))?;
    Ok(Watchdog { _leash: leash })
}

fn watch(server: &Weak<Server>, end: &Receiver<()>) {
    let mut named = Vec::new();
    // Not by sleeping: of a process that starts a server for each of its tests, threads that
    // sleep on would be most.
    while end.recv_timeout(PERIOD) == Err(RecvTimeoutError::Timeout) {
        let Some(server) = server.upgrade() else { return };
        named.resize(server.watches.len(), 0);
        for ((shard, watch), named) in server.watches.iter().enumerate().zip(&mut named) {
            let Some((callback, held, entered)) = watch.stuck(PERIOD) else { continue };
            // Once for each time it is stuck, not once a second.
            if *named != entered {
                *named = entered;
                tracing::error!(
                    shard,
                    callback = callback.name(),
                    held_ms = held.as_millis() as u64,
                    "a callback has not given its shard back; its connections wait"
                );
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_the_callback_a_shard_is_stuck_in() {
        let watch = Watch::default();
        assert_eq!(watch.stuck(Duration::ZERO), None);
        watch.enter(Callback::HandleIn);
        std::thread::sleep(Duration::from_millis(2));
        let (callback, held, _) = watch.stuck(Duration::from_millis(1)).unwrap();
        assert_eq!(callback.name(), "handle_in");
        assert!(held >= Duration::from_millis(1));
        assert!(watch.leave() >= Duration::from_millis(1));
        assert_eq!(watch.stuck(Duration::ZERO), None);
    }
}
