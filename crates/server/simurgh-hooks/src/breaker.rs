//! The breaker: stops asking an application whose answers fail. Times are milliseconds.

use std::net::IpAddr;

/// A breaker opens after this many failures within [`WINDOW_S`], if they are half of all.
const FAILURES_MIN: u32 = 20;
const WINDOW_S: u64 = 10;
const PAUSE_MIN_MS: u64 = 1_000;
const PAUSE_MAX_MS: u64 = 30_000;
/// So many addresses have to get wrong answers before those count: a client can cause its own.
const ADDRESSES_MIN: usize = 5;
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

/// How a question failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// Nobody accepts connections.
    Away,
    /// No answer, or that of a gateway.
    Silent,
    /// No answer in time.
    Late,
    /// An answer that decides nothing.
    Wrong,
    /// The same with a status 4xx.
    Rejected,
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
    /// The last addresses that got a wrong answer, and when.
    wronged: [Option<(IpAddr, u64)>; ADDRESSES_MIN],
    /// It opened because the application rejects the questions.
    rejects: bool,
}

impl Breaker {
    pub(crate) fn new() -> Self {
        let seconds = [Second::default(); WINDOW_S as usize];
        let (wronged, rejects) = ([None; ADDRESSES_MIN], false);
        Self { state: BreakerState::Closed, seconds, pause_ms: 0, at_ms: 0, wronged, rejects }
    }

    /// A question is sent, which [`Self::admits`] allowed. Returns whether it decides alone.
    pub(crate) fn send(&mut self) -> bool {
        let probes = self.state == BreakerState::Open;
        if probes {
            self.state = BreakerState::HalfOpen;
        }
        probes
    }

    /// Whether a failure says something about the application. A wrong answer does so if several
    /// addresses got one: as recently as outcomes count, or since the breaker opened.
    pub(crate) fn weighs(&mut self, now_ms: u64, fault: Fault, client: IpAddr) -> bool {
        if !matches!(fault, Fault::Wrong | Fault::Rejected) {
            return true;
        }
        let window_ms = if self.state == BreakerState::Closed { WINDOW_S * 1000 } else { now_ms };
        let since_ms = now_ms.saturating_sub(window_ms);
        let is_own = |entry: &Option<(IpAddr, u64)>| entry.is_some_and(|(ip, _)| ip == client);
        // In the order of their times: its own entry leaves, else the oldest.
        let own = self.wronged.iter().position(is_own).unwrap_or_default();
        if let Some(later) = self.wronged.get_mut(own..) {
            later.rotate_left(1);
        }
        let [.., last] = &mut self.wronged;
        *last = Some((client, now_ms));
        self.wronged.iter().all(|entry| entry.is_some_and(|(_, at_ms)| at_ms >= since_ms))
    }

    /// The outcome of a question that was sent; only a failure that [`Self::weighs`].
    pub(crate) fn record(
        &mut self,
        now_ms: u64,
        fault: Option<Fault>,
        probe: bool,
    ) -> Option<Change> {
        match (self.state, fault) {
            (BreakerState::Closed, fault) => {
                let opens = self.count(now_ms, fault.is_some());
                fault.filter(|_| opens).and_then(|fault| self.open(now_ms, fault))
            }
            (BreakerState::HalfOpen, Some(fault)) if probe => self.open(now_ms, fault),
            (BreakerState::HalfOpen, None) if probe => {
                let (pause_ms, at_ms) = (self.pause_ms, now_ms);
                *self = Self { pause_ms, at_ms, ..Self::new() };
                Some(Change::Closed)
            }
            (BreakerState::Open | BreakerState::HalfOpen, _) => None,
        }
    }

