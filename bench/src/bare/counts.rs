//! Counters of the bare server's threads, under Simurgh's metric names.

use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::time::{ClockId, clock_gettime};

/// One of a thread's figures; only that thread changes it.
#[derive(Debug, Default)]
pub(super) struct Count(AtomicU64);

impl Count {
    /// Returns the new count.
    pub(super) fn add(&self, more: u64) -> u64 {
        self.0.fetch_add(more, Ordering::Relaxed) + more
    }

    pub(super) fn sub(&self, less: u64) {
        self.0.fetch_sub(less, Ordering::Relaxed);
    }

    fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// The counters of one thread, on separate cache lines.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(super) struct Counts {
    pub(super) sockets: Count,
    /// Sockets so far.
    pub(super) upgrades: Count,
    pub(super) channels: Count,
    pub(super) deliveries: Count,
    /// Requests and messages that are no message of Channels.
    pub(super) answered: Count,
    /// Sends that were refused or short; the rest was sent later.
    pub(super) refused: Count,
    /// Broadcasts forwarded to other threads, and received from them.
    pub(super) posted: Count,
    pub(super) taken: Count,
    pub(super) stretch_max: StretchMax,
}

type Pick = fn(&Counts) -> &Count;

const COUNTS: [(&str, Pick); 8] = [
    ("simurgh_sockets", |counts| &counts.sockets),
    ("simurgh_channels", |counts| &counts.channels),
    ("simurgh_deliveries_total", |counts| &counts.deliveries),
    ("bare_upgrades_total", |counts| &counts.upgrades),
    ("bare_answered_total", |counts| &counts.answered),
    ("bare_refused_total", |counts| &counts.refused),
    ("bare_posted_total", |counts| &counts.posted),
    ("bare_taken_total", |counts| &counts.taken),
];
const STRETCHES: [(&str, Pick); 2] = [
    ("simurgh_shard_turn_cpu_max_seconds", |counts| &counts.stretch_max.cpu),
    ("simurgh_shard_turn_max_seconds", |counts| &counts.stretch_max.wall),
];

/// The page `/metrics`.
pub(super) fn page(all: &[Counts]) -> String {
    let mut page = String::new();
    for (shard, counts) in all.iter().enumerate() {
        // Writing to a string cannot fail.
        for (name, count) in COUNTS {
            let _ = writeln!(page, "{name}{{shard=\"{shard}\"}} {}", count(counts).get());
        }
        for (name, count) in STRETCHES {
            let seconds = count(counts).get() as f64 / 1e9;
            let _ = writeln!(page, "{name}{{shard=\"{shard}\"}} {seconds}");
        }
    }
    page
}

/// The longest stretch of sends: by the clock, and by the thread's CPU time, ns. It shows the
/// delays of the machine itself (the hypervisor takes the core, interrupts are served), which no
/// server can avoid.
#[derive(Debug, Default)]
pub(super) struct StretchMax {
    wall: Count,
    cpu: Count,
}

impl StretchMax {
    /// A stretch that began then ends now.
    pub(super) fn raise(&self, begun: &Stretch) {
        let now = Stretch::now();
        self.wall.0.fetch_max(now.wall - begun.wall, Ordering::Relaxed);
        self.cpu.0.fetch_max(now.cpu - begun.cpu, Ordering::Relaxed);
    }
}

/// The beginning of a stretch of sends.
pub(super) struct Stretch {
    wall: u64,
    cpu: u64,
}

impl Stretch {
    pub(super) fn now() -> Self {
        Self { wall: now_ns(), cpu: clock_ns(ClockId::ThreadCPUTime) }
    }
}

/// Time since boot, nanoseconds: one clock for all processes.
pub(super) fn now_ns() -> u64 {
    clock_ns(ClockId::Monotonic)
}

fn clock_ns(clock: ClockId) -> u64 {
    let now = clock_gettime(clock);
    now.tv_sec.unsigned_abs() * 1_000_000_000 + now.tv_nsec.unsigned_abs()
}
