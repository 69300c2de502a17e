//! Counts and gauges of notices, for metrics and the observer.

use std::time::Duration;

use simurgh_notices::{Batch, Outcome};

use crate::figures::BUCKETS_US;
use crate::notice_config::NOTICE_TYPES;

/// Notices to one hook.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NoticeFigures {
    /// The hook's name.
    pub hook: String,
    /// For each type: accepted, sent without being accepted, and dead letters.
    pub counts: [[u64; 3]; NOTICE_TYPES.len()],
    /// Notices that wait here.
    pub waiting: usize,
    /// The age of the oldest of them.
    pub oldest: Duration,
    /// Requests per bucket of [`BUCKETS_US`], the last one for all slower ones; not cumulative.
    pub buckets: [u64; BUCKETS_US.len() + 1],
    /// Sum of the times of all requests, in microseconds.
    pub sum_us: u64,
}

/// Notices of one node.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NoticesFigures {
    /// By hook.
    pub hooks: Vec<NoticeFigures>,
    /// Partitions that this node coordinates.
    pub partitions: usize,
    /// Open stays of these.
    pub stays: usize,
    /// How often this node began to coordinate a partition.
    pub takeovers: u64,
    /// How often a log had to begin anew because files could not be read.
    pub lost_logs: u64,
    /// How often records could not be appended.
    pub failed_appends: u64,
}

impl NoticeFigures {
    /// The figures with their names, for the API and the observer.
    pub fn rows(&self) -> [(&'static str, u64); 5] {
        let sum = |column: usize| self.counts.iter().filter_map(|row| row.get(column)).sum();
        let (waiting, oldest) = (self.waiting as u64, self.oldest.as_secs());
        let [accepted, again, dead] = [0, 1, 2].map(sum);
        [
            ("accepted", accepted),
            ("waiting", waiting),
            ("oldest_seconds", oldest),
            ("again", again),
            ("dead", dead),
        ]
    }

    pub(super) fn sent(&mut self, batch: &Batch, outcome: &Outcome, time: Duration) {
        let column = usize::from(*outcome != Outcome::Accepted);
        for notice in &batch.notices {
            self.count(notice.name(), column);
        }
        if batch.reset.is_some() {
            self.count("log.reset", column);
        }
        let us = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        self.sum_us = self.sum_us.saturating_add(us);
        let slot = BUCKETS_US.partition_point(|bound| *bound < us);
        if let Some(bucket) = self.buckets.get_mut(slot) {
            *bucket += 1;
        }
    }

    pub(super) fn dead(&mut self, name: &str) {
        self.count(name, 2);
    }

    fn count(&mut self, name: &str, column: usize) {
        let row = NOTICE_TYPES.iter().position(|known| *known == name);
        let row = row.and_then(|row| self.counts.get_mut(row));
        if let Some(count) = row.and_then(|row| row.get_mut(column)) {
            *count += 1;
        }
    }
}
