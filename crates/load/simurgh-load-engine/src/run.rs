//! A run from start to end: receives the reports of all hosts, closes the seconds, feeds the
//! outputs, forwards the operator's commands, and detects its end.

use std::collections::BTreeSet;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use simurgh_load_record::{Ending, Meta, Record, Warning, WorkerId};
use simurgh_load_report::Outputs;
use simurgh_load_report::control::{Command, Control};
use simurgh_load_scenario::Scenario;

use super::fleet::hosts::{Hosts, assemble};
use super::pool::Options;
use crate::RunError;
use crate::command::{WorkerCommand, WorkerEvent};
use crate::fleet::host::{HostEvent, Report, RunClock};
use crate::time::nanos;

/// A prepared run, whose workers wait for the start.
pub struct Run {
    scenario: Arc<Scenario>,
    record: Arc<Mutex<Record>>,
    hosts: Hosts,
    clock: RunClock,
    reports: Receiver<Report>,
    control: Control,
    started: Instant,
    seconds: u64,
    /// Set while the run is being ended: the reason, and how long to wait for users.
    stopping: Option<(Ending, Instant)>,
    /// Workers without users that also expect none.
    idle: BTreeSet<WorkerId>,
    phase_over: BTreeSet<WorkerId>,
    stop_requested: bool,
    /// Workers that have ended their users, as commanded.
    stopped: BTreeSet<WorkerId>,
    /// Lost workers, which are not waited for.
    gone: BTreeSet<WorkerId>,
    gathered: u64,
}

/// The result of a run.
#[derive(Debug)]
pub struct Outcome {
    /// How it ended.
    pub ending: Ending,
    /// An output could not be written completely.
    pub outputs_failed: bool,
}

/// A second is closed this long after its end: workers report at its end.
const CLOSE_AFTER: Duration = Duration::from_millis(150);
const STOP_TIMEOUT: Duration = Duration::from_secs(15);
/// Time for all workers of this host to read the start command.
const START_LEAD: Duration = Duration::from_millis(5);
/// The same for workers of other hosts, in addition to twice the delay to them.
const START_LEAD_AFAR: Duration = Duration::from_millis(100);

impl Run {
    /// Starts the workers of a checked scenario, here or on its agents.
    ///
    /// # Errors
    /// See [`RunError`]; all that was started has been stopped.
    pub fn prepare(scenario: Scenario, options: &Options) -> Result<Self, RunError> {
        let clock = RunClock::new();
        let (sender, reports) = channel();
        let now = SystemTime::now();
        let scenario = Arc::new(scenario);
        let hosts = assemble(&scenario, options, clock, (&sender, &reports))?;
        let names = hosts.members.iter().map(|member| member.name.clone()).collect();
        let record = Arc::new(Mutex::new(Record::new(Meta::of(&scenario, names, now))));
        // The run holds a sender too, so that the channel outlives the workers.
        let control = Control::to(move |command| {
            // It has no effect after the end of the run.
            let _ = sender.send((0, HostEvent::Control(command)));
        });
        Ok(Self {
            scenario,
            record,
            hosts,
            clock,
            reports,
            control,
            started: Instant::now(),
            seconds: 0,
            stopping: None,
            idle: BTreeSet::new(),
            phase_over: BTreeSet::new(),
            stop_requested: false,
            stopped: BTreeSet::new(),
            gone: BTreeSet::new(),
            gathered: 0,
        })
    }

    /// Controls it.
    pub fn control(&self) -> Control {
        self.control.clone()
    }

    /// Worker threads of all hosts.
    pub fn workers(&self) -> usize {
        self.hosts.workers()
    }

    /// Connections that all workers together can hold.
    pub fn capacity(&self) -> usize {
        self.hosts.capacity()
    }

    /// The measurements; locked for a moment each second.
    pub fn record(&self) -> Arc<Mutex<Record>> {
        Arc::clone(&self.record)
    }

