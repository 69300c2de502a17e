//! The last positions of topics without messages: without them a client that returns to a quiet
//! topic could not be told that it has missed nothing.

use crate::seeded_state::HashMap;
use core::hash::BuildHasher;
use simurgh_data::prelude::*;

use simurgh_history::{Epoch, Place, Position};

use crate::seeded_state::SeededState;

/// Topics that are remembered: a third of a megabyte for all of them.
const TOPICS_MAX: usize = 4096;

/// The heads of recently forgotten topics, by seeded hashes of their names: topics with the same
/// hash count as one.
pub(super) struct LastPositions {
    epoch: Epoch,
    hasher: SeededState,
    heads: HashMap<u64, Position>,
    /// In the order in which they were first forgotten.
    order: VecDeque<u64>,
    /// The last place of all topics that are not remembered.
    floor: Place,
}

impl LastPositions {
    pub(super) fn new(epoch: Epoch, seed: u64) -> Self {
        let (heads, order) = Default::default();
        Self { epoch, hasher: SeededState::new(seed), heads, order, floor: Place::ZERO }
    }

    /// The epoch of topics that begin, and the last place of all that are forgotten.
    pub(super) fn through(&self) -> (Epoch, Place) {
        let own = self.heads.values().filter(|head| head.epoch == self.epoch);
        (self.epoch, own.fold(self.floor, |last, head| last.max(head.place)))
    }

    /// Continues that of another process.
    pub(super) fn restore(&mut self, epoch: Epoch, through: Place) {
        (self.epoch, self.floor) = (epoch, through);
    }

    pub(super) fn note(&mut self, name: &str, head: Position) {
        let hash = self.hasher.hash_one(name);
        let known = self.heads.insert(hash, head);
        match known {
            // It may be another topic's with the same hash: the later position counts.
            Some(known) if known.epoch == head.epoch && known.place > head.place => {
                self.heads.insert(hash, known);
            }
            Some(_) => {}
            None => self.order.push_back(hash),
        }
        if self.order.len() > TOPICS_MAX
            && let Some(oldest) = self.order.pop_front().and_then(|it| self.heads.remove(&it))
            && oldest.epoch == self.epoch
        {
            self.floor = self.floor.max(oldest.place);
        }
    }

    /// All topics that are not kept may have had messages up to this place.
    pub(super) fn forget_all(&mut self, floor: Place) {
        (self.heads, self.order) = Default::default();
        self.floor = self.floor.max(floor);
    }

    /// The last position that a topic of this name may have had: nothing was kept behind it.
    pub(super) fn head(&self, name: &str) -> Position {
        let unknown_position = Position { epoch: self.epoch, place: self.floor };
        if self.heads.is_empty() {
            return unknown_position;
        }
        self.heads.get(&self.hasher.hash_one(name)).copied().unwrap_or(unknown_position)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(epoch: u64, seq: u64) -> Position {
        Position { epoch: Epoch::from_seed(epoch), place: Place::new(seq) }
    }

    #[test]
    fn last_forgotten_topics_keep_their_positions() {
        let mut forgotten = LastPositions::new(Epoch::from_seed(1), 7);
        assert_eq!(forgotten.head("a"), at(1, 0));
        forgotten.note("a", at(1, 5));
        forgotten.note("b", at(1, 3));
        forgotten.note("a", at(1, 9));
        assert_eq!(["a", "b", "c"].map(|it| forgotten.head(it)), [at(1, 9), at(1, 3), at(1, 0)]);
        for n in 0..TOPICS_MAX as u64 {
            forgotten.note(&format!("t{n}"), at(1, 10 + n));
        }
        assert_eq!(forgotten.head("c"), at(1, 9), "what two others had");
        assert_eq!(forgotten.head("a"), at(1, 9), "which may have been its own");
        assert_eq!(forgotten.head("t0"), at(1, 10));
        assert_eq!((forgotten.heads.len(), forgotten.order.len()), (TOPICS_MAX, TOPICS_MAX));
    }

    #[test]
    fn positions_of_an_earlier_start_are_invalid() {
        let mut forgotten = LastPositions::new(Epoch::from_seed(1), 7);
        forgotten.note("old", at(2, 1_000_000));
        assert_eq!(forgotten.head("old"), at(2, 1_000_000));
        for n in 0..TOPICS_MAX as u64 {
            forgotten.note(&format!("t{n}"), at(1, 1));
        }
        assert_eq!(forgotten.head("old"), at(1, 0), "who comes back is told of another epoch");
    }
}
