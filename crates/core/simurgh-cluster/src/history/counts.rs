//! What is counted of kept topics.

use super::events::{StoreError, StoredAt};
use crate::durations::Durations;

/// Since the node was started.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HistoryCounts {
    /// Envelopes that were handed over to be stored.
    pub handed_over: u64,
    /// Broadcasts that the engine has confirmed.
    pub stored: u64,
    /// Of those, such as had been stored before under their publisher's id.
    pub duplicates: u64,
    /// Broadcasts of which nobody knows whether they are stored.
    pub unconfirmed: u64,
    /// Broadcasts that were refused: by the engine, for want of it, or for what they are.
    pub refused: u64,
    /// Broadcasts that were refused because too much waited.
    pub full: u64,
    /// From a store to its answer, by envelope.
    pub store_time: Durations,
    /// Topics that were filled with what the engine has.
    pub fills: u64,
    /// Holes in a topic that were filled.
    pub holes_filled: u64,
    /// What is missing of a topic and cannot be had.
    pub gaps: u64,
    /// Topics whose last number the engine was asked for.
    pub checked: u64,
    /// Of those, such as had a number that was not known here.
    pub behind: u64,
    /// Stored envelopes that are none, of another version, or of another topic whose name has the
    /// same hash: passed over.
    pub broken: u64,
    /// What the engine was to forget and has not.
    pub purges_failed: u64,
}

impl HistoryCounts {
    /// A broadcast was answered.
    pub(super) fn add(&mut self, outcome: &Result<StoredAt, StoreError>) {
        match outcome {
            Ok(at) => {
                self.stored += 1;
                self.duplicates += u64::from(at.is_duplicate);
            }
            Err(StoreError::Unconfirmed) => self.unconfirmed += 1,
            Err(StoreError::Refused(_)) => self.refused += 1,
            Err(StoreError::Full) => self.full += 1,
        }
    }
}
