//! Bounds of what is kept: a sweep removes what is too old, and over the node's limit the least
//! recently used topics lose half.

use core::sync::atomic::Ordering::Relaxed;
use core::time::Duration;

use simurgh_channel::{HistoryMail, Mail, Node};
use simurgh_data::{Next, Now};

use super::{Histories, SavedHistory};
use simurgh_data::prelude::*;

/// Topics and dropped messages of a sweep in one turn: some hundred microseconds.
pub(super) const SWEEP_STEPS: usize = 1024;
/// Topics may take as many bytes in addition to their messages as those, but at least this many.
const OWN_BYTES_MIN: usize = 1 << 20;
/// Topics that are looked at for what to drop, in one turn: a few hundred microseconds.
const LOOKED_AT_MAX: usize = 1024;
const ROUND: Duration = Duration::from_secs(1);

impl<N: Node> Histories<N> {
    pub(crate) fn sweep(&mut self, now: Now) -> Next {
        if self.kept.counts().0 == 0 && self.encoded.is_empty() {
            return Next::Idle;
        }
        if let Some(wait @ 1..) = self.next_round_ns.checked_sub(now.ns) {
            return Next::After(Duration::from_nanos(wait));
        }
        let is_round = self.kept.sweep(SWEEP_STEPS, self.node.unix_ms(now.ns));
        // By now many simultaneous joins that missed the same are over.
        self.encoded = Vec::new();
        self.kept.last.clear();
        if is_round {
            self.next_round_ns = now.ns + ROUND.as_nanos() as u64;
        }
        self.count();
        self.evict();
        let has_more = !is_round || self.kept.counts().2 > 0 && self.is_too_much();
        if has_more { Next::Now } else { Next::After(ROUND) }
    }

    /// Counts how much is kept here, and has the shard that keeps most drop some if it is too much.
    pub(super) fn keep_within_bounds(&mut self) {
        let own_bytes_max = self.node.config().history.bytes_max.max(OWN_BYTES_MIN);
        self.kept.forget_over((own_bytes_max / self.node.shards().max(1)) as u64);
        self.count();
        if !self.is_too_much() {
            return;
        }
        let shards = self.node.history_bytes();
        let most = shards.iter().enumerate().max_by_key(|(_, bytes)| bytes.load(Relaxed));
        match most.map(|(shard, _)| shard) {
            Some(shard) if shard != usize::from(self.shard) => {
                self.node.post(shard, Mail::History(HistoryMail::Evict));
            }
            _ => self.evict(),
        }
    }

    fn is_too_much(&self) -> bool {
        let total: u64 = self.node.history_bytes().iter().map(|bytes| bytes.load(Relaxed)).sum();
        total > self.node.config().history.bytes_max as u64
    }

    /// Drops older halves of topics that have not been used for long, until there is not too much
    /// (another shard may have dropped enough) or the turn is long enough: a sweep goes on.
    pub(super) fn evict(&mut self) {
        let mut looked_at = 0;
        while looked_at < LOOKED_AT_MAX && self.is_too_much() {
            match self.kept.evict() {
                0 => return,
                more => looked_at += more,
            }
            self.count();
        }
    }

    pub(crate) fn take(&mut self) -> SavedHistory {
        self.kept.take()
    }

    pub(crate) fn restore(&mut self, saved: SavedHistory, now_ns: u64) {
        self.kept.restore(saved, self.node.unix_ms(now_ns));
        self.count();
    }

    pub(super) fn count(&self) {
        if !self.kept.has_rules() {
            return;
        }
        let (topics, messages, bytes) = self.kept.counts();
        let (dropped, too_large) = self.kept.losses();
        let metrics = &self.metrics;
        metrics.history_topics.set(topics as u64);
        metrics.history_messages.set(messages as u64);
        metrics.history_bytes.set(bytes);
        metrics.history_topic_bytes.set(self.kept.own_bytes);
        metrics.history_too_large.set(too_large);
        metrics.history_evicted_count.set(dropped.by_count as u64);
        metrics.history_evicted_bytes.set(dropped.by_bytes as u64);
        metrics.history_evicted_age.set(dropped.expired as u64);
        metrics.history_evicted_evicted.set(dropped.evicted as u64);
        metrics.history_evicted_purged.set(dropped.purged as u64);
        if let Some(place) = self.node.history_bytes().get(usize::from(self.shard)) {
            place.store(bytes, Relaxed);
        }
    }
}
