//! The engine's storage: one stream over all subjects, with a count and an age for each.

use std::collections::VecDeque;
use std::time::Duration;

use bytes::Bytes;
use foldhash::fast::FixedState;
use hashbrown::HashMap;
use simurgh_cluster::adapter::{ID_SECONDS, LAST_OF_MAX, Number};
use simurgh_cluster::{Fetched, Received, Space};

use super::subjects::SubjectId;

/// The most by which a copy lags behind.
const LAG_NS_MAX: u64 = 10_000_000_000;
/// The engine's clock at time 0 of the network: 2026-01-01.
pub const UNIX_MS: u64 = 1_767_225_600_000;

pub(super) const fn unix_ms(now_ns: u64) -> u64 {
    UNIX_MS + now_ns / 1_000_000
}

/// The bounds of the storage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamLimits {
    /// The most messages of each subject.
    pub count: usize,
    /// How long messages are kept, in nanoseconds.
    pub age_ns: u64,
}

impl Default for StreamLimits {
    fn default() -> Self {
        Self { count: 100, age_ns: 300_000_000_000 }
    }
}

#[derive(Debug)]
pub(super) struct Stream {
    pub(super) limits: StreamLimits,
    pub(super) epoch: u64,
    pub(super) seq: u64,
    subjects: HashMap<SubjectId, VecDeque<Entry>, FixedState>,
    ids: HashMap<Box<str>, u64, FixedState>,
    ages: VecDeque<(u64, Box<str>)>,
    /// When the last numbers were assigned, oldest first.
    recent: VecDeque<(u64, u64)>,
}

#[derive(Debug)]
struct Entry {
    seq: u64,
    at_ns: u64,
    /// When it expires.
    until_ns: u64,
    /// When it was removed, by newer messages or a purge: a copy that lags behind still has it.
    gone_ns: Option<u64>,
    envelope: Bytes,
}

#[derive(Debug)]
pub(super) struct StoreRequest<'a> {
    pub(super) to: SubjectId,
    pub(super) id: &'a str,
    pub(super) age: Option<Duration>,
    pub(super) envelope: Bytes,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// Stored, and to be published.
    New(Number),
    Duplicate(u64),
}

impl Stream {
    pub(super) fn new(limits: StreamLimits, epoch: u64) -> Self {
        let map = || FixedState::with_seed(epoch);
        Self {
            limits,
            epoch,
            seq: 0,
            subjects: HashMap::with_hasher(map()),
            ids: HashMap::with_hasher(map()),
            ages: VecDeque::new(),
            recent: VecDeque::new(),
        }
    }

    /// Sets the storage back to an earlier time and begins a new epoch, as far as its state then is
    /// known.
    pub(super) fn set_back(&mut self, then_ns: u64, epoch: u64) {
        let head = self.head(then_ns);
        (self.seq, self.epoch) = (head, epoch);
        for entries in self.subjects.values_mut() {
            entries.retain(|it| it.seq <= head);
            entries.iter_mut().for_each(|it| it.gone_ns = it.gone_ns.filter(|it| *it <= then_ns));
        }
        self.ids.retain(|_, seq| *seq <= head);
        let ids = &self.ids;
        self.ages.retain(|(_, id)| ids.contains_key(id));
        self.recent.retain(|it| it.1 <= head);
    }

    pub(super) fn store(&mut self, wish: StoreRequest<'_>, now_ns: u64) -> Outcome {
        let StoreRequest { to, id, age, envelope } = wish;
        self.forget_ids(now_ns);
        if let Some(&seq) = self.ids.get(id) {
            return Outcome::Duplicate(seq);
        }
        self.seq += 1;
        self.recent.push_back((now_ns, self.seq));
        // One entry stays, which every copy certainly has.
        while self.recent.get(1).is_some_and(|it| now_ns.saturating_sub(it.0) >= LAG_NS_MAX) {
            self.recent.pop_front();
        }
        let entries = self.subjects.entry(to).or_default();
        forget_old(entries, now_ns);
        let prev = present(entries, now_ns).last().map_or(0, |it| it.seq);
        let whole_seconds = |age: Duration| age.as_secs().max(1).saturating_mul(1_000_000_000);
        let age_ns = age.map_or(u64::MAX, whole_seconds).min(self.limits.age_ns);
        let until_ns = now_ns.saturating_add(age_ns);
        let (seq, gone_ns) = (self.seq, None);
        entries.push_back(Entry { seq, at_ns: now_ns, until_ns, gone_ns, envelope });
        let over = present(entries, now_ns).count().saturating_sub(self.limits.count.max(1));
        let there = entries.iter_mut().filter(|it| it.gone_ns.is_none());
        there.take(over).for_each(|it| it.gone_ns = Some(now_ns));
        self.ids.insert(id.into(), self.seq);
        self.ages.push_back((now_ns, id.into()));
        Outcome::New(Number { seq: self.seq, prev })
    }

