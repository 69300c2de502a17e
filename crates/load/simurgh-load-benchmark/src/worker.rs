//! A worker: one thread on the reactor, its connections, and the times of its requests.
//!
//! Connections and answers are in `wire`; timed events are here: the start, due requests, time-outs
//! (found by a tick, so that no request needs a timer), the end.

use std::collections::VecDeque;
use std::sync::Arc;

use simurgh_load_client::SourcePool;
use simurgh_load_client::connection::Leaving;
use simurgh_load_record::ErrorKind;
use simurgh_reactor::{Closed, Handler, HandshakeError, Io, Key, Next, Shared, Slow};

use super::job::Job;
use super::link::{Link, State};
use super::message::{EventSender, WorkerCommand, WorkerEvent};
use super::pace::Pace;
use super::tally::Tally;

/// The reactor with the data of a connection: the place of its link.
pub(super) type Net = Io<u32>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    Opening,
    /// Until all workers have their connections.
    Waiting,
    Running,
    Over,
}

/// Connections of one worker that are being opened at a time: no more than servers' backlogs take.
const OPENING_MAX: usize = 128;
/// Connections that get their first request in one turn, so that answers are read in between.
const FIRST_REQUESTS_MAX: usize = 64;
/// How often time-outs are checked, and requests a second counted.
const TICK_NS: u64 = 100_000_000;
/// How often a worker checks how late it is itself.
const WATCH_NS: u64 = 10_000_000;

pub(super) struct Worker {
    pub(super) job: Arc<Job>,
    pub(super) request: Shared,
    pub(super) links: Vec<Link>,
    /// Open loop: links that wait for a request. Some may have got one since, or have lost their
    /// connection.
    pub(super) idle: VecDeque<u32>,
    pub(super) pace: Option<Pace>,
    pub(super) sources: SourcePool,
    pub(super) tally: Tally,
    pub(super) phase: Phase,
    pub(super) opening: usize,
    /// Links whose first connection is open, or could not be opened.
    pub(super) settled: usize,
    pub(super) opened: usize,
    pub(super) leaving: Leaving,
    events: EventSender,
    /// Links before this one have begun to connect.
    begun: usize,
    /// Links before this one have had their first request.
    started: usize,
    start_ns: u64,
    end_ns: u64,
    tick_ns: u64,
    next_tick_ns: u64,
    next_watch_ns: u64,
    /// When the requests a second were last counted, and their number then.
    sampled: (u64, u64),
    /// CPU time of this thread when the run began.
    cpu_ns: u64,
}

impl Worker {
    pub(super) fn new(
        job: Arc<Job>,
        links: usize,
        thread: usize,
        of: usize,
        events: EventSender,
    ) -> Self {
        let timeout_ns = nanoseconds(job.plan.timeout);
        Self {
            request: Shared::from(job.request.clone()),
            links: (0..links).map(|_| Link::new()).collect(),
            idle: VecDeque::new(),
            pace: job.plan.rate.map(|rate| Pace::new(rate, thread, of)),
            sources: SourcePool::new(&job.sources, thread as u64, of as u64),
            tally: Tally::default(),
            phase: Phase::Opening,
            opening: 0,
            settled: 0,
            opened: 0,
            leaving: Leaving::default(),
            events,
            begun: 0,
            started: 0,
            start_ns: u64::MAX,
            end_ns: u64::MAX,
            tick_ns: (timeout_ns / 10).clamp(1_000_000, TICK_NS),
            next_tick_ns: 0,
            next_watch_ns: 0,
            sampled: (0, 0),
            cpu_ns: 0,
            job,
        }
    }

    pub(super) fn is_running(&self, now_ns: u64) -> bool {
        self.phase == Phase::Running && (self.start_ns..self.end_ns).contains(&now_ns)
    }

