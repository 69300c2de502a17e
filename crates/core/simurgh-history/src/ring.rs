//! The last values of one topic, each at its place.
//!
//! Places grow and may have holes. Values are dropped from the front, and the ring remembers up to
//! which place and why: everything after a place is there if and only if that place is not before
//! the [`floor`](Ring::floor).
use alloc::collections::VecDeque;
use core::ops::{AddAssign, Range};

use crate::position::{Epoch, Place, Position};
use crate::reason::GapReason;
use crate::resume::Since;

/// How much one topic keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Values.
    pub count: usize,
    /// Bytes charged for their values.
    pub bytes: u64,
    /// Milliseconds: a value of this age is dropped.
    pub age_ms: u64,
}

/// How much one reader is sent: of all that it missed, or at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplayLimits {
    /// Values.
    pub count: usize,
    /// Bytes charged for the values.
    pub bytes: u64,
}

impl ReplayLimits {
    /// The limits of one answer of a home shard.
    pub const PORTION: ReplayLimits = ReplayLimits { count: 256, bytes: 64 * 1024 };
}

/// Dropped values, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Dropped {
    /// Because of their age.
    pub expired: usize,
    /// Because there were too many; newer ones stay.
    pub by_count: usize,
    /// Because they had too many bytes; newer ones stay.
    pub by_bytes: usize,
    /// By [`Ring::evict_half`].
    pub evicted: usize,
    /// By [`Ring::purge`].
    pub purged: usize,
    /// With [`Ring::lose`].
    pub lost: usize,
    /// Bytes charged for all of them.
    pub bytes: u64,
}

impl Dropped {
    /// The sum of the counts.
    pub const fn count(&self) -> usize {
        let Dropped { expired, by_count, by_bytes, evicted, purged, lost, bytes: _ } = self;
        *expired + *by_count + *by_bytes + *evicted + *purged + *lost
    }
}

impl AddAssign for Dropped {
    fn add_assign(&mut self, more: Self) {
        let Dropped { expired, by_count, by_bytes, evicted, purged, lost, bytes } = more;
        self.expired += expired;
        self.by_count += by_count;
        self.by_bytes += by_bytes;
        self.evicted += evicted;
        self.purged += purged;
        self.lost += lost;
        self.bytes += bytes;
    }
}

/// One value of a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry<'a, T> {
    /// Its place.
    pub place: Place,
    /// When it was stored: Unix milliseconds, as given by the caller.
    pub at_ms: u64,
    /// Bytes charged for it.
    pub bytes: u64,
    /// The caller's value.
    pub value: &'a T,
}

/// What a client that was away is sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Replay {
    /// Why that is not all that was missed; `None` if it is.
    pub gap: Option<GapReason>,
    /// The place that the first of them, or of what comes later, follows.
    pub after: Place,
    /// Indices of the entries: all after the position or, of a gap, the newest within the limits.
    pub entries: Range<usize>,
}

/// Some of what follows a place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Portion {
    /// Indices of the entries; empty if nothing follows.
    pub entries: Range<usize>,
    /// The place of the last of them, after which the next portion begins.
    pub through: Place,
    /// Whether more follow.
    pub more: bool,
}

/// The places that a ring remembers besides its entries, which a save has for a restart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Marks {
    /// The last place that was given.
    pub head: Place,
    /// The highest place that is no longer there.
    pub floor: Place,
    /// Why that was dropped.
    pub reason: GapReason,
    /// The head when everything was purged; [`Place::ZERO`] if never.
    pub purged: Place,
}

/// Keeps the last values of one topic. `T` is cheap to drop and to clone, such as an `Arc`.
///
/// An empty ring allocates nothing. Finding, counting and measuring what follows a place is a
/// binary search.
#[derive(Clone, Debug)]
pub struct Ring<T> {
    entries: VecDeque<Kept<T>>,
    /// Bytes of everything ever pushed before the first entry.
    begin: u64,
    // A place split into halves takes two thirds of the room.
    head_seq: u64,
    floor_seq: u64,
    purged_seq: u64,
    head_item: u16,
    floor_item: u16,
    purged_item: u16,
    reason: GapReason,
    epoch: Epoch,
}