    /// The last number in a copy that has what was stored up to `as_of_ns`.
    fn head(&self, as_of_ns: u64) -> u64 {
        let after = self.recent.partition_point(|it| it.0 <= as_of_ns);
        match (after.checked_sub(1), self.recent.front()) {
            (Some(at), _) => self.recent.get(at).map_or(self.seq, |it| it.1),
            (None, Some((_, first))) => first - 1,
            (None, None) => self.seq,
        }
    }

    /// The messages behind a number on a subject, at most so many and so many bytes but at least
    /// one, from a copy that has what was stored up to `as_of_ns`.
    pub(super) fn after(
        &mut self,
        of: SubjectId,
        seq: u64,
        (count, bytes): (u32, usize),
        now_ns: u64,
        as_of_ns: u64,
    ) -> Fetched {
        let head = self.head(as_of_ns);
        let nothing = || Fetched { messages: Vec::new(), head, is_all: true };
        let Some(entries) = self.subjects.get_mut(&of) else { return nothing() };
        forget_old(entries, now_ns);
        let start = entries.partition_point(|it| it.seq <= seq);
        let end = entries.partition_point(|it| it.seq <= head);
        if start >= end {
            return nothing();
        }
        let there = || entries.range(start..end).filter(|it| it.is_there(as_of_ns));
        let (mut prev, mut sum) = (0, 0);
        let wanted = there().take(count as usize).take_while(|it| {
            let is_first = sum == 0;
            sum += it.envelope.len().max(1);
            is_first || sum <= bytes
        });
        let received = wanted.map(|it| {
            let received = it.received(prev);
            prev = it.seq;
            received
        });
        let messages: Vec<Received> = received.collect();
        let is_all = messages.len() == there().count();
        Fetched { messages, head, is_all }
    }

    /// The last message on each of these subjects, oldest first, from such a copy.
    pub(super) fn last_of(
        &mut self,
        subjects: &[SubjectId],
        now_ns: u64,
        as_of_ns: u64,
    ) -> Fetched {
        let head = self.head(as_of_ns);
        let mut last = Vec::new();
        for of in subjects.iter().take(LAST_OF_MAX) {
            let Some(entries) = self.subjects.get_mut(of) else { continue };
            forget_old(entries, now_ns);
            let known = entries.iter().rfind(|it| it.seq <= head && it.is_there(as_of_ns));
            last.extend(known.map(|it| it.received(0)));
        }
        last.sort_by_key(|it| it.stored.map(|it| it.seq));
        last.dedup_by_key(|it| it.stored.map(|it| it.seq));
        Fetched { messages: last, head, is_all: true }
    }

    /// The number behind which everything was stored within this age: the one before the first that
    /// is still there. `None` if messages are not stored for so long.
    pub(super) fn since(&mut self, age: Duration, now_ns: u64) -> Option<u64> {
        let age_ns = u64::try_from(age.as_nanos()).unwrap_or(u64::MAX);
        if age_ns > self.limits.age_ns {
            return None;
        }
        let young = self.subjects.values_mut().filter_map(|entries| {
            forget_old(entries, now_ns);
            let is_young = |it: &&Entry| now_ns.saturating_sub(it.at_ns) <= age_ns;
            present(entries, now_ns).find(is_young).map(|it| it.seq)
        });
        Some(young.min().map_or(self.seq, |it| it - 1))
    }

    /// Removes the stored messages of a subject before a number; numbers do not restart.
    pub(super) fn purge(&mut self, subject: SubjectId, before: u64, now_ns: u64) {
        let entries = self.subjects.get_mut(&subject).into_iter().flatten();
        let old = entries.filter(|it| it.seq < before);
        old.for_each(|it| it.gone_ns = it.gone_ns.or(Some(now_ns)));
    }

    fn forget_ids(&mut self, now_ns: u64) {
        let is_old = |at_ns: u64| now_ns.saturating_sub(at_ns) >= ID_SECONDS * 1_000_000_000;
        while let Some((_, id)) = self.ages.pop_front_if(|(at_ns, _)| is_old(*at_ns)) {
            self.ids.remove(&id);
        }
    }
}

impl Entry {
    /// Whether a copy that has applied everything up to `as_of_ns` has it.
    fn is_there(&self, as_of_ns: u64) -> bool {
        self.gone_ns.is_none_or(|it| it > as_of_ns)
    }

    fn received(&self, prev: u64) -> Received {
        Received {
            space: Some(Space::Store),
            envelope: self.envelope.clone(),
            stored: Some(Number { seq: self.seq, prev }),
            at_ms: unix_ms(self.at_ns),
        }
    }
}