    /// The link is free: gives it a request if there is one.
    pub(super) fn next_request(&mut self, io: &mut Net, place: u32, now_ns: u64) {
        if !self.is_running(now_ns) {
            return;
        }
        let Some(pace) = &mut self.pace else { return self.send(io, place, now_ns, now_ns) };
        if pace.due_ns() < self.end_ns
            && let Some(due_ns) = pace.take(now_ns)
        {
            return self.send(io, place, due_ns, now_ns);
        }
        self.idle.push_back(place);
    }

    /// Sends the first requests of initial connections, some each turn; `true` while more are left.
    fn start_links(&mut self, io: &mut Net) -> bool {
        let upto = (self.started + FIRST_REQUESTS_MAX).min(self.links.len());
        for place in self.started..upto {
            if self.links.get(place).is_some_and(|link| link.state == State::Idle) {
                let now_ns = io.clock_ns();
                match &self.pace {
                    None => self.next_request(io, place as u32, now_ns),
                    Some(_) => self.idle.push_back(place as u32),
                }
            }
        }
        self.started = upto;
        upto < self.links.len()
    }

    /// Open loop: sends due requests, as far as there are connections for them.
    fn run_due(&mut self, io: &mut Net) {
        loop {
            let now_ns = io.clock_ns();
            let Some(pace) = &self.pace else { return };
            if pace.due_ns() > now_ns || pace.due_ns() >= self.end_ns {
                return;
            }
            let Some(place) = self.pop_idle() else { return };
            let Some(due_ns) = self.pace.as_mut().and_then(|pace| pace.take(now_ns)) else {
                return;
            };
            self.tally.lag.record((now_ns - due_ns) / 1000);
            self.send(io, place, due_ns, now_ns);
        }
    }

    fn pop_idle(&mut self) -> Option<u32> {
        while let Some(place) = self.idle.pop_front() {
            let link = self.links.get(place as usize);
            if link.is_some_and(|link| link.state == State::Idle) {
                return Some(place);
            }
        }
        None
    }

    fn open_more(&mut self, io: &mut Net) {
        while self.opening < OPENING_MAX && self.begun < self.links.len() {
            let place = self.begun as u32;
            self.begun += 1;
            self.open(io, place);
        }
    }

    fn tick(&mut self, io: &mut Net, now_ns: u64) {
        self.next_tick_ns = now_ns + self.tick_ns;
        self.leaving.close_due(io, now_ns);
        if self.is_running(now_ns) && now_ns >= self.sampled.0 + TICK_NS {
            let (since_ns, before) = self.sampled;
            let seconds = (now_ns - since_ns) as f64 / 1e9;
            let rate = (self.tally.requests - before) as f64 / seconds;
            self.tally.rates.record(rate.round() as u64);
            self.sampled = (now_ns, self.tally.requests);
        }
        let timeout_ns = nanoseconds(self.job.plan.timeout);
        for place in 0..self.links.len() {
            let Some(link) = self.links.get(place) else { return };
            let is_late = now_ns.saturating_sub(link.since_ns) >= timeout_ns;
            match link.state {
                State::Down if self.phase == Phase::Running && self.opening < OPENING_MAX => {
                    self.open(io, place as u32);
                }
                State::Connecting if is_late => {
                    let text = || "no connection in time".to_owned();
                    self.not_connected(io, place as u32, ErrorKind::ConnectTimeout, text);
                }
                State::Busy if is_late => self.timed_out(io, place as u32, now_ns),
                _ => {}
            }
        }
    }

    fn timed_out(&mut self, io: &mut Net, place: u32, now_ns: u64) {
        let Some(link) = self.links.get(place as usize) else { return };
        if self.pace.is_none() {
            // In an open loop failures have a latency too.
            self.tally.waited(now_ns.saturating_sub(link.due_ns));
        }
        let text = || "no answer in time".to_owned();
        self.fail(io, place, ErrorKind::ReplyTimeout, text);
    }

