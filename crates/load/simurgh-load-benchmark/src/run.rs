//! Runs a job: starts workers, waits for connections, starts the clock, adds up measurements.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use simurgh_load_client::OUTBOUND_BYTES_MAX;
use simurgh_load_report::control::{Command, Control};
use simurgh_reactor::{Config, Shard, ShardHandle, ShardSet};

use super::job::Job;
use super::message::{EventSender, RunEvent, WorkerCommand, WorkerEvent};
use super::outcome::Outcome;
use super::tally::Tally;
use super::worker::Worker;

/// Why nothing was measured.
#[derive(Debug, thiserror::Error)]
pub enum BenchmarkError {
    /// A failed system call: what was tried, and the error.
    #[error("{0}: {1}")]
    System(&'static str, io::Error),
    /// A worker did not start, or ended unexpectedly.
    #[error("a worker failed: {0}")]
    Worker(String),
    /// More connections than the threads' descriptor tables hold; what to do.
    #[error("{0}")]
    TooMany(String),
    /// No connection could be opened; the first error.
    #[error("{0}")]
    Unreachable(String),
    /// It was stopped before it began.
    #[error("stopped before it started")]
    Stopped,
}

/// Runs benchmarks, one after the other.
pub struct Runner {
    received: Receiver<RunEvent>,
    events: EventSender,
    control: Control,
    stopped: bool,
}

/// Time for all workers to read the start command, so that they start together.
const START_LEAD_NS: u64 = 5_000_000;
/// How much longer than planned workers may take before they count as lost.
const WAIT_MAX: Duration = Duration::from_secs(15);
/// More threads than this are a mistake.
const THREADS_MAX: usize = 2_000;
const TRIES: usize = 4;
const POLL_INTERVAL: Duration = Duration::from_millis(250);
/// Bytes of mail that wait; commands count as 0.
const MAILBOX_BYTES_MAX: usize = 1 << 20;
/// Stack of a worker's thread; TLS needs most of it.
const STACK_BYTES: usize = 1 << 20;

impl Default for Runner {
    fn default() -> Self {
        let (sender, received) = channel();
        let commands = sender.clone();
        let control = Control::to(move |command| {
            // There is no receiver after the end, when a command has no effect.
            let _ = commands.send(RunEvent::Control(command));
        });
        Self { received, events: EventSender { sender, pool: 0 }, control, stopped: false }
    }
}

impl Runner {
    /// Stops the current run and all later ones.
    pub fn control(&self) -> Control {
        self.control.clone()
    }

    /// Whether it was stopped.
    pub fn is_stopped(&self) -> bool {
        self.stopped
    }

    /// Runs a job with this number of connections.
    ///
    /// # Errors
    /// See [`BenchmarkError`]; all workers have ended.
    pub fn run(&mut self, job: &Job, connections: usize) -> Result<Outcome, BenchmarkError> {
        let mut pool = WorkerPool::start(job, connections, &mut self.events)?;
        let ready_in = job.plan.timeout + WAIT_MAX;
        let (mut ready, mut opened, mut error) = (0, 0, None);
        self.receive(&mut pool, ready_in, |event| {
            if let WorkerEvent::Ready { opened: more, error: why } = event {
                ready += 1;
                opened += more;
                error = error.take().or(why);
            }
            ready
        })?;
        if self.stopped {
            return Err(BenchmarkError::Stopped);
        }
        if opened == 0 {
            let why = error.unwrap_or_else(|| "unknown reason".to_owned());
            let what = format!("cannot connect to {}: {why}", job.address);
            return Err(BenchmarkError::Unreachable(what));
        }
        pool.send(WorkerCommand::Start { at_ns: pool.set.clock_ns() + START_LEAD_NS });
        let (mut done, mut tally) = (0, Tally::default());
        self.receive(&mut pool, job.plan.duration + WAIT_MAX, |event| {
            if let WorkerEvent::Done(part) = event {
                done += 1;
                tally.add(&part);
            }
            done
        })?;
        let threads = pool.handles.len();
        Ok(Outcome::new(job, connections, threads, &tally, self.stopped))
    }

