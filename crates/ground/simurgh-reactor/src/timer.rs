//! Waking to the microsecond by a timer: a poll set alone waits in whole milliseconds.

#[cfg(target_os = "linux")]
pub(crate) use linux::Timer;

#[cfg(target_os = "linux")]
mod linux {
    use std::io;
    use std::os::fd::{AsRawFd, OwnedFd};

    use rustix::time::{
        Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
        timerfd_settime,
    };

    use crate::connection::Special;
    use crate::io::Io;

    #[derive(Default)]
    pub(crate) struct Timer {
        fd: Option<OwnedFd>,
        /// The time it was last set to, which may be in the past.
        set_to_ns: Option<u64>,
        has_failed: bool,
    }

    impl Timer {
        /// Ends the next wait at `at_ns` of the shard's clock. `false`, and the time-out of the
        /// wait has to do it, while no descriptor is left for the timer.
        pub(crate) fn set<T>(&mut self, io: &Io<T>, at_ns: u64) -> bool {
            if self.set_to_ns == Some(at_ns) {
                return true;
            }
            let armed = self.arm(io, io.clock.monotonic_ns(at_ns));
            if let Err(error) = &armed
                && !self.has_failed
            {
                self.has_failed = true;
                tracing::warn!(%error, "no precise timer is available: the shard wakes with a \
                    precision of a millisecond");
            }
            self.set_to_ns = armed.is_ok().then_some(at_ns);
            armed.is_ok()
        }

        fn arm<T>(&mut self, io: &Io<T>, monotonic_ns: u64) -> io::Result<()> {
            let fd = match &self.fd {
                Some(fd) => fd,
                None => {
                    let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
                    let fd = timerfd_create(TimerfdClockId::Monotonic, flags)?;
                    io.register_special(fd.as_raw_fd(), Special::Timer)?;
                    self.fd.insert(fd)
                }
            };
            let once = Itimerspec {
                it_interval: Timespec { tv_sec: 0, tv_nsec: 0 },
                it_value: Timespec {
                    tv_sec: (monotonic_ns / 1_000_000_000) as i64,
                    tv_nsec: (monotonic_ns % 1_000_000_000) as i64,
                },
            };
            // Its expiry is never read: the registration is edge-triggered, so each is an event.
            timerfd_settime(fd, TimerfdTimerFlags::ABSTIME, &once)?;
            Ok(())
        }
    }
}

/// Without timers, the time-out of the wait is used.
#[cfg(not(target_os = "linux"))]
#[derive(Default)]
pub(crate) struct Timer;

#[cfg(not(target_os = "linux"))]
impl Timer {
    pub(crate) fn set<T>(&mut self, _: &crate::io::Io<T>, _: u64) -> bool {
        false
    }
}
