//! A worker: one thread on the reactor, its share of the users, and what it tells the collector.
//!
//! Each turn: what the network brought ([`super::connection`]), then the end of the turn: users
//! whose timer is due, arrivals, heartbeats, the report of the second. Every wait of the loop ends
//! at the next of these, so an idle worker sleeps.

use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use simurgh_load_client::SourcePool;
use simurgh_load_record::{Count, Delta, Names, Recorder, Seen};
use simurgh_load_scenario::{Dump, Follow};
use simurgh_reactor::{Closed, Handler, Io, Key, Next, Slow, give_back_memory};

use super::arrivals::Arrivals;
use super::deliveries::Followed;
use super::disconnects::Cuts;
use super::heartbeats::Sweeps;
use super::program::Program;
use super::user::{NO_KEY, User, Users};
use super::values::Maker;
use super::wheel::Wheel;
use crate::command::WorkerCommand;
use crate::stamp::Stamps;

/// What the reactor keeps of a connection: its user.
pub(crate) type Net = Io<u32>;

/// A connection that no user has any more.
pub(crate) const NOBODY: u32 = u32::MAX;

/// What a worker tells.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum WorkerEvent {
    /// What has happened in the last second.
    Delta(Box<Delta>),
    /// The phase is over, and the next one waits until no users are left.
    PhaseOver { thread: u16 },
    /// Nobody will come any more and nobody is there.
    Idle { thread: u16 },
    /// A user came to where it waits for others, until they are so many.
    Came { users: u64 },
    /// The scenario ends the run.
    AbortRun,
    /// All users have ended after [`WorkerCommand::Stop`]; nothing follows.
    Stopped { thread: u16 },
}

/// A worker's state, see the module.
pub(crate) struct Worker {
    pub(crate) program: Rc<Program>,
    pub(crate) users: Users,
    pub(crate) wheel: Wheel,
    pub(crate) recorder: Recorder,
    pub(crate) maker: Maker,
    pub(crate) stamps: Stamps,
    pub(crate) arrivals: Arrivals,
    pub(crate) sources: SourcePool,
    pub(crate) sweeps: Sweeps,
    /// Tells the collector, on whichever host it is.
    pub(crate) events: Arc<dyn Fn(WorkerEvent) + Send + Sync>,
    pub(crate) thread: u16,
    /// Connections ready for use.
    pub(crate) connected: u64,
    /// Bytes under way to and from rendering and encoding, kept for the next time.
    pub(crate) scratch: Vec<u8>,
    pub(crate) frame: Vec<u8>,
    pub(crate) frame_scratch: Vec<u8>,
    pub(crate) patterns: simurgh_load_scenario::answer::PatternCache,
    pub(crate) tls: Option<simurgh_load_client::tls::TlsConfig>,
    pub(crate) mask: fastrand::Rng,
    /// What is added to the shard's clock for the run's: other hosts follow the controller's.
    pub(crate) clock_offset_ns: i64,
    pub(crate) receive_stamps: bool,
    pub(crate) names: Names,
    pub(crate) dump: Dump,
    /// Connections without a user that their servers are to close: until when, and which.
    pub(crate) leaving: VecDeque<(u64, Key)>,
    /// The stamped messages that users got last, by user; empty if nobody wants to know.
    pub(crate) seen: Vec<Seen>,
    /// The stamped messages that users got, where that is to be known exactly.
    pub(crate) followed: Followed,
    /// Connections that are to be cut.
    pub(crate) cuts: Cuts,
    /// Users that wait for all others.
    pub(crate) gathering: Vec<u32>,
    pub(crate) stopping: Stopping,
    /// End of the last second that was reported, by the run's seconds.
    pub(crate) reported_ns: u64,
    pub(crate) traffic: Traffic,
    pub(crate) last_diff: super::presence::LastDiff,
    pub(crate) said_idle: bool,
}

/// Users that came or went, as far as memory has not been given back since.
#[derive(Debug, Default)]
pub(crate) struct Traffic {
    pub(crate) users: u32,
    /// As it was a second ago.
    before: u32,
}

impl Traffic {
    /// So many leave enough behind for a look: a record of each of those who join at the same time,
    /// and what grew with their number.
    const CROWD: u32 = 256;

    /// Whether memory is to be given back.
    fn is_crowd(&self) -> bool {
        self.users >= Self::CROWD
    }

    /// A second has passed: gives memory back if a crowd has moved, and nobody does any more.
    fn second(&mut self) {
        if self.is_crowd() && self.users == self.before && give_back_memory() {
            self.users = 0;
        }
        self.before = self.users;
    }
}

/// How far the end of the run is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stopping {
    No,
    /// Users are being ended, from this place on.
    Users(u32),
    /// Connections are being closed, until this time at the latest.
    Connections(u64),
    Done,
}

/// Time that users and arrivals may take of one turn.
const SLICE_NS: u64 = 300_000;
/// How often a worker reports, if there is anything.
const REPORT_NS: u64 = 1_000_000_000;
/// How long a server may take to close a WebSocket that was closed from here, and all of them at
/// the end of the run.
pub(crate) const LINGER_NS: u64 = 3_000_000_000;

