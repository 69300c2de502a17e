//! Heartbeats, and slow readers: work for many users that needs no exact time.
//!
//! A heartbeat needs no timer. A cursor passes all users of a worker once in each interval and
//! makes those of the session send theirs, so they are spread evenly. A user's first one follows
//! its connect by up to an interval, and the others are an interval apart.

use std::collections::BinaryHeap;
use std::time::Duration;

use simurgh_load_scenario::Transport;
use simurgh_reactor::Key;

use crate::program::Program;
use crate::time::nanos;
use crate::user::POLL_CHECK_INTERVAL;

/// How often the cursors move.
const STEP_NS: u64 = 50_000_000;

pub(super) struct Sweeps {
    /// One for each interval of a session.
    cursors: Vec<Cursor>,
    next_ns: Option<u64>,
    /// Connections that are not read until a time: (when, which).
    throttled: BinaryHeap<std::cmp::Reverse<(u64, Key)>>,
}

struct Cursor {
    interval: Duration,
    /// Start of the pass, and its progress.
    pass_start_ns: u64,
    place: u32,
}

impl Sweeps {
    pub(super) fn new(program: &Program) -> Self {
        let heartbeats = program.sessions.iter().filter_map(|session| session.heartbeat.as_ref());
        let mut intervals: Vec<Duration> = heartbeats.map(|heartbeat| heartbeat.every).collect();
        if program.sessions.iter().any(|session| session.transport == Transport::LongPoll) {
            intervals.push(POLL_CHECK_INTERVAL);
        }
        intervals.sort();
        intervals.dedup();
        let cursors =
            intervals.into_iter().map(|interval| Cursor { interval, pass_start_ns: 0, place: 0 });
        Self { cursors: cursors.collect(), next_ns: None, throttled: BinaryHeap::new() }
    }

    pub(super) fn start(&mut self, at_ns: u64) {
        for cursor in &mut self.cursors {
            cursor.pass_start_ns = at_ns;
        }
        self.next_ns = (!self.cursors.is_empty()).then_some(at_ns + STEP_NS);
    }

    pub(super) fn next_ns(&self) -> Option<u64> {
        let release = self.throttled.peek().map(|first| first.0.0);
        [self.next_ns, release].into_iter().flatten().min()
    }

    /// The next user that is passed until `now_ns`, of `places`, and the interval of its cursor.
    pub(super) fn next(&mut self, places: u32, now_ns: u64) -> Option<(u32, Duration)> {
        if self.next_ns.is_none_or(|at_ns| at_ns > now_ns) {
            return None;
        }
        let mut cursors = self.cursors.iter_mut();
        let next = cursors.find_map(|it| it.next(places, now_ns).map(|u| (u, it.interval)));
        if next.is_none() {
            self.next_ns = Some(now_ns + STEP_NS);
        }
        next
    }

    /// The next connection to be read again at `now_ns`.
    pub(super) fn release(&mut self, now_ns: u64) -> Option<Key> {
        self.throttled.peek().filter(|first| first.0.0 <= now_ns)?;
        self.throttled.pop().map(|first| first.0.1)
    }

    pub(super) fn release_at(&mut self, at_ns: u64, key: Key) {
        self.throttled.push(std::cmp::Reverse((at_ns, key)));
    }
}

impl Cursor {
    /// The next place that is passed until `now_ns`.
    fn next(&mut self, places: u32, now_ns: u64) -> Option<u32> {
        let pass_ns = nanos(self.interval).max(STEP_NS);
        let passed_ns = now_ns.saturating_sub(self.pass_start_ns);
        let target = (u128::from(places) * u128::from(passed_ns) / u128::from(pass_ns)) as u64;
        if u64::from(self.place) < target.min(u64::from(places)) {
            self.place += 1;
            return Some(self.place - 1);
        }
        if passed_ns >= pass_ns {
            // A pass that was missed is skipped.
            let is_late = passed_ns >= 2 * pass_ns;
            self.pass_start_ns = if is_late { now_ns } else { self.pass_start_ns + pass_ns };
            self.place = 0;
        }
        None
    }
}
