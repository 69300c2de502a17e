//! The coordinator of a partition: it alone decides which stays start and end.
//!
//! ```text
//!   Reading ── the log was read ──► Taking ── its take was read back ──► Active
//!                                    ▲  ▲                                  │
//!          a record was not appended ┘  └──── another node's take was read ┘
//! ```
//! Only the log decides: a record counts if its term is that of the last take before it. So a
//! coordinator acts on what it has read back, never on what it has appended. One that was replaced
//! reads the take of its successor, and its later records do not count. After a record that may or
//! may not be in the log, it takes the log again: with the new term, a late record does not count.

mod append;

use alloc::collections::{BTreeMap, BTreeSet};

use simurgh_data::prelude::*;
use simurgh_history::Epoch;

use crate::batch::{Batch, Outcome};
use crate::delivery::Delivery;
use crate::key::{MILLISECOND, Reason, SECOND, Time};
use crate::record::{DeadLetter, Entry, Notice, Record, Stay, Term};
use crate::report::{Report, Verdict};
use crate::settings::Settings;
use crate::stays::{End, Open, Stays};

/// After a record that was not appended.
const RETRY_NS: u64 = SECOND;
/// A coordinator that was replaced, and still is one to its node, waits so long before it takes the
/// log again.
const REPLACED_NS: u64 = 5 * SECOND;
/// The least number of marks that a compaction removes.
const COMPACTED_MARKS: usize = 4;

/// How the stays end that no living node knows.
#[derive(Clone, Copy, Debug)]
pub struct Orphans {
    /// When their members were last known, in nanoseconds.
    pub known_ns: u64,
    /// Why they end.
    pub reason: Reason,
}

/// The coordinator of a partition.
#[derive(Debug)]
pub struct Coordinator {
    me: u64,
    partition: u8,
    settings: Arc<Settings>,
    phase: Phase,
    orphans: Orphans,
    /// Nodes that may have memberships, and have not reported.
    awaited: BTreeSet<u64>,
    /// The version of each node's memberships.
    known: BTreeMap<u64, u64>,
    stays: Stays,
    delivery: Delivery,
    epoch: Epoch,
    term: Term,
    /// Takes since the log was read, with their places.
    terms: Vec<(u64, Term)>,
    /// The highest number in the log, and the last one that was given.
    n: u64,
    given_n: u64,
    /// Appended records that are not read back.
    unread: usize,
    /// Records of the log, and the places of every [`marked`](Self::marked)th.
    records: usize,
    marks: VecDeque<u64>,
    /// Records before this place are removed once all appended ones are read back.
    purge: Option<u64>,
    void: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Reading,
    Taking { from_ns: u64 },
    Active,
}

/// A stay that is open.
#[derive(Clone, Debug)]
pub struct OpenStay {
    /// The stay.
    pub stay: Stay,
    /// The name of the node of its last new member.
    pub node: Arc<str>,
}

impl Coordinator {
    /// A node becomes the coordinator. `awaited` are the nodes that may have memberships.
    pub fn new(
        (me, partition): (u64, u8),
        settings: &Arc<Settings>,
        awaited: impl IntoIterator<Item = u64>,
        orphans: Orphans,
        seed: u64,
    ) -> Self {
        Self {
            me,
            partition,
            settings: Arc::clone(settings),
            phase: Phase::Reading,
            orphans,
            awaited: awaited.into_iter().collect(),
            known: BTreeMap::new(),
            stays: Stays::new(seed),
            delivery: Delivery::new(Arc::clone(settings)),
            epoch: Epoch::from_seed(0),
            term: Term::default(),
            terms: Vec::new(),
            n: 0,
            given_n: 0,
            unread: 0,
            records: 0,
            marks: VecDeque::new(),
            purge: None,
            void: 0,
        }
    }

    /// A node reports memberships. The caller refuses reports of nodes that are gone.
    pub fn report(&mut self, from: (u64, &Arc<str>), report: &Report, time: Time) -> Verdict {
        let known = self.known.get(&from.0).copied().unwrap_or_default();
        let is_state = report.from == 0;
        if !is_state && (known == 0 || report.from > known) {
            return Verdict::StateWanted;
        }
        if report.to < known || (report.to == known && !is_state) {
            return Verdict::Taken;
        }
        self.known.insert(from.0, report.to);
        let end = |began_ms, (age_ms, reason): (u64, Reason)| {
            let ended_ns = time.ns.saturating_sub(age_ms.saturating_mul(MILLISECOND));
            let due_ns = ended_ns.saturating_add(self.settings.grace_ns);
            let ended_ms = time.unix_ms.saturating_sub(age_ms);
            End { began_ms, ended_ms, due_ns, reason, now_ns: time.ns }
        };
        if is_state {
            let all = report.changes.iter().map(|change| &change.key).collect();
            self.stays.end_others(from, &all, &end(0, (0, Reason::Closed)));
        }
        for change in &report.changes {
            match change.ended {
                None => self.stays.begin(&change.key, from, change.began_ms),
                Some(ended) => self.stays.end(&change.key, from, &end(change.began_ms, ended)),
            }
        }
        if self.awaited.remove(&from.0) {
            self.end_orphans(time);
        }
        Verdict::Taken
    }

