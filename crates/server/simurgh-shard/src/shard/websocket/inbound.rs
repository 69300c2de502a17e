//! Half-received messages and heads: their time limit and the shard's budget for them.
//!
//! A message has `message_timeout` from its first byte; after that it needs a minimum rate, so that
//! a byte now and then does not hold memory. When a shard's budget is short, the connections that
//! have held most for longest are closed, not the next ones.

use std::collections::HashMap;
use std::time::Duration;

use simurgh_core::{Phase, TICK, nanoseconds};
use simurgh_proto::ws::{self, CloseCode};
use simurgh_reactor::{Key, Next};

use crate::shard::{Io, Shard};

/// A message with this many bytes a second is waited for beyond its time.
const PROGRESS_BYTES_PER_S: u128 = 8 << 10;
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// A holder weighs twice as much after this many ticks.
const AGE_UNIT_TICKS: u64 = 10;

#[derive(Default)]
pub(crate) struct Inbound {
    /// Heap bytes of all incomplete messages.
    bytes: usize,
    holders: HashMap<Key, Holder>,
    /// A message was completed in the current read: bytes held from here on belong to the next.
    pub(crate) is_whole: bool,
    /// When time limits are checked next, ns.
    next_look_ns: Option<u64>,
}

struct Holder {
    /// When its first byte came.
    since_tick: u32,
    /// The last check at which it had progressed, and its bytes at that time.
    mark_tick: u32,
    mark_bytes: usize,
    /// Heap bytes.
    bytes: usize,
}

impl Holder {
    fn weight(&self, tick: u32) -> u64 {
        self.bytes as u64 * (u64::from(tick.wrapping_sub(self.since_tick)) + AGE_UNIT_TICKS)
    }
}

impl Shard {
    /// Updates the count of half-received bytes, and enforces the budget.
    pub(crate) fn account_inbound(&mut self, io: &mut Io, key: Key, before: usize) {
        let is_whole = std::mem::take(&mut self.inbound.is_whole);
        let after = io.conn_ref(key).map_or(0, |conn| conn.inbound_bytes());
        if after == before && !(is_whole && after > 0) {
            return;
        }
        let inbound = &mut self.inbound;
        inbound.bytes = (inbound.bytes + after).saturating_sub(before);
        if after == 0 {
            inbound.holders.remove(&key);
        } else {
            let tick = io.now().tick;
            let new = || Holder { since_tick: tick, mark_tick: tick, mark_bytes: 0, bytes: after };
            let holder = inbound.holders.entry(key).or_insert_with(new);
            if is_whole {
                *holder = new();
            }
            holder.bytes = after;
            inbound.next_look_ns.get_or_insert(io.now().ns + nanoseconds(POLL_INTERVAL));
        }
        if after > before && inbound.bytes > self.server.config.inbound_budget_bytes {
            self.free_inbound(io);
        }
        self.metrics.inbound_bytes.set(self.inbound.bytes as u64);
    }

    /// Closes the connections that have held most for longest, until there is room again.
    #[cold]
    fn free_inbound(&mut self, io: &mut Io) {
        let budget = self.server.config.inbound_budget_bytes;
        let tick = io.now().tick;
        let weigh = |(key, holder): (&Key, &Holder)| (holder.weight(tick), *key);
        let mut holders: Vec<(u64, Key)> = self.inbound.holders.iter().map(weigh).collect();
        holders.sort_unstable_by(|one, two| two.cmp(one));
        for (_, key) in holders {
            if self.inbound.bytes <= budget - budget / 16 {
                return;
            }
            self.metrics.errors_inbound_budget.add(1);
            self.give_up(io, key);
        }
    }

    fn give_up(&mut self, io: &mut Io, key: Key) {
        self.fail(io, key, CloseCode::TRY_AGAIN);
        if let Some(conn) = io.conn(key) {
            let freed = conn.inbound_bytes();
            conn.decoder = ws::Decoder::new();
            conn.passing = None;
            self.forget_inbound(key, freed);
        }
    }

    pub(crate) fn forget_inbound(&mut self, key: Key, bytes: usize) {
        if bytes == 0 {
            return;
        }
        self.inbound.bytes = self.inbound.bytes.saturating_sub(bytes);
        self.inbound.holders.remove(&key);
        self.metrics.inbound_bytes.set(self.inbound.bytes as u64);
    }

    pub(crate) fn judge_inbound(&mut self, io: &mut Io) -> Next {
        let now_ns = io.now().ns;
        let Some(at_ns) = self.inbound.next_look_ns else { return Next::Idle };
        if now_ns < at_ns {
            return Next::After(Duration::from_nanos(at_ns - now_ns));
        }
        let tick = io.now().tick;
        let timeout = self.server.config.message_timeout;
        let floor = PROGRESS_BYTES_PER_S * timeout.as_millis() / 1000;
        let mut overdue = Vec::new();
        for (key, holder) in &mut self.inbound.holders {
            let Some(conn) = io.conn_ref(*key) else { continue };
            // Heads have their own time limit; a connection that waits or is not read is not
            // late.
            if conn.socket.phase() != Phase::Open
                || io.is_held(*key)
                || TICK * tick.wrapping_sub(holder.mark_tick) <= timeout
            {
                continue;
            }
            let came = conn.decoder.received();
            if (came.saturating_sub(holder.mark_bytes) as u128) < floor {
                overdue.push(*key);
            } else {
                (holder.mark_tick, holder.mark_bytes) = (tick, came);
            }
        }
        for key in overdue {
            // Bytes unread in its socket count as received in time.
            if !io.has_input(key) {
                self.metrics.errors_message_timeout.add(1);
                self.give_up(io, key);
            }
        }
        self.inbound.next_look_ns =
            (!self.inbound.holders.is_empty()).then_some(now_ns + nanoseconds(POLL_INTERVAL));
        self.inbound.next_look_ns.map_or(Next::Idle, |_| Next::After(POLL_INTERVAL))
    }
}
