//! The counters of a cluster's node.

use crate::envelope::{EnvelopeError, Kind};
use crate::outbox::{Class, Dropped, OutboxError};

/// Counters since the node was started.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClusterCounts {
    /// Envelopes handed to the broker, by kind in the order of [`Kind::ALL`].
    pub published: [u64; Kind::ALL.len()],
    /// Valid envelopes received, by kind.
    pub received: [u64; Kind::ALL.len()],
    /// Of those, broadcasts without members on this node.
    pub unwanted: u64,
    /// Duplicates of envelopes.
    pub again: u64,
    /// Messages of nodes that are gone, or not known yet.
    pub late: u64,
    /// Envelopes with this node's own id.
    pub own: u64,
    /// Envelopes of another version.
    pub other_versions: u64,
    /// Envelopes that are malformed.
    pub broken: u64,
    /// Plain envelopes dropped from the outbox, by reason.
    pub dropped: Dropped,
    /// Control envelopes for which the outbox had no room.
    pub refused_control: u64,
    /// Presence envelopes for which the outbox had no room.
    pub refused_presence: u64,
    /// Envelopes of calls for which the outbox had no room.
    pub refused_calls: u64,
    /// Envelopes that are too large.
    pub refused_large: u64,
    /// Links made.
    pub links: u64,
    /// How often messages may have been lost, broken links included.
    pub lost: u64,
    /// Topics whose presences were requested again.
    pub resyncs: u64,
}

impl ClusterCounts {
    pub(super) fn refuse(&mut self, why: OutboxError) {
        match why {
            OutboxError::Full(Class::Control) => self.refused_control += 1,
            OutboxError::Full(Class::Call) => self.refused_calls += 1,
            OutboxError::Full(_) => self.refused_presence += 1,
            OutboxError::TooLarge => self.refused_large += 1,
        }
    }

    pub(super) fn count_unreadable(&mut self, error: EnvelopeError) {
        match error.is_of_another_version() {
            true => self.other_versions += 1,
            false => self.broken += 1,
        }
    }
}

pub(super) fn count(counts: &mut [u64], kind: Kind) {
    if let Some(count) = counts.get_mut((kind as usize).wrapping_sub(1)) {
        *count += 1;
    }
}
