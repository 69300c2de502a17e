//! The stages of a turn, and the share of each.

use crate::io::Io;

/// Bytes written after which a stage looks at the clock.
const STEP_BYTES: u64 = 64 << 10;

/// The share of one stage of a turn: time, and connections to be written to or closed (which costs
/// about 4 to 10 µs each at the end of the turn, so a limit of time alone would not suffice).
#[derive(Clone, Copy)]
pub(crate) struct Share {
    ns: u64,
    dirty: usize,
}

pub(crate) const MAIL: Share = Share { ns: 100_000, dirty: 24 };
pub(crate) const READY: Share = Share { ns: 100_000, dirty: 24 };
pub(crate) const EVENTS: Share = Share { ns: 250_000, dirty: 48 };
pub(crate) const PACKETS: Share = Share { ns: 400_000, dirty: 256 };
pub(crate) const HUNG_UP: Share = Share { ns: 100_000, dirty: 24 };
pub(crate) const WRITE_MORE: Share = Share { ns: 150_000, dirty: 24 };
pub(crate) const ACCEPT: Share = Share { ns: 150_000, dirty: 24 };

/// Connections for which this turn has a system call to make: a write at the flush, or a close.
fn pending_calls<T>(io: &Io<T>) -> usize {
    io.outbox.dirty.len() + io.lists.scheduled_closes.len()
}

/// Measures a stage.
pub(crate) struct Stage {
    until_ns: u64,
    dirty_max: usize,
    steps: u32,
    bytes_out: u64,
}

impl Stage {
    pub(crate) fn begin<T>(share: Share, io: &Io<T>) -> Self {
        Self {
            // From the last reading on: a stage without work needs no new one.
            until_ns: io.looked_ns.get() + share.ns,
            dirty_max: pending_calls(io) + share.dirty,
            steps: 0,
            bytes_out: io.counts.bytes_out,
        }
    }

    /// Whether the stage has used its share. The clock is read only at every eighth step, so that
    /// each stage makes some progress, and after much was written.
    pub(crate) fn is_over<T>(&mut self, io: &Io<T>) -> bool {
        self.steps += 1;
        let has_written = io.counts.bytes_out - self.bytes_out > STEP_BYTES;
        let looks = self.steps.is_multiple_of(8) || has_written;
        if has_written {
            self.bytes_out = io.counts.bytes_out;
        }
        io.is_late
            || pending_calls(io) >= self.dirty_max
            || (looks && io.clock_ns() >= self.until_ns)
    }
}
