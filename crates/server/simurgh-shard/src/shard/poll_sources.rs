//! What long-poll sessions hold, by their clients' addresses: places, bytes that they keep until
//! they end, and bytes that wait to be polled.
//!
//! When too many bytes wait, the address that holds most loses a session. When few places are left,
//! each address gets a share of them. So no client can end another client's session.

use std::collections::{BTreeSet, HashMap};

use simurgh_reactor::Key;

/// Addresses that differ by less are equal, so that few messages change their order.
const STEP: usize = 64 << 10;
/// Of the sessions whose messages have waited longest, this many are compared by their bytes.
const COMPARED: usize = 64;

/// Sessions that one address may always have.
const SHARE_LEAST: usize = 8;

#[derive(Debug, Default)]
pub(super) struct Sources {
    /// Bytes of messages that wait for polls, and bytes of the sessions' own state.
    pub(super) waiting: usize,
    pub(super) kept: usize,
    open: usize,
    /// By hashes of addresses.
    sources: HashMap<u32, Source>,
    /// The steps of each source that holds bytes.
    order: BTreeSet<(usize, u32)>,
}

#[derive(Debug, Default)]
struct Source {
    open: usize,
    kept: usize,
    waiting: usize,
    /// Sessions for which bytes wait, and since when.
    sessions: BTreeSet<(u64, Key)>,
}

/// The bytes of one session.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Held {
    pub(super) source: u32,
    pub(super) since_ns: u64,
    pub(super) waiting: usize,
    pub(super) kept: u32,
}

impl Sources {
    /// Whether there is a place for a further session that keeps this many bytes. Once half is
    /// taken, an address has no more than a quarter.
    pub(super) fn has_place(&self, wanted: &Held, open_max: usize, kept_max: usize) -> bool {
        let own = self.sources.get(&wanted.source);
        let (own_open, own_kept) = own.map_or((0, 0), |own| (own.open, own.kept));
        let wanted_kept = wanted.kept as usize;
        let (kept, own_kept) = (self.kept + wanted_kept, own_kept + wanted_kept);
        let has_place = self.open < open_max && kept <= kept_max;
        let is_scarce = self.open >= open_max / 2 || kept > kept_max / 2;
        let has_share = own_open < open_max / 4 && own_kept <= kept_max / 4;
        has_place && (!is_scarce || has_share || own_open < SHARE_LEAST)
    }

    pub(super) fn enter(&mut self, held: &Held) {
        let source = self.sources.entry(held.source).or_default();
        self.open += 1;
        self.kept += held.kept as usize;
        source.open += 1;
        source.kept += held.kept as usize;
    }

    pub(super) fn leave(&mut self, key: Key, held: &mut Held) {
        self.set_waiting(key, held, 0);
        self.open = self.open.saturating_sub(1);
        self.kept = self.kept.saturating_sub(held.kept as usize);
        let Some(source) = self.sources.get_mut(&held.source) else { return };
        source.open = source.open.saturating_sub(1);
        source.kept = source.kept.saturating_sub(held.kept as usize);
        if source.open == 0 {
            self.sources.remove(&held.source);
        }
    }

    pub(super) fn set_waiting(&mut self, key: Key, held: &mut Held, bytes: usize) {
        let before = std::mem::replace(&mut held.waiting, bytes);
        if before == bytes {
            return;
        }
        let Some(source) = self.sources.get_mut(&held.source) else { return };
        match (before, bytes) {
            (0, _) => source.sessions.insert((held.since_ns, key)),
            (_, 0) => source.sessions.remove(&(held.since_ns, key)),
            _ => true,
        };
        let old = source.waiting;
        self.waiting = (self.waiting + bytes).saturating_sub(before);
        source.waiting = (old + bytes).saturating_sub(before);
        let new = source.waiting;
        if old == 0 || new == 0 || old / STEP != new / STEP {
            self.order.remove(&(old / STEP, held.source));
            if new > 0 {
                self.order.insert((new / STEP, held.source));
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

    fn key(slot: u32) -> Key {
        Key { slot, generation: 1 }
    }

    #[test]
    fn session_of_the_address_that_holds_most_is_chosen() {
        let mut sources = Sources::default();
        let mut small = Held { source: 1, since_ns: 5, ..Held::default() };
        sources.enter(&small);
        sources.set_waiting(key(1), &mut small, 3 * STEP);
        let held = |n: u64| Held { source: 2, since_ns: 100 - n, ..Held::default() };
        let mut many: Vec<Held> = (0..100).map(held).collect();
        for (slot, held) in (10..).zip(&mut many) {
            sources.enter(held);
            sources.set_waiting(key(slot), held, STEP / 10);
        }
        assert_eq!(sources.waiting, 3 * STEP + 100 * (STEP / 10));
        let chosen: Vec<Key> = sources.of_largest(Some((&many[0], key(10)))).collect();
        assert_eq!((chosen.len(), chosen.first()), (COMPARED + 1, Some(&key(109))));
        assert_eq!(chosen.last(), Some(&key(10)));
        assert_eq!(sources.of_largest(Some((&small, key(1)))).count(), COMPARED);
        for (slot, held) in (10..).zip(&mut many) {
            sources.leave(key(slot), held);
        }
        assert!(sources.of_largest(None).eq([key(1)]));
        sources.leave(key(1), &mut small);
        assert_eq!((sources.waiting, sources.sources.len(), sources.order.len()), (0, 0, 0));
    }

    #[test]
    fn address_has_a_share_of_places_and_of_kept_bytes_once_they_are_scarce() {
        let enter = |sources: &mut Sources, source, kept, count| {
            let held = Held { source, kept, ..Held::default() };
            let has_place = |_: &usize| {
                let has_place = sources.has_place(&held, 400, 40_000);
                has_place.then(|| sources.enter(&held)).is_some()
            };
            (0..count).take_while(has_place).count()
        };
        let mut by_count = Sources::default();
        assert_eq!(enter(&mut by_count, 1, 1, 1_000), 200);
        assert_eq!([2, 3, 4].map(|it| enter(&mut by_count, it, 1, 1_000)), [100, 100, 0]);
        let mut by_bytes = Sources::default();
        assert_eq!(enter(&mut by_bytes, 1, 1_000, 1_000), 20);
        assert_eq!([2, 3, 4].map(|it| enter(&mut by_bytes, it, 1_000, 1_000)), [10, 10, 0]);
    }
}
