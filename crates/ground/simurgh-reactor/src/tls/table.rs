//! Records in pages that never move: a secret that was copied could not be wiped.

use simurgh_data::{PAGE_SLOTS, SlotAllocator};

use crate::page::Page;

pub(super) struct Table<T> {
    pages: Vec<Page<Option<T>>>,
    slots: SlotAllocator,
}

impl<T> Default for Table<T> {
    fn default() -> Self {
        Self { pages: Vec::new(), slots: SlotAllocator::new() }
    }
}

impl<T> Table<T> {
    /// Returns the number of the record; `None` if no memory is left.
    pub(super) fn insert(&mut self, record: T) -> Option<u32> {
        let (number, _) = self.slots.allocate()?;
        let (index, at) = (number as usize / PAGE_SLOTS, number as usize % PAGE_SLOTS);
        while self.pages.len() <= index {
            self.pages.push(Page::new());
        }
        let page = self.pages.get_mut(index)?;
        let is_there = match page.get_mut(at) {
            Some(vacant) => {
                *vacant = Some(record);
                true
            }
            None => page.push(Some(record)).is_ok(),
        };
        if !is_there {
            self.slots.free(number);
        }
        is_there.then_some(number)
    }

    pub(super) fn get_mut(&mut self, number: u32) -> Option<&mut T> {
        let page = self.pages.get_mut(number as usize / PAGE_SLOTS)?;
        page.get_mut(number as usize % PAGE_SLOTS)?.as_mut()
    }

    /// Brings a record into the processor's cache, if it is there: in a broadcast the next one is
    /// usually its neighbour, and waiting for memory takes longer than sealing.
    pub(super) fn prefetch(&self, number: u32) {
        let page = self.pages.get(number as usize / PAGE_SLOTS);
        if let Some(record) = page.and_then(|page| page.get(number as usize % PAGE_SLOTS)) {
            prefetch(record);
        }
    }

    pub(super) fn remove(&mut self, number: u32) {
        let Some(page) = self.pages.get_mut(number as usize / PAGE_SLOTS) else { return };
        let Some(record) = page.get_mut(number as usize % PAGE_SLOTS) else { return };
        if record.take().is_some() && self.slots.free(number) {
            *page = Page::new();
        }
    }
}

#[cfg(target_arch = "x86_64")]
#[allow(unsafe_code)]
fn prefetch<T>(record: &T) {
    use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
    let first: *const i8 = std::ptr::from_ref(record).cast();
    for line in (0..size_of::<T>()).step_by(64) {
        // SAFETY: the address is within the record; a prefetch only moves it between caches.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(first.add(line)) };
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn prefetch<T>(_: &T) {}
