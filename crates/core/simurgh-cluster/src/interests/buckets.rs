//! The wanted topics of each bucket: topic by topic, or as a whole.

use alloc::collections::BTreeSet;
use core::iter;

use super::InterestsConfig;
use super::topics::NIL;
use crate::subject::{BUCKETS, Bucket};
use simurgh_data::prelude::*;

/// One bucket. Arrays of two are by space: broadcasts, presences.
#[derive(Clone, Debug)]
pub(super) struct BucketState {
    pub(super) first: u32,
    pub(super) wanted: [u32; 2],
    /// Since when exact subscriptions would cost no more than whole ones.
    quiet_since_ns: u64,
    pub(super) is_whole: bool,
    /// It has changed between exact and whole since the last update of the adapter, perhaps more
    /// than once, so the adapter's subscriptions to its topics may be wrong.
    pub(super) was_switched: bool,
    /// Whether the adapter subscribes to all of it.
    pub(super) is_subscribed: [bool; 2],
    is_dirty: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Held {
    exact: u32,
    whole: u32,
}

impl BucketState {
    const NEW: Self = Self {
        first: NIL,
        wanted: [0; 2],
        quiet_since_ns: 0,
        is_whole: false,
        was_switched: false,
        is_subscribed: [false; 2],
        is_dirty: false,
    };

    pub(super) const fn wants_whole(&self, space: usize) -> bool {
        self.is_whole && self.wanted[space] > 0
    }

    const fn held(&self) -> Held {
        let [broadcast, presence] = self.wanted;
        if self.is_whole {
            Held { exact: 0, whole: (broadcast > 0) as u32 + (presence > 0) as u32 }
        } else {
            Held { exact: broadcast + presence, whole: 0 }
        }
    }

    const fn is_quiet(&self) -> bool {
        self.is_whole && self.wanted[0] <= 1 && self.wanted[1] <= 1
    }

    fn differs_from_adapter(&self) -> bool {
        let wants = [self.wants_whole(0), self.wants_whole(1)];
        wants != self.is_subscribed || self.was_switched
    }
}

#[derive(Debug)]
pub(super) struct Buckets {
    all: Box<[BucketState]>,
    by_exact: BTreeSet<(u32, u16)>,
    /// Whole buckets that could be exact, and since when.
    quiet: BTreeSet<(u64, u16)>,
    exact: usize,
    whole: usize,
    whole_buckets: usize,
    few_since_ns: Option<u64>,
    exact_max: usize,
    whole_for_ns: u64,
    dirty: Vec<u16>,
}

impl Buckets {
    pub(super) fn new(config: &InterestsConfig) -> Self {
        Self {
            all: vec![BucketState::NEW; BUCKETS].into(),
            by_exact: BTreeSet::new(),
            quiet: BTreeSet::new(),
            exact: 0,
            whole: 0,
            whole_buckets: 0,
            few_since_ns: Some(0),
            exact_max: config.exact_max,
            whole_for_ns: config.whole_for_ns,
            dirty: Vec::new(),
        }
    }

    pub(super) const fn held(&self) -> (usize, usize) {
        (self.exact, self.whole)
    }

    pub(super) const fn whole_buckets(&self) -> usize {
        self.whole_buckets
    }

    #[inline]
    pub(super) fn get(&self, bucket: Bucket) -> &BucketState {
        &self.all[bucket.number()]
    }

    pub(super) fn get_mut(&mut self, bucket: Bucket) -> &mut BucketState {
        &mut self.all[bucket.number()]
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (Bucket, &BucketState)> {
        iter::zip(0.., &self.all).map(|(at, it)| (Bucket::new(at), it))
    }

    /// One more topic is wanted in a space. If that is too many, the fullest buckets become whole.
    pub(super) fn add(&mut self, bucket: Bucket, space: usize, now_ns: u64) {
        self.change(bucket, now_ns, |it| it.wanted[space] += 1);
        while self.is_too_much() {
            let Some(&(_, fullest)) = self.by_exact.last() else { break };
            self.change(Bucket::new(fullest), now_ns, |it| it.is_whole = true);
        }
    }

    pub(super) fn remove(&mut self, bucket: Bucket, space: usize, now_ns: u64) {
        self.change(bucket, now_ns, |it| it.wanted[space] -= 1);
    }

    /// Makes a whole bucket exact again, if one is due. Returns whether it did.
    pub(super) fn narrow(&mut self, now_ns: u64) -> bool {
        let Some(&(_, at)) = self.quiet.first() else { return false };
        let is_due = self.narrow_ns().is_some_and(|due_ns| due_ns <= now_ns);
        if is_due {
            self.change(Bucket::new(at), now_ns, |it| it.is_whole = false);
        }
        is_due
    }

    /// When the next bucket becomes exact, if nothing changes.
    pub(super) fn narrow_ns(&self) -> Option<u64> {
        let (quiet_since_ns, _) = self.quiet.first()?;
        let since_ns = self.few_since_ns?.max(*quiet_since_ns);
        Some(since_ns.saturating_add(self.whole_for_ns))
    }

    /// Takes the buckets that may differ from the adapter's subscriptions.
    pub(super) fn take_dirty(&mut self) -> Vec<u16> {
        for at in &self.dirty {
            self.all[usize::from(*at)].is_dirty = false;
        }
        core::mem::take(&mut self.dirty)
    }

    /// Whether there are too many exact subscriptions, or too many in total. Making the fullest
    /// bucket whole reduces the total, too: beyond that bound the exact buckets have more than two
    /// subscriptions each on average, so the fullest has three or more, and two when whole.
    const fn is_too_much(&self) -> bool {
        let twice = self.exact_max.saturating_mul(2);
        let held_max = if twice > 2 * BUCKETS { twice } else { 2 * BUCKETS };
        self.exact > self.exact_max || self.exact + self.whole > held_max
    }

    fn change(&mut self, bucket: Bucket, now_ns: u64, change: impl FnOnce(&mut BucketState)) {
        let at = bucket.number() as u16;
        let part = &mut self.all[bucket.number()];
        let (before, was_whole) = (part.held(), part.is_whole);
        let quiet_since_ns = part.is_quiet().then_some(part.quiet_since_ns);
        change(part);
        if part.wanted == [0; 2] {
            part.is_whole = false;
        }
        part.was_switched |= part.is_whole != was_whole;
        match (quiet_since_ns, part.is_quiet()) {
            (None, true) => {
                part.quiet_since_ns = now_ns;
                self.quiet.insert((now_ns, at));
            }
            (Some(since_ns), false) => {
                self.quiet.remove(&(since_ns, at));
            }
            _ => {}
        }
        let after = part.held();
        if !part.is_dirty && part.differs_from_adapter() {
            part.is_dirty = true;
            self.dirty.push(at);
        }
        self.whole_buckets += usize::from(part.is_whole);
        self.whole_buckets -= usize::from(was_whole);
        self.count(at, before, after, now_ns);
    }

    fn count(&mut self, at: u16, before: Held, after: Held, now_ns: u64) {
        if before.exact != after.exact {
            self.by_exact.remove(&(before.exact, at));
            if after.exact > 0 {
                self.by_exact.insert((after.exact, at));
            }
        }
        self.exact = self.exact + after.exact as usize - before.exact as usize;
        self.whole = self.whole + after.whole as usize - before.whole as usize;
        let is_few = self.exact < self.exact_max / 2;
        self.few_since_ns = is_few.then(|| self.few_since_ns.unwrap_or(now_ns));
    }
}
