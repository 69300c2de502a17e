//! Bytes of broadcasts and of changes of presences in flight, topic by topic.
//!
//! A *flow* is what one shard's members cause on one topic. The bytes of a broadcast count until it
//! has been written for most readers of every shard, those of a change of presences until the
//! topic's members are sent the diff. While a flow has more than its share in flight, sockets that
//! publish into it are not read; publishers of other topics are not affected.

use core::sync::atomic::AtomicUsize;
use core::sync::atomic::Ordering::Relaxed;

use crate::broadcast::Broadcast;
use simurgh_data::prelude::*;

/// Bytes of one topic's broadcasts from one shard that are in flight.
#[derive(Debug, Default)]
pub struct Flow {
    bytes: AtomicUsize,
}

impl Flow {
    /// Bytes in flight now.
    #[inline]
    pub fn bytes(&self) -> usize {
        self.bytes.load(Relaxed)
    }

    /// Counts the bytes of a broadcast until the returned charge and its clones are dropped.
    #[inline]
    pub fn charge(self: &Arc<Self>, bytes: usize) -> Arc<Charge> {
        self.bytes.fetch_add(bytes, Relaxed);
        Arc::new(Charge { flow: Arc::clone(self), bytes })
    }
}

/// The bytes of a broadcast, or of a change of presences, in its flow.
#[derive(Debug)]
pub struct Charge {
    flow: Arc<Flow>,
    bytes: usize,
}

impl Charge {
    /// How many bytes it counts.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for Charge {
    #[inline]
    fn drop(&mut self) {
        self.flow.bytes.fetch_sub(self.bytes, Relaxed);
    }
}

/// A broadcast on its way through a shard.
#[derive(Debug)]
pub struct Posted {
    broadcast: Arc<Broadcast>,
    /// `None` if no socket has published it.
    charge: Option<Arc<Charge>>,
}

impl Posted {
    /// A broadcast for one of all shards; `charge` counts it in its publisher's flow.
    #[inline]
    pub fn new(broadcast: Arc<Broadcast>, charge: Option<Arc<Charge>>) -> Self {
        Self { broadcast, charge }
    }

    /// The broadcast.
    #[inline]
    pub fn broadcast(&self) -> &Arc<Broadcast> {
        &self.broadcast
    }

    /// Its charge in its publisher's flow; dropping it releases the bytes.
    #[inline]
    pub fn into_charge(self) -> Option<Arc<Charge>> {
        self.charge
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_counted_until_the_last_shard_drops_its_charge() {
        let flow = Arc::<Flow>::default();
        let charge = flow.charge(100);
        let elsewhere = Arc::clone(&charge);
        drop(charge);
        assert_eq!(flow.bytes(), 100);
        drop(elsewhere);
        assert_eq!(flow.bytes(), 0);
    }
}