impl Worker {
    /// The shard's time in microseconds, as users keep it.
    pub(crate) fn us(ns: u64) -> u32 {
        (ns / 1000) as u32
    }

    /// Microseconds since a user's `since_us`.
    pub(crate) fn elapsed_us(since_us: u32, now_ns: u64) -> u64 {
        let elapsed = Self::us(now_ns).wrapping_sub(since_us);
        // A time that is a little ahead is no time at all.
        if elapsed > u32::MAX / 2 { 0 } else { u64::from(elapsed) }
    }

    /// The run's clock.
    pub(crate) fn run_ns(&self, clock_ns: u64) -> u64 {
        clock_ns.saturating_add_signed(self.clock_offset_ns)
    }

    /// Sets the user's timer to `ms` of the shard's clock.
    pub(crate) fn set_timer(&mut self, u: u32, ms: u32) {
        self.wheel.set(&mut self.users, u, ms);
    }

    /// Takes the user's timer back.
    pub(crate) fn unset_timer(&mut self, u: u32) {
        self.wheel.unset(&mut self.users, u);
    }

    /// Says something to the collector.
    pub(crate) fn say(&self, event: WorkerEvent) {
        (self.events)(event);
    }

    fn stop(&mut self) {
        if self.stopping == Stopping::No {
            self.arrivals.stop();
            self.stopping = Stopping::Users(0);
        }
    }

    /// Runs users whose timers are due; `true` if some are left for the next turn.
    fn run_due(&mut self, io: &mut Net, until_ns: u64) -> bool {
        let now_ms = (io.clock_ns() / 1_000_000) as u32;
        let mut steps = 0_u32;
        while let Some(u) = self.wheel.pop(&mut self.users, now_ms) {
            self.timer_due(io, u);
            steps += 1;
            if steps.is_multiple_of(8) && io.clock_ns() >= until_ns {
                return true;
            }
        }
        false
    }

    /// Starts users whose time has come; `true` if some are left for the next turn.
    fn run_arrivals(&mut self, io: &mut Net, until_ns: u64) -> bool {
        let mut now_ns = io.clock_ns();
        loop {
            let users = self.users.len() as u64;
            let Some(arrival) = self.arrivals.next(now_ns, users) else { return false };
            self.start_user(io, arrival);
            now_ns = io.clock_ns();
            if now_ns >= until_ns {
                return true;
            }
        }
    }

    fn report(&mut self, io: &Net) {
        let undefined = std::mem::take(&mut self.maker.undefined);
        for _ in 0..undefined.min(1_000_000) {
            self.recorder.error(simurgh_load_record::ErrorKind::VariableUndefined, 0);
        }
        let unnumbered = std::mem::take(&mut self.maker.unnumbered);
        if unnumbered > 0 {
            self.recorder.count(Count::BroadcastsUnnumbered, unnumbered.into());
        }
        self.recorder.gauges(self.users.len() as u64, self.connected);
        self.traffic.second();
        // Seconds of all workers end together, or their sums would jitter.
        let since_ns = io.clock_ns().saturating_sub(self.reported_ns);
        self.reported_ns += since_ns / REPORT_NS * REPORT_NS;
        let cpu_ns = io.stats().read().cpu_ns;
        if let Some(delta) = self.recorder.take(cpu_ns) {
            self.say(WorkerEvent::Delta(Box::new(delta)));
        }
    }

    /// Ends users and then connections, a slice a turn; `true` while there is more to do at once.
    fn go_on_stopping(&mut self, io: &mut Net, until_ns: u64) -> bool {
        match self.stopping {
            Stopping::No | Stopping::Done => false,
            Stopping::Users(from) => {
                let mut place = from;
                while place < self.users.places() {
                    if self.users.get(place).is_some() {
                        self.stop_user(io, place);
                    }
                    place += 1;
                    if place.is_multiple_of(8) && io.clock_ns() >= until_ns {
                        self.stopping = Stopping::Users(place);
                        return true;
                    }
                }
                self.stopping = Stopping::Connections(io.clock_ns() + LINGER_NS);
                true
            }
            Stopping::Connections(until_ns) => {
                if !io.is_empty() && io.clock_ns() < until_ns {
                    return false;
                }
                self.report(io);
                self.stopping = Stopping::Done;
                self.say(WorkerEvent::Stopped { thread: self.thread });
                io.stop();
                false
            }
        }
    }

    /// When the end of a turn has something to do again.
    fn next(&mut self, io: &Net) -> Next {
        let now_ns = io.clock_ns();
        let timer = self.wheel.next_ms().map(|ms| u64::from(ms) * 1_000_000);
        let has_news = self.recorder.is_touched() || self.traffic.is_crowd();
        let report = has_news.then_some(self.reported_ns + REPORT_NS);
        let stop = match self.stopping {
            Stopping::Connections(until_ns) => Some(until_ns.min(now_ns + 5_000_000)),
            _ => None,
        };
        let left = self.leaving.front().map(|(due_ns, _)| *due_ns);
        let mine = [self.arrivals.next_ns(), self.sweeps.next_ns(), self.cuts.next_ns()];
        let times = mine.into_iter().chain([timer, report, stop, left]);
        match times.flatten().min() {
            Some(at_ns) => Next::At(at_ns),
            None => Next::Idle,
        }
    }

