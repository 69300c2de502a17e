//! The bytes that wait to be polled, by their clients' addresses, and the session to cut when they
//! are too many: one of the address that holds most, so that no client costs another its session.

use std::collections::{BTreeSet, HashMap};

use simurgh_reactor::Key;

/// Addresses that differ by less are equal, so that few messages change their order.
const STEP: usize = 64 << 10;
/// Of the sessions whose messages have waited longest, so many are compared by their bytes.
const COMPARED: usize = 64;

#[derive(Debug, Default)]
pub(super) struct Unpolled {
    pub(super) bytes: usize,
    /// By hashes of addresses.
    sources: HashMap<u32, Source>,
    /// The steps of each source that holds bytes.
    order: BTreeSet<(usize, u32)>,
}

#[derive(Debug, Default)]
struct Source {
    bytes: usize,
    /// Sessions with bytes, and since when.
    sessions: BTreeSet<(u64, Key)>,
}

/// The bytes of one session.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Held {
    pub(super) source: u32,
    pub(super) since_ns: u64,
    pub(super) bytes: usize,
}

impl Unpolled {
    pub(super) fn set(&mut self, key: Key, held: &mut Held, bytes: usize) {
        let before = std::mem::replace(&mut held.bytes, bytes);
        if before == bytes {
            return;
        }
        let source = self.sources.entry(held.source).or_default();
        match (before, bytes) {
            (0, _) => source.sessions.insert((held.since_ns, key)),
            (_, 0) => source.sessions.remove(&(held.since_ns, key)),
            _ => true,
        };
        let old = source.bytes;
        self.bytes = (self.bytes + bytes).saturating_sub(before);
        source.bytes = (old + bytes).saturating_sub(before);
        let new = source.bytes;
        if old == 0 || new == 0 || old / STEP != new / STEP {
            self.order.remove(&(old / STEP, held.source));
            if new > 0 {
                self.order.insert((new / STEP, held.source));
            } else {
                self.sources.remove(&held.source);
            }
        }
    }

    /// The sessions to choose from: those of the address that holds most which have waited longest,
    /// and `last` if it is one of that address.
    pub(super) fn of_largest(&self, last: Option<(&Held, Key)>) -> impl Iterator<Item = Key> {
        let largest = self.order.last().map(|(_, source)| *source);
        let sessions = largest.and_then(|source| self.sources.get(&source));
        let oldest = sessions.into_iter().flat_map(|source| &source.sessions).take(COMPARED);
        let last = last.filter(|(held, _)| Some(held.source) == largest).map(|(_, key)| key);
        oldest.map(|(_, key)| *key).chain(last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn session_of_the_address_that_holds_most_is_chosen() {
        let mut unpolled = Unpolled::default();
        let key = |slot| Key { slot, generation: 1 };
        let mut small = Held { source: 1, since_ns: 5, bytes: 0 };
        unpolled.set(key(1), &mut small, 3 * STEP);
        let mut many: Vec<Held> =
            (0..100).map(|n| Held { source: 2, since_ns: 100 - n, bytes: 0 }).collect();
        for (slot, held) in (10..).zip(&mut many) {
            unpolled.set(key(slot), held, STEP / 10);
        }
        assert_eq!(unpolled.bytes, 3 * STEP + 100 * (STEP / 10));
        let chosen: Vec<Key> = unpolled.of_largest(Some((&many[0], key(10)))).collect();
        assert_eq!((chosen.len(), chosen.first()), (COMPARED + 1, Some(&key(109))));
        assert_eq!(chosen.last(), Some(&key(10)));
        assert_eq!(unpolled.of_largest(Some((&small, key(1)))).count(), COMPARED);
        for (slot, held) in (10..).zip(&mut many) {
            unpolled.set(key(slot), held, 0);
        }
        assert!(unpolled.of_largest(None).eq([key(1)]));
        unpolled.set(key(1), &mut small, 0);
        assert_eq!((unpolled.bytes, unpolled.sources.len(), unpolled.order.len()), (0, 0, 0));
    }
}