#[derive(Clone, Debug)]
struct Kept<T> {
    seq: u64,
    /// Milliseconds, and the item in the lowest 16 bits.
    at_item: u64,
    /// Bytes of everything pushed up to here: those of any run are a difference.
    end: u64,
    value: T,
}

// Budgets: 32 bytes an entry besides its value, and less than half of the 200 that an empty topic
// may have with its name and its place in a table.
const _: () = assert!(size_of::<Kept<[u64; 0]>>() == 24);
const _: () = assert!(size_of::<Ring<u64>>() <= 80);

impl<T> Kept<T> {
    fn place(&self) -> Place {
        Place { seq: self.seq, item: self.at_item as u16 }
    }

    fn at_ms(&self) -> u64 {
        self.at_item >> 16
    }
}

impl<T> Ring<T> {
    /// An empty ring whose numbers continue after `head`. Requests for what was before get
    /// [expired](GapReason::Expired).
    pub const fn new(epoch: Epoch, head: Place) -> Self {
        Ring {
            entries: VecDeque::new(),
            begin: 0,
            head_seq: head.seq,
            floor_seq: head.seq,
            purged_seq: 0,
            head_item: head.item,
            floor_item: head.item,
            purged_item: 0,
            reason: GapReason::Expired,
            epoch,
        }
    }

    /// An empty ring with the marks of another. Push its entries next, then
    /// [`advance`](Self::advance) to the head it had.
    pub const fn restored(epoch: Epoch, marks: &Marks) -> Self {
        let mut ring = Self::new(epoch, marks.floor);
        ring.reason = marks.reason;
        ring.purged_seq = marks.purged.seq;
        ring.purged_item = marks.purged.item;
        ring
    }

    /// Keeps a value as the newest. If it exceeds the ring's limits, the next
    /// [`enforce`](Self::enforce) drops it, and numbers continue after it.
    ///
    /// `bytes` are counted up to 4 GiB, `at_ms` up to the year 10889. Returns `false`, and keeps
    /// nothing, if `place` is not after the head.
    #[must_use = "a place that is not after the head keeps nothing"]
    pub fn push(&mut self, place: Place, at_ms: u64, bytes: usize, value: T) -> bool {
        if place <= self.head() {
            return false;
        }
        let bytes = u64::from(u32::try_from(bytes).unwrap_or(u32::MAX));
        let at_item = at_ms.min(AT_MAX) << 16 | u64::from(place.item);
        let end = self.end().wrapping_add(bytes);
        let len = self.entries.len();
        if len == self.entries.capacity() {
            // By a quarter instead of doubling: most of a server's memory may be here.
            self.entries.reserve_exact((len / 4).max(len.clamp(1, SLOTS_MORE)));
        }
        self.entries.push_back(Kept { seq: place.seq, at_item, end, value });
        (self.head_seq, self.head_item) = (place.seq, place.item);
        true
    }

    /// Drops what is too old, then what exceeds the limits. Call it after each push, now and then,
    /// and before an answer if age matters there.
    pub fn enforce(&mut self, limits: &Limits, now_ms: u64) -> Dropped {
        let mut dropped = Dropped::default();
        let is_old = |kept: &Kept<T>| now_ms.saturating_sub(kept.at_ms()) >= limits.age_ms;
        while self.entries.front().is_some_and(is_old) {
            dropped.expired += 1;
            dropped.bytes += self.drop_first(GapReason::Expired);
        }
        while self.entries.len() > limits.count {
            dropped.by_count += 1;
            dropped.bytes += self.drop_first(GapReason::Overwritten);
        }
        while self.bytes() > limits.bytes {
            dropped.by_bytes += 1;
            dropped.bytes += self.drop_first(GapReason::Overwritten);
        }
        self.give_back();
        dropped
    }

    /// Drops the oldest half of its bytes, at least one value if there is any.
    pub fn evict_half(&mut self) -> Dropped {
        let mut dropped = Dropped::default();
        let half = self.bytes() / 2;
        while !self.is_empty() && (self.bytes() > half || dropped.evicted == 0) {
            dropped.evicted += 1;
            dropped.bytes += self.drop_first(GapReason::Evicted);
        }
        self.give_back();
        dropped
    }

