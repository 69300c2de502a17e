//! A worker: one thread on the reactor, its share of the users, and its reports.
//!
//! Each turn handles data of the network (`connections`), then users whose timer is due, arrivals,
//! heartbeats, cuts, and the report of the second. The loop always waits until the next of these,
//! so an idle worker sleeps. [`crate::user`] decides what users do; `services` does it.

mod connections;
mod cuts;
mod services;
mod sweeps;
mod tun;

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use simurgh_load_client::SourcePool;
use simurgh_load_client::connection::Leaving;
use simurgh_load_client::tls::TlsConfig;
use simurgh_load_client::tun::{Network, Stack};
use simurgh_load_record::{Count, ErrorKind, Names, Recorder, Seen, WorkerId};
use simurgh_load_scenario::{Follow, Scenario};
use simurgh_proto::serializer::Serializer;
use simurgh_proto::session::client::Client;
use simurgh_reactor::{
    Closed, Handler, HandshakeError, Key, LocalOutput, Next, Slow, give_back_memory, purge_memory,
};

use crate::arrivals::{Arrivals, Started};
use crate::chance::mix;
use crate::command::{WorkerCommand, WorkerEvent};
use crate::program::{Program, compile, serializer};
use crate::schedule::Share;
use crate::shared::Shared;
use crate::time::{tick, tick_ns, us};
use crate::user::{
    ConnState, Context, Input, Interruptible, Machine, NO_KEY, POLL_CHECK_INTERVAL, User,
    UserState, Users,
};
use crate::wheel::{Link, Wheel};
use cuts::Cuts;
use services::{Conn, DEFLATE, LINGER_NS, NOBODY, Net, Services, StepOutputs};
use sweeps::Sweeps;

pub(crate) use services::EventSender;

pub(crate) struct Worker {
    program: Rc<Program>,
    users: Users,
    wheel: Wheel,
    context: Context,
    services: Services,
    arrivals: Arrivals,
    sweeps: Sweeps,
    cuts: Cuts,
    thread: u16,
    receive_stamps: bool,
    stopping: Stopping,
    /// End of the last second that was reported.
    reported_ns: u64,
    /// When the next tick is due, while there are users.
    tick_ns: Option<u64>,
    traffic: Traffic,
    reported_idle: bool,
}

#[derive(Clone)]
pub(crate) struct WorkerSetup {
    pub(crate) scenario: Arc<Scenario>,
    pub(crate) share: Share,
    pub(crate) id: WorkerId,
    /// The run's number in stamps.
    pub(crate) run: u32,
    pub(crate) tls: Option<TlsConfig>,
    /// The network of its TUN device, if it has one.
    pub(crate) network: Option<Network>,
    pub(crate) shared: Arc<Shared>,
    pub(crate) events: EventSender,
    pub(crate) receive_stamps: bool,
    /// The time of day at 0 of the workers' clock.
    pub(crate) unix_zero: Duration,
}

/// Users that came or left since memory was last given back.
#[derive(Debug, Default)]
struct Traffic {
    users: u32,
    before: u32,
}

impl Traffic {
    /// Arrivals or departures that leave enough records and table space to give back.
    const CROWD: u32 = 256;

    fn is_crowd(&self) -> bool {
        self.users >= Self::CROWD
    }

    fn add(&mut self) {
        self.users = self.users.saturating_add(1);
    }

