//! Heartbeats, and readers that are slow on purpose: what is due for many users now and then, and
//! for none at an exact time.
//!
//! A heartbeat costs no timer. A cursor goes round all users of a worker once in each interval and
//! has those of the session send theirs, so they are spread evenly; a user's first one comes up to
//! an interval after its connect, all others an interval apart.

use std::collections::BinaryHeap;
use std::rc::Rc;
use std::time::Duration;

use simurgh_load_scenario::Transport;
use simurgh_reactor::Key;

use super::longpoll::POLL_INTERVAL;
use super::program::Program;
use super::worker::{Net, Worker};

/// How often the cursors move.
const STEP_NS: u64 = 50_000_000;

pub(crate) struct Sweeps {
    /// One for each interval that some session has.
    cursors: Vec<Cursor>,
    next_ns: Option<u64>,
    /// Connections that are not read until a time: (when, which).
    throttled: BinaryHeap<std::cmp::Reverse<(u64, Key)>>,
}

struct Cursor {
    interval: Duration,
    /// Start of the pass, and how far it is.
    pass_start_ns: u64,
    place: u32,
}

impl Sweeps {
    pub(crate) fn new(program: &Program) -> Self {
        let mut intervals: Vec<Duration> =
            program.sessions.iter().filter_map(|session| session.heartbeat).collect();
        if program.sessions.iter().any(|session| session.transport == Transport::LongPoll) {
            intervals.push(POLL_INTERVAL);
        }
        intervals.sort();
        intervals.dedup();
        let cursors =
            intervals.into_iter().map(|interval| Cursor { interval, pass_start_ns: 0, place: 0 });
        Self { cursors: cursors.collect(), next_ns: None, throttled: BinaryHeap::new() }
    }

    pub(crate) fn start(&mut self, at_ns: u64) {
        for cursor in &mut self.cursors {
            cursor.pass_start_ns = at_ns;
        }
        self.next_ns = (!self.cursors.is_empty()).then_some(at_ns + STEP_NS);
    }

    pub(crate) fn next_ns(&self) -> Option<u64> {
        let release = self.throttled.peek().map(|first| first.0.0);
        [self.next_ns, release].into_iter().flatten().min()
    }

    /// Has a connection read again at a time.
    pub(crate) fn release_at(&mut self, at_ns: u64, key: Key) {
        self.throttled.push(std::cmp::Reverse((at_ns, key)));
    }
}

impl Worker {
    /// Moves the cursors to where they belong now, and reads again from those whose time has come.
    pub(crate) fn sweep(&mut self, io: &mut Net) {
        let now_ns = io.now().ns;
        while let Some(std::cmp::Reverse((at_ns, key))) = self.sweeps.throttled.peek().copied() {
            if at_ns > now_ns {
                break;
            }
            self.sweeps.throttled.pop();
            io.release(key);
        }
        if self.sweeps.next_ns.is_none_or(|at_ns| at_ns > now_ns) {
            return;
        }
        self.sweeps.next_ns = Some(now_ns + STEP_NS);
        let program = Rc::clone(&self.program);
        for index in 0..self.sweeps.cursors.len() {
            while let Some(u) = self.next_in_sweep(index, now_ns) {
                let Some(user) = self.users.get(u) else { continue };
                let session = program.session_at(user.at);
                let interval = self.sweeps.cursors.get(index).map(|cursor| cursor.interval);
                if session.is_some_and(|session| session.heartbeat == interval) {
                    self.heartbeat(io, u);
                }
                if interval == Some(POLL_INTERVAL) {
                    self.look_after_session(io, u);
                }
            }
        }
    }

    /// The next place that a cursor passes until `now_ns`.
    fn next_in_sweep(&mut self, index: usize, now_ns: u64) -> Option<u32> {
        let places = self.users.places();
        let cursor = self.sweeps.cursors.get_mut(index)?;
        let pass_ns = u64::try_from(cursor.interval.as_nanos()).unwrap_or(u64::MAX).max(STEP_NS);
        let passed_ns = now_ns.saturating_sub(cursor.pass_start_ns);
        let target = (u128::from(places) * u128::from(passed_ns) / u128::from(pass_ns)) as u64;
        if u64::from(cursor.place) < target.min(u64::from(places)) {
            cursor.place += 1;
            return Some(cursor.place - 1);
        }
        if passed_ns >= pass_ns {
            // A pass that was slept through is not made up for.
            cursor.pass_start_ns =
                if passed_ns >= 2 * pass_ns { now_ns } else { cursor.pass_start_ns + pass_ns };
            cursor.place = 0;
        }
        None
    }
}
