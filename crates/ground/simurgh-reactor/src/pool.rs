//! Memory mapped from the system for pages of tables. Each thread keeps its own until it gives back
//! all that is free at a quiet time.
//!
//! Mapping and unmapping take a lock of the whole process. When many connections leave a hundred
//! shards at once, the thread that holds that lock waits for a core, and all others for the lock:
//! shards stopped for seconds when each page was unmapped as it became empty.

#![allow(unsafe_code)]

use std::cell::RefCell;
use std::ptr::{self, NonNull};

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

/// The system maps multiples of this, aligned to it.
pub(crate) const GRANULE: usize = 4096;
const CHUNK: usize = 16;
const GIVEN_BACK_MAX: usize = 4 << 20;

#[derive(Default)]
struct Pool {
    /// Free pieces by their size, of which there are few.
    free: Vec<(usize, Vec<NonNull<u8>>)>,
    /// Bytes of pieces that were used before: the others use no memory yet.
    used: usize,
}

thread_local! {
    static POOL: RefCell<Pool> = const { RefCell::new(Pool { free: Vec::new(), used: 0 }) };
}

/// Bytes of pages of tables on this thread that are unused now; see [`crate::give_back_memory`].
pub fn free_memory() -> usize {
    POOL.try_with(|pool| pool.borrow().used).unwrap_or(0)
}

/// A piece of `bytes`, a multiple of [`GRANULE`], with any content; `None` without memory.
pub(crate) fn take(bytes: usize) -> Option<NonNull<u8>> {
    debug_assert!(bytes > 0 && bytes.is_multiple_of(GRANULE));
    // While the thread ends, the pool is already gone.
    POOL.try_with(|pool| pool.borrow_mut().take(bytes)).unwrap_or_else(|_| map(bytes))
}

/// Takes a piece back.
///
/// # Safety
/// It came from [`take`] with the same size, and is not used any more.
pub(crate) unsafe fn put(memory: NonNull<u8>, bytes: usize) {
    let kept = POOL.try_with(|pool| {
        let mut pool = pool.borrow_mut();
        pool.used += bytes;
        pool.of(bytes).push(memory);
    });
    if kept.is_err() {
        // SAFETY: as the caller promises.
        unsafe { unmap(memory, bytes) };
    }
}

/// Gives free pieces of this thread back to the system; returns whether that was the last.
pub(crate) fn give_back() -> bool {
    POOL.try_with(|pool| pool.borrow_mut().give_back(GIVEN_BACK_MAX)).unwrap_or(true)
}

impl Pool {
    fn of(&mut self, bytes: usize) -> &mut Vec<NonNull<u8>> {
        let at = self.free.iter().position(|(size, _)| *size == bytes);
        let at = at.unwrap_or_else(|| {
            self.free.push((bytes, Vec::new()));
            self.free.len() - 1
        });
        &mut self.free[at].1
    }

    fn take(&mut self, bytes: usize) -> Option<NonNull<u8>> {
        // Used pieces are taken first.
        if let Some(memory) = self.of(bytes).pop() {
            self.used = self.used.saturating_sub(bytes);
            return Some(memory);
        }
        let Some(first) = bytes.checked_mul(CHUNK).and_then(map) else { return map(bytes) };
        // SAFETY: this many pieces were mapped.
        self.of(bytes).extend((1..CHUNK).rev().map(|at| unsafe { first.add(at * bytes) }));
        Some(first)
    }

    fn give_back(&mut self, most: usize) -> bool {
        let mut pieces: Vec<(NonNull<u8>, usize)> = Vec::new();
        for (bytes, free) in &mut self.free {
            pieces.extend(std::mem::take(free).into_iter().map(|memory| (memory, *bytes)));
        }
        pieces.sort_unstable();
        let mut given = 0;
        let mut run: Option<(NonNull<u8>, usize)> = None;
        for (memory, bytes) in pieces {
            if given > most {
                self.of(bytes).push(memory);
                continue;
            }
            given += bytes;
            run = match run {
                // Adjacent pieces are given back in one call.
                Some((first, length)) if first.addr().get() + length == memory.addr().get() => {
                    Some((first, length + bytes))
                }
                before => {
                    // SAFETY: these pieces are free, and not in the pool any more.
                    before.inspect(|(first, length)| unsafe { unmap(*first, *length) });
                    Some((memory, bytes))
                }
            };
        }
        // SAFETY: as above.
        run.inspect(|(first, length)| unsafe { unmap(*first, *length) });
        self.used = if given <= most { 0 } else { self.used.saturating_sub(given) };
        given <= most
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.give_back(usize::MAX);
    }
}

fn map(bytes: usize) -> Option<NonNull<u8>> {
    let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
    // SAFETY: without an address of ours and MAP_FIXED nothing that is mapped already is touched.
    let mapped = unsafe { mmap_anonymous(ptr::null_mut(), bytes, protection, flags) };
    NonNull::new(mapped.ok()?.cast())
}

/// # Safety
/// All of it was mapped here, and it is not used any more.
unsafe fn unmap(memory: NonNull<u8>, bytes: usize) {
    // SAFETY: as the caller promises. It fails only where a mapping would have to be split and the
    // system allows no more of them; then the memory stays mapped, and is lost.
    let _ = unsafe { munmap(memory.as_ptr().cast(), bytes) };
}

#[cfg(test)]
mod tests {
    use super::*;

    const BYTES: usize = 3 * GRANULE;

    fn free() -> usize {
        POOL.with_borrow(|pool| pool.free.iter().map(|(bytes, free)| bytes * free.len()).sum())
    }

    #[test]
    fn pooled_memory_is_reused_until_it_is_returned() {
        let pieces: Vec<NonNull<u8>> = (0..1000).map(|_| take(BYTES).unwrap()).collect();
        for (at, piece) in pieces.iter().enumerate() {
            // SAFETY: the piece is ours, and so long.
            unsafe { piece.write_bytes(at as u8, BYTES) };
        }
        for (at, piece) in pieces.iter().enumerate() {
            // SAFETY: as above; all of it was written.
            assert_eq!(unsafe { piece.add(BYTES - 1).read() }, at as u8);
            // SAFETY: it came from `take`, and is not used any more.
            unsafe { put(*piece, BYTES) };
        }
        let kept = free();
        assert!(kept >= 1000 * BYTES);
        assert_eq!(free_memory(), 1000 * BYTES);
        assert!(!give_back(), "not all at once");
        assert!(free() < kept);
        assert!((0..10).any(|_| give_back()));
        assert_eq!((free(), free_memory()), (0, 0));
        let (one, other) = (take(BYTES).unwrap(), take(GRANULE).unwrap());
        assert_eq!(free_memory(), 0, "nobody has had the rest of what was mapped");
        assert_ne!(one, other);
        // SAFETY: they came from `take`, and are not used any more.
        unsafe { (put(one, BYTES), put(other, GRANULE)) };
    }
}