    /// A node is gone; it was last heard at this time.
    pub fn gone(&mut self, node: (u64, &Arc<str>), heard_ns: u64, time: Time) {
        let due_ns = heard_ns.saturating_add(self.settings.grace_ns);
        let ended_ms = time.unix_ms_of(heard_ns);
        let end = End { began_ms: 0, ended_ms, due_ns, reason: Reason::Node, now_ns: time.ns };
        self.stays.end_others(node, &BTreeSet::new(), &end);
        self.known.remove(&node.0);
        if self.awaited.remove(&node.0) {
            self.end_orphans(time);
        }
    }

    fn end_orphans(&mut self, time: Time) {
        if self.may_end() {
            let Orphans { known_ns, reason } = self.orphans;
            let due_ns = known_ns.saturating_add(self.settings.grace_ns);
            let ended_ms = time.unix_ms_of(known_ns);
            let end = End { began_ms: 0, ended_ms, due_ns, reason, now_ns: time.ns };
            self.stays.end_orphans(&end);
        }
    }

    fn may_end(&self) -> bool {
        self.phase == Phase::Active && self.awaited.is_empty()
    }

    /// The log was read: its records with their places. They follow with [`read`](Self::read).
    pub fn begun(&mut self, epoch: Epoch, records: Vec<(u64, Entry)>, time: Time) {
        // Its own earlier takes count as those of others.
        self.phase = Phase::Reading;
        (self.unread, self.purge, self.records) = (0, None, 0);
        self.marks.clear();
        self.terms.clear();
        self.epoch = epoch;
        self.stays.close_all();
        self.delivery.clear();
        // The take of the first records may have been removed. Then it was appended again before.
        let first = records.iter().find_map(|(_, entry)| match entry.record {
            Record::Take { epoch: of, is_again, .. } if of == epoch => Some((is_again, entry.term)),
            _ => None,
        });
        self.term = first.filter(|(is_again, _)| *is_again).map(|it| it.1).unwrap_or_default();
        for (at, entry) in records {
            self.read(at, entry, time);
        }
        self.phase = Phase::Taking { from_ns: 0 };
    }

    /// The log has a further record.
    pub fn read(&mut self, at: u64, entry: Entry, time: Time) {
        if self.records.is_multiple_of(self.marked()) {
            self.marks.push_back(at);
        }
        self.records += 1;
        let Entry { term, record } = entry;
        if let Record::Take { epoch, n, is_again } = record {
            let is_new = !is_again && term.count > self.term.count && epoch == self.epoch;
            if is_new {
                self.term = term;
            }
            if term == self.term {
                self.take(n, at, is_new, time);
            }
        } else if term != self.term {
            self.void += 1;
            return;
        } else if let Record::Notice(notice) = record {
            self.read_notice(&notice, at, time);
        } else {
            self.delivery.read_record(record, at);
        }
        if term.node == self.me && term == self.term && self.phase == Phase::Active {
            self.unread = self.unread.saturating_sub(1);
        }
    }

    /// There is a mark for so many records.
    fn marked(&self) -> usize {
        (self.settings.compacted / COMPACTED_MARKS).max(1)
    }

    fn take(&mut self, n: u64, at: u64, is_new: bool, time: Time) {
        self.n = self.n.max(n);
        self.given_n = self.given_n.max(n);
        if self.terms.last().is_none_or(|(_, last)| *last != self.term) {
            self.terms.push((at, self.term));
        }
        if !is_new {
            return;
        }
        match self.phase {
            Phase::Taking { .. } if self.term.node == self.me => {
                (self.phase, self.unread) = (Phase::Active, 1);
                self.stays.append_failed();
                self.delivery.activate(self.n);
                self.end_orphans(time);
            }
            Phase::Reading => {}
            Phase::Taking { .. } | Phase::Active => {
                let from_ns = time.ns.saturating_add(REPLACED_NS);
                (self.phase, self.unread) = (Phase::Taking { from_ns }, 0);
            }
        }
    }

