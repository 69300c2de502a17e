//! The broker's storage: one stream over all subjects, with a count and an age for each.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use bytes::Bytes;
use simurgh_cluster::adapter::{ID_SECONDS, LAST_OF_MAX, Number};
use simurgh_cluster::{Fetched, Received, Space, Subject};

/// The most by which a copy lags behind.
const LAG_NS_MAX: u64 = 10_000_000_000;
/// The broker's clock at time 0 of the network: 2026-01-01.
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

#[derive(Debug, Default)]
pub(super) struct Stream {
    pub(super) limits: StreamLimits,
    pub(super) epoch: u64,
    /// When each number was assigned; the first number is 1.
    times: Vec<u64>,
    subjects: BTreeMap<Box<str>, VecDeque<Entry>>,
    /// The last numbers by the ids of their envelopes.
    ids: BTreeMap<Box<str>, u64>,
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

impl Stream {
    pub(super) fn new(limits: StreamLimits, epoch: u64) -> Self {
        Self { limits, epoch, ..Self::default() }
    }

    /// The last number in a copy that has what was stored up to `as_of_ns`; 0 for none.
    pub(super) fn head(&self, as_of_ns: u64) -> u64 {
        self.times.partition_point(|at_ns| *at_ns <= as_of_ns) as u64
    }

    /// Sets the storage back to what is known of an earlier time, and begins a new epoch.
    pub(super) fn set_back(&mut self, then_ns: u64, epoch: u64) {
        let head = self.head(then_ns);
        self.times.truncate(head as usize);
        self.epoch = epoch;
        for entries in self.subjects.values_mut() {
            entries.retain(|it| it.seq <= head);
            entries.iter_mut().for_each(|it| it.gone_ns = it.gone_ns.filter(|it| *it <= then_ns));
        }
        self.ids.retain(|_, seq| *seq <= head);
    }

    /// Stores an envelope, which is to be published.
    ///
    /// # Errors
    /// The number of the envelope that was stored with this id.
    pub(super) fn store(
        &mut self,
        (to, id): (&str, &str),
        age: Option<Duration>,
        envelope: Bytes,
        now_ns: u64,
    ) -> Result<Number, u64> {
        let at_ns = |seq: u64| self.times.get(seq as usize - 1).copied().unwrap_or(0);
        let is_known = |seq: &u64| now_ns.saturating_sub(at_ns(*seq)) < ID_SECONDS * 1_000_000_000;
        if let Some(seq) = self.ids.get(id).copied().filter(is_known) {
            return Err(seq);
        }
        self.times.push(now_ns);
        let seq = self.times.len() as u64;
        self.ids.insert(id.into(), seq);
        let entries = self.subjects.entry(to.into()).or_default();
        forget_old(entries, now_ns);
        let prev = present(entries).last().map_or(0, |it| it.seq);
        let whole_seconds = |age: Duration| age.as_secs().max(1).saturating_mul(1_000_000_000);
        let age_ns = age.map_or(u64::MAX, whole_seconds).min(self.limits.age_ns);
        // Nothing of the log of notices is removed.
        let count = if is_log(to) { usize::MAX } else { self.limits.count.max(1) };
        let until_ns = if is_log(to) { u64::MAX } else { now_ns.saturating_add(age_ns) };
        entries.push_back(Entry { seq, at_ns: now_ns, until_ns, gone_ns: None, envelope });
        let over = present(entries).count().saturating_sub(count);
        let there = entries.iter_mut().filter(|it| it.gone_ns.is_none());
        there.take(over).for_each(|it| it.gone_ns = Some(now_ns));
        Ok(Number { seq, prev })
    }

    /// The messages behind a number on a subject, at most so many and so many bytes but at least
    /// one, from a copy that has what was stored up to `as_of_ns`.
    pub(super) fn after(
        &mut self,
        of: &str,
        seq: u64,
        (count, bytes): (u32, usize),
        now_ns: u64,
        as_of_ns: u64,
    ) -> Fetched {
        let head = self.head(as_of_ns);
        let entries = self.subjects.entry(of.into()).or_default();
        forget_old(entries, now_ns);
        let is_meant = |it: &&Entry| it.seq > seq && it.seq <= head && it.is_there(as_of_ns);
        let there = || entries.iter().filter(is_meant);
        let (mut prev, mut sum) = (0, 0);
        let wanted = there().take(count as usize).take_while(|it| {
            let is_first = sum == 0;
            sum += it.envelope.len().max(1);
            is_first || sum <= bytes
        });
        let received = wanted.map(|it| it.received(std::mem::replace(&mut prev, it.seq)));
        let messages: Vec<Received> = received.collect();
        let is_all = messages.len() == there().count();
        Fetched { messages, head, is_all }
    }

    /// The last message on each of these subjects, oldest first, from such a copy.
    pub(super) fn last_of(&mut self, subjects: &[Subject], now_ns: u64, as_of_ns: u64) -> Fetched {
        let head = self.head(as_of_ns);
        let mut messages = Vec::new();
        for of in subjects.iter().take(LAST_OF_MAX) {
            let Some(entries) = self.subjects.get_mut(of.as_str()) else { continue };
            forget_old(entries, now_ns);
            let known = entries.iter().rfind(|it| it.seq <= head && it.is_there(as_of_ns));
            messages.extend(known.map(|it| it.received(0)));
        }
        messages.sort_by_key(|it: &Received| it.stored.map(|it| it.seq));
        messages.dedup_by_key(|it| it.stored.map(|it| it.seq));
        Fetched { messages, head, is_all: true }
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
            present(entries).find(is_young).map(|it| it.seq)
        });
        Some(young.min().map_or(self.times.len() as u64, |it| it - 1))
    }

    /// Removes the stored messages of a subject before a number; numbers do not restart.
    pub(super) fn purge(&mut self, subject: &str, before: u64, now_ns: u64) {
        let entries = self.subjects.get_mut(subject).into_iter().flatten();
        let old = entries.filter(|it| it.seq < before);
        old.for_each(|it| it.gone_ns = it.gone_ns.or(Some(now_ns)));
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

/// Whether a subject is of the log of notices.
pub(super) fn is_log(subject: &str) -> bool {
    subject.split('.').nth(1) == Some("l")
}

fn present(entries: &VecDeque<Entry>) -> impl Iterator<Item = &Entry> {
    entries.iter().filter(|it| it.gone_ns.is_none())
}

/// Forgets entries that have expired, or that every copy has removed.
fn forget_old(entries: &mut VecDeque<Entry>, now_ns: u64) {
    let lags_ns = now_ns.saturating_sub(LAG_NS_MAX);
    entries.retain(|it| it.until_ns > now_ns && it.gone_ns.is_none_or(|it| it >= lags_ns));
}
