//! A vector in pages: it grows without copying, so growth neither costs a long turn nor needs the
//! old and the new memory at once, and pages return to the system when a crowd has left.

use alloc::vec::Vec;

use crate::page::Page;
use crate::slot_allocator::PAGE_SLOTS;

/// A vector that grows in pages.
#[derive(Debug)]
pub struct Pages<T> {
    /// Grows like any vector, since most topics are small.
    first: Vec<T>,
    /// All except the last are full; none is empty.
    more: Vec<Page<T>>,
}

impl<T> Default for Pages<T> {
    fn default() -> Self {
        Self { first: Vec::new(), more: Vec::new() }
    }
}

impl<T> Pages<T> {
    /// How many elements there are.
    pub fn len(&self) -> usize {
        match self.more.split_last() {
            Some((last, full)) => PAGE_SLOTS + full.len() * PAGE_SLOTS + last.len(),
            None => self.first.len(),
        }
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.first.is_empty()
    }

    /// The element at a place.
    pub fn get(&self, index: usize) -> Option<&T> {
        match (index / PAGE_SLOTS).checked_sub(1) {
            Some(page) => self.more.get(page)?.get(index % PAGE_SLOTS),
            None => self.first.get(index),
        }
    }

    /// The same, to be changed.
    pub fn get_mut(&mut self, index: usize) -> Option<&mut T> {
        match (index / PAGE_SLOTS).checked_sub(1) {
            Some(page) => self.more.get_mut(page)?.get_mut(index % PAGE_SLOTS),
            None => self.first.get_mut(index),
        }
    }

    /// Adds an element.
    ///
    /// # Errors
    /// No memory is left: the element.
    #[inline(always)]
    pub fn push(&mut self, value: T) -> Result<(), T> {
        if self.first.len() < PAGE_SLOTS {
            self.first.push(value);
            return Ok(());
        }
        match self.more.last_mut() {
            Some(last) if last.len() < PAGE_SLOTS => last.push(value),
            _ => self.push_page(value),
        }
    }

    #[cold]
    fn push_page(&mut self, value: T) -> Result<(), T> {
        let mut page = Page::new();
        page.push(value)?;
        self.more.push(page);
        Ok(())
    }

    /// Frees unused memory of a short one. Returns whether there was any.
    pub fn shrink(&mut self) -> bool {
        let has_room = self.first.capacity() > self.first.len();
        self.first.shrink_to_fit();
        has_room
    }

    /// Removes an element; the last takes its place.
    pub fn swap_remove(&mut self, index: usize) -> Option<T> {
        self.get(index)?;
        let last = match self.more.last_mut() {
            Some(page) => page.pop()?,
            None => self.first.pop()?,
        };
        if self.more.last().is_some_and(|page| page.is_empty()) {
            self.more.pop();
        }
        match self.get_mut(index) {
            Some(place) => Some(core::mem::replace(place, last)),
            None => Some(last),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_behave_like_a_vector() {
        let (mut pages, mut vector) = (Pages::default(), Vec::new());
        for n in 0..5000_usize {
            assert_eq!(pages.push(n), Ok(()));
            vector.push(n);
            if n % 7 == 0 {
                pages.shrink();
            }
            if n % 3 == 0 {
                let at = (n * 7919) % vector.len();
                assert_eq!(pages.swap_remove(at), Some(vector.swap_remove(at)));
            }
            assert_eq!(pages.len(), vector.len());
        }
        for (at, n) in vector.iter().enumerate() {
            assert_eq!(pages.get(at), Some(n));
        }
        while !vector.is_empty() {
            let at = vector.len() / 2;
            assert_eq!(pages.swap_remove(at), Some(vector.swap_remove(at)));
            assert_eq!(pages.len(), vector.len());
        }
        assert_eq!(pages.swap_remove(0), None);
        assert!(pages.more.is_empty());
    }
}
