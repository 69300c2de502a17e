//! Pinning a shard's thread to a core.

use std::io;

/// Pins the calling thread to core `core`. Fails if this process cannot use the core; does nothing
/// on systems without such a call.
#[cfg(target_os = "linux")]
pub fn pin_thread(core: usize) -> io::Result<()> {
    use rustix::thread::{CpuSet, sched_setaffinity};
    if core >= CpuSet::MAX_CPU {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "this core does not exist"));
    }
    let mut set = CpuSet::new();
    set.set(core);
    Ok(sched_setaffinity(None, &set)?)
}

/// Does nothing: this system cannot pin threads.
#[cfg(not(target_os = "linux"))]
pub fn pin_thread(_core: usize) -> io::Result<()> {
    Ok(())
}
