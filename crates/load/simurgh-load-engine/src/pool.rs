//! Starts, commands and awaits the workers of this host.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use simurgh_load_client::OUTBOUND_BYTES_MAX;
use simurgh_load_client::tls::TlsConfig;
use simurgh_load_client::tun::Network;
use simurgh_load_record::WorkerId;
use simurgh_load_scenario::Scenario;
use simurgh_reactor::{Config, ShardHandle, ShardSet};

use crate::RunError;
use crate::command::WorkerCommand;
use crate::program::compile;
use crate::schedule::Share;
use crate::shared::Shared;
use crate::worker::{Worker, WorkerSetup};

pub(crate) use crate::worker::EventSender;

/// The part of the run that this host does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Part {
    pub(crate) workers: u64,
    /// Number of the first of them among all workers of the run.
    pub(crate) first: u64,
    pub(crate) of: u64,
    /// This host's number, and the number of hosts.
    pub(crate) host: u64,
    pub(crate) hosts: u64,
    /// The run's number in stamps.
    pub(crate) run: u32,
}

/// Settings of the operator, not of the scenario.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Worker threads of all hosts together; `None`: as many as the users need.
    pub workers: Option<usize>,
    /// Cores to pin this host's workers to, in turn; empty: not pinned. Agents pin none.
    pub cores: Vec<usize>,
    /// Asks the kernel for the time of each read, to measure the error that this tool adds.
    pub receive_stamps: bool,
}

pub(crate) struct WorkerPool {
    set: ShardSet<WorkerCommand>,
    handles: Vec<Option<ShardHandle>>,
    stopped: BTreeSet<usize>,
    /// Threads that have ended; their last event may not have been read yet.
    ended: BTreeSet<usize>,
}

impl WorkerPool {
    pub(crate) fn start(
        scenario: &Arc<Scenario>,
        part: Part,
        options: &Options,
        events: &EventSender,
    ) -> Result<Self, RunError> {
        // An error is returned before any thread starts; each worker compiles its own program.
        compile(scenario).map_err(RunError::Scenario)?;
        scenario.sources.check().map_err(RunError::Scenario)?;
        let tls = scenario.targets.iter().any(|target| target.tls);
        let tls = tls.then(|| TlsConfig::new(&scenario.tls)).transpose();
        let tls = tls.map_err(RunError::Scenario)?;
        let count = usize::try_from(part.workers).unwrap_or(usize::MAX);
        let io = |what: &'static str| move |error| RunError::System(what, error);
        let set = ShardSet::prepare(count, MAILBOX_BYTES_MAX).map_err(io("the workers' mail"))?;
        let mut pool =
            Self { set, handles: Vec::new(), stopped: BTreeSet::new(), ended: BTreeSet::new() };
        let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let setup = WorkerSetup {
            scenario: Arc::clone(scenario),
            share: Share { index: part.first, of: part.of },
            id: WorkerId { host: part.host as u16, thread: 0 },
            run: part.run,
            tls,
            network: None,
            shared: Arc::new(Shared::new(scenario.files.len(), part.host, part.hosts)),
            events: Arc::clone(events),
            receive_stamps: options.receive_stamps,
            unix_zero: unix.saturating_sub(Duration::from_nanos(pool.clock_ns())),
        };
        for thread in 0..count {
            let config = Config {
                core: options.cores.get(thread % options.cores.len().max(1)).copied(),
                receive_stamps: options.receive_stamps,
                // The scenario's patterns run on this stack; only used pages cost memory.
                stack_bytes: STACK_BYTES,
                outbound_bytes_max: OUTBOUND_BYTES_MAX,
                ..Config::default()
            };
            let share = Share { index: part.first + thread as u64, of: part.of };
            let network = Network::of(&scenario.sources, share.index as u32, share.of as u32);
            let network = network.map_err(RunError::Scenario)?;
            let config = Config { tun: network.as_ref().map(Network::config), ..config };
            let id = WorkerId { thread: thread as u16, ..setup.id };
            let setup = WorkerSetup { share, id, network, ..setup.clone() };
            let name = format!("worker-{thread}");
            let handle = pool.set.spawn(&name, config, move |_| Worker::new(setup));
            let handle = handle.map_err(|error| RunError::Worker(error.to_string()))?;
            pool.handles.push(Some(handle));
        }
        Ok(pool)
    }

    pub(crate) fn clock_ns(&self) -> u64 {
        self.set.clock_ns()
    }

    pub(crate) fn capacity(&self) -> usize {
        self.handles.iter().flatten().map(ShardHandle::capacity).min().unwrap_or(0)
    }

    pub(crate) fn send(&self, command: WorkerCommand) {
        for mailbox in self.set.mailboxes() {
            mailbox.post_anyway(command);
        }
    }

    pub(crate) fn has_stopped(&mut self, thread: u16) {
        self.stopped.insert(usize::from(thread));
    }

    /// Workers whose thread has ended unexpectedly, with the reason. Each is returned once, and
    /// only by the second call: its events must have been read before.
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
}

impl Drop for WorkerPool {
    fn drop(&mut self) {
        let handles: Vec<ShardHandle> = self.handles.iter_mut().filter_map(Option::take).collect();
        for handle in &handles {
            handle.stop();
        }
        for handle in handles {
            // A panic was reported as a lost worker.
            let _ = handle.join();
        }
    }
}

/// Bytes of mail that wait; commands count as 0.
const MAILBOX_BYTES_MAX: usize = 1 << 20;
const STACK_BYTES: usize = 2 << 20;