    /// Receives events until `count` says that all workers have reported. Forwards a stop.
    fn receive(
        &mut self,
        pool: &mut WorkerPool,
        within: Duration,
        mut count: impl FnMut(WorkerEvent) -> usize,
    ) -> Result<(), BenchmarkError> {
        let until = Instant::now() + within;
        let mut counted = 0;
        while counted < pool.handles.len() {
            match self.received.recv_timeout(POLL_INTERVAL) {
                Ok(RunEvent::Worker(of, event)) if of == self.events.pool => counted = count(event),
                // Of a pool that was given up.
                Ok(RunEvent::Worker(..)) => {}
                Ok(RunEvent::Control(Command::Stop)) => {
                    self.stopped = true;
                    pool.send(WorkerCommand::Stop);
                    if !pool.is_started {
                        return Ok(());
                    }
                }
                Ok(RunEvent::Control(_)) => {}
                Err(RecvTimeoutError::Timeout) => pool.check_alive(until)?,
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(BenchmarkError::Worker("all workers have ended".to_owned()));
                }
            }
        }
        Ok(())
    }
}

/// The workers of one run; ended when dropped.
struct WorkerPool {
    set: ShardSet<WorkerCommand>,
    handles: Vec<ShardHandle>,
    is_started: bool,
    /// When a worker's end was first noticed: its last event may not have been read yet.
    ended: Option<Instant>,
}

impl WorkerPool {
    /// The threads of the plan, or as many as the descriptor limit requires.
    fn start(
        job: &Job,
        connections: usize,
        events: &mut EventSender,
    ) -> Result<Self, BenchmarkError> {
        let mut threads = job.plan.threads_for(connections);
        // More threads each hold a little less, for their wakers: the second try may fail too.
        for _ in 0..TRIES {
            events.pool += 1;
            match Self::of(threads, job, connections, events)? {
                Ok(pool) => return Ok(pool),
                Err(capacity) => {
                    let least = connections.div_ceil(capacity.max(1));
                    if job.plan.threads.is_none() && least > threads && least <= THREADS_MAX {
                        threads = least;
                        continue;
                    }
                    let each = connections.div_ceil(threads);
                    return Err(BenchmarkError::TooMany(format!(
                        "{connections} connections are {each} on each of {threads} threads, and \
                         the descriptor limit lets a thread hold {capacity}: take -t {least}, or \
                         raise the limit (ulimit -n, `simurgh tune`)"
                    )));
                }
            }
        }
        let why = format!("{connections} connections are too many for the descriptor limit");
        Err(BenchmarkError::TooMany(why))
    }

    /// A pool of this size, or how many connections a thread can hold if those are too few.
    fn of(
        threads: usize,
        job: &Job,
        connections: usize,
        events: &EventSender,
    ) -> Result<Result<Self, usize>, BenchmarkError> {
        let set = ShardSet::prepare(threads, MAILBOX_BYTES_MAX)
            .map_err(|error| BenchmarkError::System("the workers' mail", error))?;
        let mut pool = Self { set, handles: Vec::new(), is_started: false, ended: None };
        let job = Arc::new(job.clone());
        for thread in 0..threads {
            let cores = &job.plan.cores;
            let config = Config {
                core: cores.get(thread % cores.len().max(1)).copied(),
                stack_bytes: STACK_BYTES,
                outbound_bytes_max: OUTBOUND_BYTES_MAX,
                ..Config::default()
            };
            // As evenly as possible.
            let links = connections / threads + usize::from(thread < connections % threads);
            let (own, events) = (Arc::clone(&job), events.clone());
            let make = move |shard: &Shard<WorkerCommand>| {
                // Without enough capacity none are begun.
                let links = if links > shard.capacity { 0 } else { links };
                Worker::new(own, links, thread, threads, events)
            };
            let handle = pool
                .set
                .spawn(&format!("http-{thread}"), config, make)
                .map_err(|error| BenchmarkError::Worker(error.to_string()))?;
            let capacity = handle.capacity();
            pool.handles.push(handle);
            if links > capacity {
                return Ok(Err(capacity));
            }
        }
        Ok(Ok(pool))
    }

    fn send(&mut self, command: WorkerCommand) {
        self.is_started |= matches!(command, WorkerCommand::Start { .. });
        for mailbox in self.set.mailboxes() {
            mailbox.post_anyway(command);
        }
    }

    /// An error if a worker has ended without its last event, or all take too long.
    fn check_alive(&mut self, until: Instant) -> Result<(), BenchmarkError> {
        if self.handles.iter().any(ShardHandle::is_finished) {
            let since = *self.ended.get_or_insert_with(Instant::now);
            if since.elapsed() > WAIT_MAX {
                return Err(BenchmarkError::Worker("it ended by itself".to_owned()));
            }
        }
        if Instant::now() > until {
            return Err(BenchmarkError::Worker("it does not end".to_owned()));
        }
        Ok(())
    }
}

impl Drop for WorkerPool {
    fn drop(&mut self) {
        for handle in &self.handles {
            handle.stop();
        }
        for handle in self.handles.drain(..) {
            // The measurements have been received: an error has no effect.
            let _ = handle.join();
        }
    }
}
