//! The arrivals of one worker: the current phase and the next users.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use simurgh_load_scenario::Scenario;

use crate::chance::{mix, pick, sums};
use crate::schedule::{Arrival, PhaseSchedule, Share};
use crate::time::nanos;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Started {
    /// When it was due, by the shard's clock.
    pub(crate) at_ns: u64,
    /// Its number in the run, from 1.
    pub(crate) id: u32,
    pub(crate) phase: u16,
    pub(crate) session: u16,
}

pub(crate) struct Arrivals {
    scenario: Arc<Scenario>,
    share: Share,
    seed: u64,
    factor: f64,
    state: State,
    phase: usize,
    round: u32,
    schedule: Option<PhaseSchedule>,
    /// Start of the phase by the shard's clock; pauses move it.
    phase_start_ns: u64,
    /// The phase before, with its start and end.
    before: Option<(usize, u64, u64)>,
    /// The next users, by the time since the start of the phase.
    queue: VecDeque<Arrival>,
    /// This worker's appointments, the next one last: nanoseconds since the start, index.
    appointments: Vec<(u64, u16)>,
    start_ns: u64,
    /// Users that this worker has started, and how many of them before this phase.
    started: u64,
    started_before: u64,
    /// Arrivals are paused, whatever the state of the phase.
    paused: bool,
    released: u32,
    bin: Vec<Arrival>,
    /// Running sums of the sessions' weights in this phase.
    sessions: Vec<f64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Waiting,
    Running,
    Paused(u64),
    /// The phase is over; the next one waits until no users are left.
    PhaseOver,
    /// As `PhaseOver`, after a request to the collector for the next phase.
    PhaseOverReported,
    Over,
}

/// Bins are computed this long before they begin.
const AHEAD_NS: u64 = 5_000_000;

impl Arrivals {
    pub(crate) fn new(scenario: &Arc<Scenario>, share: Share) -> Self {
        let appointments = scenario.load.appointments.iter().enumerate();
        let mut mine: Vec<(u64, u16)> = appointments
            .filter(|(number, _)| *number as u64 % share.of == share.index)
            .filter_map(|(_, user)| Some((nanos(user.at), u16::try_from(user.session).ok()?)))
            .collect();
        mine.sort_by_key(|(at_ns, _)| std::cmp::Reverse(*at_ns));
        Self {
            scenario: Arc::clone(scenario),
            share,
            seed: scenario.seed,
            factor: 1.0,
            state: State::Waiting,
            phase: 0,
            round: 0,
            schedule: None,
            phase_start_ns: 0,
            before: None,
            queue: VecDeque::new(),
            appointments: mine,
            start_ns: 0,
            started: 0,
            started_before: 0,
            paused: false,
            released: 0,
            bin: Vec::new(),
            sessions: Vec::new(),
        }
    }

    pub(crate) fn start(&mut self, at_ns: u64) {
        self.start_ns = at_ns;
        self.state = State::Running;
        self.enter(0, at_ns, 0);
    }

    pub(crate) fn stop(&mut self) {
        self.queue.clear();
        self.appointments.clear();
        self.schedule = None;
        self.state = State::Over;
    }

    pub(crate) fn pause(&mut self, now_ns: u64) {
        self.paused = true;
        if self.state == State::Running {
            self.state = State::Paused(now_ns);
        }
    }

    pub(crate) fn resume(&mut self, now_ns: u64) {
        if !self.paused && !matches!(self.state, State::Paused(_)) {
            // Not reached yet: this worker is behind the others.
            self.released += 1;
        }
        self.paused = false;
        if let State::Paused(since_ns) = self.state {
            let pause_ns = now_ns.saturating_sub(since_ns);
            self.phase_start_ns += pause_ns;
            self.start_ns += pause_ns;
            self.state = State::Running;
        }
    }

    pub(crate) fn set_factor(&mut self, factor: f64) {
        self.factor = factor.clamp(0.0, 1e6);
    }

    pub(crate) fn next_phase(&mut self, at_ns: u64) {
        if matches!(self.state, State::PhaseOver | State::PhaseOverReported) {
            self.state = State::Running;
            self.leave(at_ns);
            if self.paused {
                self.pause(at_ns);
            }
        }
    }

    /// Whether to ask the collector for the next phase; `true` only once.
    pub(crate) fn ask_for_next_phase(&mut self) -> bool {
        let ask = self.state == State::PhaseOver;
        if ask {
            self.state = State::PhaseOverReported;
        }
        ask
    }

    /// When the run began, by the shard's clock; pauses move it.
    pub(crate) fn started_at_ns(&self) -> u64 {
        self.start_ns
    }

    /// The phase at a time, also if this worker was late, by at most one phase.
    pub(crate) fn phase_at(&self, at_ns: u64) -> Option<usize> {
        if let Some((phase, start_ns, end_ns)) = self.before
            && (start_ns..end_ns).contains(&at_ns)
        {
            return Some(phase);
        }
        (self.state == State::Running && at_ns >= self.phase_start_ns).then_some(self.phase)
    }

    pub(crate) fn is_over(&self) -> bool {
        self.state == State::Over && self.appointments.is_empty()
    }

