//! The sweep over the records of sockets: one slice a turn, one round in an eighth of the shortest
//! timeout.

use core::time::Duration;

use simurgh_channel::{TICK, nanoseconds, until};

use simurgh_data::prelude::*;

const ROUND_MAX: Duration = Duration::from_secs(5);

pub(super) struct Sweep {
    every: Duration,
    next_ns: Option<u64>,
    is_under_way: bool,
    pub(super) cursor: u32,
    /// Kept so that no round allocates it.
    pub(super) found: Vec<simurgh_data::Key>,
}

impl Sweep {
    pub(super) fn new(shortest: Duration) -> Self {
        Self {
            every: every(shortest),
            next_ns: None,
            is_under_way: false,
            cursor: 0,
            found: Vec::new(),
        }
    }

    pub(super) fn set_shortest(&mut self, shortest: Duration) {
        (self.every, self.next_ns) = (every(shortest), None);
    }

    /// Whether to visit records now, or in how long.
    pub(super) fn begin(&mut self, now_ns: u64) -> Result<(), Duration> {
        if self.is_under_way {
            return Ok(());
        }
        let every = nanoseconds(self.every);
        let next_ns = *self.next_ns.get_or_insert(now_ns.saturating_add(every));
        if now_ns < next_ns {
            return Err(until(next_ns, now_ns));
        }
        (self.is_under_way, self.cursor) = (true, 0);
        Ok(())
    }

    /// Ends a slice. Returns in how long the next round begins, if this was its last.
    pub(super) fn end(&mut self, now_ns: u64) -> Option<Duration> {
        if self.cursor != 0 {
            return None;
        }
        self.is_under_way = false;
        self.next_ns = Some(now_ns.saturating_add(nanoseconds(self.every)));
        Some(self.every)
    }

    pub(super) fn give_up(&mut self) {
        self.is_under_way = false;
    }
}

fn every(shortest: Duration) -> Duration {
    (shortest / 8).clamp(TICK, ROUND_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_keep_their_interval() {
        assert_eq!(Sweep::new(Duration::from_millis(1)).every, TICK);
        assert_eq!(Sweep::new(Duration::from_secs(3600)).every, ROUND_MAX);
    }
}