    /// Tells once that nothing more will happen here by itself.
    fn tell_idle(&mut self) {
        let thread = self.thread;
        if self.users.len() == 0 {
            if self.arrivals.is_over() && !self.said_idle {
                self.said_idle = true;
                self.say(WorkerEvent::Idle { thread });
            }
            if self.arrivals.ask_for_next_phase() {
                self.say(WorkerEvent::PhaseOver { thread });
            }
        } else {
            self.said_idle = false;
        }
    }
}

impl Handler for Worker {
    type Conn = u32;
    type Mail = WorkerCommand;

    fn connected(&mut self, io: &mut Net, key: Key) {
        self.link_up(io, key);
    }

    fn readable(&mut self, io: &mut Net, key: Key, data: &mut [u8]) {
        self.bytes_in(io, key, data);
    }

    fn closed(&mut self, io: &mut Net, key: Key, u: u32, why: Closed) {
        if u != NOBODY {
            self.link_down(io, key, u, why);
        }
    }

    fn mail(&mut self, io: &mut Net, mail: WorkerCommand) {
        match mail {
            WorkerCommand::Start { at_ns, clock_offset_ns } => {
                self.clock_offset_ns = clock_offset_ns;
                self.arrivals.start(at_ns);
                self.sweeps.start(at_ns);
                self.reported_ns = at_ns;
            }
            WorkerCommand::Clock { clock_offset_ns } => self.clock_offset_ns = clock_offset_ns,
            WorkerCommand::NextPhase { at_ns } => self.arrivals.next_phase(at_ns),
            WorkerCommand::Pause => self.arrivals.pause(io.clock_ns()),
            WorkerCommand::Resume => self.arrivals.resume(io.clock_ns()),
            WorkerCommand::Rate(factor) => self.arrivals.set_factor(factor),
            WorkerCommand::Gathered => {
                for u in std::mem::take(&mut self.gathering) {
                    self.gathered(io, u);
                }
            }
            WorkerCommand::Stop => self.stop(),
        }
    }

    fn turn_end(&mut self, io: &mut Net) -> Next {
        let now_ns = io.clock_ns();
        let until_ns = now_ns + SLICE_NS;
        self.close_left(io);
        let mut more = self.go_on_stopping(io, until_ns);
        if self.stopping == Stopping::No {
            more |= self.run_due(io, until_ns);
            // Arrivals have a slice of their own, or users that are late would hold them off.
            more |= self.run_arrivals(io, until_ns + SLICE_NS);
            self.sweep(io);
            self.run_cuts(io);
            self.tell_idle();
        }
        if now_ns >= self.reported_ns + REPORT_NS && self.stopping != Stopping::Done {
            self.report(io);
        }
        if more { Next::Now } else { self.next(io) }
    }

    fn slow(&mut self, _: &mut Net, _: Key) -> Slow {
        // Its end, which follows, is counted as what it is.
        Slow::Abort
    }
}

impl Worker {
    /// Makes a user and lets it begin.
    fn start_user(&mut self, io: &mut Net, arrival: super::arrivals::Started) {
        let super::arrivals::Started { at_ns, id, phase, session } = arrival;
        let program = Rc::clone(&self.program);
        let Some(info) = program.sessions.get(usize::from(session)) else { return };
        let serializer = super::program::serializer(info.dialect);
        let serializer = serializer.unwrap_or(simurgh_proto::serializer::Serializer::V2);
        let lag_us = io.clock_ns().saturating_sub(at_ns) / 1000;
        self.recorder.count(Count::UsersDue, 1);
        self.recorder.user_started(phase, session, lag_us);
        let user = User {
            conn: NO_KEY,
            extra: None,
            client: simurgh_proto::session::client::Client::new(serializer),
            timer: super::wheel::Link::UNSET,
            at: info.start,
            id,
            since_us: Self::us(at_ns),
            started_ms: (at_ns / 1_000_000) as u32,
            round: 0,
            phase,
            aim: self.arrivals.aim(id),
            draws: 0,
            state: super::user::UserState::Running,
            link: super::user::ConnState::None,
        };
        let u = self.users.add(user);
        self.traffic.users = self.traffic.users.saturating_add(1);
        if let Some(drop) = &info.drop {
            self.expect_cuts(u, id, drop, io.clock_ns());
        }
        if program.scenario.follow_stamps() == Follow::Last {
            let places = self.seen.len().max(u as usize + 1);
            self.seen.resize(places, Seen::default());
            if let Some(seen) = self.seen.get_mut(u as usize) {
                *seen = Seen::default();
            }
        }
        self.advance(io, u);
    }
}
