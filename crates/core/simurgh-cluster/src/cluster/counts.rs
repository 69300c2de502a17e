//! What is counted of a cluster.

use crate::envelope::{EnvelopeError, Kind};
use crate::outbox::{Class, Dropped, OutboxError};

/// Since the node was started.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClusterCounts {
    /// Envelopes that were handed over to the engine, by kind in the order of [`Kind::ALL`].
    pub published: [u64; Kind::ALL.len()],
    /// Envelopes that came and were right, by kind.
    pub received: [u64; Kind::ALL.len()],
    /// Of those, broadcasts that nobody here wants.
    pub unwanted: u64,
    /// Of those, such as came a second time.
    pub again: u64,
    /// What came of nodes that are gone, or that were not heard of yet.
    pub late: u64,
    /// What came and bore this node's own id.
    pub own: u64,
    /// What came and is no envelope that is understood here: of another version, and broken.
    pub other_versions: u64,
    /// See above.
    pub broken: u64,
    /// Plain envelopes that left the outbox unsent, for its bytes and for their age.
    pub dropped: Dropped,
    /// Envelopes that were refused: control, presences, calls, and such as are too large.
    pub refused_control: u64,
    /// See above.
    pub refused_presence: u64,
    /// See above: calls.
    pub refused_calls: u64,
    /// See above.
    pub refused_large: u64,
    /// Links that were made.
    pub links: u64,
    /// How often something may have been lost, links that broke included.
    pub lost: u64,
    /// Topics whose presences were asked for again.
    pub resyncs: u64,
}

impl ClusterCounts {
    pub(super) fn publish(&mut self, kind: Kind) {
        count(&mut self.published, kind);
    }

    pub(super) fn receive(&mut self, kind: Kind) {
        count(&mut self.received, kind);
    }

    pub(super) fn add(&mut self, dropped: Dropped) {
        self.dropped.by_bytes += dropped.by_bytes;
        self.dropped.by_age += dropped.by_age;
    }

    pub(super) fn refuse(&mut self, why: OutboxError) {
        match why {
            OutboxError::Full(Class::Control) => self.refused_control += 1,
            OutboxError::Full(Class::Call) => self.refused_calls += 1,
            OutboxError::Full(_) => self.refused_presence += 1,
            OutboxError::TooLarge => self.refused_large += 1,
        }
    }

    pub(super) fn misunderstand(&mut self, error: EnvelopeError) {
        match error.is_of_another_version() {
            true => self.other_versions += 1,
            false => self.broken += 1,
        }
    }
}

fn count(counts: &mut [u64], kind: Kind) {
    if let Some(count) = counts.get_mut((kind as usize).wrapping_sub(1)) {
        *count += 1;
    }
}
