//! Memory that the allocator keeps for the calling thread though nobody uses it.

#![allow(unsafe_code)]

/// Has the allocator give back to the system what it keeps free for the calling thread. Some tenths
/// of a millisecond: for the time after a crowd has left. Without the feature `mimalloc`, which says
/// that the binary allocates with it, nothing happens.
pub fn give_back_memory() {
    #[cfg(feature = "mimalloc")]
    // SAFETY: it may be called on any thread at any time, and takes blocks only that are free.
    unsafe {
        libmimalloc_sys::mi_collect(true);
    }
}
