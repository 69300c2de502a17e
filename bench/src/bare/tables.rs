//! Threads with a separate descriptor table each, which run one job each.
//!
//! They are the reactor's, and nothing else of it is used: making a table private is `unsafe` and
//! has to be done in one order with the starting of the threads, so it is not repeated here. A
//! shard's only message is its job, and the job never returns the thread; so no code of the reactor
//! runs while anything is measured. All that is left of it is the thread, its table with the wakers
//! in it, and an unused poll set.
//!
//! A descriptor's number means nothing in another table, so a job opens all it needs by itself. It
//! has a small stack: buffers belong on the heap.

use std::process;

use anyhow::{Context, Result, anyhow, ensure};
use simurgh_reactor::{
    Closed, Config, Handler, Io, Key, Next, ShardSet, Slow, Tables, raise_descriptor_limit,
    shards_for,
};

/// The job of a thread for the rest of its life.
pub(crate) type Job = Box<dyn FnOnce() -> Result<()> + Send>;

/// As many tables as `simurgh serve --max-connections` has for this many, at least two.
pub(crate) fn count_for(connections: usize) -> usize {
    let (descriptors, _) = raise_descriptor_limit();
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    shards_for(connections, descriptors).max(cores).clamp(2, usize::from(u16::MAX))
}

/// Starts `count` threads called `name`, each with a job of `make`. A failed job ends the process.
pub(crate) fn start(count: usize, name: &str, mut make: impl FnMut(usize) -> Job) -> Result<()> {
    let mut set = ShardSet::prepare(count, 0).context("prepare the tables")?;
    for index in 0..count {
        let thread = set.spawn(&format!("{name}-{index}"), Config::default(), |_| Host)?;
        let is_private = thread.tables() == Tables::Private;
        ensure!(is_private, "the system gives threads no descriptor table of their own");
        let job = make(index);
        let posted = set.mailboxes().get(index).is_some_and(|mailbox| mailbox.post_anyway(job));
        ensure!(posted, "thread {index} has ended");
    }
    Ok(())
}

struct Host;

impl Handler for Host {
    type Conn = ();
    type Mail = Job;

    fn mail(&mut self, _io: &mut Io<()>, job: Job) {
        let why = job().err().unwrap_or_else(|| anyhow!("a thread has nothing more to do"));
        eprintln!("simurgh-bench: {why:#}");
        // With one thread less the figures would be wrong.
        process::exit(1);
    }

    fn readable(&mut self, _io: &mut Io<()>, _key: Key, _data: &mut [u8]) {}

    fn closed(&mut self, _io: &mut Io<()>, _key: Key, _conn: (), _why: Closed) {}

    fn turn_end(&mut self, _io: &mut Io<()>) -> Next {
        Next::Idle
    }

    fn slow(&mut self, _io: &mut Io<()>, _key: Key) -> Slow {
        Slow::Abort
    }
}
