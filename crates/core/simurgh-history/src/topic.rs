//! A topic whose last values are kept and numbered here, and stored once for each id.
use crate::ids::Ids;
use crate::position::{Epoch, Place, Position};
use crate::ring::{Dropped, Limits, Ring};

/// The outcome of storing a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stored {
    /// It is stored at this position.
    New(Position, Dropped),
    /// A value with its id was stored before, at this position; this one was dropped.
    Duplicate(Position),
}

/// One kept topic of a node that numbers it itself.
#[derive(Clone, Debug)]
pub struct KeptTopic<T> {
    ring: Ring<T>,
    ids: Ids,
}

// The cost of an empty topic besides its name and its place in a table.
const _: () = assert!(size_of::<KeptTopic<u64>>() <= 96);

impl<T> KeptTopic<T> {
    /// An empty topic, which allocates nothing. `seed` as in [`Ids::new`].
    pub fn new(epoch: Epoch, seed: u64) -> Self {
        Self::of(Ring::new(epoch, Place::ZERO), Ids::new(seed))
    }

    /// A topic of a ring and ids, as a save has them.
    pub const fn of(ring: Ring<T>, ids: Ids) -> Self {
        KeptTopic { ring, ids }
    }

    /// Gives a value the next place and keeps it, unless one with the same id was stored within
    /// [`Ids::AGE_MS`]; a text that [is not an id](Ids::is_id) is ignored. `bytes` is the value's
    /// size.
    pub fn store(
        &mut self,
        value: T,
        bytes: usize,
        id: Option<&str>,
        now_ms: u64,
        limits: &Limits,
    ) -> Stored {
        if let Some(place) = id.and_then(|id| self.ids.check(id, now_ms)) {
            return Stored::Duplicate(self.ring.position_of(place));
        }
        let place = Place::new(self.ring.head().seq.saturating_add(1));
        // Always after the head: 64 bits do not run out.
        let _ = self.ring.push(place, now_ms, bytes, value);
        if let Some(id) = id {
            self.ids.remember(id, place, now_ms);
        }
        let dropped = self.ring.enforce(limits, now_ms);
        Stored::New(self.ring.position_of(place), dropped)
    }

    /// The position of the value with an id, if that is remembered.
    pub fn stored(&mut self, id: &str, now_ms: u64) -> Option<Position> {
        self.ids.check(id, now_ms).map(|place| self.ring.position_of(place))
    }

    /// Drops what is too old or too much, ids too, as a sweep does.
    pub fn enforce(&mut self, limits: &Limits, now_ms: u64) -> Dropped {
        self.ids.expire(now_ms);
        self.ring.enforce(limits, now_ms)
    }

    /// As [`Ring::evict_half`].
    pub fn evict_half(&mut self) -> Dropped {
        self.ring.evict_half()
    }

    /// As [`Ring::purge`]. Ids stay, so that repeating a publish does not undo the purge.
    pub fn purge(&mut self) -> Dropped {
        self.ring.purge()
    }

    /// The ring of its values.
    pub const fn ring(&self) -> &Ring<T> {
        &self.ring
    }

    /// The ring of its values, for operations of its own.
    pub const fn ring_mut(&mut self) -> &mut Ring<T> {
        &mut self.ring
    }

    /// The ids that are remembered.
    pub const fn ids(&self) -> &Ids {
        &self.ids
    }

    /// Whether it has neither values nor ids.
    pub fn is_empty(&self) -> bool {
        self.ring.is_empty() && self.ids.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits { count: 2, bytes: 100, age_ms: 60_000 };

    fn topic() -> KeptTopic<char> {
        KeptTopic::new(Epoch::from_seed(7), 7)
    }

    fn position(seq: u64) -> Position {
        Position { epoch: Epoch::from_seed(7), place: Place::new(seq) }
    }

    #[test]
    fn stored_values_get_the_next_place() {
        let mut topic = topic();
        let none = Dropped::default();
        assert!(topic.is_empty());
        assert_eq!(topic.store('a', 1, None, 0, &LIMITS), Stored::New(position(1), none));
        assert_eq!(topic.store('b', 1, None, 0, &LIMITS), Stored::New(position(2), none));
        let overwritten = Dropped { by_count: 1, bytes: 1, ..none };
        assert_eq!(topic.store('c', 1, None, 0, &LIMITS), Stored::New(position(3), overwritten));
        let both = Dropped { by_count: 1, by_bytes: 2, bytes: 103, ..none };
        assert_eq!(topic.store('d', 101, None, 0, &LIMITS), Stored::New(position(4), both));
        assert_eq!(topic.store('e', 100, None, 0, &LIMITS), Stored::New(position(5), none));
        assert_eq!(topic.purge().purged, 1);
        assert_eq!(topic.store('f', 100, None, 0, &LIMITS), Stored::New(position(6), none));
        assert_eq!(topic.evict_half().evicted, 1);
        assert_eq!(topic.store('g', 100, None, 0, &LIMITS), Stored::New(position(7), none));
        assert_eq!(topic.ring().first().map(|entry| *entry.value), Some('g'));
        // After several that were stored at once elsewhere.
        let ring = Ring::new(Epoch::from_seed(7), Place { seq: 9, item: 3 });
        let mut topic = KeptTopic::of(ring, Ids::new(7));
        assert_eq!(topic.store('h', 1, None, 0, &LIMITS), Stored::New(position(10), none));
    }

    #[test]
    fn message_with_a_known_id_is_stored_once() {
        let mut topic = topic();
        let none = Dropped::default();
        let id = Some("order 1");
        assert_eq!(topic.store('a', 1, id, 0, &LIMITS), Stored::New(position(1), none));
        assert_eq!(topic.store('b', 1, id, 0, &LIMITS), Stored::Duplicate(position(1)));
        assert_eq!(["order 1", "order 2"].map(|id| topic.stored(id, 0)), [Some(position(1)), None]);
        assert_eq!((topic.ring().len(), topic.ids().len()), (1, 1));
        topic.purge();
        assert!(!topic.is_empty(), "its ids are there");
        let last = Ids::AGE_MS - 1;
        assert_eq!(topic.store('c', 1, id, last, &LIMITS), Stored::Duplicate(position(1)));
        assert_eq!(topic.store('d', 1, id, last + 1, &LIMITS), Stored::New(position(2), none));
        assert_eq!(
            topic.store('e', 1, Some("2"), last + 1, &LIMITS),
            Stored::New(position(3), none)
        );
        assert_eq!(topic.enforce(&LIMITS, 3 * Ids::AGE_MS).expired, 2);
        assert!(topic.is_empty());
        assert_eq!(topic.store('f', 1, Some(""), 0, &LIMITS), Stored::New(position(4), none));
        assert_eq!(topic.store('g', 1, Some(""), 0, &LIMITS), Stored::New(position(5), none));
    }
}
