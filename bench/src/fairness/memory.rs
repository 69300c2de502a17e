//! The memory of the server while it is attacked, read every 20 ms by a separate thread.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::Result;

use simurgh_bench_kit::sys;

const EVERY: Duration = Duration::from_millis(20);
/// The most reads: no row takes so long.
const READS_MAX: u32 = 50 * 60 * 60;

/// Reads the memory until it is dropped.
pub(crate) struct MemoryWatch {
    pid: u32,
    state: Arc<State>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct State {
    /// Most resident bytes since the last reset.
    most: AtomicU64,
    /// Most since the process began, by the kernel.
    high_water: AtomicU64,
    is_over: AtomicBool,
}

impl MemoryWatch {
    pub(crate) fn start(pid: u32) -> Result<Self> {
        let state = Arc::new(State::default());
        let shared = Arc::clone(&state);
        let thread = thread::Builder::new().name("memory".into()).spawn(move || {
            for _ in 0..READS_MAX {
                // The last values of an ended server are kept.
                let Ok((now, most)) = sys::resident_quickly(pid) else { return };
                shared.most.fetch_max(now, Ordering::Relaxed);
                shared.high_water.store(most, Ordering::Relaxed);
                if shared.is_over.load(Ordering::Relaxed) {
                    return;
                }
                thread::sleep(EVERY);
            }
        })?;
        Ok(Self { pid, state, thread: Some(thread) })
    }

    /// Resident bytes of the idle server. Peaks are counted from here on.
    pub(crate) fn idle(&self) -> Result<u64> {
        let now = sys::resident(self.pid)?;
        self.state.most.store(now, Ordering::Relaxed);
        Ok(now)
    }

    /// Most resident bytes since [`MemoryWatch::idle`], and since the start by the kernel.
    pub(crate) fn most(&self) -> (u64, u64) {
        (self.state.most.load(Ordering::Relaxed), self.state.high_water.load(Ordering::Relaxed))
    }
}

impl Drop for MemoryWatch {
    fn drop(&mut self) {
        self.state.is_over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // It sleeps for 20 ms at most, and returns nothing.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    #[test]
    fn a_peak_is_seen_and_stays() {
        let watch = MemoryWatch::start(std::process::id()).unwrap();
        let idle = watch.idle().unwrap();
        let block = vec![1_u8; 64 << 20];
        let until = Instant::now() + Duration::from_secs(10);
        while watch.most().0 < idle + (48 << 20) && Instant::now() < until {
            thread::sleep(EVERY);
        }
        assert_eq!(block.last(), Some(&1));
        drop(block);
        thread::sleep(EVERY * 3);
        assert!(watch.most().0 >= idle + (48 << 20));
        assert!(watch.most().1 >= idle + (48 << 20));
    }

    #[test]
    fn a_process_that_has_gone_is_no_error() {
        let watch = MemoryWatch::start(u32::MAX).unwrap();
        assert!(watch.idle().is_err());
        assert_eq!(watch.most(), (0, 0));
    }
}
