//! A model of a ring: a list of all that ever happened to it, which is searched for each answer.

use std::ops::Range;

use simurgh_history::{
    Dropped, Epoch, GapReason, Limits, Place, Portion, Position, Replay, ReplayLimits, Ring, Since,
};

pub(crate) const EPOCH: Epoch = Epoch::from_seed(1_234_567);

/// A value, or a place for something that was never here.
#[derive(Debug)]
struct Item {
    place: Place,
    at_ms: u64,
    bytes: u64,
    value: u64,
    gone: Option<GapReason>,
}

#[derive(Debug)]
pub(crate) struct Model {
    pub(crate) now_ms: u64,
    items: Vec<Item>,
    purged: Place,
    values: u64,
}

impl Model {
    pub(crate) fn new(head: Place) -> Self {
        let item =
            Item { place: head, at_ms: 0, bytes: 0, value: 0, gone: Some(GapReason::Expired) };
        Model { now_ms: 1_000, items: vec![item], purged: Place::ZERO, values: 0 }
    }

    /// Returns the value that is kept there.
    pub(crate) fn push(&mut self, place: Place, bytes: usize) -> u64 {
        self.values += 1;
        let (at_ms, bytes, value) = (self.now_ms, bytes as u64, self.values);
        self.items.push(Item { place, at_ms, bytes, value, gone: None });
        value
    }

    pub(crate) fn last_value(&self) -> u64 {
        self.values
    }

    pub(crate) fn enforce(&mut self, limits: &Limits) -> Dropped {
        let mut dropped = Dropped::default();
        while self.live().next().is_some_and(|it| self.now_ms - it.at_ms >= limits.age_ms) {
            dropped.expired += 1;
            dropped.bytes += self.drop_oldest(GapReason::Expired);
        }
        while self.live().count() > limits.count || self.bytes() > limits.bytes {
            match self.live().count() > limits.count {
                true => dropped.by_count += 1,
                false => dropped.by_bytes += 1,
            }
            dropped.bytes += self.drop_oldest(GapReason::Overwritten);
        }
        dropped
    }

    pub(crate) fn evict_half(&mut self) -> Dropped {
        let (half, all) = (self.bytes() / 2, self.live().count());
        while self.bytes() > half || (all > 0 && self.live().count() == all) {
            self.drop_oldest(GapReason::Evicted);
        }
        let evicted = all - self.live().count();
        let newest = self.items.iter().filter(|it| it.gone == Some(GapReason::Evicted)).rev();
        let bytes = newest.take(evicted).map(|it| it.bytes).sum();
        Dropped { evicted, bytes, ..Dropped::default() }
    }

    pub(crate) fn purge(&mut self) -> Dropped {
        self.purged = self.head();
        let (purged, bytes) = self.drop_through(self.head(), GapReason::Purged);
        Dropped { purged, bytes, ..Dropped::default() }
    }

    pub(crate) fn lose(&mut self, through: Place) -> Dropped {
        if through <= self.floor().place {
            return Dropped::default();
        }
        let (lost, bytes) = self.drop_through(through, GapReason::Lost);
        let at = self.items.partition_point(|it| it.place <= through);
        let gone = Some(GapReason::Lost);
        self.items.insert(at, Item { place: through, at_ms: 0, bytes: 0, value: 0, gone });
        Dropped { lost, bytes, ..Dropped::default() }
    }

    pub(crate) fn places(&self) -> Vec<Place> {
        self.items.iter().map(|it| it.place).collect()
    }

    pub(crate) fn check_state(&self, ring: &Ring<u64>) {
        assert_eq!((ring.head(), ring.floor()), (self.head(), self.floor().place));
        assert_eq!((ring.len(), ring.bytes()), (self.live().count(), self.bytes()));
        assert_eq!(ring.is_empty(), self.live().count() == 0);
        let entries = ring.entries(0..ring.len());
        let entries = entries.map(|it| (it.place, it.at_ms, it.bytes, *it.value));
        assert!(entries.eq(self.live().map(|it| (it.place, it.at_ms, it.bytes, it.value))));
        let marks = ring.marks();
        assert_eq!((marks.head, marks.purged), (self.head(), self.purged));
    }

    /// Asks with all limits that could matter, and reads the reported entries in portions.
    pub(crate) fn check_since(&self, ring: &Ring<u64>, since: Since) {
        let all = self.live().count();
        for count in [0, 1, all / 2, all.saturating_sub(1), all, usize::MAX] {
            let bytes = self.bytes();
            for bytes in [0, bytes / 2, bytes.saturating_sub(1), bytes, u64::MAX] {
                let limits = ReplayLimits { count, bytes };
                let replay = ring.since(since, &limits);
                assert_eq!(replay, self.expected(since, &limits), "{since:?} {limits:?} {self:?}");
                self.check_portions(ring, &replay, &limits);
            }
        }
    }

