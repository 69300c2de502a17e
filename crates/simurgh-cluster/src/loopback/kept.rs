//! What the engine keeps: one log over all subjects, so many of each subject, for so long.

use std::collections::VecDeque;

use bytes::Bytes;
use foldhash::fast::FixedState;
use hashbrown::HashMap;

use super::names::Name;
use crate::adapter::{ID_SECONDS, Number, Received};
use crate::subject::Space;

/// How much is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeptLimits {
    /// Of each subject, so many.
    pub count: usize,
    /// For so many nanoseconds.
    pub age_ns: u64,
}

impl Default for KeptLimits {
    fn default() -> Self {
        Self { count: 100, age_ns: 300_000_000_000 }
    }
}

#[derive(Debug)]
pub(super) struct Kept {
    limits: KeptLimits,
    pub(super) epoch: u64,
    seq: u64,
    subjects: HashMap<Name, VecDeque<Entry>, FixedState>,
    /// Numbers by id.
    ids: HashMap<Box<str>, u64, FixedState>,
    /// When each came, oldest first.
    ages: VecDeque<(u64, Box<str>)>,
}

#[derive(Debug)]
struct Entry {
    seq: u64,
    at_ns: u64,
    envelope: Bytes,
}

/// What became of what was to be stored.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// It stands there, and is to be published.
    New(Number),
    /// Its id is known: it stands there.
    Duplicate(u64),
}

impl Kept {
    pub(super) fn new(limits: KeptLimits, epoch: u64) -> Self {
        let map = || FixedState::with_seed(epoch);
        Self {
            limits,
            epoch,
            seq: 0,
            subjects: HashMap::with_hasher(map()),
            ids: HashMap::with_hasher(map()),
            ages: VecDeque::new(),
        }
    }

    pub(super) fn limits(&self) -> &KeptLimits {
        &self.limits
    }

    pub(super) fn store(&mut self, to: Name, id: &str, envelope: Bytes, now_ns: u64) -> Outcome {
        self.forget_ids(now_ns);
        if let Some(&seq) = self.ids.get(id) {
            return Outcome::Duplicate(seq);
        }
        self.seq += 1;
        let entries = self.subjects.entry(to).or_default();
        forget_old(entries, now_ns, self.limits.age_ns);
        let prev = entries.back().map_or(0, |it| it.seq);
        entries.push_back(Entry { seq: self.seq, at_ns: now_ns, envelope });
        while entries.len() > self.limits.count.max(1) {
            entries.pop_front();
        }
        self.ids.insert(id.into(), self.seq);
        self.ages.push_back((now_ns, id.into()));
        Outcome::New(Number { seq: self.seq, prev })
    }

    /// What follows a number on a subject, so many and so many bytes, but one if there is one.
    pub(super) fn after(
        &mut self,
        of: Name,
        seq: u64,
        (count, bytes): (u32, usize),
        now_ns: u64,
    ) -> Vec<Received> {
        let age_ns = self.limits.age_ns;
        let Some(entries) = self.subjects.get_mut(&of) else { return Vec::new() };
        forget_old(entries, now_ns, age_ns);
        let start = entries.partition_point(|it| it.seq <= seq);
        let (mut prev, mut sum) = (0, 0);
        let wanted = entries.range(start..).take(count as usize).take_while(|it| {
            let is_first = sum == 0;
            sum += it.envelope.len().max(1);
            is_first || sum <= bytes
        });
        let received = wanted.map(|it| {
            let received = it.received(prev);
            prev = it.seq;
            received
        });
        received.collect()
    }

    /// The last on each of these, oldest first.
    pub(super) fn last_of(&mut self, subjects: &[Name], now_ns: u64) -> Vec<Received> {
        let age_ns = self.limits.age_ns;
        let mut last = Vec::new();
        for of in subjects {
            let Some(entries) = self.subjects.get_mut(of) else { continue };
            forget_old(entries, now_ns, age_ns);
            last.extend(entries.back().map(|it| it.received(0)));
        }
        last.sort_by_key(|it| it.stored.map(|it| it.seq));
        last.dedup_by_key(|it| it.stored.map(|it| it.seq));
        last
    }

    /// Forgets what is kept of a subject; numbers go on.
    pub(super) fn purge(&mut self, subject: Name) {
        self.subjects.remove(&subject);
    }

    fn forget_ids(&mut self, now_ns: u64) {
        let is_old = |at_ns: u64| now_ns.saturating_sub(at_ns) >= ID_SECONDS * 1_000_000_000;
        while let Some((_, id)) = self.ages.pop_front_if(|(at_ns, _)| is_old(*at_ns)) {
            self.ids.remove(&id);
        }
    }
}

impl Entry {
    fn received(&self, prev: u64) -> Received {
        Received {
            space: Some(Space::Store),
            envelope: self.envelope.clone(),
            stored: Some(Number { seq: self.seq, prev }),
        }
    }
}