    /// Runs to the end.
    pub fn go(mut self, mut outputs: Outputs) -> Outcome {
        let lead = self.lead();
        self.started = Instant::now() + lead;
        let at_ns = self.clock.ns() + nanos(lead);
        self.hosts.send(WorkerCommand::Start { at_ns, clock_offset_ns: 0 });
        let ending = loop {
            match self.reports.recv_timeout(self.wait()) {
                Ok(report) => self.on_report(report),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break Ending::Failed,
            }
            if self.elapsed() >= self.next_close() {
                // All pending reports belong to the second that ends.
                self.take_reports();
                self.close_second(&mut outputs);
            }
            if let Some(ending) = self.look_for_end() {
                break ending;
            }
        };
        self.take_reports();
        let outcome = self.finish(ending, &mut outputs);
        self.hosts.end();
        outcome
    }

    fn take_reports(&mut self) {
        while let Ok(report) = self.reports.try_recv() {
            self.on_report(report);
        }
    }

    /// How long to sleep unless a report comes.
    fn wait(&self) -> Duration {
        let elapsed = self.elapsed();
        let close = self.next_close().saturating_sub(elapsed);
        let end = match self.stopping {
            Some((_, until)) => Some(until.saturating_duration_since(Instant::now())),
            None => self.scenario.load.duration.map(|most| most.saturating_sub(elapsed)),
        };
        end.map_or(close, |end| end.min(close))
    }

    fn next_close(&self) -> Duration {
        Duration::from_secs(self.seconds + 1) + CLOSE_AFTER
    }

    /// Since the start; 0 before it.
    fn elapsed(&self) -> Duration {
        self.started.elapsed()
    }

    /// How long before its time a command must be sent.
    fn lead(&self) -> Duration {
        match self.hosts.way() {
            Duration::ZERO => START_LEAD,
            way => START_LEAD_AFAR + 2 * way,
        }
    }

    fn lock(&self) -> MutexGuard<'_, Record> {
        // A reader that panicked has changed nothing.
        self.record.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether `these` contains all workers that are not lost.
    fn are_all(&self, these: &BTreeSet<WorkerId>) -> bool {
        these.union(&self.gone).count() >= self.workers()
    }

    fn on_report(&mut self, (host, event): Report) {
        match event {
            HostEvent::Worker(event) => self.on_worker_event(host, event),
            HostEvent::WorkerLost { thread, why } => self.lose(WorkerId { host, thread }, &why),
            HostEvent::Skew(skew) => {
                let host = self.lock().meta().host_name(host);
                let (offset_us, bound_us) = (skew.ahead_us, skew.bound_us);
                self.lock().warn(Warning::ClockSkew { host, offset_us, bound_us });
            }
            HostEvent::Lost { why } => self.lose_host(host, &why),
            HostEvent::Control(command) => self.execute(command),
            // Only sent before the start.
            HostEvent::Prepared { .. } | HostEvent::Failed { .. } => {}
        }
    }

    fn on_worker_event(&mut self, host: u16, event: WorkerEvent) {
        let id = |thread| WorkerId { host, thread };
        match event {
            WorkerEvent::Delta(delta) if self.gone.contains(&delta.worker) => {
                // Its users were counted as lost; later reports would count them twice.
                tracing::warn!(host, thread = delta.worker.thread, "a lost worker speaks");
            }
            WorkerEvent::Delta(delta) => self.lock().merge(*delta),
            WorkerEvent::PhaseOver { thread } => {
                self.phase_over.insert(id(thread));
                self.look_for_next_phase();
            }
            WorkerEvent::Idle { thread } => {
                self.idle.insert(id(thread));
            }
            WorkerEvent::Came { users } => {
                self.gathered += 1;
                if self.gathered >= users {
                    self.hosts.send(WorkerCommand::Gathered);
                }
            }
            WorkerEvent::AbortRun => self.stop(Ending::Aborted),
            WorkerEvent::Stopped { thread } => {
                self.stopped.insert(id(thread));
                self.hosts.has_stopped(id(thread));
            }
        }
    }