    /// Drops everything. Positions continue, and clients with an older one are sent a gap for ever.
    pub fn purge(&mut self) -> Dropped {
        let dropped = Dropped { purged: self.len(), bytes: self.bytes(), ..Dropped::default() };
        let head = self.head();
        (self.purged_seq, self.purged_item) = (head.seq, head.item);
        self.forget_through(head, GapReason::Purged);
        dropped
    }

    /// For a topic that is numbered elsewhere: something up to `through` was missed and cannot be
    /// fetched. What came before it is dropped too, since no client can continue from there.
    pub fn lose(&mut self, through: Place) -> Dropped {
        if through <= self.floor() {
            return Dropped::default();
        }
        let lost = self.index_after(through);
        let bytes = self.bytes_of(0..lost);
        self.forget_through(through, GapReason::Lost);
        Dropped { lost, bytes, ..Dropped::default() }
    }

    /// Moves the head to a place at which nothing is kept; never back.
    pub fn advance(&mut self, head: Place) {
        if head > self.head() {
            (self.head_seq, self.head_item) = (head.seq, head.item);
        }
    }

    /// What a client that was away is sent. Call [`enforce`](Self::enforce) first, for the age.
    pub fn since(&self, since: Since, limits: &ReplayLimits) -> Replay {
        let place = match since {
            Since::Now => {
                let end = self.len();
                return Replay { gap: None, after: self.head(), entries: end..end };
            }
            Since::Newest(count) => {
                let first = self.len().saturating_sub(count as usize);
                return Replay { gap: None, ..self.gap(GapReason::TooMany, first, limits) };
            }
            Since::After(Position { epoch, place })
                if epoch == self.epoch && place <= self.head() =>
            {
                place
            }
            Since::After(_) | Since::Unknown => return self.gap(GapReason::Epoch, 0, limits),
        };
        if let Err(reason) = self.has_all_after(place) {
            return self.gap(reason, 0, limits);
        }
        let first = self.index_after(place);
        let entries = first..self.len();
        if entries.len() > limits.count {
            self.gap(GapReason::TooMany, first, limits)
        } else if self.bytes_of(entries.clone()) > limits.bytes {
            self.gap(GapReason::TooLarge, first, limits)
        } else {
            Replay { gap: None, after: place, entries }
        }
    }

    /// The next entries after a place, within the limits but at least one, for reading in parts.
    ///
    /// # Errors
    /// If something after that place was dropped meanwhile.
    pub fn portion(&self, after: Place, limits: &ReplayLimits) -> Result<Portion, GapReason> {
        self.has_all_after(after)?;
        let first = self.index_after(after);
        let before = self.end_before(first);
        // All that is before the first, and the bytes that fit after it.
        let room = before.wrapping_sub(self.begin).saturating_add(limits.bytes);
        let fits = |kept: &Kept<T>| kept.end.wrapping_sub(self.begin) <= room;
        let by_bytes = self.entries.partition_point(fits);
        let most = first.saturating_add(limits.count).min(by_bytes);
        let end = most.max(first.saturating_add(1)).min(self.len());
        let through = if end > first { self.place_before(end) } else { after };
        Ok(Portion { entries: first..end, through, more: end < self.len() })
    }

    /// Whether everything after a place is there.
    ///
    /// # Errors
    /// If something was dropped, for this reason.
    pub fn has_all_after(&self, place: Place) -> Result<(), GapReason> {
        if place < self.purged() {
            Err(GapReason::Purged)
        } else if place < self.floor() {
            Err(self.reason)
        } else {
            Ok(())
        }
    }

