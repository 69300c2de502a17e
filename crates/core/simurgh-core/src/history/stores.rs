//! Unanswered requests of a shard to the broker to keep or forget.

use alloc::collections::BTreeMap;

use simurgh_channel::engine::NUMBERS_APART;
use simurgh_channel::{Charge, KeptFor};

use simurgh_data::prelude::*;

const STORES_MAX: usize = 1 << 16;

#[derive(Debug)]
pub(super) struct Pending {
    pub(super) kept_for: KeptFor,
    pub(super) charge: Option<Arc<Charge>>,
    pub(super) weight: usize,
    pub(super) asked_ns: u64,
    /// The broker has kept it, but not delivered it yet.
    pub(super) is_stored: bool,
}

/// By number, the oldest first.
#[derive(Debug)]
pub(super) struct Stores {
    pending: BTreeMap<u64, Pending>,
    next: u64,
}

impl Stores {
    pub(super) fn new(shard: u16) -> Self {
        Self { pending: BTreeMap::new(), next: NUMBERS_APART | u64::from(shard) }
    }

    pub(super) fn add(&mut self, pending: Pending) -> Result<u64, Pending> {
        if self.pending.len() >= STORES_MAX {
            return Err(pending);
        }
        let number = self.next;
        self.next = number.wrapping_add(NUMBERS_APART);
        self.pending.insert(number, pending);
        Ok(number)
    }

    pub(super) fn has(&self, number: u64) -> bool {
        self.pending.contains_key(&number)
    }

    pub(super) fn unanswered(&mut self, number: u64) -> Option<&mut Pending> {
        self.pending.get_mut(&number).filter(|it| !it.is_stored)
    }

    pub(super) fn take(&mut self, number: u64) -> Option<Pending> {
        self.pending.remove(&number)
    }

    pub(super) fn oldest_ns(&self) -> Option<u64> {
        self.pending.first_key_value().map(|(_, it)| it.asked_ns)
    }

    pub(super) fn take_old(&mut self, asked_ns: u64) -> Option<Pending> {
        let oldest = self.pending.first_entry().filter(|it| it.get().asked_ns <= asked_ns)?;
        Some(oldest.remove())
    }

    pub(super) fn len(&self) -> usize {
        self.pending.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use simurgh_channel::engine::shard_of;

    fn pending(asked_ns: u64) -> Pending {
        Pending { kept_for: KeptFor::Nobody, charge: None, weight: 0, asked_ns, is_stored: false }
    }

    #[test]
    fn store_numbers_are_unique_per_shard() {
        let mut all = std::collections::HashSet::new();
        for shard in [0, 1, 7, u16::MAX] {
            let mut stores = Stores::new(shard);
            for n in 0..100 {
                let number = stores.add(pending(n)).unwrap();
                assert_eq!(shard_of(number), usize::from(shard));
                assert!(all.insert(number));
            }
        }
    }

    #[test]
    fn pending_stores_are_bounded_and_the_oldest_time_out_first() {
        let mut stores = Stores::new(3);
        let numbers: Vec<u64> =
            (0..STORES_MAX as u64).map(|n| stores.add(pending(n)).unwrap()).collect();
        assert!(stores.add(pending(0)).is_err());
        assert_eq!(stores.take(numbers[0]).map(|it| it.asked_ns), Some(0));
        assert!(stores.take(numbers[0]).is_none(), "it is answered once");
        assert!(stores.add(pending(STORES_MAX as u64)).is_ok());
        assert!(stores.take_old(0).is_none());
        assert_eq!(stores.oldest_ns(), Some(1));
        assert_eq!(stores.take_old(2).map(|it| it.asked_ns), Some(1));
        assert_eq!(stores.take_old(2).map(|it| it.asked_ns), Some(2));
        assert!(stores.take_old(2).is_none());
        assert!(stores.has(numbers[3]) && !stores.has(numbers[2]));
    }
}
