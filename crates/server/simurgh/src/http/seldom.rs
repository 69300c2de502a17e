//! What goes wrong again and again is said now and then, with how often it did.

use std::time::{Duration, Instant};

/// Between two lines of the log about the same.
const APART: Duration = Duration::from_secs(10);

/// One thing that goes wrong.
#[derive(Debug, Default)]
pub(super) struct Seldom {
    said: Option<Instant>,
    times: u64,
}

impl Seldom {
    /// It went wrong again; how often it has since it was said, if it is time to say so.
    pub(super) fn again(&mut self) -> Option<u64> {
        self.again_at(Instant::now())
    }

    fn again_at(&mut self, now: Instant) -> Option<u64> {
        self.times += 1;
        if self.said.is_some_and(|said| now < said + APART) {
            return None;
        }
        self.said = Some(now);
        Some(std::mem::take(&mut self.times))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_is_said_at_once_and_the_next_together() {
        let (mut seldom, now) = (Seldom::default(), Instant::now());
        assert_eq!(seldom.again_at(now), Some(1));
        for ms in 1..100 {
            assert_eq!(seldom.again_at(now + Duration::from_millis(100 * ms)), None);
        }
        assert_eq!(seldom.again_at(now + APART), Some(100));
    }
}
