//! Memory that is kept for the calling thread though nobody uses it.

#![allow(unsafe_code)]

use crate::pool;

/// Gives back to the system some of what is kept free for the calling thread: pages of tables, and
/// with the feature `mimalloc`, which says that the binary allocates with it, what the allocator
/// keeps. Some tenths of a millisecond, for a quiet time after a crowd has left; `true` when all is
/// given back.
pub fn give_back_memory() -> bool {
    if !pool::give_back() {
        return false;
    }
    #[cfg(feature = "mimalloc")]
    // SAFETY: it may be called on any thread at any time, and takes blocks only that are free.
    unsafe {
        libmimalloc_sys::mi_collect(true);
    }
    true
}
