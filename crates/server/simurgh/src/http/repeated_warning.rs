//! A frequent warning is logged only now and then, with its count.

use std::time::{Duration, Instant};

/// The least time between two log lines.
const APART: Duration = Duration::from_secs(10);

#[derive(Debug, Default)]
pub(super) struct RepeatedWarning {
    logged: Option<Instant>,
    times: u64,
}

impl RepeatedWarning {
    /// Counts the warning; returns the count since the last log line if it is time to log it.
    pub(super) fn count(&mut self) -> Option<u64> {
        self.count_at(Instant::now())
    }

    fn count_at(&mut self, now: Instant) -> Option<u64> {
        self.times += 1;
        if self.logged.is_some_and(|logged| now < logged + APART) {
            return None;
        }
        self.logged = Some(now);
        Some(std::mem::take(&mut self.times))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_warning_is_logged_at_once_and_later_ones_together() {
        let (mut warning, now) = (RepeatedWarning::default(), Instant::now());
        assert_eq!(warning.count_at(now), Some(1));
        for ms in 1..100 {
            assert_eq!(warning.count_at(now + Duration::from_millis(100 * ms)), None);
        }
        assert_eq!(warning.count_at(now + APART), Some(100));
    }
}