    /// Whether it opened because the application rejects the questions.
    pub(crate) fn rejects(&self) -> bool {
        self.rejects
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

    /// Returns the change, unless the last line of the log has said the same.
    fn open(&mut self, now_ms: u64, fault: Fault) -> Option<Change> {
        let was_closed = self.state == BreakerState::Closed;
        let is_calm = was_closed && now_ms - self.at_ms >= CALM_MS;
        let last_ms = self.pause_ms;
        self.pause_ms = match last_ms {
            // Trying costs an application that is away nothing, and clients wait for its return.
            _ if last_ms == 0 || is_calm || fault == Fault::Away => PAUSE_MIN_MS,
            _ => (last_ms * 2).min(PAUSE_MAX_MS),
        };
        self.state = BreakerState::Open;
        self.at_ms = now_ms + self.pause_ms;
        self.rejects = fault == Fault::Rejected;
        let pause_ms = self.pause_ms;
        (was_closed || pause_ms != last_ms).then_some(Change::Opened { pause_ms })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SILENT: Option<Fault> = Some(Fault::Silent);

    fn fail(breaker: &mut Breaker, now_ms: u64, times: u32) -> Option<Change> {
        (0..times).filter_map(|_| breaker.record(now_ms, SILENT, false)).last()
    }

    fn client(number: u8) -> IpAddr {
        IpAddr::from([192, 0, 2, number])
    }

    /// The application answers these addresses in turn, and decides nothing.
    fn answers_wrongly(breaker: &mut Breaker, now_ms: u64, addresses: u8) -> Option<Change> {
        let changes = (0..100).filter_map(|number| {
            let weighs = breaker.weighs(now_ms, Fault::Rejected, client(number % addresses));
            weighs.then(|| breaker.record(now_ms, Some(Fault::Rejected), false)).flatten()
        });
        changes.last()
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
            assert_eq!(breaker.record(0, None, false), None);
        }
        assert_eq!(fail(&mut breaker, 500, 19), None);
        assert_eq!(fail(&mut breaker, 600, 1), Some(Change::Opened { pause_ms: 1000 }));
    }

    #[test]
    fn fewer_than_half_leave_it_closed() {
        let mut breaker = Breaker::new();
        for _ in 0..100 {
            breaker.record(0, None, false);
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
        assert_eq!(breaker.record(1100, None, false), None, "sent before it opened");
        assert_eq!(breaker.record(1200, None, true), Some(Change::Closed));
        assert!(breaker.admits(1200));
        assert!(!breaker.send());
    }

    #[test]
    fn failed_tries_double_the_pause_up_to_thirty_seconds() {
        let mut breaker = opened();
        let mut now = 0;
        for pause_ms in [2000, 4000, 8000, 16_000, 30_000] {
            now += 60_000;
            assert!(breaker.send());
            assert_eq!(breaker.record(now, SILENT, true), Some(Change::Opened { pause_ms }));
        }
        breaker.send();
        assert_eq!(breaker.record(now + 60_000, SILENT, true), None, "the log has said this");
    }

    #[test]
    fn flapping_hook_keeps_doubling_and_a_calm_one_starts_again() {
        let mut breaker = opened();
        breaker.send();
        assert_eq!(breaker.record(1000, None, true), Some(Change::Closed));
        assert_eq!(fail(&mut breaker, 2000, 20), Some(Change::Opened { pause_ms: 2000 }));
        breaker.send();
        assert_eq!(breaker.record(5000, None, true), Some(Change::Closed));
        assert_eq!(fail(&mut breaker, 65_000, 20), Some(Change::Opened { pause_ms: 1000 }));
    }
    #[test]
    fn wrong_answers_to_fewer_than_five_addresses_leave_it_closed() {
        let mut breaker = Breaker::new();
        assert_eq!(answers_wrongly(&mut breaker, 0, 1), None);
        assert_eq!(answers_wrongly(&mut breaker, 0, 4), None);
        assert_eq!(answers_wrongly(&mut breaker, 20_000, 4), None, "the first addresses are old");
        let opened = answers_wrongly(&mut breaker, 20_000, 5);
        assert_eq!((opened, breaker.rejects()), (Some(Change::Opened { pause_ms: 1000 }), true));
    }

    #[test]
    fn wrong_answer_to_one_client_closes_it_when_the_application_is_back() {
        let mut breaker = opened();
        assert!(!breaker.rejects());
        breaker.send();
        assert!(!breaker.weighs(1000, Fault::Rejected, client(1)));
        assert_eq!(breaker.record(1000, None, true), Some(Change::Closed));
    }

    #[test]
    fn one_wrong_answer_keeps_it_open_if_many_addresses_got_one_before() {
        let mut breaker = Breaker::new();
        answers_wrongly(&mut breaker, 0, 5);
        breaker.send();
        assert!(breaker.weighs(60_000, Fault::Wrong, client(9)));
    }

    #[test]
    fn application_that_refuses_connections_is_tried_every_second() {
        let mut breaker = Breaker::new();
        let away = Some(Fault::Away);
        let opened = (0..20).filter_map(|_| breaker.record(0, away, false)).last();
        assert_eq!(opened, Some(Change::Opened { pause_ms: 1000 }));
        for now_ms in [1000, 2000, 3000] {
            assert!(breaker.admits(now_ms) && breaker.send());
            assert_eq!(breaker.record(now_ms, away, true), None, "the log says it once");
        }
        breaker.send();
        assert_eq!(breaker.record(4000, SILENT, true), Some(Change::Opened { pause_ms: 2000 }));
    }
}
