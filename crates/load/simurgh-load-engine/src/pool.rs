//! The workers of this host: started, told, and waited for.

use std::collections::BTreeSet;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use simurgh_load_client::OUTBOUND_BYTES_MAX;
use simurgh_load_client::tls::TlsConfig;
use simurgh_load_record::{Names, Recorder, WorkerId};
use simurgh_load_scenario::Scenario;
use simurgh_reactor::{Config, ShardHandle, ShardSet};

use crate::RunError;
use crate::command::WorkerCommand;
use crate::program::{Program, compile};
use crate::schedule::Share;
use crate::shared::Shared;
use crate::user::Context;
use crate::worker::{Parts, Worker};

pub(crate) use crate::worker::EventSender;

/// Which part of the run this host does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Part {
    /// Workers here.
    pub(crate) workers: u64,
    /// Number of the first of them among all workers of the run.
    pub(crate) first: u64,
    /// All workers of the run.
    pub(crate) of: u64,
    /// Which host, of how many.
    pub(crate) host: u64,
    pub(crate) hosts: u64,
    /// The run, as stamps name it.
    pub(crate) run: u32,
}

/// What is up to the operator rather than the scenario.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Worker threads, of all hosts together; `None`: as many as the users need.
    pub workers: Option<usize>,
    /// Cores to pin those of this host to, in turn; empty: none. Agents pin none.
    pub cores: Vec<usize>,
    /// Asks the kernel when it received each read, to tell what error this tool adds.
    pub receive_stamps: bool,
}

pub(crate) struct WorkerPool {
    set: ShardSet<WorkerCommand>,
    handles: Vec<Option<ShardHandle>>,
    stopped: BTreeSet<usize>,
    /// Threads that have ended, maybe with a last word under way.
    ended: BTreeSet<usize>,
}

impl WorkerPool {
    /// Starts the workers, which then wait for [`WorkerCommand::Start`] and report through
    /// `events`.
    pub(crate) fn start(
        scenario: &Arc<Scenario>,
        part: Part,
        options: &Options,
        events: &EventSender,
    ) -> Result<Self, RunError> {
        // Told before any thread is there; each worker compiles its own.
        compile(scenario).map_err(RunError::Scenario)?;
        let tls = scenario.targets.iter().any(|target| target.tls);
        let tls = tls.then(|| TlsConfig::new(&scenario.tls)).transpose();
        let tls = tls.map_err(RunError::Scenario)?;
        let count = usize::try_from(part.workers).unwrap_or(usize::MAX);
        let io = |what: &'static str| move |error| RunError::System(what, error);
        let set = ShardSet::prepare(count, MAILBOX_BYTES_MAX).map_err(io("the workers' mail"))?;
        let mut pool =
            Self { set, handles: Vec::new(), stopped: BTreeSet::new(), ended: BTreeSet::new() };
        let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let unix_zero = unix.saturating_sub(Duration::from_nanos(pool.clock_ns()));
        let files = scenario.files.len();
        let shared = Arc::new(Shared::new(files, part.host, part.hosts));
        for thread in 0..count {
            let config = Config {
                core: options.cores.get(thread % options.cores.len().max(1)).copied(),
                receive_stamps: options.receive_stamps,
                // Patterns run here that others wrote; only what is used of it costs memory.
                stack_bytes: STACK_BYTES,
                outbound_bytes_max: OUTBOUND_BYTES_MAX,
                ..Config::default()
            };
            let seat = Seat {
                scenario: Arc::clone(scenario),
                part,
                thread: thread as u16,
                tls: tls.clone(),
                shared: Arc::clone(&shared),
                events: Arc::clone(events),
                receive_stamps: options.receive_stamps,
                unix_zero,
            };
            let name = format!("worker-{thread}");
            let handle = pool.set.spawn(&name, config, move |_| seat.worker());
            let handle = handle.map_err(|error| RunError::Worker(error.to_string()))?;
            pool.handles.push(Some(handle));
        }
        Ok(pool)
    }

    /// The workers' clock.
    pub(crate) fn clock_ns(&self) -> u64 {
        self.set.clock_ns()
    }

    /// Connections that one worker can hold.
    pub(crate) fn capacity(&self) -> usize {
        self.handles.iter().flatten().map(ShardHandle::capacity).min().unwrap_or(0)
    }

    /// Tells all workers.
    pub(crate) fn tell(&self, command: WorkerCommand) {
        for mailbox in self.set.mailboxes() {
            mailbox.post_anyway(command);
        }
    }

    /// A worker has said that it is done.
    pub(crate) fn has_stopped(&mut self, thread: u16) {
        self.stopped.insert(usize::from(thread));
    }

    /// Workers whose thread has ended without being told to: which, and why. Each once, and only
    /// when asked for the second time: what they have said must have been heard before.
    pub(crate) fn take_lost(&mut self) -> Vec<(u16, String)> {
        let mut lost = Vec::new();
        for (thread, place) in self.handles.iter_mut().enumerate() {
            if self.stopped.contains(&thread) || !place.as_ref().is_some_and(|h| h.is_finished()) {
                continue;
            }
            if self.ended.insert(thread) {
                continue;
            }
            if let Some(handle) = place.take() {
                let why = match handle.join() {
                    Ok(()) => "it ended by itself".to_owned(),
                    Err(error) => error.to_string(),
                };
                lost.push((thread as u16, why));
            }
        }
        lost
    }

    /// Ends the threads, whatever their users do, and waits for them.
    pub(crate) fn end(self) {
        drop(self);
    }
}

impl Drop for WorkerPool {
    fn drop(&mut self) {
        let handles: Vec<ShardHandle> = self.handles.iter_mut().filter_map(Option::take).collect();
        for handle in &handles {
            handle.stop();
        }
        for handle in handles {
            // What it died of was reported as a lost worker; now nothing rests on it any more.
            let _ = handle.join();
        }
    }
}

/// Bytes of mail that wait; what workers are told weighs nothing.
const MAILBOX_BYTES_MAX: usize = 1 << 20;
/// Stack of a worker's thread.
const STACK_BYTES: usize = 2 << 20;

/// What goes along to a worker's thread.
struct Seat {
    scenario: Arc<Scenario>,
    part: Part,
    thread: u16,
    tls: Option<TlsConfig>,
    shared: Arc<Shared>,
    events: EventSender,
    receive_stamps: bool,
    unix_zero: Duration,
}

impl Seat {
    fn worker(self) -> Worker {
        let Self { scenario, part, thread, tls, shared, events, receive_stamps, unix_zero } = self;
        // It was compiled once before without complaint.
        let program = Rc::new(compile(&scenario).unwrap_or_else(|_| Program::empty(&scenario)));
        let share = Share { index: part.first + u64::from(thread), of: part.of };
        let samples = scenario.tsung.as_ref().is_some_and(|tsung| tsung.full_stats);
        let id = WorkerId { host: part.host as u16, thread };
        let recorder = Recorder::new(id, &Names::of(&scenario), samples);
        let context = Context::new(&program, shared, part.run, (share.index, thread), unix_zero);
        Worker::new(Parts {
            program,
            context,
            recorder,
            tls,
            events,
            share,
            thread,
            receive_stamps,
        })
    }
}
