//! Figures of a hook, and which lines of its log are due.

use std::collections::HashSet;
use std::time::Duration;

use crate::figures::{BUCKETS_US, HookFigures, QuestionFigures};
use crate::question::Kind;
use crate::verdict::FailureKind;

/// A line about the same matter is written once in this time.
const REPEATED_MS: u64 = 60_000;
/// Most unknown keys that are named.
const UNKNOWN_MAX: usize = 64;

/// A matter of which the log speaks once a minute.
#[derive(Clone, Copy)]
pub(super) enum Matter {
    Failure,
    Refusal,
    Clock,
    Notices,
}

#[derive(Default)]
pub(super) struct Record {
    /// Without the gauges.
    pub(super) figures: HookFigures,
    /// When the next line about each [`Matter`] may be written.
    lines_ms: [u64; 4],
    unknown: HashSet<(Kind, String)>,
}

impl Record {
    pub(super) fn of(&mut self, kind: Kind) -> &mut QuestionFigures {
        let [connect, join, message, refresh] = &mut self.figures.questions;
        match kind {
            Kind::Connect => connect,
            Kind::Join => join,
            Kind::Message => message,
            Kind::Refresh => refresh,
        }
    }

    pub(super) fn failed(&mut self, kind: Kind, failure: FailureKind) {
        let figures = self.of(kind);
        match failure {
            FailureKind::Failed | FailureKind::Rejected => figures.failed += 1,
            FailureKind::Open => figures.open += 1,
            FailureKind::Overloaded => figures.overloaded += 1,
            FailureKind::Timeout => figures.timeout += 1,
        }
    }

    pub(super) fn time(&mut self, kind: Kind, time: Duration) {
        let us = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        let figures = self.of(kind);
        figures.sum_us = figures.sum_us.saturating_add(us);
        let slot = BUCKETS_US.partition_point(|bound| *bound < us);
        if let Some(bucket) = figures.buckets.get_mut(slot) {
            *bucket += 1;
        }
    }

    /// Whether a line about this matter is due.
    pub(super) fn is_due(&mut self, matter: Matter, now_ms: u64) -> bool {
        let due = self.lines_ms.get_mut(matter as usize).filter(|due_ms| **due_ms <= now_ms);
        due.map(|due_ms| *due_ms = now_ms + REPEATED_MS).is_some()
    }

    /// A note about keys without a meaning: once about each.
    pub(super) fn unknown(&mut self, kind: Kind, keys: &[String]) -> Option<String> {
        let mut new = Vec::new();
        for key in keys {
            if self.unknown.len() < UNKNOWN_MAX && self.unknown.insert((kind, key.clone())) {
                new.push(key);
            }
        }
        (!new.is_empty()).then(|| format!("keys without a meaning: {new:?}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_counted_in_their_bucket() {
        let mut record = Record::default();
        record.time(Kind::Join, Duration::from_millis(5));
        record.time(Kind::Join, Duration::from_secs(60));
        let join = record.of(Kind::Join);
        assert_eq!((join.buckets[0], join.buckets[10], join.sum_us), (1, 1, 60_005_000));
        assert_eq!(*record.of(Kind::Connect), QuestionFigures::default());
    }

    #[test]
    fn figures_are_in_the_order_of_the_kinds() {
        let mut record = Record::default();
        for (number, kind) in (1..).zip(Kind::ALL) {
            record.of(kind).allowed = number;
            assert_eq!(record.figures.questions[kind.index()].allowed, number);
        }
    }

    #[test]
    fn line_about_one_matter_is_written_once_a_minute() {
        let mut record = Record::default();
        assert!(record.is_due(Matter::Failure, 0));
        assert!(!record.is_due(Matter::Failure, 59_999));
        assert!(record.is_due(Matter::Clock, 1));
        assert!(record.is_due(Matter::Failure, 60_000));
    }

    #[test]
    fn unknown_key_is_named_once() {
        let mut record = Record::default();
        let keys = ["usr".to_owned(), "a".to_owned()];
        let note = record.unknown(Kind::Join, &keys).unwrap();
        assert_eq!(note, r#"keys without a meaning: ["usr", "a"]"#);
        assert_eq!(record.unknown(Kind::Join, &keys), None);
        assert!(record.unknown(Kind::Connect, &keys[..1]).is_some());
    }
}
