//! Hibernation: when channels and topics are asked to release what they can.
//!
//! A cursor passes over all memberships once in each [`Config::hibernate_after`](crate::Config). If
//! nothing has passed through a channel since the last pass, it is asked once to release what it
//! can. That takes two bits of a membership and neither a timer nor a time stamp; when all channels
//! hibernate there is no pass.

use core::time::Duration;

use simurgh_channel::{nanoseconds, until};

const SLICE: Duration = Duration::from_micros(200);
/// Records between two readings of the clock.
const STRIDE: u32 = 32;

pub(super) struct Hibernation {
    every: Option<Duration>,
    next_ns: Option<u64>,
    cursor: Option<Cursor>,
    steps: u32,
    /// Memory was released since the last call.
    pub(super) has_released: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Cursor {
    Membership(u32),
    Topic(usize),
}

impl Hibernation {
    pub(super) fn new(every: Option<Duration>) -> Self {
        Self { every, next_ns: None, cursor: None, steps: 0, has_released: false }
    }

    pub(super) fn set_every(&mut self, every: Option<Duration>) {
        if self.every != every {
            (self.every, self.next_ns) = (every, None);
        }
    }

    /// The cursor if a pass is in progress or begins now; otherwise in how long to ask again, or
    /// `None` if not before something happens.
    pub(super) fn begin(&mut self, awake: usize, now_ns: u64) -> Result<Cursor, Option<Duration>> {
        let every = self.every.map(nanoseconds).ok_or(None)?;
        let next_ns = *self.next_ns.get_or_insert(now_ns.saturating_add(every));
        if let Some(cursor) = self.cursor {
            return Ok(cursor);
        }
        if awake == 0 {
            return Err(None);
        }
        if now_ns < next_ns {
            return Err(Some(until(next_ns, now_ns)));
        }
        self.next_ns = Some(now_ns.saturating_add(every));
        Ok(Cursor::Membership(0))
    }

    /// A record was visited. Returns whether to read the clock.
    pub(super) fn is_stride(&mut self) -> bool {
        self.steps = self.steps.wrapping_add(1);
        self.steps.is_multiple_of(STRIDE)
    }

    pub(super) fn deadline_ns(clock_ns: u64) -> u64 {
        clock_ns.saturating_add(nanoseconds(SLICE))
    }

    /// A slice ends here; the pass continues with the next.
    pub(super) fn pause(&mut self, cursor: Cursor) {
        self.cursor = Some(cursor);
    }

    /// Whether a pass that has ended has released something since the last call.
    pub(super) fn take_released(&mut self) -> bool {
        self.cursor.is_none() && core::mem::take(&mut self.has_released)
    }

    /// The pass is over. Returns in how long there is another, if a channel is awake.
    pub(super) fn end(&mut self, awake: usize, now_ns: u64) -> Option<Duration> {
        self.cursor = None;
        self.next_ns.filter(|_| awake > 0).map(|next_ns| until(next_ns, now_ns))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_runs_only_while_a_channel_is_awake() {
        let mut hibernation = Hibernation::new(Some(Duration::from_nanos(100)));
        assert_eq!(hibernation.begin(0, 0), Err(None));
        assert_eq!(hibernation.begin(1, 60), Err(Some(Duration::from_nanos(40))));
        assert_eq!(hibernation.begin(1, 100), Ok(Cursor::Membership(0)));
        hibernation.pause(Cursor::Topic(3));
        assert_eq!(hibernation.begin(0, 101), Ok(Cursor::Topic(3)), "what has begun goes on");
        assert_eq!(hibernation.end(1, 150), Some(Duration::from_nanos(50)));
        assert_eq!(hibernation.begin(1, 199), Err(Some(Duration::from_nanos(1))));
        assert_eq!(hibernation.begin(1, 200), Ok(Cursor::Membership(0)));
        assert_eq!(hibernation.end(0, 201), None);
        assert_eq!(Hibernation::new(None).begin(1, 0), Err(None));
    }

    /// Not during a pass: there may be more.
    #[test]
    fn round_reports_released_memory_at_its_end() {
        let mut hibernation = Hibernation::new(Some(Duration::from_nanos(100)));
        assert_eq!(hibernation.begin(1, 100), Err(Some(Duration::from_nanos(100))));
        assert_eq!(hibernation.begin(1, 200), Ok(Cursor::Membership(0)));
        hibernation.has_released = true;
        hibernation.pause(Cursor::Topic(3));
        assert!(!hibernation.take_released());
        hibernation.end(1, 201);
        assert!(hibernation.take_released() && !hibernation.take_released());
    }
}
