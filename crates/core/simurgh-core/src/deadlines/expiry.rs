//! Lifetimes of sockets, such as those of their tokens.
//!
//! Few sockets have a deadline, and reading it in each round of the sweep would be a cache miss for
//! every socket with an id. So a shard knows the earliest deadline, and only later rounds read
//! deadlines. All are in ticks of `wall_tick`.

use simurgh_channel::{Lifetime, has_passed};
use simurgh_data::Now;

#[derive(Debug, Default)]
pub(crate) struct Expiry {
    /// No deadline is before this; `None`: there is no deadline.
    soonest: Option<u32>,
    /// The earliest deadline that the current round has seen, or that was added since it began.
    seen: Option<u32>,
    is_looking: bool,
}

impl Expiry {
    /// Notes a lifetime that begins now. Returns its deadline.
    pub(crate) fn note(&mut self, lifetime: Lifetime, now: Now) -> u32 {
        let deadline = lifetime.after(now);
        for least in [&mut self.soonest, &mut self.seen] {
            *least = Some(earlier(*least, deadline));
        }
        deadline
    }

    pub(super) fn begin(&mut self, now: u32) {
        self.is_looking = self.soonest.is_some_and(|soonest| has_passed(soonest, now));
        self.seen = None;
    }

    pub(super) fn is_looking(&self) -> bool {
        self.is_looking
    }

    pub(super) fn is_over(&mut self, deadline: u32, now: u32) -> bool {
        let is_over = has_passed(deadline, now);
        if !is_over {
            self.seen = Some(earlier(self.seen, deadline));
        }
        is_over
    }

    pub(super) fn end(&mut self) {
        if core::mem::take(&mut self.is_looking) {
            self.soonest = self.seen;
        }
    }
}

fn earlier(other: Option<u32>, tick: u32) -> u32 {
    other.filter(|other| has_passed(*other, tick)).unwrap_or(tick)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn seconds(seconds: u64) -> Lifetime {
        Lifetime::from(Duration::from_secs(seconds))
    }

    #[test]
    fn no_socket_is_checked_before_the_first_deadline() {
        let mut expiry = Expiry::default();
        expiry.begin(u32::MAX);
        assert!(!expiry.is_looking());
        let began = u32::MAX - 5;
        let now = Now::from_ns(u64::from(began) * 100_000_000);
        let (late, early) = (expiry.note(seconds(60), now), expiry.note(seconds(1), now));
        assert_eq!([early, late], [4, 594]);
        for (now, looks) in [(began, false), (3, false), (4, true)] {
            expiry.begin(now);
            assert_eq!(expiry.is_looking(), looks, "at {now}");
            if !looks {
                expiry.end();
            }
        }
        assert!(expiry.is_over(early, 4) && !expiry.is_over(late, 4));
        expiry.end();
        expiry.begin(593);
        assert!(!expiry.is_looking());
        expiry.end();
        expiry.begin(594);
        assert!(expiry.is_looking() && expiry.is_over(late, 594));
    }

    #[test]
    fn distant_deadline_does_not_hide_a_due_one() {
        let mut expiry = Expiry::default();
        let early = expiry.note(seconds(1), Now::from_ns(0));
        expiry.note(Lifetime::from(Duration::MAX), Now::from_ns(3_600_000_000_000));
        expiry.begin(36_000);
        assert!(expiry.is_looking() && expiry.is_over(early, 36_000));
    }

    #[test]
    fn deadline_added_during_a_round_is_kept() {
        let mut expiry = Expiry::default();
        expiry.note(seconds(0), Now::from_ns(0));
        expiry.begin(10);
        expiry.note(seconds(1), Now::from_ns(1_000_000_000));
        expiry.end();
        expiry.begin(19);
        assert!(!expiry.is_looking());
        expiry.end();
        expiry.begin(20);
        assert!(expiry.is_looking());
    }
}
