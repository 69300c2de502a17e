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

    pub(super) fn remove(&mut self, number: u32) {
        let Some(page) = self.pages.get_mut(number as usize / PAGE_SLOTS) else { return };
        let Some(record) = page.get_mut(number as usize % PAGE_SLOTS) else { return };
        if record.take().is_some() && self.slots.free(number) {
            *page = Page::new();
        }
    }
}
