//! What a coordinator appends to the log, and removes from it.

use simurgh_data::prelude::*;
use simurgh_presence::PhxRefs;

use super::{COMPACTED_MARKS, Coordinator, Phase};
use crate::key::Time;
use crate::record::{Entry, Notice, Record, Stay, Term};
use crate::stays::Open;

/// The most records that are appended at once.
const APPEND_MAX: usize = 1_024;

impl Coordinator {
    /// The next records to be appended, in order. They come back by [`read`](Self::read).
    /// `refs` makes ids of stays.
    pub fn next_append(&mut self, refs: &mut PhxRefs, time: Time) -> Vec<Entry> {
        let mut records = Vec::new();
        match self.phase {
            Phase::Taking { from_ns } if from_ns <= time.ns => {
                // Repeated only after the outcome.
                self.phase = Phase::Taking { from_ns: u64::MAX };
                let term = Term { count: self.term.count + 1, node: self.me };
                let record = Record::Take { epoch: self.epoch, n: self.given_n, is_again: false };
                return vec![Entry { term, record }];
            }
            Phase::Active if self.unread == 0 && self.purge.is_none() => {
                self.compact(&mut records);
                if records.is_empty() {
                    self.decide(&mut records, refs, time);
                }
            }
            _ => {}
        }
        self.unread += records.len();
        let term = self.term;
        records.into_iter().map(|record| Entry { term, record }).collect()
    }

    fn decide(&mut self, records: &mut Vec<Record>, refs: &mut PhxRefs, time: Time) {
        self.stays.tick(time.ns);
        self.delivery.mark(time.ns);
        records.extend(self.delivery.records.drain(..));
        let may_end = self.may_end();
        let Self { stays, given_n, .. } = self;
        let mut new = || {
            *given_n += 1;
            (*given_n, refs.next(time.unix_ms.saturating_mul(1000)))
        };
        while records.len() < APPEND_MAX
            && let Some(notice) = stays.decide(time, may_end, &mut new)
        {
            records.push(Record::Notice(notice.into()));
        }
    }

    /// Appends what counts of the oldest records again, if most do not.
    fn compact(&mut self, records: &mut Vec<Record>) {
        let live = self.stays.open_count() + self.delivery.waiting();
        let is_due = self.records > 2 * live + 2 * self.settings.compacted;
        if !self.settings.is_durable || !is_due {
            return;
        }
        // More at once of a long log: all stays are looked at each time.
        let marks = COMPACTED_MARKS.max(live / 16 / self.marked());
        let (Some(mark), Some((taken, _))) = (self.marks.get(marks), self.terms.last()) else {
            return;
        };
        // Nothing of an earlier term is left: whether it counts would depend on a take before it.
        let before = *mark.max(taken);
        // So that a hook reads notices in their order: what it has not accepted stays in its place.
        if self.delivery.first_at().is_some_and(|first| first < before) {
            return;
        }
        let marks = self.marks.partition_point(|mark| *mark < before);
        self.marks.drain(..marks);
        self.records = self.records.saturating_sub(marks * self.marked());
        records.push(Record::Take { epoch: self.epoch, n: self.n, is_again: true });
        records.extend(self.delivery.live_records(before));
        let starts = self.stays.iter().filter_map(|held| Some((held, held.open?)));
        for (held, Open { id, since_ms, n, .. }) in starts.filter(|(_, open)| open.at < before) {
            let stay = Stay { id, key: held.key.clone(), since_ms };
            let notice = Notice { n, stay, node: Arc::clone(&held.node), end: None };
            records.push(Record::Notice(notice.into()));
        }
        self.purge = Some(before);
    }

    /// The place before which the log's records are to be removed, if it is due.
    pub fn next_purge(&mut self) -> Option<u64> {
        self.purge.take_if(|_| self.phase == Phase::Active && self.unread == 0)
    }
}
