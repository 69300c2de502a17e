//! The memory that HTTP connections hold: bodies that have come and are not answered, and answers
//! that are not written.
//!
//! Each side has a budget for all connections together. Over it the connections that have held most
//! for longest are closed, not the next ones.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use super::{HttpConnections, Watch};

/// A connection that has held bytes for this many milliseconds more weighs twice as much.
const AGE_UNIT_MS: u64 = 1_000;

/// How often each thread looks whether it keeps much free memory, and how much is worth it.
const GIVE_BACK_EVERY: Duration = Duration::from_secs(10);
const GIVE_BACK_BYTES: usize = 1 << 20;
const PURGE_EVERY: Duration = Duration::from_secs(1);
const PURGE_APART: Duration = Duration::from_millis(10);

/// Which memory it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(usize)]
pub enum Side {
    /// Bodies of requests.
    Inbound,
    /// Answers.
    Outbound,
}

/// Bytes of one side, of all connections.
#[derive(Debug, Default)]
pub(super) struct Budget {
    bytes: AtomicUsize,
    bytes_max: usize,
}

impl Budget {
    pub(super) fn new(bytes_max: usize) -> Self {
        Self { bytes: AtomicUsize::new(0), bytes_max }
    }
}

/// Bytes that a connection holds, until this is dropped.
#[derive(Debug)]
pub struct HeldBytes {
    connections: Arc<HttpConnections>,
    watch: Arc<Watch>,
    side: Side,
    bytes: AtomicUsize,
}

impl HeldBytes {
    /// Of a connection; no bytes yet.
    pub fn new(connections: &Arc<HttpConnections>, watch: &Arc<Watch>, side: Side) -> Self {
        let (connections, watch) = (Arc::clone(connections), Arc::clone(watch));
        Self { connections, watch, side, bytes: AtomicUsize::new(0) }
    }

    /// Holds this many bytes more.
    pub fn add(&self, bytes: usize) {
        self.bytes.fetch_add(bytes, Relaxed);
        self.watch.hold(self.side, bytes);
        let budget = self.connections.budget(self.side);
        if budget.bytes.fetch_add(bytes, Relaxed) + bytes > budget.bytes_max {
            self.connections.shed(self.side);
        }
    }
}

impl Drop for HeldBytes {
    fn drop(&mut self) {
        let bytes = *self.bytes.get_mut();
        self.watch.release(self.side, bytes);
        self.connections.budget(self.side).bytes.fetch_sub(bytes, Relaxed);
        self.connections.released.fetch_add(bytes, Relaxed);
    }
}

impl HttpConnections {
    /// Bytes that all connections hold of this side.
    pub fn held_bytes(&self, side: Side) -> usize {
        self.budget(side).bytes.load(Relaxed)
    }

    /// Has the allocator return what it keeps for the calling thread, now and then after much was
    /// released. Never ends.
    pub async fn give_back_memory(self: Arc<Self>) {
        let mut before = 0_usize;
        loop {
            tokio::time::sleep(GIVE_BACK_EVERY).await;
            let released = self.released.load(Relaxed);
            if released.wrapping_sub(before) > GIVE_BACK_BYTES {
                simurgh_reactor::purge_memory();
                before = released;
            }
        }
    }

    /// Returns free memory of all threads to the system each second, so that no shard has to, and
    /// at once after connections were closed for what they held. Ends only if the allocator has no
    /// such call.
    pub async fn purge_memory(self: Arc<Self>) {
        while simurgh_reactor::purge_by_call() {
            // The time is over, or the notice is here: both are reasons.
            let _ = tokio::time::timeout(PURGE_EVERY, self.has_shed.notified()).await;
            simurgh_reactor::purge_memory();
            tokio::time::sleep(PURGE_APART).await;
        }
    }

    /// Closes those that have held most for longest, until the rest is a sixteenth below the
    /// budget.
    #[cold]
    fn shed(&self, side: Side) {
        // The freed memory must be back before others take more.
        self.has_shed.notify_one();
        let budget = self.budget(side);
        let present = self.present();
        let allowed = budget.bytes_max - budget.bytes_max / 16;
        let mut excess = budget.bytes.load(Relaxed).saturating_sub(allowed);
        let mut holders: Vec<(u64, usize, &Arc<Watch>)> = Vec::new();
        for seat in present.all.values() {
            let watch = &seat.watch;
            match watch.held(side) {
                (0, _) => {}
                // Its memory is about to be free.
                (bytes, _) if watch.is_shed() => excess = excess.saturating_sub(bytes),
                (bytes, ms) => holders.push((bytes as u64 * (ms + AGE_UNIT_MS), bytes, watch)),
            }
        }
        holders.sort_unstable_by_key(|(weight, ..)| std::cmp::Reverse(*weight));
        for (_, bytes, watch) in holders {
            if excess == 0 {
                return;
            }
            excess = excess.saturating_sub(bytes);
            watch.shed(side);
            self.shed.fetch_add(1, Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {

    use super::*;

    fn connection(connections: &Arc<HttpConnections>) -> (super::super::ConnectionSlot, HeldBytes) {
        let watch = Arc::new(Watch::default());
        let mut slot = connections.slot();
        slot.enter(&watch);
        (slot, HeldBytes::new(connections, &watch, Side::Outbound))
    }

    #[test]
    fn largest_holder_is_shed_and_small_ones_stay() {
        let connections = Arc::new(HttpConnections::new(100, 0, [1_000; 2]));
        let all: Vec<_> = (0..3).map(|_| connection(&connections)).collect();
        let [(_, small), (_, large), (_, last)] = all.as_slice() else { panic!("three") };
        small.add(100);
        large.add(800);
        assert!(!large.watch.is_shed());
        last.add(200);
        let is_shed = [small, large, last].map(|held| held.watch.is_shed());
        assert_eq!(is_shed, [false, true, false]);
        last.add(50);
        assert!(!last.watch.is_shed(), "what is about to be free does not count");
        drop(all);
        assert_eq!(connections.held_bytes(Side::Outbound), 0);
    }
}
