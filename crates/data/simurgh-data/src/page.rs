//! Pages of tables: a table grows page by page, without copying, and gives back empty ones.

use alloc::vec::Vec;
use core::ops::{Deref, DerefMut};

use crate::slot_allocator::PAGE_SLOTS;

/// Up to [`PAGE_SLOTS`] records, in one piece of memory from the first on. An empty page has none.
#[derive(derive_more::Debug)]
#[debug("Page({})", self.0.len())]
pub struct Page<T>(Vec<T>);

impl<T> Page<T> {
    /// An empty page.
    pub const fn new() -> Self {
        Self(Vec::new())
    }

    /// Adds a record; it is returned when the page is full, or no memory is left.
    #[inline]
    pub fn push(&mut self, value: T) -> Result<(), T> {
        let has_room = self.0.len() < self.0.capacity();
        if self.0.len() == PAGE_SLOTS || !(has_room || self.0.try_reserve_exact(PAGE_SLOTS).is_ok())
        {
            return Err(value);
        }
        self.0.push(value);
        Ok(())
    }

    /// Removes the last record. The memory stays until the page is dropped.
    #[inline]
    pub fn pop(&mut self) -> Option<T> {
        self.0.pop()
    }
}

impl<T> Deref for Page<T> {
    type Target = [T];

    #[inline]
    fn deref(&self) -> &[T] {
        &self.0
    }
}

impl<T> DerefMut for Page<T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut [T] {
        &mut self.0
    }
}

impl<T> Default for Page<T> {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn page_takes_its_slots_and_no_more() {
        let mut page = Page::new();
        assert!(page.is_empty());
        assert!((0..PAGE_SLOTS).all(|n| page.push(n).is_ok()));
        assert_eq!(page.push(PAGE_SLOTS), Err(PAGE_SLOTS));
        assert!(page.iter().enumerate().all(|(at, n)| at == *n));
        assert_eq!(page.pop(), Some(PAGE_SLOTS - 1));
        assert_eq!(page.push(7), Ok(()), "the memory is kept");
        assert_eq!(page.last(), Some(&7));
    }
}