    /// The next user that is due at `now_ns`, when `users` are alive.
    pub(crate) fn next(&mut self, now_ns: u64, users: u64) -> Option<Started> {
        if matches!(self.state, State::Waiting | State::Paused(_)) {
            return None;
        }
        if let Some((at_ns, session)) = self.appointments.last().copied()
            && self.start_ns + at_ns <= now_ns
        {
            self.appointments.pop();
            let phase = self.scenario.load.phases.len();
            let at_ns = self.start_ns + at_ns;
            return Some(self.begin(at_ns, u16::try_from(phase).unwrap_or(0), Some(session)));
        }
        loop {
            // A phase that begins on resume may just have been entered.
            if matches!(self.state, State::Paused(_)) {
                return None;
            }
            self.work_out(now_ns);
            if let Some(arrival) = self.queue.front().copied() {
                let at_ns = self.phase_start_ns + arrival.at_ns;
                if at_ns > now_ns {
                    return None;
                }
                self.queue.pop_front();
                return Some(self.begin(at_ns, self.phase_number(), None));
            }
            let schedule = self.schedule.as_ref()?;
            let since_ns = now_ns.saturating_sub(self.phase_start_ns);
            let is_on = now_ns >= self.phase_start_ns
                && Duration::from_nanos(since_ns) < schedule.phase().duration;
            if is_on
                && self.has_room(schedule)
                && schedule.wanted(since_ns, self.factor).is_some_and(|wanted| users < wanted)
            {
                return Some(self.begin(now_ns, self.phase_number(), None));
            }
            if !self.end_phase(now_ns) {
                return None;
            }
        }
    }

    /// When [`Arrivals::next`] must be called again.
    pub(crate) fn next_ns(&self) -> Option<u64> {
        if matches!(self.state, State::Waiting | State::Paused(_)) {
            return None;
        }
        let appointment = self.appointments.last().map(|(at_ns, _)| self.start_ns + at_ns);
        let arrival = self.queue.front().map(|arrival| self.phase_start_ns + arrival.at_ns);
        let bin = self.schedule.as_ref().filter(|_| self.state == State::Running).map(|schedule| {
            let next_ns = schedule.next_bin_ns().map(|ns| ns.saturating_sub(ahead_ns(schedule)));
            let end_ns = nanos(schedule.phase().duration);
            self.phase_start_ns.saturating_add(next_ns.unwrap_or(end_ns))
        });
        [appointment, arrival, bin].into_iter().flatten().min()
    }

    fn begin(&mut self, at_ns: u64, phase: u16, session: Option<u16>) -> Started {
        let number = self.started * self.share.of + self.share.index + 1;
        self.started += 1;
        let session =
            session.unwrap_or_else(|| pick(&self.sessions, mix(self.seed ^ 0x5e55, number)));
        Started { at_ns, id: number as u32, phase, session }
    }

    /// Closed model: whether the caps allow this worker another user.
    fn has_room(&self, schedule: &PhaseSchedule) -> bool {
        let room = |most: Option<u64>, started: u64| {
            most.is_none_or(|most| started * self.share.of + self.share.index < most)
        };
        room(self.scenario.load.users_max, self.started)
            && room(schedule.phase().users_max, self.started - self.started_before)
    }

    fn phase_number(&self) -> u16 {
        u16::try_from(self.phase).unwrap_or(u16::MAX)
    }

    fn work_out(&mut self, now_ns: u64) {
        let Some(schedule) = &mut self.schedule else { return };
        while let Some(bin_ns) = schedule.next_bin_ns()
            && self.phase_start_ns + bin_ns <= now_ns + ahead_ns(schedule)
        {
            self.bin.clear();
            schedule.bin(self.factor, &mut self.bin);
            self.queue.extend(self.bin.drain(..));
        }
    }

    /// Enters the next phase if this one is over; returns whether there is one.
    fn end_phase(&mut self, now_ns: u64) -> bool {
        let Some(schedule) = &self.schedule else { return false };
        if self.state != State::Running || schedule.next_bin_ns().is_some() {
            return false;
        }
        let end_ns = self.phase_start_ns.saturating_add(nanos(schedule.phase().duration));
        if now_ns < end_ns {
            return false;
        }
        if schedule.phase().wait_for_users {
            self.state = State::PhaseOver;
            return false;
        }
        self.leave(end_ns);
        self.schedule.is_some()
    }

    /// Leaves this phase for the next one, which begins at `at_ns`.
    fn leave(&mut self, at_ns: u64) {
        self.before = Some((self.phase, self.phase_start_ns, at_ns));
        // The memory of a burst of arrivals is not kept.
        self.queue.shrink_to(64);
        self.bin.shrink_to(64);
        let arrived = self.schedule.as_ref().map_or(0, PhaseSchedule::arrived);
        let next = self.phase + 1;
        if next < self.scenario.load.phases.len() {
            self.enter(next, at_ns, arrived);
        } else if self.round < self.scenario.load.repeat {
            self.round += 1;
            self.enter(0, at_ns, arrived);
        } else {
            self.schedule = None;
            self.state = State::Over;
        }
    }

    fn enter(&mut self, phase: usize, at_ns: u64, arrived: u64) {
        let load = &self.scenario.load;
        (self.phase, self.phase_start_ns) = (phase, at_ns);
        self.started_before = self.started;
        self.schedule = PhaseSchedule::new(load, phase, self.round, arrived, self.share, self.seed);
        let Some(schedule) = &self.schedule else {
            self.state = State::Over;
            return;
        };
        let own = &schedule.phase().weights;
        let weights = self.scenario.sessions.iter().enumerate();
        self.sessions =
            sums(weights.map(|(index, session)| {
                own.get(index).copied().flatten().unwrap_or(session.weight)
            }));
        if schedule.phase().hold {
            match self.released.checked_sub(1) {
                Some(left) => self.released = left,
                None => self.state = State::Paused(at_ns),
            }
        }
    }
}

/// How long before its time a bin is computed: in a closed model users arrive when it begins.
fn ahead_ns(schedule: &PhaseSchedule) -> u64 {
    match schedule.phase().arrivals {
        simurgh_load_scenario::Arrivals::Open { .. } => AHEAD_NS,
        simurgh_load_scenario::Arrivals::Closed { .. } => 0,
    }
}
