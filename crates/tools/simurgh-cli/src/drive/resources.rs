//! CPU time and memory of the process.

use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

#[derive(Debug, Clone, Copy)]
pub(super) struct Clocks {
    wall: Instant,
    cpu: Duration,
}

/// Elapsed wall time and CPU time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Spent {
    pub(super) wall: Duration,
    /// Of all threads.
    pub(super) cpu: Duration,
}

impl Clocks {
    pub(super) fn now() -> Self {
        let cpu = clock_gettime(ClockId::ProcessCPUTime);
        let seconds = u64::try_from(cpu.tv_sec).unwrap_or(0);
        let nanoseconds = u32::try_from(cpu.tv_nsec).unwrap_or(0);
        Self { wall: Instant::now(), cpu: Duration::new(seconds, nanoseconds) }
    }

    pub(super) fn spent(self) -> Spent {
        let now = Self::now();
        Spent { wall: now.wall - self.wall, cpu: now.cpu.saturating_sub(self.cpu) }
    }
}

/// Resident bytes of the process; `None` without /proc.
pub(super) fn resident_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    simurgh_tune::kilobytes(&status, "VmRSS:")
}

pub(super) fn megabytes(bytes: f64) -> String {
    format!("{:.1} MB", bytes / 1e6)
}
