//! Slots of a table in pages: records do not move, and empty pages are freed.

use alloc::vec::Vec;
/// Slots of a page.
pub const PAGE_SLOTS: usize = 256;
const WORDS: usize = PAGE_SLOTS / 64;

/// Allocates the slots of a table in pages. Costs a bit for each slot, and 16 bytes for each page.
#[derive(Debug, Default)]
pub struct SlotAllocator {
    pages: Vec<Page>,
    with_room: Vec<u32>,
    freed: Vec<u32>,
    left: usize,
}

#[derive(Debug)]
struct Page {
    /// A bit for each free slot.
    left: [u64; WORDS],
    taken: u32,
    /// Whether it is among `with_room`.
    has_room: bool,
}

impl Page {
    const NEW: Self = Self { left: [u64::MAX; WORDS], taken: 0, has_room: true };

    fn take(&mut self) -> Option<u32> {
        let (word, bits) = self.left.iter_mut().enumerate().find(|(_, bits)| **bits != 0)?;
        let bit = bits.trailing_zeros();
        *bits &= *bits - 1;
        self.taken += 1;
        Some(word as u32 * 64 + bit)
    }
}

impl SlotAllocator {
    /// No slot is taken.
    pub const fn new() -> Self {
        Self { pages: Vec::new(), with_room: Vec::new(), freed: Vec::new(), left: 0 }
    }

    /// Allocates a slot: the lowest free one of its page. The flag says that the page is new.
    /// `None` only when four billion are taken.
    pub fn allocate(&mut self) -> Option<(u32, bool)> {
        let (index, is_new) = match self.with_room.last() {
            Some(index) => (*index, false),
            None => (self.add_page()?, true),
        };
        let page = self.pages.get_mut(index as usize)?;
        let slot = page.take()?;
        self.left -= 1;
        if page.taken as usize == PAGE_SLOTS {
            page.has_room = false;
            self.with_room.pop();
        }
        Some((index * PAGE_SLOTS as u32 + slot, is_new))
    }

    /// Frees a slot. `true`: the caller frees its now empty page, too; some room is always kept.
    pub fn free(&mut self, slot: u32) -> bool {
        let (index, at) = (slot / PAGE_SLOTS as u32, slot as usize % PAGE_SLOTS);
        let Some(page) = self.pages.get_mut(index as usize) else { return false };
        let Some(bits) = page.left.get_mut(at / 64) else { return false };
        let bit = 1 << (at % 64);
        if *bits & bit != 0 {
            debug_assert!(false, "only an allocated slot is freed");
            return false;
        }
        *bits |= bit;
        page.taken -= 1;
        self.left += 1;
        if page.taken == 0 && self.left >= 2 * PAGE_SLOTS {
            page.has_room = false;
            self.left -= PAGE_SLOTS;
            self.with_room.retain(|other| *other != index);
            self.freed.push(index);
            return true;
        }
        if !page.has_room {
            page.has_room = true;
            self.with_room.push(index);
        }
        false
    }

    /// The number of slots up to the end of the last page, including those of freed pages.
    pub fn end(&self) -> usize {
        self.pages.len() * PAGE_SLOTS
    }

    fn add_page(&mut self) -> Option<u32> {
        let index = match self.freed.pop() {
            Some(index) => {
                if let Some(page) = self.pages.get_mut(index as usize) {
                    *page = Page::NEW;
                }
                index
            }
            None => {
                let index = u32::try_from(self.pages.len()).ok()?;
                index.checked_add(1)?.checked_mul(PAGE_SLOTS as u32)?;
                self.pages.push(Page::NEW);
                index
            }
        };
        self.left += PAGE_SLOTS;
        self.with_room.push(index);
        Some(index)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn slots_are_allocated_once_and_pages_are_added_and_released() {
        for seed in 0..20 {
            let mut rng = fastrand::Rng::with_seed(seed);
            let mut slots = SlotAllocator::new();
            let mut taken: BTreeSet<u32> = BTreeSet::new();
            let mut pages: BTreeSet<u32> = BTreeSet::new();
            for round in 0..6 {
                for _ in 0..5_000 {
                    let comes = rng.u8(0..10) < if round % 2 == 0 { 8 } else { 2 };
                    if comes {
                        let (place, is_new) = slots.allocate().unwrap();
                        assert!(taken.insert(place), "{place} was taken twice");
                        assert!((place as usize) < slots.end());
                        assert_eq!(pages.insert(place / PAGE_SLOTS as u32), is_new);
                    } else if let Some(&place) = taken.iter().nth(rng.usize(..taken.len().max(1))) {
                        taken.remove(&place);
                        if slots.free(place) {
                            assert!(pages.remove(&(place / PAGE_SLOTS as u32)));
                        }
                    }
                }
            }
            for place in std::mem::take(&mut taken) {
                if slots.free(place) {
                    assert!(pages.remove(&(place / PAGE_SLOTS as u32)));
                }
            }
            assert!(pages.len() <= 2, "{} empty pages are kept", pages.len());
        }
    }

    #[test]
    fn repeated_connect_and_disconnect_reuses_one_page() {
        let mut slots = SlotAllocator::new();
        let (place, is_new) = slots.allocate().unwrap();
        assert!(is_new);
        assert!(!slots.free(place));
        assert_eq!(slots.allocate(), Some((place, false)));
    }
}
