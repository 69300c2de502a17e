//! Ids with which clients have joined, by membership: 8 bytes each, in pages.

use simurgh_data::prelude::*;
const PAGE: usize = 512;

/// Hashes of the clients' own ids; 0: none.
#[derive(Debug, Default)]
pub(crate) struct ClientKeys {
    pages: Vec<Option<Box<Page>>>,
}

#[derive(Debug)]
struct Page {
    keys: [u64; PAGE],
    count: u16,
}

impl ClientKeys {
    pub(crate) fn pages(&self) -> usize {
        self.pages.iter().flatten().count()
    }

    #[inline]
    pub(crate) fn get(&self, membership: u32) -> u64 {
        let (page, at) = place(membership);
        let page = self.pages.get(page).and_then(Option::as_deref);
        page.and_then(|page| page.keys.get(at)).copied().unwrap_or(0)
    }

    /// Sets a key, or none (0); a page without keys is freed.
    pub(crate) fn set(&mut self, membership: u32, key: u64) {
        let (page, at) = place(membership);
        if page >= self.pages.len() {
            if key == 0 {
                return;
            }
            self.pages.resize_with(page + 1, || None);
        }
        let Some(slot) = self.pages.get_mut(page) else { return };
        if slot.is_none() && key == 0 {
            return;
        }
        let it = slot.get_or_insert_with(|| Box::new(Page { keys: [0; PAGE], count: 0 }));
        let Some(place) = it.keys.get_mut(at) else { return };
        let before = core::mem::replace(place, key);
        it.count += u16::from(before == 0 && key != 0);
        it.count -= u16::from(before != 0 && key == 0);
        if it.count == 0 {
            *slot = None;
        }
    }
}

fn place(membership: u32) -> (usize, usize) {
    (membership as usize / PAGE, membership as usize % PAGE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_belong_to_memberships_and_empty_pages_are_freed() {
        let mut keys = ClientKeys::default();
        assert_eq!(keys.get(7), 0);
        keys.set(100_000, 0);
        assert!(keys.pages.is_empty(), "nothing was to be noted");
        keys.set(7, 1);
        keys.set(1_000, 2);
        keys.set(1_001, 3);
        keys.set(1_001, 4);
        assert_eq!([7, 8, 1_000, 1_001].map(|it| keys.get(it)), [1, 0, 2, 4]);
        let pages = |keys: &ClientKeys| keys.pages.iter().map(Option::is_some).collect::<Vec<_>>();
        assert_eq!(pages(&keys), [true, true]);
        keys.set(1_000, 0);
        keys.set(1_000, 0);
        assert_eq!(pages(&keys), [true, true], "somebody is left");
        keys.set(1_001, 0);
        assert_eq!(pages(&keys), [true, false]);
        assert_eq!((keys.get(7), keys.get(1_001)), (1, 0));
    }
}