    fn check_portions(&self, ring: &Ring<u64>, replay: &Replay, limits: &ReplayLimits) {
        let (mut after, mut next) = (replay.after, replay.entries.start);
        loop {
            let Portion { entries, through, more } = ring.portion(after, limits).unwrap();
            assert_eq!(entries.start, next, "none is left out, none comes twice");
            let bytes: u64 = ring.entries(entries.clone()).map(|it| it.bytes).sum();
            assert_eq!(bytes, ring.bytes_of(entries.clone()));
            let fits = entries.len() <= limits.count && bytes <= limits.bytes;
            assert!(fits || entries.len() == 1, "{entries:?}");
            let next_bytes = ring.get(entries.end).map_or(0, |it| it.bytes);
            let could_be_more = entries.len() < limits.count && bytes + next_bytes <= limits.bytes;
            assert!(!more || !could_be_more, "{entries:?} of {limits:?}");
            (after, next) = (through, entries.end);
            assert_eq!(more, next < ring.len());
            if !more {
                break;
            }
            assert_eq!(ring.get(next - 1).map(|it| it.place), Some(through));
        }
        // All requests for a dropped value get the same reason.
        for it in self.items.iter().filter(|it| it.gone.is_some()) {
            let before = Place { seq: it.place.seq.saturating_sub(1), item: u16::MAX };
            if before < it.place {
                let expected = Err(self.why_not(before));
                assert_eq!(ring.portion(before, limits).map(|_| ()), expected);
            }
        }
    }

    fn expected(&self, since: Since, limits: &ReplayLimits) -> Replay {
        let live: Vec<&Item> = self.live().collect();
        let gap = |reason, candidates: Range<usize>| {
            let mut first = candidates.end;
            let fits = |first: usize| {
                let bytes: u64 = live[first..].iter().map(|it| it.bytes).sum();
                live.len() - first <= limits.count && bytes <= limits.bytes
            };
            while first > candidates.start && fits(first - 1) {
                first -= 1;
            }
            let after = match first.checked_sub(1) {
                Some(before) => live[before].place,
                None => self.floor().place,
            };
            Replay { gap: Some(reason), after, entries: first..live.len() }
        };
        let place = match since {
            Since::Now => {
                return Replay { gap: None, after: self.head(), entries: live.len()..live.len() };
            }
            Since::Newest(count) => {
                let first = live.len().saturating_sub(count as usize);
                return Replay { gap: None, ..gap(GapReason::TooMany, first..live.len()) };
            }
            Since::After(Position { epoch: EPOCH, place }) if place <= self.head() => place,
            _ => return gap(GapReason::Epoch, 0..live.len()),
        };
        let missed = || self.items.iter().filter(|it| it.place > place);
        if missed().any(|it| it.gone.is_some()) {
            return gap(self.why_not(place), 0..live.len());
        }
        let first = live.len() - missed().count();
        if missed().count() > limits.count {
            gap(GapReason::TooMany, first..live.len())
        } else if missed().map(|it| it.bytes).sum::<u64>() > limits.bytes {
            gap(GapReason::TooLarge, first..live.len())
        } else {
            Replay { gap: None, after: place, entries: first..live.len() }
        }
    }

    /// A purge is the reason for all positions before it; otherwise the last reason counts.
    fn why_not(&self, place: Place) -> GapReason {
        if place < self.purged {
            return GapReason::Purged;
        }
        self.floor().gone.unwrap()
    }

    fn live(&self) -> impl Iterator<Item = &Item> {
        self.items.iter().filter(|it| it.gone.is_none())
    }

    fn floor(&self) -> &Item {
        self.items.iter().rfind(|it| it.gone.is_some()).unwrap()
    }

    fn head(&self) -> Place {
        self.items.last().unwrap().place
    }

    fn bytes(&self) -> u64 {
        self.live().map(|it| it.bytes).sum()
    }

    fn drop_oldest(&mut self, reason: GapReason) -> u64 {
        let oldest = self.items.iter_mut().find(|it| it.gone.is_none()).unwrap();
        oldest.gone = Some(reason);
        oldest.bytes
    }

    fn drop_through(&mut self, place: Place, reason: GapReason) -> (usize, u64) {
        let (mut count, mut bytes) = (0, 0);
        while self.live().next().is_some_and(|it| it.place <= place) {
            count += 1;
            bytes += self.drop_oldest(reason);
        }
        (count, bytes)
    }
}
