//! The breaker: stops asking an application whose answers fail. Times are milliseconds.

/// A breaker opens after this many failures within [`WINDOW_S`], if they are half of all.
const FAILURES_MIN: u32 = 20;
const WINDOW_S: u64 = 10;
const PAUSE_MIN_MS: u64 = 1_000;
const PAUSE_MAX_MS: u64 = 30_000;
/// After this time without opening again, the next pause is the shortest.
const CALM_MS: u64 = 60_000;

/// State of a breaker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BreakerState {
    /// Questions are sent.
    #[default]
    Closed,
    /// Questions fail at once.
    Open,
    /// One question is in flight and decides; all others fail at once.
    HalfOpen,
}

/// A change that is worth a line in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// It opened, and tries a question after this time.
    Opened { pause_ms: u64 },
    /// It closed.
    Closed,
}

#[derive(Clone, Copy, Default)]
struct Second {
    number: u64,
    asked: u32,
    failed: u32,
}

pub(crate) struct Breaker {
    state: BreakerState,
    seconds: [Second; WINDOW_S as usize],
    pause_ms: u64,
    /// While open: when a question may be tried. While closed: since when.
    at_ms: u64,
}

impl Breaker {
    pub(crate) fn new() -> Self {
        let seconds = [Second::default(); WINDOW_S as usize];
        Self { state: BreakerState::Closed, seconds, pause_ms: 0, at_ms: 0 }
    }

    /// A question is sent, which [`Self::admits`] allowed. Returns whether it decides alone.
    pub(crate) fn send(&mut self) -> bool {
        let probes = self.state == BreakerState::Open;
        if probes {
            self.state = BreakerState::HalfOpen;
        }
        probes
    }

    /// The outcome of a question that was sent.
    pub(crate) fn record(&mut self, now_ms: u64, failed: bool, probe: bool) -> Option<Change> {
        match self.state {
            BreakerState::Closed => self.count(now_ms, failed).then(|| self.open(now_ms)),
            BreakerState::HalfOpen if probe && failed => Some(self.open(now_ms)),
            BreakerState::HalfOpen if probe => {
                self.state = BreakerState::Closed;
                self.at_ms = now_ms;
                self.seconds = Default::default();
                Some(Change::Closed)
            }
            BreakerState::Open | BreakerState::HalfOpen => None,
        }
    }

    /// Whether a question may be sent, or wait for that.
    pub(crate) fn admits(&self, now_ms: u64) -> bool {
        match self.state {
            BreakerState::Closed => true,
            BreakerState::Open => self.at_ms <= now_ms,
            BreakerState::HalfOpen => false,
        }
    }

    /// Time until a question may be tried.
    pub(crate) fn wait_ms(&self, now_ms: u64) -> u64 {
        match self.state {
            BreakerState::Closed => 0,
            BreakerState::Open => self.at_ms.saturating_sub(now_ms).max(1),
            BreakerState::HalfOpen => PAUSE_MIN_MS,
        }
    }

    pub(crate) fn state(&self) -> BreakerState {
        self.state
    }

    /// Counts an outcome. Returns whether too many failed.
    fn count(&mut self, now_ms: u64, failed: bool) -> bool {
        let number = now_ms / 1000;
        let slot = (number % WINDOW_S) as usize;
        if let Some(second) = self.seconds.get_mut(slot) {
            if second.number != number {
                *second = Second { number, ..Second::default() };
            }
            second.asked += 1;
            second.failed += u32::from(failed);
        }
        let recent = self.seconds.iter().filter(|second| second.number + WINDOW_S > number);
        let (asked, failures) = recent
            .fold((0, 0), |(asked, failed), second| (asked + second.asked, failed + second.failed));
        failed && failures >= FAILURES_MIN && failures * 2 >= asked
    }

    fn open(&mut self, now_ms: u64) -> Change {
        let is_calm = self.state == BreakerState::Closed && now_ms - self.at_ms >= CALM_MS;
        self.pause_ms = match self.pause_ms {
            0 => PAUSE_MIN_MS,
            _ if is_calm => PAUSE_MIN_MS,
            last => (last * 2).min(PAUSE_MAX_MS),
        };
        self.state = BreakerState::Open;
        self.at_ms = now_ms + self.pause_ms;
        Change::Opened { pause_ms: self.pause_ms }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fail(breaker: &mut Breaker, now_ms: u64, times: u32) -> Option<Change> {
        (0..times).filter_map(|_| breaker.record(now_ms, true, false)).last()
    }

    fn opened() -> Breaker {
        let mut breaker = Breaker::new();
        assert_eq!(fail(&mut breaker, 0, 20), Some(Change::Opened { pause_ms: 1000 }));
        breaker
    }

    #[test]
    fn twenty_failures_that_are_half_of_all_open_it() {
        let mut breaker = Breaker::new();
        for _ in 0..20 {
            assert_eq!(breaker.record(0, false, false), None);
        }
        assert_eq!(fail(&mut breaker, 500, 19), None);
        assert_eq!(fail(&mut breaker, 600, 1), Some(Change::Opened { pause_ms: 1000 }));
    }

    #[test]
    fn fewer_than_half_leave_it_closed() {
        let mut breaker = Breaker::new();
        for _ in 0..100 {
            breaker.record(0, false, false);
        }
        assert_eq!(fail(&mut breaker, 0, 99), None);
        assert_eq!(breaker.state(), BreakerState::Closed);
    }

    #[test]
    fn failures_older_than_ten_seconds_do_not_count() {
        let mut breaker = Breaker::new();
        assert_eq!(fail(&mut breaker, 0, 19), None);
        assert_eq!(fail(&mut breaker, 10_000, 19), None);
        assert_eq!(fail(&mut breaker, 19_000, 1), Some(Change::Opened { pause_ms: 1000 }));
    }

    #[test]
    fn open_breaker_tries_one_question_after_its_pause() {
        let mut breaker = opened();
        assert!(!breaker.admits(999));
        assert_eq!(breaker.wait_ms(400), 600);
        assert!(breaker.admits(1000));
        assert!(breaker.send());
        assert!(!breaker.admits(60_000), "one question only");
        assert_eq!(breaker.record(1100, false, false), None, "sent before it opened");
        assert_eq!(breaker.record(1200, false, true), Some(Change::Closed));
        assert!(breaker.admits(1200));
        assert!(!breaker.send());
    }

    #[test]
    fn failed_tries_double_the_pause_up_to_thirty_seconds() {
        let mut breaker = opened();
        let mut now = 0;
        for pause_ms in [2000, 4000, 8000, 16_000, 30_000, 30_000] {
            now += 60_000;
            assert!(breaker.send());
            assert_eq!(breaker.record(now, true, true), Some(Change::Opened { pause_ms }));
        }
    }

    #[test]
    fn flapping_hook_keeps_doubling_and_a_calm_one_starts_again() {
        let mut breaker = opened();
        breaker.send();
        assert_eq!(breaker.record(1000, false, true), Some(Change::Closed));
        assert_eq!(fail(&mut breaker, 2000, 20), Some(Change::Opened { pause_ms: 2000 }));
        breaker.send();
        assert_eq!(breaker.record(5000, false, true), Some(Change::Closed));
        assert_eq!(fail(&mut breaker, 65_000, 20), Some(Change::Opened { pause_ms: 1000 }));
    }
}
