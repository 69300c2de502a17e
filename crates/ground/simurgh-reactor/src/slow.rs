//! Peers that do not read: which wait too long, and which are cut when too much waits for all.
//!
//! A peer is slow when its output has not moved for [`crate::Config::slow_after`], or is more than
//! [`crate::Config::outbound_bytes_max`]. When all output that waits on the shard exceeds
//! [`crate::Config::outbound_budget_bytes`], the peers with most output waiting for longest are
//! cut. A connection whose peer reads costs nothing here.

use std::time::Duration;

use simurgh_data::Key;

use crate::handler::Handler;
use crate::io::Io;
use crate::slab::{BLOCKED, CLOSE_SCHEDULED, MUTE, OVER, WRITABLE};
use crate::stage::{Stage, WRITE_MORE};
use crate::turn::Reactor;

const CHECKED_MAX: usize = 1024;
/// An additional second of waiting counts as much as twice the output.
const AGE_UNIT_NS: u64 = 1_000_000_000;

impl<H: Handler> Reactor<H> {
    /// Writes the queues of connections whose sockets accept more, a part of each.
    pub(crate) fn write_more(&mut self) {
        let mut stage = Stage::begin(WRITE_MORE, &self.io);
        for _ in 0..self.io.lists.writable.len() {
            let Some(key) = self.io.lists.writable.pop_front() else { return };
            if let Some(socket) = self.io.sockets.get_mut(key) {
                socket.flags &= !WRITABLE;
                self.io.drain_queue(key);
            }
            if stage.is_over(&self.io) {
                return;
            }
        }
    }

    pub(crate) fn check_slow(&mut self) {
        let Some(after_ns) = self.io.slow_after_ns else {
            // Without `slow_after` the list is for the budget alone.
            if self.io.lists.blocked.len() < 2 * CHECKED_MAX {
                return;
            }
            return self.io.check_queues(u64::MAX);
        };
        if self.io.lists.blocked.is_empty() {
            self.slow_look_ns = 0;
            return;
        }
        let now_ns = self.io.now.ns;
        if now_ns >= self.slow_look_ns {
            self.io.check_queues(after_ns);
            // All of them within the time in which one of them may become slow.
            let looks = self.io.lists.blocked.len().div_ceil(CHECKED_MAX).max(1) as u64;
            self.slow_look_ns = now_ns + (after_ns / 8 / looks).clamp(1_000_000, 1_000_000_000);
        }
    }

    pub(crate) fn slow_check_due(&self) -> Option<Duration> {
        let looks = self.io.slow_after_ns.is_some() && !self.io.lists.blocked.is_empty();
        looks.then(|| Duration::from_nanos(self.slow_look_ns.saturating_sub(self.io.now.ns)))
    }
}

impl<T> Io<T> {
    /// Checks the longest unchecked connections; without movement for `after_ns` they are slow.
    fn check_queues(&mut self, after_ns: u64) {
        let now_ns = self.served_ns();
        for _ in 0..self.lists.blocked.len().min(CHECKED_MAX) {
            let Some(key) = self.lists.blocked.pop_front() else { return };
            let Some(socket) = self.sockets.get_mut(key) else { continue };
            let Some(queue) = &socket.queue else {
                socket.flags &= !BLOCKED;
                continue;
            };
            if queue.stands_for(now_ns) > after_ns && socket.flags & (OVER | CLOSE_SCHEDULED) == 0 {
                socket.flags |= OVER;
                self.counts.stalled_cut += 1;
                self.lists.slow.push(key);
            }
            self.lists.blocked.push_back(key);
        }
    }

    /// Cuts the peers with most output waiting for longest, until the total is well within its
    /// budget. Their memory is freed at once; the handler is called at the end of the turn.
    #[cold]
    pub(crate) fn cut_worst(&mut self) {
        let goal = self.outbound_budget_bytes - self.outbound_budget_bytes / 8;
        let now_ns = self.served_ns();
        let mut found: Vec<(u128, Key)> = Vec::new();
        for key in &self.lists.blocked {
            if let Some(socket) = self.sockets.get(*key)
                && let Some(queue) = &socket.queue
                && socket.flags & (OVER | CLOSE_SCHEDULED) == 0
            {
                let age = u128::from(queue.stands_for(now_ns) + AGE_UNIT_NS);
                found.push((queue.bytes() as u128 * age, *key));
            }
        }
        found.sort_unstable_by(|one, two| two.cmp(one));
        for (_, key) in found {
            if self.waiting_bytes() <= goal {
                return;
            }
            if let Some(socket) = self.sockets.get_mut(key) {
                socket.flags |= OVER;
                self.counts.outbound_shed += 1;
                self.lists.slow.push(key);
            }
            self.cut_queue(key, Vec::new());
        }
    }

    /// Drops what is queued except for a short rest of a begun frame, and appends `last_frame`;
    /// with a long rest, nothing more can be sent on the connection.
    pub(crate) fn cut_queue(&mut self, key: Key, last_frame: Vec<u8>) {
        let Some(socket) = self.sockets.get_mut(key) else { return };
        let Some(queue) = &mut socket.queue else { return };
        let (bytes, owned) = (queue.bytes(), queue.owned());
        if !queue.cut(last_frame) {
            socket.flags |= MUTE;
        }
        self.counts.queued_bytes =
            (self.counts.queued_bytes + queue.bytes() as u64).saturating_sub(bytes as u64);
        self.owned_bytes = (self.owned_bytes + queue.owned()).saturating_sub(owned);
    }
}
