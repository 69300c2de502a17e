//! Pinning a shard's thread to a core.

use std::io;

/// Pins the calling thread to core `core`. An error if there is no such core for this process;
/// does nothing where the system has no such call.
#[cfg(target_os = "linux")]
pub fn pin_thread(core: usize) -> io::Result<()> {
    use rustix::thread::{CpuSet, sched_setaffinity};
    if core >= CpuSet::MAX_CPU {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "no such core"));
    }
    let mut set = CpuSet::new();
    set.set(core);
    Ok(sched_setaffinity(None, &set)?)
}

/// Pins the calling thread to core `core`: not possible on this system, so nothing happens.
#[cfg(not(target_os = "linux"))]
pub fn pin_thread(_core: usize) -> io::Result<()> {
    Ok(())
}