fn forget_old(entries: &mut VecDeque<Entry>, now_ns: u64, age_ns: u64) {
    while entries.pop_front_if(|it| now_ns.saturating_sub(it.at_ns) >= age_ns).is_some() {}
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::names::Names;
    use super::*;

    const S: u64 = 1_000_000_000;

    /// All that was ever stored: subject, number, when, what; and what was purged of it.
    #[derive(Default)]
    struct Model {
        stored: Vec<(usize, u64, u64, Bytes)>,
        ids: Vec<(String, u64, u64)>,
        purged: [u64; 3],
        seq: u64,
    }

    impl Model {
        fn of(&self, subject: usize, limits: &KeptLimits, now_ns: u64) -> Vec<(u64, Bytes)> {
            let all = self.stored.iter().filter(|it| it.0 == subject);
            let mut all: Vec<_> = all.map(|(_, seq, at, it)| (*seq, *at, it.clone())).collect();
            all.drain(..all.len().saturating_sub(limits.count));
            all.retain(|it| it.0 > self.purged[subject] && now_ns - it.1 < limits.age_ns);
            all.into_iter().map(|(seq, _, it)| (seq, it)).collect()
        }
    }

    #[derive(Clone, Debug)]
    enum Op {
        Store(usize, u8),
        Purge(usize),
        After(usize, u64, u32),
        LastOf(Vec<usize>),
        Pass(u64),
    }

    fn op() -> impl Strategy<Value = Op> {
        prop_oneof![
            6 => (0..3_usize, 0..40_u8).prop_map(|(subject, id)| Op::Store(subject, id)),
            1 => (0..3_usize).prop_map(Op::Purge),
            2 => (0..3_usize, 0..50_u64, 0..9_u32).prop_map(|(s, seq, n)| Op::After(s, seq, n)),
            1 => prop::collection::vec(0..3_usize, 0..4).prop_map(Op::LastOf),
            2 => prop_oneof![0..S, 0..90 * S].prop_map(Op::Pass),
        ]
    }

    fn read(received: &[Received]) -> Vec<(u64, Bytes)> {
        let number = |it: &Received| it.stored.map_or(0, |it| it.seq);
        received.iter().map(|it| (number(it), it.envelope.clone())).collect()
    }

    proptest! {
        #[test]
        fn it_keeps_what_a_list_of_all_says(
            count in 1..6_usize,
            ops in prop::collection::vec(op(), 0..120),
        ) {
            let limits = KeptLimits { count, age_ns: 100 * S };
            let mut names = Names::new();
            let subjects = ["c.h.0.00.a", "c.h.0.00.b", "c.h.0.00.c"].map(|it| names.of(it));
            let mut kept = Kept::new(limits.clone(), 7);
            let (mut model, mut now_ns) = (Model::default(), 0);
            for (at, op) in ops.into_iter().enumerate() {
                match op {
                    Op::Store(subject, id) => {
                        let (id, envelope) = (format!("{id}"), Bytes::from(format!("{at}")));
                        let known = model.ids.iter().rfind(|(it, at, _)| {
                            *it == id && now_ns - at < 120 * S
                        });
                        let expected = match known {
                            Some((.., seq)) => Outcome::Duplicate(*seq),
                            None => {
                                let of = model.of(subject, &limits, now_ns);
                                let prev = of.last().map_or(0, |it| it.0);
                                model.seq += 1;
                                let seq = model.seq;
                                model.ids.push((id.clone(), now_ns, seq));
                                model.stored.push((subject, seq, now_ns, envelope.clone()));
                                Outcome::New(Number { seq, prev })
                            }
                        };
                        let got = kept.store(subjects[subject], &id, envelope, now_ns);
                        prop_assert_eq!(got, expected);
                    }
                    Op::Purge(subject) => {
                        kept.purge(subjects[subject]);
                        model.purged[subject] = model.seq;
                    }
                    Op::After(subject, seq, count) => {
                        let got = kept.after(subjects[subject], seq, (count, 1_000), now_ns);
                        let mut expected = model.of(subject, &limits, now_ns);
                        expected.retain(|it| it.0 > seq);
                        expected.truncate(count as usize);
                        prop_assert_eq!(read(&got), expected);
                    }
                    Op::LastOf(of) => {
                        let wanted: Vec<Name> = of.iter().map(|it| subjects[*it]).collect();
                        let last = |it: &usize| model.of(*it, &limits, now_ns).pop();
                        let mut expected: Vec<_> = of.iter().filter_map(last).collect();
                        expected.sort();
                        expected.dedup();
                        prop_assert_eq!(read(&kept.last_of(&wanted, now_ns)), expected);
                    }
                    Op::Pass(ns) => now_ns += ns,
                }
            }
        }
    }
}