fn present(entries: &VecDeque<Entry>, now_ns: u64) -> impl Iterator<Item = &Entry> {
    entries.iter().filter(move |it| it.is_there(now_ns))
}

/// Forgets entries that have expired, or that every copy has removed.
fn forget_old(entries: &mut VecDeque<Entry>, now_ns: u64) {
    let lags_ns = now_ns.saturating_sub(LAG_NS_MAX);
    entries.retain(|it| it.until_ns > now_ns && it.gone_ns.is_none_or(|it| it >= lags_ns));
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::subjects::Subjects;
    use super::*;

    const S: u64 = 1_000_000_000;

    struct Stored {
        subject: usize,
        seq: u64,
        at_ns: u64,
        until_ns: u64,
        envelope: Bytes,
        gone_ns: Option<u64>,
    }

    #[derive(Default)]
    struct Model {
        stored: Vec<Stored>,
        ids: Vec<(String, u64, u64)>,
        seq: u64,
    }

    impl Model {
        /// The rest of a subject in a copy that has applied everything up to `as_of_ns`.
        fn of(&self, subject: usize, now_ns: u64, as_of_ns: u64) -> Vec<(u64, Bytes)> {
            let all = self.stored.iter().filter(|it| it.subject == subject);
            let is_left = |it: &&Stored| it.gone_ns.is_none_or(|gone_ns| as_of_ns < gone_ns);
            all.filter(|it| now_ns < it.until_ns && it.at_ns <= as_of_ns)
                .filter(is_left)
                .map(|it| (it.seq, it.envelope.clone()))
                .collect()
        }

        /// Removes the oldest of a subject until at most `count` are left.
        fn push_out(&mut self, subject: usize, count: usize, now_ns: u64) {
            let left = self.of(subject, now_ns, now_ns);
            let over = &left[..left.len().saturating_sub(count)];
            let over = self.stored.iter_mut().filter(|it| over.iter().any(|of| of.0 == it.seq));
            over.for_each(|it| it.gone_ns = Some(now_ns));
        }

        fn purge(&mut self, subject: usize, before: u64, now_ns: u64) {
            let old = |it: &&mut Stored| it.subject == subject && it.seq < before;
            let old = self.stored.iter_mut().filter(old);
            old.for_each(|it| it.gone_ns = it.gone_ns.or(Some(now_ns)));
        }

        /// The last number assigned up to `as_of_ns`.
        fn head(&self, as_of_ns: u64) -> u64 {
            let until = self.stored.iter().filter(|it| it.at_ns <= as_of_ns);
            until.map(|it| it.seq).max().unwrap_or(0)
        }
    }

    #[derive(Clone, Debug)]
    enum Op {
        Store(usize, u8, Option<u64>),
        Purge(usize, u64),
        /// The last field is the lag of the copy that answers.
        After(usize, u64, u32, u64),
        LastOf(Vec<usize>, u64),
        Since(u64),
        Pass(u64),
    }

    fn op() -> impl Strategy<Value = Op> {
        let lag = || prop_oneof![Just(0), 0..LAG_NS_MAX];
        let age = prop_oneof![2 => Just(None), 1 => (0..120_000_u64).prop_map(Some)];
        prop_oneof![
            6 => (0..3_usize, 0..40_u8, age).prop_map(|(it, id, age)| Op::Store(it, id, age)),
            1 => (0..3_usize, 0..60_u64).prop_map(|(it, before)| Op::Purge(it, before)),
            2 => (0..3_usize, 0..50_u64, 0..9_u32, lag())
                .prop_map(|(it, seq, n, lag)| Op::After(it, seq, n, lag)),
            1 => (prop::collection::vec(0..3_usize, 0..4), lag())
                .prop_map(|(of, lag)| Op::LastOf(of, lag)),
            1 => (0..120 * S).prop_map(Op::Since),
            2 => prop_oneof![0..S, 0..90 * S].prop_map(Op::Pass),
        ]
    }

    fn read(received: &[Received]) -> Vec<(u64, Bytes)> {
        let number = |it: &Received| it.stored.map_or(0, |it| it.seq);
        received.iter().map(|it| (number(it), it.envelope.clone())).collect()
    }

    const LIMITS: StreamLimits = StreamLimits { count: 0, age_ns: 100 * S };

    impl Model {
        fn store(
            &mut self,
            wish: &StoreRequest<'_>,
            subject: usize,
            count: usize,
            now_ns: u64,
        ) -> Outcome {
            let is_known = |it: &&(String, u64, u64)| it.0 == wish.id && now_ns - it.1 < 120 * S;
            if let Some((.., seq)) = self.ids.iter().rfind(is_known) {
                return Outcome::Duplicate(*seq);
            }
            let prev = self.of(subject, now_ns, now_ns).last().map_or(0, |it| it.0);
            self.seq += 1;
            self.ids.push((wish.id.to_owned(), now_ns, self.seq));
            let age_ns = wish.age.map_or(u64::MAX, |it| it.as_secs().max(1) * S);
            self.stored.push(Stored {
                subject,
                seq: self.seq,
                at_ns: now_ns,
                until_ns: now_ns + age_ns.min(LIMITS.age_ns),
                envelope: wish.envelope.clone(),
                gone_ns: None,
            });
            self.push_out(subject, count, now_ns);
            Outcome::New(Number { seq: self.seq, prev })
        }

        fn after(&self, subject: usize, seq: u64, count: u32, times: (u64, u64)) -> Fetched {
            let (mut left, head) = (self.of(subject, times.0, times.1), self.head(times.1));
            left.retain(|it| it.0 > seq);
            let is_all = left.len() <= count as usize;
            left.truncate(count as usize);
            let mut prev = 0;
            let message = |(seq, envelope): (u64, Bytes)| {
                let at_ns = self.stored[seq as usize - 1].at_ns;
                let number = Number { seq, prev: std::mem::replace(&mut prev, seq) };
                Received {
                    space: Some(Space::Store),
                    envelope,
                    stored: Some(number),
                    at_ms: unix_ms(at_ns),
                }
            };
            Fetched { messages: left.into_iter().map(message).collect(), head, is_all }
        }

        fn last_of(&self, of: &[usize], now_ns: u64, as_of_ns: u64) -> Vec<(u64, Bytes)> {
            let last = |it: &usize| self.of(*it, now_ns, as_of_ns).pop();
            let mut expected: Vec<_> = of.iter().filter_map(last).collect();
            expected.sort();
            expected.dedup();
            expected
        }
    }

    proptest! {
        #[test]
        fn it_keeps_what_a_list_of_all_says(
            count in 1..6_usize,
            ops in prop::collection::vec(op(), 0..120),
        ) {
            let mut names = Subjects::new();
            let subjects = ["c.h.0.00.a", "c.h.0.00.b", "c.h.0.00.c"].map(|it| names.of(it));
            let ids: Vec<String> = (0..40).map(|id| format!("{id}")).collect();
            let mut kept = Stream::new(StreamLimits { count, ..LIMITS }, 7);
            let (mut model, mut now_ns) = (Model::default(), 0_u64);
            for (at, op) in ops.into_iter().enumerate() {
                match op {
                    Op::Store(subject, id, age_ms) => {
                        let wish = || StoreRequest {
                            to: subjects[subject],
                            id: &ids[usize::from(id)],
                            age: age_ms.map(Duration::from_millis),
                            envelope: Bytes::from(format!("{at}")),
                        };
                        let expected = model.store(&wish(), subject, count, now_ns);
                        prop_assert_eq!(kept.store(wish(), now_ns), expected);
                    }
                    Op::Purge(subject, before) => {
                        kept.purge(subjects[subject], before, now_ns);
                        model.purge(subject, before, now_ns);
                    }
                    Op::After(subject, seq, count, lag_ns) => {
                        let as_of_ns = now_ns.saturating_sub(lag_ns);
                        let most = (count, 1_000);
                        let got = kept.after(subjects[subject], seq, most, now_ns, as_of_ns);
                        prop_assert_eq!(got, model.after(subject, seq, count, (now_ns, as_of_ns)));
                    }
                    Op::LastOf(of, lag_ns) => {
                        let as_of_ns = now_ns.saturating_sub(lag_ns);
                        let wanted: Vec<SubjectId> = of.iter().map(|it| subjects[*it]).collect();
                        let got = kept.last_of(&wanted, now_ns, as_of_ns);
                        let head = model.head(as_of_ns);
                        prop_assert_eq!((got.head, got.is_all), (head, true));
                        prop_assert_eq!(read(&got.messages), model.last_of(&of, now_ns, as_of_ns));
                    }
                    Op::Since(age_ns) => {
                        let got = kept.since(Duration::from_nanos(age_ns), now_ns);
                        prop_assert_eq!(got.is_some(), age_ns <= LIMITS.age_ns);
                        let old = |it: &&Stored| now_ns - it.at_ns > age_ns;
                        let oldest = model.stored.iter().filter(old).map(|it| it.seq).max();
                        let left = (0..3).flat_map(|it| model.of(it, now_ns, now_ns));
                        let left = left.map(|it| it.0);
                        let first = left.filter(|it| *it > oldest.unwrap_or(0)).min();
                        let expected = first.map_or(model.seq, |it| it - 1);
                        prop_assert!(got.is_none_or(|it| it == expected), "{got:?}, {expected}");
                        prop_assert!(got.is_none_or(|it| it >= oldest.unwrap_or(0)));
                    }
                    Op::Pass(ns) => now_ns += ns,
                }
            }
        }
    }
}
