//! Counters of the bare server's threads, under Simurgh's metric names.

use std::fmt::Write as _;
use std::net::SocketAddrV4;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::time::{ClockId, clock_gettime};

/// One of a thread's figures; only that thread changes it.
#[derive(Debug, Default)]
pub(crate) struct Count(AtomicU64);

impl Count {
    pub(crate) fn add(&self, more: u64) {
        self.0.fetch_add(more, Ordering::Relaxed);
    }

    pub(crate) fn sub(&self, less: u64) {
        self.0.fetch_sub(less, Ordering::Relaxed);
    }

    fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// The counters of one thread, on separate cache lines.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct Counts {
    pub(crate) sockets: Count,
    pub(crate) channels: Count,
    pub(crate) deliveries: Count,
    /// Sends that were refused or short; the rest was sent later.
    pub(crate) refused: Count,
    /// Broadcasts forwarded to other threads, and received from them.
    pub(crate) posted: Count,
    pub(crate) taken: Count,
}

type Pick = fn(&Counts) -> &Count;

#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) counts: Box<[Counts]>,
    /// Each thread's address for the others' broadcasts; set before the first client is served.
    pub(crate) peers: OnceLock<Vec<SocketAddrV4>>,
    /// When this many have been accepted a line is printed; 0: never.
    tell_at: u64,
    accepted: AtomicU64,
}

impl Shared {
    pub(crate) fn new(tables: usize, tell_at: u64) -> Self {
        let counts = (0..tables).map(|_| Counts::default()).collect();
        Self { counts, peers: OnceLock::new(), tell_at, accepted: AtomicU64::new(0) }
    }

    /// A thread has accepted this many more. The thread that accepts the last prints the time
    /// itself, so that no poll delays it.
    pub(crate) fn accepted(&self, more: u64) {
        if self.tell_at == 0 {
            return;
        }
        let before = self.accepted.fetch_add(more, Ordering::Relaxed);
        if before < self.tell_at && before + more >= self.tell_at {
            println!("accepted {} at {}", self.tell_at, now_ns());
        }
    }

    /// The page `/metrics`.
    pub(crate) fn page(&self) -> String {
        let mut page = String::new();
        let rows: [(&str, Pick); 6] = [
            ("simurgh_sockets", |counts| &counts.sockets),
            ("simurgh_channels", |counts| &counts.channels),
            ("simurgh_deliveries_total", |counts| &counts.deliveries),
            ("bare_refused_total", |counts| &counts.refused),
            ("bare_posted_total", |counts| &counts.posted),
            ("bare_taken_total", |counts| &counts.taken),
        ];
        for (name, count) in rows {
            for (shard, counts) in self.counts.iter().enumerate() {
                // Writing to a string cannot fail.
                let _ = writeln!(page, "{name}{{shard=\"{shard}\"}} {}", count(counts).get());
            }
        }
        page
    }
}

/// Time since boot, nanoseconds: one clock for all processes.
pub(crate) fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec.unsigned_abs() * 1_000_000_000 + now.tv_nsec.unsigned_abs()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_thread_has_its_line() {
        let shared = Shared::new(2, 0);
        shared.counts[1].sockets.add(12);
        shared.counts[1].sockets.sub(2);
        let page = shared.page();
        assert_eq!(page.lines().count(), 12);
        assert!(
            page.starts_with("simurgh_sockets{shard=\"0\"} 0\nsimurgh_sockets{shard=\"1\"} 10")
        );
    }
}
