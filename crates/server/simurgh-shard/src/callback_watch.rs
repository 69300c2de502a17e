//! When a shard has entered application code, for the watchdog.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use simurgh_core::Callback;

/// The callback that a shard is in, for the watchdog.
#[derive(Default)]
pub struct CallbackWatch {
    /// When application code was entered, by [`now_ns`]; 0 outside of it.
    entered_ns: AtomicU64,
    callback: AtomicU8,
}

impl CallbackWatch {
    pub fn enter(&self, callback: Callback) {
        self.callback.store(callback as u8, Relaxed);
        self.entered_ns.store(now_ns().max(1), Relaxed);
    }

    /// The shard has left the callback; returns its duration.
    pub fn leave(&self) -> Duration {
        let entered_ns = self.entered_ns.load(Relaxed);
        self.entered_ns.store(0, Relaxed);
        Duration::from_nanos(now_ns().saturating_sub(entered_ns))
    }

    /// The callback the shard has been in for longer than `limit`, and since when (ns).
    pub fn stuck(&self, limit: Duration) -> Option<(Callback, Duration, u64)> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn callback_that_blocks_a_shard_is_named() {
        let watch = CallbackWatch::default();
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
