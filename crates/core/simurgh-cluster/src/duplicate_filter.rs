//! Filters broadcasts of a peer that were received before.

use crate::subject::{BUCKETS, Bucket};
use simurgh_data::prelude::*;

/// The place of messages for this node alone.
const ALONE: usize = BUCKETS;

/// The highest number received of one peer's broadcasts, by bucket.
///
/// A peer whose link broke sends again what the broker may not have, all of it in the same order
/// and before anything newer; so others may receive 3, 4, 5, 3, 4, 5, 6. On one topic the numbers
/// of a peer are in order, and so they are in one bucket, since one interest at a time covers a
/// bucket: a number that is not above the highest is either a duplicate, or was lost the first time
/// and would now follow newer ones. It is dropped, to deliver at most once and in order.
///
/// It takes 32 kB, from the first message of a peer on.
///
/// ```
/// use simurgh_cluster::{Bucket, DuplicateFilter};
///
/// let (mut seen, bucket) = (DuplicateFilter::default(), Bucket::of("rooms:lobby"));
/// let numbers = [3, 5, 3, 4, 5, 6];
/// let heard = numbers.map(|n| seen.take(Some(bucket), n));
/// assert_eq!(heard, [true, true, false, false, false, true]);
/// ```
#[derive(Clone, Debug)]
pub struct DuplicateFilter {
    highest: Box<[u64; BUCKETS + 1]>,
    /// Since when the peer is none, or none yet.
    pub(crate) gone_ns: Option<u64>,
}

impl Default for DuplicateFilter {
    fn default() -> Self {
        Self { highest: Box::new([0; BUCKETS + 1]), gone_ns: None }
    }
}

impl DuplicateFilter {
    /// Records a broadcast of a topic in this bucket, or one for this node alone. Returns whether
    /// it is new.
    pub fn take(&mut self, bucket: Option<Bucket>, n: u64) -> bool {
        let at = bucket.map_or(ALONE, Bucket::number);
        let Some(highest) = self.highest.get_mut(at) else { return true };
        let is_new = n > *highest;
        *highest = n.max(*highest);
        is_new
    }

    /// Lowers numbers above that of a heartbeat which the peer sends for the first time. It has not
    /// used them yet: they were forged, and its next broadcasts would count as duplicates.
    pub fn limit(&mut self, n: u64) {
        for highest in self.highest.iter_mut() {
            *highest = n.min(*highest);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_peer_costs_32_kilobytes() {
        let filter = DuplicateFilter::default();
        assert_eq!(size_of_val(&filter) + size_of_val(&*filter.highest), 32_768 + 32);
    }

    proptest! {
        /// Whatever is lost, and whenever links break: each bucket is received in order, and
        /// nothing is missing that was neither lost nor sent again.
        #[test]
        fn messages_resent_after_a_broken_link_are_delivered_once_in_order(
            losses in prop::collection::vec(0..10u8, 1..300),
            breaks in prop::collection::btree_set(1..300usize, 0..6),
        ) {
            let (mut seen, mut heard) = (DuplicateFilter::default(), vec![Vec::new(); 3]);
            let bucket = |n: u64| Bucket::new((n % 3) as u16);
            let mut hears = |n: u64| {
                if seen.take(Some(bucket(n)), n) {
                    heard[(n % 3) as usize].push(n);
                }
            };
            let mut arrived = Vec::new();
            for (at, loss) in losses.iter().enumerate() {
                let n = at as u64 + 1;
                if *loss > 0 {
                    arrived.push(n);
                    hears(n);
                }
                if breaks.contains(&at) {
                    (n.saturating_sub(50).max(1)..=n).for_each(&mut hears);
                }
            }
            for (of, numbers) in heard.iter().enumerate() {
                prop_assert!(numbers.is_sorted_by(|one, other| one < other), "{:?}", numbers);
                let own = arrived.iter().filter(|n| **n % 3 == of as u64);
                for n in own {
                    prop_assert!(numbers.contains(n), "{} is missing", n);
                }
            }
        }
    }

    #[test]
    fn buckets_and_direct_messages_are_numbered_separately() {
        let mut seen = DuplicateFilter::default();
        assert!(seen.take(Some(Bucket::new(0)), 9) && seen.take(None, 5));
        assert!(seen.take(Some(Bucket::new(4095)), 3));
        assert!(!seen.take(None, 5) && seen.take(None, 6));
        assert!(!seen.take(Some(Bucket::new(0)), 9));
    }

    #[test]
    fn forged_number_is_lowered_by_the_next_heartbeat() {
        let (mut seen, bucket) = (DuplicateFilter::default(), Some(Bucket::new(7)));
        assert!(seen.take(bucket, 5) && seen.take(bucket, 1_000_000) && seen.take(None, 9));
        assert!(!seen.take(bucket, 6));
        seen.limit(10);
        assert!(!seen.take(bucket, 10) && seen.take(bucket, 11));
        assert!(!seen.take(None, 9) && seen.take(None, 10));
    }
}
