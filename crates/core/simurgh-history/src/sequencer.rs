//! The numbers of one topic: given here, or judged if a broker gives them.
use crate::position::Place;

/// How far the numbers of one topic have come.
///
/// A node on its own gives them: [`next`](Self::next). With a broker, the broker gives them, in
/// sequence for all topics together, so that those of one topic have holes. Every message then
/// comes with the number of the one before it in its topic, from which a node
/// [judges](Self::arrive) whether it has missed any:
///
/// ```
/// use simurgh_history::{Arrival, Sequencer};
///
/// let mut sequencer = Sequencer::new(Some(10));
/// assert_eq!(sequencer.arrive(17, Some(10), true), Arrival::InOrder);
/// sequencer.advance(17);
/// assert_eq!(sequencer.arrive(17, Some(10), true), Arrival::Known);
/// assert_eq!(sequencer.arrive(31, Some(25), true), Arrival::Hole { after: Some(17) });
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sequencer {
    last: Option<u64>,
}

/// How a message with a number given elsewhere follows those before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// The next one: keep it and [advance](Sequencer::advance) to it.
    InOrder,
    /// It was here before: drop it.
    Known,
    /// Something is missing before it: fetch that, and keep this one waiting.
    Hole {
        /// The last number that is known, if any: what follows it is missing.
        after: Option<u64>,
    },
}

impl Sequencer {
    /// A topic with this last number, 0 if there is none yet; `None` if it is unknown: then
    /// everything that arrives has a hole before it.
    pub const fn new(last: Option<u64>) -> Self {
        Sequencer { last }
    }

    /// For a node that numbers: the next message's place, now the last. It wraps after 2^64.
    pub const fn next(&mut self) -> Place {
        let next = match self.last {
            Some(last) => last.saturating_add(1),
            None => 1,
        };
        self.last = Some(next);
        Place::new(next)
    }

    /// For a topic that a broker numbers: judges a message of the same epoch. `previous` is the
    /// number of the topic's message before it, `None` if there was none or the broker has removed
    /// it.
    ///
    /// `synced` means that nothing can have been missed since the last number, whatever `previous`
    /// is, so that a message whose predecessors were removed counts as the next.
    pub const fn arrive(&self, seq: u64, previous: Option<u64>, synced: bool) -> Arrival {
        let Some(last) = self.last else { return Arrival::Hole { after: None } };
        if seq <= last {
            return Arrival::Known;
        }
        let previous = match previous {
            Some(previous) => previous,
            None => 0,
        };
        // The one before is earlier than the last known, as those between were removed.
        let is_next = previous == last || (previous < last && synced);
        if is_next { Arrival::InOrder } else { Arrival::Hole { after: Some(last) } }
    }

    /// Where a broker numbers: everything up to this number is here or lost. Never goes back.
    pub const fn advance(&mut self, seq: u64) {
        match self.last {
            Some(last) if seq <= last => {}
            _ => self.last = Some(seq),
        }
    }

    /// The last number, if one is known.
    pub const fn last(&self) -> Option<u64> {
        self.last
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOLE: Arrival = Arrival::Hole { after: Some(5) };

    #[test]
    fn numbers_follow_each_other_from_1() {
        for last in [None, Some(0)] {
            let mut sequencer = Sequencer::new(last);
            assert_eq!(sequencer.next(), Place::new(1));
            assert_eq!(sequencer.next(), Place::new(2));
            assert_eq!(sequencer.last(), Some(2));
        }
        let mut last = Sequencer::new(Some(u64::MAX - 1));
        assert_eq!([last.next(), last.next()], [Place::new(u64::MAX); 2]);
    }

    #[test]
    fn what_arrives_is_judged_by_the_one_before_it() {
        let sequencer = Sequencer::new(Some(5));
        for (seq, previous, synced, expected) in [
            (4, Some(3), true, Arrival::Known),
            (5, Some(4), true, Arrival::Known),
            (5, Some(5), false, Arrival::Known),
            (6, Some(5), false, Arrival::InOrder),
            (900, Some(5), false, Arrival::InOrder),
            (900, Some(6), true, HOLE),
            (900, Some(899), true, HOLE),
            (900, Some(4), true, Arrival::InOrder),
            (900, Some(4), false, HOLE),
            (900, None, true, Arrival::InOrder),
            (900, None, false, HOLE),
            (6, None, false, HOLE),
        ] {
            let judged = sequencer.arrive(seq, previous, synced);
            assert_eq!(judged, expected, "{seq} after {previous:?}, synced {synced}");
        }
    }

    #[test]
    fn nothing_is_in_order_before_a_number_is_known() {
        let mut sequencer = Sequencer::new(None);
        let unknown = Arrival::Hole { after: None };
        assert_eq!(sequencer.arrive(1, None, true), unknown);
        assert_eq!(sequencer.arrive(0, None, true), unknown);
        sequencer.advance(0);
        assert_eq!(sequencer.arrive(1, None, false), Arrival::InOrder, "the first of all");
        assert_eq!(sequencer.arrive(9, Some(1), true), Arrival::Hole { after: Some(0) });
        sequencer.advance(9);
        sequencer.advance(8);
        assert_eq!(sequencer.last(), Some(9), "not back");
        sequencer.advance(10);
        assert_eq!(sequencer.last(), Some(10));
    }
}
