//! A run from its start to its end: hears the workers, closes the seconds, feeds the outputs,
//! passes on what the operator wants, and knows when it is over.

use std::collections::BTreeSet;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use crate::control::Command;
use crate::record::{Ending, Meta, Record, WorkerId};
use crate::report::Outputs;
use crate::scenario::Scenario;

use super::crew::{Crew, Options, Part};
use super::placement;
use super::worker::Word;
use super::{Order, RunError};

/// A run whose workers are there and wait.
pub struct Run {
    scenario: Arc<Scenario>,
    record: Arc<Mutex<Record>>,
    crew: Crew,
    words: Receiver<Word>,
    /// Kept, so that the channel outlives the workers.
    _words: Sender<Word>,
    workers: usize,
}

/// How a run came out.
#[derive(Debug)]
pub struct Outcome {
    /// How it ended.
    pub ending: Ending,
    /// An output could not be written, or not whole.
    pub outputs_failed: bool,
}

/// How often the operator's wishes are looked at.
const COMMANDS: Duration = Duration::from_millis(50);
/// How long workers may take to end their users.
const STOP_TIMEOUT: Duration = Duration::from_secs(15);
/// Time for all workers to read the order to start.
const START_LEAD_NS: u64 = 5_000_000;

impl Run {
    /// Starts the workers of a checked scenario.
    ///
    /// # Errors
    /// See [`RunError`]; nothing is left running.
    pub fn prepare(scenario: Scenario, options: &Options) -> Result<Self, RunError> {
        let workers = options.workers.unwrap_or_else(|| placement::workers(&scenario)).max(1);
        let scenario = Arc::new(scenario);
        let (sender, words) = channel();
        let now = SystemTime::now();
        let run = fastrand::Rng::new().u32(1..);
        let part =
            Part { workers: workers as u64, first: 0, of: workers as u64, host: 0, hosts: 1, run };
        let crew = Crew::start(&scenario, part, options, &sender)?;
        let meta = Meta::of(&scenario, vec!["local".to_owned()], now);
        let record = Arc::new(Mutex::new(Record::new(meta)));
        Ok(Self { scenario, record, crew, words, _words: sender, workers })
    }

    /// Worker threads.
    pub fn workers(&self) -> usize {
        self.workers
    }

    /// Connections that all workers together can hold.
    pub fn capacity(&self) -> usize {
        self.crew.capacity().saturating_mul(self.workers)
    }

    /// What is measured; locked for a moment each second.
    pub fn record(&self) -> Arc<Mutex<Record>> {
        Arc::clone(&self.record)
    }

    /// Runs to the end.
    pub fn go(self, outputs: Outputs, commands: &Receiver<Command>) -> Outcome {
        let Self { scenario, record, crew, words, .. } = self;
        let mut coordinator = Coordinator {
            scenario,
            record,
            crew,
            outputs,
            started: Instant::now(),
            seconds: 0,
            stopping: None,
            idle: BTreeSet::new(),
            phase_over: BTreeSet::new(),
            gathered: 0,
            workers: self.workers,
        };
        let outcome = coordinator.run(&words, commands);
        coordinator.crew.end();
        outcome
    }
}

struct Coordinator {
    scenario: Arc<Scenario>,
    record: Arc<Mutex<Record>>,
    crew: Crew,
    outputs: Outputs,
    started: Instant,
    /// Seconds closed.
    seconds: u64,
    /// The run is being ended: why, and since when.
    stopping: Option<(Ending, Instant)>,
    /// Workers without users and without any to come.
    idle: BTreeSet<WorkerId>,
    /// Workers that wait for the next phase.
    phase_over: BTreeSet<WorkerId>,
    gathered: u64,
    workers: usize,
}

impl Coordinator {
    fn run(&mut self, words: &Receiver<Word>, commands: &Receiver<Command>) -> Outcome {
        let at_ns = self.crew.clock_ns() + START_LEAD_NS;
        self.started = Instant::now() + Duration::from_nanos(START_LEAD_NS);
        self.crew.tell(Order::Start { at_ns, clock_offset_ns: 0 });
        let ending = loop {
            let next = Duration::from_secs(self.seconds + 1).saturating_sub(self.elapsed());
            match words.recv_timeout(next.min(COMMANDS)) {
                Ok(word) => self.hear(word),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break Ending::Failed,
            }
            while let Ok(command) = commands.try_recv() {
                self.obey(command);
            }
            if self.elapsed() >= Duration::from_secs(self.seconds + 1) {
                // All that is there belongs to the second that ends.
                words.try_iter().for_each(|word| self.hear(word));
                self.close_second();
            }
            if let Some(ending) = self.look_for_end() {
                break ending;
            }
        };
        words.try_iter().for_each(|word| self.hear(word));
        self.finish(ending)
    }