    fn look_for_next_phase(&mut self) {
        if !self.phase_over.is_empty() && self.are_all(&self.phase_over) {
            self.phase_over.clear();
            let at_ns = self.clock.ns() + nanos(self.lead());
            self.hosts.send(WorkerCommand::NextPhase { at_ns });
        }
    }

    fn lose(&mut self, id: WorkerId, why: &str) {
        if self.stopped.contains(&id) || !self.gone.insert(id) {
            return;
        }
        tracing::error!(host = id.host, thread = id.thread, why, "a worker has ended");
        let host = self.lock().meta().host_name(id.host);
        let users = self.lock().worker_lost(id);
        self.lock().warn(Warning::WorkerLost { host, thread: id.thread, users });
        self.look_for_next_phase();
    }

    fn lose_host(&mut self, host: u16, why: &str) {
        let Some(workers) = self.hosts.lose(host) else { return };
        let threads = (0..workers).filter_map(|thread| u16::try_from(thread).ok());
        let all: Vec<WorkerId> = threads.map(|thread| WorkerId { host, thread }).collect();
        if all.iter().all(|id| self.stopped.contains(id)) {
            return;
        }
        let name = self.lock().meta().host_name(host);
        tracing::error!(agent = name, why, "an agent is lost");
        self.gone.extend(all);
        self.lock().host_lost(host);
        self.look_for_next_phase();
    }

    fn execute(&mut self, command: Command) {
        match command {
            Command::Pause => self.hosts.send(WorkerCommand::Pause),
            Command::Resume => self.hosts.send(WorkerCommand::Resume),
            Command::Rate { factor } => self.hosts.send(WorkerCommand::Rate(factor)),
            Command::Stop if self.stop_requested => {
                // A second request ends the run at once.
                self.stopping = self.stopping.map(|(ending, _)| (ending, Instant::now()));
            }
            Command::Stop => {
                // Ignored if the run is about to end anyway.
                self.stop_requested = true;
                self.stop(Ending::Stopped);
            }
        }
    }

    fn stop(&mut self, why: Ending) {
        if self.stopping.is_none() {
            self.stopping = Some((why, Instant::now() + STOP_TIMEOUT));
            self.hosts.send(WorkerCommand::Stop);
        }
    }

    fn close_second(&mut self, outputs: &mut Outputs) {
        self.seconds = self.elapsed().saturating_sub(CLOSE_AFTER).as_secs();
        for (id, why) in self.hosts.take_lost() {
            self.lose(id, &why);
        }
        let at_ms = self.seconds.saturating_mul(1000);
        let record = Arc::clone(&self.record);
        let mut record = record.lock().unwrap_or_else(PoisonError::into_inner);
        let tick = record.close_second(at_ms);
        outputs.tick(&mut record, &tick);
    }

    /// Ends the run if it is over; returns the ending when nothing is left to wait for.
    fn look_for_end(&mut self) -> Option<Ending> {
        if let Some((ending, until)) = self.stopping {
            let over = self.are_all(&self.stopped) || Instant::now() >= until;
            return over.then_some(ending);
        }
        if self.gone.len() >= self.workers() {
            return Some(Ending::Failed);
        }
        if self.are_all(&self.idle) {
            self.stop(Ending::Finished);
        } else if self.scenario.load.duration.is_some_and(|most| self.elapsed() >= most) {
            self.stop(Ending::Duration);
        }
        None
    }

    fn finish(&mut self, ending: Ending, outputs: &mut Outputs) -> Outcome {
        let at_ms = u64::try_from(self.elapsed().as_millis()).unwrap_or(u64::MAX);
        let record = Arc::clone(&self.record);
        let mut record = record.lock().unwrap_or_else(PoisonError::into_inner);
        let tick = record.finish(at_ms, ending);
        outputs.tick(&mut record, &tick);
        outputs.finish(&mut record);
        Outcome { ending, outputs_failed: outputs.failed() }
    }
}