    fn read_notice(&mut self, notice: &Arc<Notice>, at: u64, time: Time) {
        self.n = self.n.max(notice.n);
        self.given_n = self.given_n.max(notice.n);
        match notice.end {
            None => self.stays.started(notice, at),
            Some(_) => self.stays.ended(&notice.stay),
        }
        self.delivery.read(notice, at, time.ns);
        self.delivery.trim();
    }

    /// Records that were left in the log, behind [`next_read_again`](Self::next_read_again).
    pub fn read_again(&mut self, records: Vec<(u64, Entry)>, is_all: bool) {
        let to = records.last().map_or(0, |(at, _)| *at);
        let mut notices = Vec::new();
        for (at, Entry { term, record }) in records {
            let of_place = self.terms.iter().rev().find(|(from, _)| *from <= at);
            let counts = of_place.is_none_or(|(_, counts)| *counts == term);
            if let (true, Record::Notice(notice)) = (counts, record) {
                notices.push((at, notice));
            }
        }
        self.delivery.read_again(&notices, to, is_all);
    }

    /// Records could not be appended, or that is unknown.
    pub fn append_failed(&mut self, time: Time) {
        if self.phase != Phase::Reading {
            let from_ns = time.ns.saturating_add(RETRY_NS);
            (self.phase, self.unread, self.purge) = (Phase::Taking { from_ns }, 0, None);
        }
    }

    /// The place behind which the log is to be read again: its notices fit into memory now.
    pub fn next_read_again(&mut self) -> Option<u64> {
        if self.phase == Phase::Active { self.delivery.next_read_again() } else { None }
    }

    /// The next batch of a hook that may be sent something.
    pub fn next_batch(&mut self, hook: usize, time: Time) -> Option<Arc<Batch>> {
        if self.phase != Phase::Active {
            return None;
        }
        self.delivery.next_batch(hook, (self.epoch, self.partition), time)
    }

    /// The outcome of a batch.
    pub fn finished(&mut self, hook: usize, batch: &Arc<Batch>, outcome: &Outcome, time: Time) {
        self.delivery.finished(hook, batch, outcome, time);
        self.delivery.trim();
    }

    /// When [`next_append`](Self::next_append) has something by itself.
    pub fn next_ns(&self) -> Option<u64> {
        match self.phase {
            Phase::Reading => None,
            Phase::Taking { from_ns } => Some(from_ns),
            Phase::Active if self.unread > 0 => None,
            Phase::Active if self.stays.has_ready() || !self.delivery.records.is_empty() => Some(0),
            Phase::Active => {
                [self.stays.next_ns(), self.delivery.mark_ns()].into_iter().flatten().min()
            }
        }
    }

    /// When [`next_batch`](Self::next_batch) may have something for a hook.
    pub fn next_batch_ns(&self, hook: usize) -> Option<u64> {
        self.delivery.next_ns(hook).filter(|_| self.phase == Phase::Active)
    }

    /// The open stays, with the log and the number that they are of; `None` while that is unknown.
    pub fn stays(&self) -> Option<(Epoch, u64, impl Iterator<Item = OpenStay>)> {
        let open = self.stays.iter().filter_map(|held| {
            let Open { id, since_ms, .. } = held.open?;
            let stay = Stay { id, key: held.key.clone(), since_ms };
            Some(OpenStay { stay, node: Arc::clone(&held.node) })
        });
        let shown = open.filter(|open| !open.stay.key.is_hidden());
        self.may_end().then_some((self.epoch, self.n, shown))
    }

    /// The log.
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// The dead letters of a hook.
    pub fn dead(&self, hook: usize) -> impl Iterator<Item = &DeadLetter> {
        let queue = self.delivery.queues.get(hook).into_iter();
        queue.flat_map(|queue| queue.dead.iter().map(|(_, letter)| letter))
    }

    /// Has dead letters of a hook delivered again, or deletes them. Returns how many of these ids
    /// there are.
    pub fn take_dead(&mut self, hook: usize, ids: &[&str], replay: bool) -> usize {
        self.delivery.take_dead(hook, ids, replay)
    }

    /// Open stays, notices in memory (counted for each hook), and records that did not count.
    pub fn counts(&self) -> (usize, usize, u64) {
        (self.stays.open_count(), self.delivery.waiting(), self.void)
    }

    /// How many notices in memory a hook has not accepted, and when the first of them happened, in
    /// milliseconds since 1970.
    pub fn waiting(&self, hook: usize) -> (usize, Option<u64>) {
        self.delivery.waiting_of(hook)
    }

    /// Whether it decides and delivers.
    pub fn is_active(&self) -> bool {
        self.phase == Phase::Active
    }
}