    /// Since the start; 0 before it.
    fn elapsed(&self) -> Duration {
        self.started.elapsed()
    }

    fn record(&self) -> MutexGuard<'_, Record> {
        // A reader that panicked has changed nothing.
        self.record.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn hear(&mut self, word: Word) {
        let id = |thread| WorkerId { host: 0, thread };
        match word {
            Word::Delta(delta) => self.record().merge(*delta),
            Word::PhaseOver { thread } => {
                self.phase_over.insert(id(thread));
                if self.phase_over.len() >= self.workers {
                    self.phase_over.clear();
                    let at_ns = self.crew.clock_ns() + START_LEAD_NS;
                    self.crew.tell(Order::NextPhase { at_ns });
                }
            }
            Word::Idle { thread } => {
                self.idle.insert(id(thread));
            }
            Word::Came { users } => {
                self.gathered += 1;
                if self.gathered >= users {
                    self.crew.tell(Order::Gathered);
                }
            }
            Word::AbortRun => self.stop(Ending::Aborted),
            Word::Stopped { thread } => self.crew.has_stopped(thread),
        }
    }

    fn obey(&mut self, command: Command) {
        match command {
            Command::Pause => self.crew.tell(Order::Pause),
            Command::Resume => self.crew.tell(Order::Resume),
            Command::Rate(factor) => self.crew.tell(Order::Rate(factor)),
            Command::Stop if self.stopping.is_some() => {
                // Told twice: at once.
                self.stopping = self.stopping.map(|(ending, _)| (ending, self.started));
            }
            Command::Stop => self.stop(Ending::Stopped),
        }
    }

    fn stop(&mut self, why: Ending) {
        if self.stopping.is_none() {
            self.stopping = Some((why, Instant::now()));
            self.crew.tell(Order::Stop);
        }
    }

    fn close_second(&mut self) {
        self.seconds = self.elapsed().as_secs();
        for (thread, why) in self.crew.take_lost() {
            tracing::error!(thread, why, "a worker has ended");
            self.idle.insert(WorkerId { host: 0, thread });
            self.record().worker_lost(WorkerId { host: 0, thread });
        }
        let at_ms = u64::try_from(self.elapsed().as_millis()).unwrap_or(u64::MAX);
        let record = Arc::clone(&self.record);
        let mut record = record.lock().unwrap_or_else(PoisonError::into_inner);
        let tick = record.close_second(at_ms);
        self.outputs.tick(&mut record, &tick);
    }

    /// Ends what is to end; tells how, when nothing is left to wait for.
    fn look_for_end(&mut self) -> Option<Ending> {
        if let Some((ending, since)) = self.stopping {
            let over = self.crew.is_over() || since.elapsed() >= STOP_TIMEOUT;
            return over.then_some(ending);
        }
        if self.idle.len() >= self.workers {
            self.stop(Ending::Finished);
        } else if self.scenario.load.duration.is_some_and(|most| self.elapsed() >= most) {
            self.stop(Ending::Duration);
        } else if self.crew.is_over() {
            return Some(Ending::Failed);
        }
        None
    }

    fn finish(&mut self, ending: Ending) -> Outcome {
        let at_ms = u64::try_from(self.elapsed().as_millis()).unwrap_or(u64::MAX);
        let record = Arc::clone(&self.record);
        let mut record = record.lock().unwrap_or_else(PoisonError::into_inner);
        let tick = record.finish(at_ms, ending);
        self.outputs.tick(&mut record, &tick);
        self.outputs.finish(&mut record);
        Outcome { ending, outputs_failed: self.outputs.failed() }
    }
}

impl std::fmt::Debug for Run {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Run").field("workers", &self.workers).finish_non_exhaustive()
    }
}
