//! Counts of a hook, without a lock, and its lines in the log.

use std::collections::HashSet;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::figures::{BUCKETS_US, QuestionFigures};
use crate::question::Kind;
use crate::verdict::FailureKind;

/// A line about the same matter is written once in this time.
const REPEATED_MS: u64 = 60_000;
/// Most unknown keys that are named.
const UNKNOWN_MAX: usize = 64;

/// How a question ended.
#[derive(Clone, Copy, Debug)]
pub(super) enum Ended {
    Allowed,
    Refused,
    Failed(FailureKind),
    Stale,
}

/// A matter of which the log speaks once a minute.
#[derive(Clone, Copy)]
pub(super) enum Matter {
    Failure,
    Refusal,
    Clock,
}

#[derive(Default)]
pub(super) struct Counts {
    kinds: [OfKind; 4],
    pub(super) shared: AtomicU64,
    pub(super) clock_difference_s: AtomicI64,
    /// When the next line about a [`Matter`] may be written.
    lines: [AtomicU64; 3],
    unknown: Mutex<HashSet<(Kind, String)>>,
}

#[derive(Default)]
struct OfKind {
    ends: [AtomicU64; 7],
    buckets: [AtomicU64; BUCKETS_US.len() + 1],
    sum_us: AtomicU64,
    cache: [AtomicU64; 2],
}

impl Counts {
    pub(super) fn end(&self, kind: Kind, ended: Ended) {
        if let Some(end) = self.of(kind).and_then(|of_kind| of_kind.ends.get(ended.index())) {
            end.fetch_add(1, Relaxed);
        }
    }

    pub(super) fn time(&self, kind: Kind, time: Duration) {
        let us = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        let slot = BUCKETS_US.partition_point(|bound| *bound < us);
        if let Some(of_kind) = self.of(kind) {
            of_kind.sum_us.fetch_add(us, Relaxed);
            if let Some(bucket) = of_kind.buckets.get(slot) {
                bucket.fetch_add(1, Relaxed);
            }
        }
    }

    pub(super) fn cache(&self, kind: Kind, hit: bool) {
        if let Some(count) = self.of(kind).and_then(|of_kind| of_kind.cache.get(usize::from(hit))) {
            count.fetch_add(1, Relaxed);
        }
    }

    pub(super) fn questions(&self) -> [QuestionFigures; 4] {
        self.kinds.each_ref().map(OfKind::figures)
    }

    /// Whether a line about this matter is due.
    pub(super) fn is_due(&self, matter: Matter, now_ms: u64) -> bool {
        let Some(due) = self.lines.get(matter as usize) else { return false };
        let at = due.load(Relaxed);
        at <= now_ms && due.compare_exchange(at, now_ms + REPEATED_MS, Relaxed, Relaxed).is_ok()
    }

    /// Whether this key has not been seen in answers to this kind.
    pub(super) fn is_new(&self, kind: Kind, key: &str) -> bool {
        let mut unknown = self.unknown.lock().unwrap_or_else(PoisonError::into_inner);
        unknown.len() < UNKNOWN_MAX && unknown.insert((kind, key.to_owned()))
    }

    fn of(&self, kind: Kind) -> Option<&OfKind> {
        self.kinds.get(kind.index())
    }
}

impl OfKind {
    fn figures(&self) -> QuestionFigures {
        let [allowed, refused, failed, timeout, overloaded, open, stale] =
            self.ends.each_ref().map(|count| count.load(Relaxed));
        let [cache_misses, cache_hits] = self.cache.each_ref().map(|count| count.load(Relaxed));
        QuestionFigures {
            allowed,
            refused,
            failed,
            timeout,
            overloaded,
            open,
            stale,
            buckets: self.buckets.each_ref().map(|count| count.load(Relaxed)),
            sum_us: self.sum_us.load(Relaxed),
            cache_hits,
            cache_misses,
        }
    }
}

impl Ended {
    fn index(self) -> usize {
        match self {
            Self::Allowed => 0,
            Self::Refused => 1,
            Self::Failed(FailureKind::Failed) => 2,
            Self::Failed(FailureKind::Timeout) => 3,
            Self::Failed(FailureKind::Overloaded) => 4,
            Self::Failed(FailureKind::Open) => 5,
            Self::Stale => 6,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_and_times_are_counted_by_kind() {
        let counts = Counts::default();
        counts.end(Kind::Join, Ended::Failed(FailureKind::Open));
        counts.end(Kind::Join, Ended::Stale);
        counts.cache(Kind::Join, true);
        counts.time(Kind::Join, Duration::from_millis(5));
        counts.time(Kind::Join, Duration::from_secs(60));
        let [connect, join, ..] = counts.questions();
        assert_eq!(connect, QuestionFigures::default());
        assert_eq!((join.open, join.stale, join.cache_hits, join.sum_us), (1, 1, 1, 60_005_000));
        assert_eq!((join.buckets[0], join.buckets[10]), (1, 1));
    }

    #[test]
    fn line_about_one_matter_is_written_once_a_minute() {
        let counts = Counts::default();
        assert!(counts.is_due(Matter::Failure, 0));
        assert!(!counts.is_due(Matter::Failure, 59_999));
        assert!(counts.is_due(Matter::Clock, 1));
        assert!(counts.is_due(Matter::Failure, 60_000));
    }

    #[test]
    fn unknown_key_is_new_once() {
        let counts = Counts::default();
        assert!(counts.is_new(Kind::Join, "usr"));
        assert!(!counts.is_new(Kind::Join, "usr"));
        assert!(counts.is_new(Kind::Connect, "usr"));
    }
}