    /// The entry at this index, counted from the first.
    pub fn get(&self, index: usize) -> Option<Entry<'_, T>> {
        let kept = self.entries.get(index)?;
        let bytes = kept.end.wrapping_sub(self.end_before(index));
        Some(Entry { place: kept.place(), at_ms: kept.at_ms(), bytes, value: &kept.value })
    }

    /// These entries, from either end. Missing indices are left out.
    pub fn entries(&self, range: Range<usize>) -> impl DoubleEndedIterator<Item = Entry<'_, T>> {
        let end = range.end.min(self.len());
        (range.start.min(end)..end).filter_map(|index| self.get(index))
    }

    /// Index of the first entry after a place, and so the number of entries up to it.
    pub fn index_after(&self, place: Place) -> usize {
        // Most readers have nearly everything.
        match self.entries.back() {
            Some(last) if last.place() > place => {
                self.entries.partition_point(|kept| kept.place() <= place)
            }
            _ => self.len(),
        }
    }

    /// Index of the first entry at a place or after it, and so the number of entries before it.
    pub fn index_at(&self, place: Place) -> usize {
        self.entries.partition_point(|kept| kept.place() < place)
    }

    /// Bytes charged for these entries.
    pub fn bytes_of(&self, range: Range<usize>) -> u64 {
        let end = range.end.min(self.len());
        let start = range.start.min(end);
        self.end_before(end).wrapping_sub(self.end_before(start))
    }

    /// The epoch of its positions.
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// The last place that was given.
    pub fn head(&self) -> Place {
        Place { seq: self.head_seq, item: self.head_item }
    }

    /// The position of the head: a client that has it has received everything.
    pub fn position(&self) -> Position {
        self.position_of(self.head())
    }

    /// A place as a position.
    pub fn position_of(&self, place: Place) -> Position {
        Position { epoch: self.epoch, place }
    }

    /// The highest place that is no longer there; the initial head if nothing was dropped.
    pub fn floor(&self) -> Place {
        Place { seq: self.floor_seq, item: self.floor_item }
    }

    /// The places that it remembers besides its entries.
    pub fn marks(&self) -> Marks {
        let (head, floor) = (self.head(), self.floor());
        Marks { head, floor, reason: self.reason, purged: self.purged() }
    }

    /// The oldest entry.
    pub fn first(&self) -> Option<Entry<'_, T>> {
        self.get(0)
    }

    /// Bytes charged for all values.
    pub fn bytes(&self) -> u64 {
        self.end().wrapping_sub(self.begin)
    }

    /// The number of values.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether nothing is kept.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    fn purged(&self) -> Place {
        Place { seq: self.purged_seq, item: self.purged_item }
    }

    /// A gap, with the newest of the entries from `first` on that fit.
    fn gap(&self, reason: GapReason, first: usize, limits: &ReplayLimits) -> Replay {
        let by_count = self.len().saturating_sub(limits.count);
        let first = first.max(by_count).max(self.first_within(limits.bytes));
        let after = self.place_before(first);
        Replay { gap: Some(reason), after, entries: first..self.len() }
    }

    /// Index of the first entry that has no more than this many bytes from it to the end.
    fn first_within(&self, bytes: u64) -> usize {
        if self.bytes() <= bytes {
            return 0;
        }
        let end = self.end();
        self.entries.partition_point(|kept| end.wrapping_sub(kept.end) > bytes) + 1
    }

    /// The place before an entry: that of the previous entry, or the floor.
    fn place_before(&self, index: usize) -> Place {
        let before = index.checked_sub(1).and_then(|index| self.entries.get(index));
        before.map_or(self.floor(), Kept::place)
    }

    fn end_before(&self, index: usize) -> u64 {
        let before = index.checked_sub(1).and_then(|index| self.entries.get(index));
        before.map_or(self.begin, |kept| kept.end)
    }

    fn end(&self) -> u64 {
        self.entries.back().map_or(self.begin, |kept| kept.end)
    }

    /// Returns how many bytes the first entry had.
    fn drop_first(&mut self, reason: GapReason) -> u64 {
        let Some(first) = self.entries.pop_front() else { return 0 };
        let place = first.place();
        (self.floor_seq, self.floor_item, self.reason) = (place.seq, place.item, reason);
        first.end.wrapping_sub(core::mem::replace(&mut self.begin, first.end))
    }

    fn forget_through(&mut self, place: Place, reason: GapReason) {
        let gone = self.index_after(place);
        self.begin = self.end_before(gone);
        self.entries.drain(..gone);
        self.give_back();
        (self.floor_seq, self.floor_item, self.reason) = (place.seq, place.item, reason);
        self.advance(place);
    }

    fn give_back(&mut self) {
        let (len, capacity) = (self.entries.len(), self.entries.capacity());
        if len == 0 {
            self.entries = VecDeque::new();
        } else if len < capacity / 2 {
            self.entries.shrink_to(len + len / 4);
        }
    }
}

/// Small rings grow by this many slots.
const SLOTS_MORE: usize = 2;

/// The latest time that 48 bits hold.
const AT_MAX: u64 = (1 << 48) - 1;

#[cfg(test)]
mod tests;
