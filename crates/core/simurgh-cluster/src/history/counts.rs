//! The counters of topics with a history.

use simurgh_history::{NotKept, StoredAt};

use crate::durations::Durations;

/// Counters since the node was started.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HistoryCounts {
    /// Envelopes handed over to be stored.
    pub handed_over: u64,
    /// Broadcasts that the broker has confirmed.
    pub stored: u64,
    /// Of those, stores of an id that was stored before.
    pub duplicates: u64,
    /// Broadcasts that may be stored or not.
    pub unconfirmed: u64,
    /// Broadcasts that were refused: by the broker, without a broker, or as invalid.
    pub refused: u64,
    /// Broadcasts that were refused because too much waited.
    pub full: u64,
    /// From a store to its answer, by envelope.
    pub store_time: Durations,
    /// Topics that were filled with what the broker has.
    pub fills: u64,
    /// Holes in a topic that were filled.
    pub holes_filled: u64,
    /// Gaps in a topic that could not be filled.
    pub gaps: u64,
    /// Checks of a topic's last number.
    pub checked: u64,
    /// Of those, checks that found a number that was not known here.
    pub behind: u64,
    /// Stored envelopes that are malformed, of another version, or of another topic whose name has
    /// the same hash; they are skipped.
    pub broken: u64,
    /// Purges that the broker has not done.
    pub purges_failed: u64,
}

impl HistoryCounts {
    pub(super) fn add(&mut self, outcome: &Result<StoredAt, NotKept>) {
        match outcome {
            Ok(at) => {
                self.stored += 1;
                self.duplicates += u64::from(at.is_duplicate);
            }
            Err(NotKept::Unconfirmed) => self.unconfirmed += 1,
            Err(NotKept::Refused(_)) => self.refused += 1,
            Err(NotKept::Full) => self.full += 1,
            // Such a broadcast never comes to the queue.
            Err(NotKept::LocalOnly) => {}
        }
    }
}
