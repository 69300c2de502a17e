//! Counters of the bare server's threads, under Simurgh's metric names.

use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::time::{ClockId, clock_gettime};

/// One of a thread's figures; only that thread changes it.
#[derive(Clone, Copy)]
pub(super) enum Count {
    Sockets,
    Channels,
    Deliveries,
    /// Sockets so far.
    Upgrades,
    /// Requests and messages that are no message of Channels.
    Answered,
    /// Sends that were refused or short; the rest was sent later.
    Refused,
    /// Broadcasts forwarded to other threads, and received from them.
    Posted,
    Taken,
    /// The longest stretch of sends, ns: by the thread's CPU time, and by the clock. It shows the
    /// delays of the machine itself (the hypervisor takes the core, interrupts are served), which
    /// no server can avoid.
    StretchCpu,
    StretchWall,
}

/// In the order of [`Count`].
const NAMES: [&str; 10] = [
    "simurgh_sockets",
    "simurgh_channels",
    "simurgh_deliveries_total",
    "bare_upgrades_total",
    "bare_answered_total",
    "bare_refused_total",
    "bare_posted_total",
    "bare_taken_total",
    "simurgh_shard_turn_cpu_max_seconds",
    "simurgh_shard_turn_max_seconds",
];

/// The counters of one thread, on separate cache lines.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(super) struct Counts([AtomicU64; NAMES.len()]);

impl Counts {
    /// Returns the new count.
    pub(super) fn add(&self, count: Count, more: u64) -> u64 {
        self.0[count as usize].fetch_add(more, Ordering::Relaxed) + more
    }

    pub(super) fn sub(&self, count: Count, less: u64) {
        self.0[count as usize].fetch_sub(less, Ordering::Relaxed);
    }

    /// Counts a stretch that began then and ends now.
    pub(super) fn end(&self, (wall, cpu): (u64, u64)) {
        let now = stretch();
        self.0[Count::StretchWall as usize].fetch_max(now.0 - wall, Ordering::Relaxed);
        self.0[Count::StretchCpu as usize].fetch_max(now.1 - cpu, Ordering::Relaxed);
    }
}

/// The page `/metrics`.
pub(super) fn page(all: &[Counts]) -> String {
    let mut page = String::new();
    for (shard, counts) in all.iter().enumerate() {
        for (name, count) in NAMES.iter().zip(&counts.0) {
            let unit = if name.ends_with("_seconds") { 1e9 } else { 1.0 };
            let value = count.load(Ordering::Relaxed) as f64 / unit;
            // Writing to a string cannot fail.
            let _ = writeln!(page, "{name}{{shard=\"{shard}\"}} {value}");
        }
    }
    page
}

/// The beginning of a stretch of sends, by the clock and by the thread's CPU time.
pub(super) fn stretch() -> (u64, u64) {
    (now_ns(), clock_ns(ClockId::ThreadCPUTime))
}

/// Time since boot, nanoseconds: one clock for all processes.
pub(super) fn now_ns() -> u64 {
    clock_ns(ClockId::Monotonic)
}

fn clock_ns(clock: ClockId) -> u64 {
    let now = clock_gettime(clock);
    now.tv_sec.unsigned_abs() * 1_000_000_000 + now.tv_nsec.unsigned_abs()
}
