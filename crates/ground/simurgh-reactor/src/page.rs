//! Memory of one page of a table, mapped from the system: only what was filled uses memory, and the
//! system can have all of it back when the page is dropped. A general allocator would put several
//! pages together and keep all of them for one.

#![allow(unsafe_code)]

use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::{mem, ptr, slice};

use simurgh_data::PAGE_SLOTS;

use crate::pool;

/// Up to [`PAGE_SLOTS`] records. An empty page costs only a pointer and a length.
#[derive(derive_more::Debug)]
#[debug("Page({len})")]
pub struct Page<T> {
    memory: Option<NonNull<T>>,
    len: usize,
}

// SAFETY: it owns its records as a vector does.
unsafe impl<T: Send> Send for Page<T> {}
// SAFETY: a shared page hands out shared records only.
unsafe impl<T: Sync> Sync for Page<T> {}

impl<T> Page<T> {
    const BYTES: usize = {
        assert!(align_of::<T>() <= pool::GRANULE && size_of::<T>() > 0);
        (size_of::<T>() * PAGE_SLOTS).next_multiple_of(pool::GRANULE)
    };

    /// An empty page.
    pub const fn new() -> Self {
        Self { memory: None, len: 0 }
    }

    /// Adds a record; it is returned when the page is full, or the system has no memory left.
    pub fn push(&mut self, value: T) -> Result<(), T> {
        if self.len == PAGE_SLOTS {
            return Err(value);
        }
        let memory = self.memory.or_else(|| pool::take(Self::BYTES).map(NonNull::cast));
        let Some(memory) = memory else { return Err(value) };
        self.memory = Some(memory);
        // SAFETY: the mapping has room for PAGE_SLOTS records, `len` is less, and what is there at
        // `len` is not initialized, so nothing is overwritten.
        unsafe { memory.add(self.len).write(value) };
        self.len += 1;
        Ok(())
    }

    /// Removes the last record. The memory stays until the page is dropped.
    pub fn pop(&mut self) -> Option<T> {
        let memory = self.memory?;
        self.len = self.len.checked_sub(1)?;
        // SAFETY: this record is initialized, and `len` no longer counts it: it is read out once.
        Some(unsafe { memory.add(self.len).read() })
    }
}

impl<T> Drop for Page<T> {
    fn drop(&mut self) {
        let records: *mut [T] = &raw mut **self;
        let Some(memory) = self.memory.take() else { return };
        // If dropping a record panics, the memory is lost, but nothing is dropped twice.
        if mem::needs_drop::<T>() {
            self.len = 0;
            // SAFETY: exactly these records are initialized, and they are not reachable any more.
            unsafe { ptr::drop_in_place(records) };
        }
        // SAFETY: it was taken with this size for this page alone, and no record is left in it.
        unsafe { pool::put(memory.cast(), Self::BYTES) };
    }
}

impl<T> Deref for Page<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        let first = self.memory.unwrap_or(NonNull::dangling());
        // SAFETY: the first `len` records are initialized, and `len` is 0 without memory.
        unsafe { slice::from_raw_parts(first.as_ptr(), self.len) }
    }
}

impl<T> DerefMut for Page<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        let first = self.memory.unwrap_or(NonNull::dangling());
        // SAFETY: as above, and the page is borrowed mutably.
        unsafe { slice::from_raw_parts_mut(first.as_ptr(), self.len) }
    }
}

impl<T> Default for Page<T> {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;

    use super::*;

    #[test]
    fn page_records_are_dropped_exactly_once() {
        let witness = Rc::new(());
        let mut page = Page::new();
        assert!(page.is_empty());
        for n in 0..PAGE_SLOTS {
            assert!(page.push((n, Rc::clone(&witness))).is_ok());
        }
        assert!(page.push((PAGE_SLOTS, Rc::clone(&witness))).is_err(), "it is full");
        assert!(page.iter().enumerate().all(|(at, (n, _))| at == *n));
        page[7].0 = 1000;
        assert_eq!(page.get(7).map(|record| record.0), Some(1000));
        assert_eq!(Rc::strong_count(&witness), PAGE_SLOTS + 1);
        assert_eq!(page.pop().map(|record| record.0), Some(PAGE_SLOTS - 1));
        assert_eq!((page.len(), Rc::strong_count(&witness)), (PAGE_SLOTS - 1, PAGE_SLOTS));
        drop(page);
        assert_eq!(Rc::strong_count(&witness), 1);
        drop(Page::<u64>::new());
    }
}
