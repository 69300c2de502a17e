//! When the kernel received what is read, on the shard's own clock.
//!
//! The kernel stamps segments by CLOCK_REALTIME. Its distance to the shard's clock changes only
//! when the system's time is set (both run at the same, corrected rate), and is measured again at
//! each tick of 100 ms in which something is read.

use std::os::fd::OwnedFd;

use rustix::time::{ClockId, clock_gettime};

use simurgh_data::Now;

use crate::clock::{Clock, nanoseconds};
use crate::syscalls;

/// The narrowest of this many readings counts: an interruption rarely spoils all of them.
const READINGS: usize = 3;

pub(crate) struct Stamps {
    clock: Clock,
    /// CLOCK_REALTIME minus the shard's clock.
    ahead_ns: i64,
    measured: Option<u32>,
    /// The stamp of the bytes that are being handled.
    pub(crate) received_at: Option<u64>,
}

impl Stamps {
    pub(crate) const fn new(clock: Clock) -> Self {
        Self { clock, ahead_ns: 0, measured: None, received_at: None }
    }

    /// Reads, and notes the kernel's stamp of the bytes.
    pub(crate) fn recv(
        &mut self,
        now: Now,
        fd: &OwnedFd,
        buffer: &mut [u8],
    ) -> rustix::io::Result<usize> {
        let (bytes, stamp) = syscalls::recv_stamped(fd, buffer)?;
        if self.measured != Some(now.tick) {
            self.ahead_ns = ahead_ns(self.clock);
            self.measured = Some(now.tick);
        }
        let on_clock = |stamp: i64| u64::try_from(stamp - self.ahead_ns).unwrap_or(0);
        self.received_at = stamp.map(on_clock);
        Ok(bytes)
    }
}

/// How far CLOCK_REALTIME is ahead of `clock`, to half the time between two readings of that.
fn ahead_ns(clock: Clock) -> i64 {
    let reading = |_| {
        let before = clock.ns();
        let real = nanoseconds(clock_gettime(ClockId::Realtime));
        let after = clock.ns();
        (after - before, real as i64 - (before + (after - before) / 2) as i64)
    };
    let (_, ahead) = (0..READINGS).map(reading).min().unwrap_or_default();
    ahead
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distance_between_the_clocks_is_stable() {
        let clock = Clock::new();
        let distances: Vec<i64> = (0..100).map(|_| ahead_ns(clock)).collect();
        let spread = distances.iter().max().unwrap() - distances.iter().min().unwrap();
        assert!(distances[0] > 0, "the wall clock counts from 1970");
        assert!(spread < 50_000, "{spread} ns between the least and the most");
    }
}
