//! When requests are due in an open loop: computed, not queued.

/// The due times of one worker. A worker has every `of`-th request of the run, so the requests of
/// all workers together are evenly spaced.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    /// Nanoseconds between two requests of the run.
    gap_ns: f64,
    index: u64,
    of: u64,
    start_ns: u64,
    next: u64,
}

impl Pace {
    pub(super) fn new(rate: f64, index: usize, of: usize) -> Self {
        Self { gap_ns: 1e9 / rate, index: index as u64, of: of as u64, start_ns: 0, next: 0 }
    }

    pub(super) fn start(&mut self, at_ns: u64) {
        self.start_ns = at_ns;
    }

    pub(super) fn due_ns(&self) -> u64 {
        let number = self.next.saturating_mul(self.of).saturating_add(self.index);
        // Exact to the nanosecond for the first 100 days.
        self.start_ns.saturating_add((number as f64 * self.gap_ns) as u64)
    }

    /// Takes the next request if it is due; returns when it was due.
    pub(super) fn take(&mut self, now_ns: u64) -> Option<u64> {
        let due_ns = self.due_ns();
        if due_ns > now_ns {
            return None;
        }
        self.next += 1;
        Some(due_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workers_share_a_rate_evenly_without_missing_a_request() {
        for of in 1..5 {
            let mut due = Vec::new();
            for index in 0..of {
                let mut pace = Pace::new(3000.0, index, of);
                pace.start(1_000);
                while let Some(at_ns) = pace.take(1_000_000_000) {
                    due.push(at_ns);
                }
            }
            due.sort_unstable();
            assert_eq!(due.len(), 3000, "{of}");
            let gaps: Vec<u64> = due.windows(2).map(|two| two[1] - two[0]).collect();
            assert!(gaps.iter().all(|gap| (333_332..=333_335).contains(gap)), "{gaps:?}");
        }
    }

    #[test]
    fn late_request_keeps_its_original_due_time() {
        let mut pace = Pace::new(10.0, 0, 1);
        pace.start(0);
        assert_eq!(pace.take(350_000_000), Some(0));
        assert_eq!(pace.take(350_000_000), Some(100_000_000));
        assert_eq!(pace.take(100_000_000), None);
        assert_eq!(pace.due_ns(), 200_000_000);
    }
}