    /// The end: an open loop also records unanswered requests, or the last stall would not show.
    fn finish(&mut self, io: &mut Net, now_ns: u64) {
        self.phase = Phase::Over;
        let end_ns = self.end_ns.min(now_ns);
        if let Some(mut pace) = self.pace {
            for link in &self.links {
                if link.state == State::Busy || link.resend {
                    self.tally.waited(now_ns.saturating_sub(link.due_ns));
                }
            }
            while pace.due_ns() < end_ns
                && let Some(due_ns) = pace.take(end_ns)
            {
                self.tally.waited(now_ns.saturating_sub(due_ns));
                self.tally.unsent += 1;
            }
            self.tally.due = self.tally.latency.count();
        }
        self.tally.elapsed_ns = now_ns.saturating_sub(self.start_ns);
        self.tally.cpu_ns = io.stats().read().cpu_ns.saturating_sub(self.cpu_ns);
        self.events.send(WorkerEvent::Done(Box::new(std::mem::take(&mut self.tally))));
        io.stop();
    }

    fn run(&mut self, io: &mut Net) -> Next {
        let now_ns = io.clock_ns();
        if now_ns < self.start_ns {
            return Next::At(self.start_ns);
        }
        if let Some(late_ns) = now_ns.checked_sub(self.next_watch_ns) {
            self.tally.stalls.record(late_ns / 1000);
            self.next_watch_ns = now_ns + WATCH_NS;
        }
        if now_ns >= self.end_ns {
            self.finish(io, now_ns);
            return Next::Idle;
        }
        let more = self.start_links(io);
        self.run_due(io);
        let mut at_ns = self.next_tick_ns.min(self.end_ns).min(self.next_watch_ns);
        if let Some(pace) = &self.pace
            && !self.idle.is_empty()
        {
            at_ns = at_ns.min(pace.due_ns());
        }
        if more { Next::Now } else { Next::At(at_ns) }
    }
}

impl Handler for Worker {
    type Conn = u32;
    type Mail = WorkerCommand;

    fn connected(&mut self, io: &mut Net, key: Key) {
        self.link_up(io, key);
    }

    fn secured(&mut self, io: &mut Net, key: Key) {
        self.ready(io, key);
    }

    fn insecure(&mut self, io: &mut Net, key: Key, why: &HandshakeError) {
        let text = self.job.tls.as_ref().map(|tls| tls.why_not(why)).unwrap_or_default();
        self.not_secured(io, key, text);
    }

    fn readable(&mut self, io: &mut Net, key: Key, data: &mut [u8]) {
        self.answer_in(io, key, data);
    }

    fn closed(&mut self, io: &mut Net, key: Key, place: u32, why: Closed) {
        self.link_down(io, key, place, why);
    }

    fn mail(&mut self, io: &mut Net, mail: WorkerCommand) {
        match mail {
            WorkerCommand::Start { at_ns } => {
                self.phase = Phase::Running;
                self.start_ns = at_ns;
                self.end_ns = at_ns.saturating_add(nanoseconds(self.job.plan.duration));
                self.sampled = (at_ns, 0);
                self.next_watch_ns = at_ns;
                self.cpu_ns = io.stats().read().cpu_ns;
                if let Some(pace) = &mut self.pace {
                    pace.start(at_ns);
                }
            }
            WorkerCommand::Stop => self.end_ns = self.end_ns.min(io.now().ns),
        }
    }

    fn turn_end(&mut self, io: &mut Net) -> Next {
        let now_ns = io.now().ns;
        if now_ns >= self.next_tick_ns && self.phase != Phase::Over {
            self.tick(io, now_ns);
        }
        match self.phase {
            Phase::Opening => {
                self.open_more(io);
                if self.settled < self.links.len() {
                    return Next::At(self.next_tick_ns);
                }
                self.phase = Phase::Waiting;
                let error = self.tally.first_error.clone();
                self.events.send(WorkerEvent::Ready { opened: self.opened, error });
                Next::At(self.next_tick_ns)
            }
            Phase::Waiting => Next::At(self.next_tick_ns),
            Phase::Running => self.run(io),
            Phase::Over => Next::Idle,
        }
    }

    fn slow(&mut self, _: &mut Net, _: Key) -> Slow {
        // The end that follows is counted with its own reason.
        Slow::Abort
    }
}

pub(super) fn nanoseconds(time: std::time::Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