    /// Called each second: returns memory to the system once many users have left.
    fn second(&mut self) {
        if self.is_crowd() && self.users == self.before && give_back_memory() {
            purge_memory();
            self.users = 0;
        }
        self.before = self.users;
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stopping {
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
/// How often a worker with users checks how late it is itself.
const TICK_NS: u64 = 20_000_000;

impl Worker {
    pub(crate) fn new(setup: WorkerSetup) -> Self {
        let WorkerSetup { scenario, share, id, shared, run, unix_zero, .. } = &setup;
        let (shared, place) = (Arc::clone(shared), (share.index, id.thread));
        // It was compiled once before without an error.
        let program = Rc::new(compile(scenario).unwrap_or_else(|_| Program::empty(scenario)));
        let samples = scenario.tsung.as_ref().is_some_and(|tsung| tsung.full_stats);
        let services = Services {
            recorder: Recorder::new(*id, &Names::of(scenario), samples),
            events: setup.events.clone(),
            sources: SourcePool::new(&scenario.sources, share.index, share.of),
            tun: setup.network.as_ref().map(|network| {
                // As the clock of RFC 9293 §3.4.1, 4 µs.
                Stack::new(network, (unix_zero.as_micros() / 4) as u32)
            }),
            tls: setup.tls.clone(),
            mask: fastrand::Rng::with_seed(mix(scenario.seed, share.index)),
            deflater: None,
            inflater: None,
            connected: 0,
            leaving: Leaving::default(),
            seen: Vec::new(),
            gathering: Vec::new(),
            unread: 0,
            polled: Vec::new(),
        };
        Self {
            users: Users::new(),
            wheel: Wheel::new(),
            context: Context::new(&program, shared, *run, place, *unix_zero),
            services,
            arrivals: Arrivals::new(scenario, *share),
            sweeps: Sweeps::new(&program),
            cuts: Cuts::new(scenario.seed),
            program,
            thread: id.thread,
            receive_stamps: setup.receive_stamps,
            stopping: Stopping::No,
            reported_ns: 0,
            tick_ns: None,
            traffic: Traffic::default(),
            reported_idle: false,
        }
    }

    /// Gives a user an input, and carries out its outputs.
    #[inline]
    fn step(&mut self, io: &mut Net, u: u32, now_ns: u64, input: Input<'_>) {
        let Self { program, users, wheel, context, services, .. } = self;
        let Some(user) = users.get(u) else { return };
        let mut out = StepOutputs { io, services, program, place: u, timer: None };
        Machine { user, place: u, program, context, now_ns, is_timed: false, out: &mut out }
            .step(input);
        let (timer, has_left) = (out.timer, user.state == UserState::Left);
        match timer {
            None => {}
            Some(Some(due_tick)) => wheel.set(users, u, due_tick),
            Some(None) => wheel.unset(users, u),
        }
        if has_left {
            users.remove(u);
            self.traffic.add();
        }
    }

    /// The same at the current time.
    fn step_now(&mut self, io: &mut Net, u: u32, input: Input<'_>) {
        let now_ns = io.clock_ns();
        self.step(io, u, now_ns, input);
    }

    /// Runs users whose timers are due; `true` if some are left for the next turn.
    fn run_due(&mut self, io: &mut Net, until_ns: u64) -> bool {
        let now_tick = tick(io.clock_ns());
        let mut steps = 0_u32;
        while let Some(u) = self.wheel.pop(&mut self.users, now_tick) {
            self.step_now(io, u, Input::Time);
            steps += 1;
            if steps.is_multiple_of(8) && io.clock_ns() >= until_ns {
                return true;
            }
        }
        false
    }

    /// Starts users that are due; `true` if some are left for the next turn.
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

    fn start_user(&mut self, io: &mut Net, arrival: Started) {
        let Started { at_ns, id, phase, session } = arrival;
        let Some(info) = self.program.sessions.get(usize::from(session)) else { return };
        let now_ns = io.clock_ns();
        let recorder = &mut self.services.recorder;
        recorder.count(Count::UsersDue, 1);
        recorder.user_started(phase, session, now_ns.saturating_sub(at_ns) / 1000);
        let u = self.users.add(User {
            key: NO_KEY,
            held: None,
            client: Client::new(serializer(info.dialect).unwrap_or(Serializer::V2)),
            timer: Link::UNSET,
            at: info.start,
            id,
            since_us: us(at_ns),
            started_tick: tick(at_ns),
            round: 0,
            phase,
            server: self.context.spread.first(id),
            draws: 0,
            state: UserState::Running,
            conn: ConnState::None,
        });
        self.traffic.add();
        if let Some(drop) = &info.drop {
            self.cuts.expect((u, id), drop, self.arrivals.started_at_ns(), now_ns);
        }
        if self.program.scenario.follow_stamps() == Follow::Last {
            let seen = &mut self.services.seen;
            seen.resize(seen.len().max(u as usize + 1), Seen::default());
            if let Some(seen) = seen.get_mut(u as usize) {
                *seen = Seen::default();
            }
        }
        self.step(io, u, now_ns, Input::Begin);
    }

    /// Sends due heartbeats, and resumes reading of throttled connections.
    fn run_sweeps(&mut self, io: &mut Net) {
        let now_ns = io.now().ns;
        while let Some(key) = self.sweeps.release(now_ns) {
            io.release(key);
        }
        while let Some((u, interval)) = self.sweeps.next(self.users.places(), now_ns) {
            let Some(user) = self.users.get(u) else { continue };
            let session = self.program.session_at(user.at);
            let heartbeat = session.and_then(|session| session.heartbeat.as_ref());
            if heartbeat.is_some_and(|heartbeat| heartbeat.every == interval) {
                self.step_now(io, u, Input::Heartbeat);
            }
            if interval == POLL_CHECK_INTERVAL {
                self.step_now(io, u, Input::CheckPolls);
            }
        }
    }

    fn run_cuts(&mut self, io: &mut Net) {
        let now_ns = io.now().ns;
        while let Some((due_ns, u, id)) = self.cuts.pop_due(now_ns) {
            // If another user has this place now, it has a separate entry.
            let Some(user) = self.users.get(u).filter(|user| user.id == id) else { continue };
            let session = self.program.session_at(user.at);
            let Some(drop) = session.and_then(|session| session.drop) else { continue };
            let is_on = drop.phase.is_none() || drop.phase == self.arrivals.phase_at(due_ns);
            match user.interruptible(&self.program) {
                Interruptible::Later if is_on => {
                    self.cuts.again((u, id), now_ns);
                    continue;
                }
                Interruptible::Yes if is_on => self.step_now(io, u, Input::Cut(&drop)),
                _ => {}
            }
            self.cuts.expect((u, id), &drop, self.arrivals.started_at_ns(), now_ns);
        }
    }

    /// Records how late this worker is: a time that it stands still is in the times of requests
    /// under way, whether or not its scenario has anything else that is due.
    fn tick(&mut self, now_ns: u64) {
        if self.tick_ns.is_some_and(|due_ns| due_ns > now_ns) {
            return;
        }
        if let Some(due_ns) = self.tick_ns {
            self.services.recorder.tick_lag((now_ns - due_ns) / 1000);
        }
        self.tick_ns = (self.users.len() > 0).then_some(now_ns + TICK_NS);
    }

    fn report(&mut self, io: &Net) {
        let recorder = &mut self.services.recorder;
        let undefined = std::mem::take(&mut self.context.values.undefined);
        for _ in 0..undefined.min(1_000_000) {
            recorder.error(ErrorKind::VariableUndefined, 0);
        }
        let unnumbered = std::mem::take(&mut self.context.values.unnumbered);
        if unnumbered > 0 {
            recorder.count(Count::BroadcastsUnnumbered, unnumbered.into());
        }
        recorder.gauges(self.users.len() as u64, self.services.connected);
        self.traffic.second();
        // Seconds of all workers end together, or their sums would jitter.
        let since_ns = io.clock_ns().saturating_sub(self.reported_ns);
        self.reported_ns += since_ns / REPORT_NS * REPORT_NS;
        let cpu_ns = io.stats().read().cpu_ns;
        if let Some(delta) = recorder.take(cpu_ns) {
            self.services.report(WorkerEvent::Delta(Box::new(delta)));
        }
    }

    /// Ends users and then connections, a slice each turn; `true` if more can be done at once.
    fn go_on_stopping(&mut self, io: &mut Net, until_ns: u64) -> bool {
        match self.stopping {
            Stopping::No | Stopping::Done => false,
            Stopping::Users(from) => {
                let mut place = from;
                while place < self.users.places() {
                    self.step_now(io, place, Input::Stop);
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
                let is_empty = self.services.tun.as_ref().is_none_or(Stack::is_empty);
                if !(io.is_empty() && is_empty) && io.clock_ns() < until_ns {
                    return false;
                }
                self.report(io);
                self.stopping = Stopping::Done;
                self.services.report(WorkerEvent::Stopped { thread: self.thread });
                io.stop();
                false
            }
        }
    }

    /// The next time at which the end of a turn has work.
    fn next(&mut self, io: &Net) -> Next {
        let now_ns = io.clock_ns();
        let timer = self.wheel.next_tick().map(tick_ns);
        let has_news = self.services.recorder.is_touched() || self.traffic.is_crowd();
        let report = has_news.then_some(self.reported_ns + REPORT_NS);
        let stop = match self.stopping {
            Stopping::Connections(until_ns) => Some(until_ns.min(now_ns + 5_000_000)),
            _ => None,
        };
        let mine = [self.arrivals.next_ns(), self.sweeps.next_ns(), self.cuts.next_ns()];
        let leaving = self.services.leaving.next_ns();
        let tun = self.services.tun.as_ref().and_then(Stack::next_ms);
        let tun = tun.map(|at_ms| at_ms * 1_000_000);
        let times = mine.into_iter().chain([timer, report, stop, leaving, tun, self.tick_ns]);
        match times.flatten().min() {
            Some(at_ns) => Next::At(at_ns),
            None => Next::Idle,
        }
    }

    /// Reports once that nothing more will happen here by itself.
    fn report_idle(&mut self) {
        let thread = self.thread;
        if self.users.len() == 0 {
            if self.arrivals.is_over() && !self.reported_idle {
                self.reported_idle = true;
                self.services.report(WorkerEvent::Idle { thread });
            }
            if self.arrivals.ask_for_next_phase() {
                self.services.report(WorkerEvent::PhaseOver { thread });
            }
        } else {
            self.reported_idle = false;
        }
    }
}

impl Handler for Worker {
    type Conn = Conn;
    type Mail = WorkerCommand;

    fn connected(&mut self, io: &mut Net, key: Key) {
        self.established(io, key);
    }

    fn secured(&mut self, io: &mut Net, key: Key) {
        self.usable(io, key);
    }

    fn insecure(&mut self, io: &mut Net, key: Key, why: &HandshakeError) {
        let text = self.services.tls.as_ref().map(|tls| tls.why_not(why)).unwrap_or_default();
        self.failed(io, key, text);
    }

    fn readable(&mut self, io: &mut Net, key: Key, data: &mut [u8]) {
        if self.services.tun.is_some() {
            self.read_held(io, key);
        } else {
            self.bytes_in(io, key, data);
        }
    }

    fn packet(&mut self, io: &mut Net, packet: &mut [u8]) {
        self.packet_in(io, packet);
    }

    fn local(&mut self, io: &mut Net, output: &mut LocalOutput) {
        self.output_to_tun(io, output);
    }

    fn stopping(&mut self, io: &mut Net) {
        if let Some(tun) = &mut self.services.tun {
            // With the device, everything that could still answer the server goes.
            tun.abort_all(io);
        }
    }

    fn closed(&mut self, io: &mut Net, key: Key, conn: Conn, why: Closed) {
        if let Some(tun) = &mut self.services.tun {
            tun.close(io, tun::now_ms(io), (conn.place, key));
        }
        let u = conn.owner & !DEFLATE;
        if u != NOBODY {
            self.ended(io, key, u, why);
        }
    }

    fn mail(&mut self, io: &mut Net, mail: WorkerCommand) {
        match mail {
            WorkerCommand::Start { at_ns, clock_offset_ns } => {
                self.context.values.clock_offset_ns = clock_offset_ns;
                self.arrivals.start(at_ns);
                self.sweeps.start(at_ns);
                self.reported_ns = at_ns;
            }
            WorkerCommand::Clock { clock_offset_ns } => {
                self.context.values.clock_offset_ns = clock_offset_ns;
            }
            WorkerCommand::NextPhase { at_ns } => self.arrivals.next_phase(at_ns),
            WorkerCommand::Pause => self.arrivals.pause(io.clock_ns()),
            WorkerCommand::Resume => self.arrivals.resume(io.clock_ns()),
            WorkerCommand::Rate(factor) => self.arrivals.set_factor(factor),
            WorkerCommand::Gathered => {
                for u in std::mem::take(&mut self.services.gathering) {
                    self.step_now(io, u, Input::Gathered);
                }
            }
            WorkerCommand::Stop if self.stopping == Stopping::No => {
                self.arrivals.stop();
                self.stopping = Stopping::Users(0);
            }
            WorkerCommand::Stop => {}
        }
        self.context.started_ns = self.arrivals.started_at_ns();
    }

    fn turn_end(&mut self, io: &mut Net) -> Next {
        let now_ns = io.clock_ns();
        let until_ns = now_ns + SLICE_NS;
        self.run_tun(io);
        self.services.leaving.close_due(io, io.now().ns);
        let mut more = self.go_on_stopping(io, until_ns);
        if self.stopping == Stopping::No {
            more |= self.run_due(io, until_ns);
            // Arrivals have a separate slice, or late users would delay them.
            more |= self.run_arrivals(io, until_ns + SLICE_NS);
            self.run_sweeps(io);
            self.run_cuts(io);
            self.report_idle();
        }
        self.tick(now_ns);
        if now_ns >= self.reported_ns + REPORT_NS && self.stopping != Stopping::Done {
            self.report(io);
        }
        if more { Next::Now } else { self.next(io) }
    }

    fn slow(&mut self, _: &mut Net, _: Key) -> Slow {
        // The end that follows is counted with its own reason.
        Slow::Abort
    }
}
