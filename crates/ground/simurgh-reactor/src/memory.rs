//! Unused memory that is kept for the calling thread.

#![allow(unsafe_code)]

use crate::pool;

/// Frees memory that is unused but kept for the calling thread: pages of tables, and with the
/// feature `mimalloc` pages of the allocator. It takes some tenths of a millisecond; call it
/// at a quiet time after many connections have left. `true` when all is given up. The system has
/// it after [`purge_memory`].
pub fn give_back_memory() -> bool {
    if !pool::give_back() {
        return false;
    }
    #[cfg(feature = "mimalloc")]
    // SAFETY: it may be called on any thread at any time, and takes blocks only that are free.
    unsafe {
        libmimalloc_sys::mi_collect(false);
    }
    true
}

/// With the feature `mimalloc`: returns to the system what no thread of the process uses. It takes
/// some milliseconds for each 100 MB, so it is for a thread that serves nobody.
pub fn purge_memory() {
    #[cfg(feature = "mimalloc")]
    // SAFETY: as above.
    unsafe {
        libmimalloc_sys::mi_collect(true);
    }
}

/// Leaves it to one thread, which calls [`purge_memory`] each second or so, to return memory to the
/// system: by default any thread that allocates does. Changes nothing after
/// [`give_back_memory_soon`]. `false` without the feature `mimalloc`: there is nothing to call.
pub fn purge_by_call() -> bool {
    #[cfg(feature = "mimalloc")]
    // SAFETY: options are read and set at any time and by any thread; this is one of the library's.
    unsafe {
        if libmimalloc_sys::mi_option_get(PURGE_DELAY) != PURGE_DELAY_MS {
            libmimalloc_sys::mi_option_set(PURGE_DELAY, NEVER_MS);
        }
    }
    cfg!(feature = "mimalloc")
}

/// With the feature `mimalloc`: freed memory goes back to the system after ten milliseconds instead
/// of mimalloc's default of a second. For a process in which one thread frees what others allocate,
/// at full speed and for long: within that second it would grow by what is freed. A process that
/// allocates as much again after short pauses gets slower.
pub fn give_back_memory_soon() {
    #[cfg(feature = "mimalloc")]
    // SAFETY: options are set at any time and by any thread; this is one of the library's own.
    unsafe {
        libmimalloc_sys::mi_option_set(PURGE_DELAY, PURGE_DELAY_MS);
    }
}

/// `mi_option_purge_delay`, which the crate does not name.
#[cfg(feature = "mimalloc")]
const PURGE_DELAY: libmimalloc_sys::mi_option_t = 15;
#[cfg(feature = "mimalloc")]
const PURGE_DELAY_MS: std::ffi::c_long = 10;
/// An hour: `-1` would turn [`purge_memory`] off, too.
#[cfg(feature = "mimalloc")]
const NEVER_MS: std::ffi::c_long = 3_600_000;

#[cfg(all(test, feature = "mimalloc"))]
mod tests {
    use super::*;

    /// mimalloc 2 waits for 10 ms by default, 3 for 1,000; only this option has either value.
    #[test]
    fn purge_delay_option_number_matches_mimalloc() {
        // SAFETY: options are read at any time.
        let read = |option| unsafe { libmimalloc_sys::mi_option_get(option) };
        assert!([10, 1_000].contains(&read(PURGE_DELAY)), "{}", read(PURGE_DELAY));
        assert!(![10, 1_000].contains(&read(PURGE_DELAY - 1)));
        assert!(![10, 1_000].contains(&read(PURGE_DELAY + 1)));
        assert!(purge_by_call());
        assert_eq!(read(PURGE_DELAY), NEVER_MS);
        for _ in 0..2 {
            give_back_memory_soon();
            assert!(purge_by_call());
            assert_eq!(read(PURGE_DELAY), PURGE_DELAY_MS);
        }
    }
}
