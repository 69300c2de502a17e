//! How many questions may be in flight: additive increase, multiplicative decrease.

use std::time::Duration;

const START: u16 = 16;
const MIN: u16 = 4;
const MAX: u16 = 256;

/// The meaning of an outcome for the limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Signal {
    /// The application answered.
    Answered,
    /// It has too much to do: timeout, 429, 502, 503, 504, refused connection.
    Congested,
    /// Says nothing about that.
    Neutral,
}

#[derive(Default)]
pub(crate) struct Limiter {
    limit: u16,
    adapts: bool,
    in_flight: u16,
    /// Answers since the last change, while the whole limit was in use.
    answered: u16,
    sent: u64,
    /// Questions below this number were in flight when the whole limit was in use.
    full_at: u64,
    /// Questions below this number were sent before the last decrease.
    decreased_at: u64,
    /// Time of an answer, averaged over some.
    answer_us: u64,
}

impl Limiter {
    /// Adapts, or is fixed at `concurrency`.
    pub(crate) fn new(concurrency: Option<u16>) -> Self {
        let limit = concurrency.unwrap_or(START).max(1);
        Self { limit, adapts: concurrency.is_none(), ..Self::default() }
    }

    /// A question is sent. Returns its number.
    pub(crate) fn send(&mut self) -> u64 {
        self.in_flight += 1;
        self.sent += 1;
        if !self.has_room() {
            self.full_at = self.sent;
        }
        self.sent - 1
    }

    /// Question `number` has its outcome, after this time.
    pub(crate) fn finish(&mut self, number: u64, signal: Signal, time: Duration) {
        let was_full = number < self.full_at;
        self.in_flight = self.in_flight.saturating_sub(1);
        if signal == Signal::Answered {
            let us = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
            self.answer_us = (self.answer_us / 16 * 15).saturating_add(us / 16);
        }
        if !self.adapts {
            return;
        }
        match signal {
            Signal::Answered if was_full => self.increase(),
            // Those in flight together meet the same congestion: one decrease for all.
            Signal::Congested if number >= self.decreased_at => {
                self.limit = (self.limit * 7 / 10).max(MIN);
                self.answered = 0;
                self.decreased_at = self.sent;
            }
            Signal::Answered | Signal::Congested | Signal::Neutral => {}
        }
    }

    pub(crate) fn has_room(&self) -> bool {
        self.in_flight < self.limit
    }

    /// How many waiting questions can be sent within this time, by the time of the last answers.
    pub(crate) fn sends_within(&self, time_ms: u64) -> usize {
        let us = time_ms.saturating_mul(1000).saturating_mul(u64::from(self.limit));
        us.checked_div(self.answer_us).map_or(usize::MAX, |count| count as usize)
    }

    pub(crate) fn in_flight(&self) -> usize {
        usize::from(self.in_flight)
    }

    pub(crate) fn limit(&self) -> usize {
        usize::from(self.limit)
    }

    fn increase(&mut self) {
        self.answered += 1;
        if self.answered >= self.limit {
            self.limit = (self.limit + 1).min(MAX);
            self.answered = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const TIME: Duration = Duration::from_millis(80);

    fn fill(limiter: &mut Limiter) -> Vec<u64> {
        let mut sent = Vec::new();
        while limiter.has_room() {
            sent.push(limiter.send());
        }
        sent
    }

    #[test]
    fn limit_rises_after_as_many_answers_as_it_has_in_full_use() {
        let mut limiter = Limiter::new(None);
        let mut numbers = fill(&mut limiter);
        assert_eq!(numbers.len(), 16);
        for _ in 0..15 {
            limiter.finish(numbers.remove(0), Signal::Answered, TIME);
            numbers.push(limiter.send());
        }
        assert_eq!(limiter.limit(), 16);
        limiter.finish(numbers.remove(0), Signal::Answered, TIME);
        assert_eq!(limiter.limit(), 17);
    }

    #[test]
    fn answers_that_come_together_count_as_those_one_by_one() {
        let mut limiter = Limiter::new(None);
        for number in fill(&mut limiter) {
            limiter.finish(number, Signal::Answered, TIME);
        }
        assert_eq!(limiter.limit(), 17);
    }

    #[test]
    fn limit_stays_if_it_is_not_used() {
        let mut limiter = Limiter::new(None);
        for _ in 0..1000 {
            let number = limiter.send();
            limiter.finish(number, Signal::Answered, TIME);
        }
        assert_eq!(limiter.limit(), 16);
    }

    #[test]
    fn failures_of_one_round_trip_decrease_it_once() {
        let mut limiter = Limiter::new(None);
        for number in fill(&mut limiter) {
            limiter.finish(number, Signal::Congested, TIME);
        }
        assert_eq!(limiter.limit(), 11);
        let next = limiter.send();
        limiter.finish(next, Signal::Congested, TIME);
        assert_eq!(limiter.limit(), 7);
    }

    #[test]
    fn fixed_limit_never_changes() {
        let mut limiter = Limiter::new(Some(2));
        for signal in [Signal::Answered, Signal::Congested] {
            for number in fill(&mut limiter) {
                limiter.finish(number, signal, TIME);
            }
            assert_eq!(limiter.limit(), 2);
        }
    }

    #[test]
    fn questions_within_a_time_follow_the_time_of_answers_and_the_limit() {
        let mut limiter = Limiter::new(Some(4));
        assert_eq!(limiter.sends_within(1), usize::MAX, "nothing is known before an answer");
        for _ in 0..100 {
            let number = limiter.send();
            limiter.finish(number, Signal::Answered, TIME);
        }
        assert!((300..=320).contains(&limiter.sends_within(6000)));
    }

    proptest! {
        #[test]
        fn limit_stays_between_its_bounds(outcomes in prop::collection::vec(0..3_u8, 0..4000)) {
            let mut limiter = Limiter::new(None);
            for outcome in outcomes {
                let numbers = fill(&mut limiter);
                let signal = match outcome {
                    0 => Signal::Congested,
                    1 => Signal::Neutral,
                    _ => Signal::Answered,
                };
                for number in numbers {
                    limiter.finish(number, signal, TIME);
                }
                prop_assert!((4..=256).contains(&limiter.limit()));
                prop_assert_eq!(limiter.in_flight(), 0);
            }
        }
    }
}
