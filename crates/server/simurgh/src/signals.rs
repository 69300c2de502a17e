//! One thread waits for SIGTERM, SIGINT and SIGHUP.
//!
//! All threads block them, and `sigwait` takes them, never a handler. A handler runs on any thread
//! and wakes its program by writing to a descriptor; on a shard, which has its own descriptor
//! table, that number may be a client's socket.

use std::time::{Duration, Instant};

use nix::sys::signal::{SigSet, Signal};

use crate::handle::Handle;

/// The first signal once more, this soon after it, is part of the same request.
const SAME_REQUEST: Duration = Duration::from_millis(50);

/// The signals for a server, blocked in all existing and later threads: SIGTERM and SIGINT end it,
/// SIGHUP reloads.
#[derive(Debug)]
pub struct Signals(SigSet);

impl Signals {
    /// Blocks them, and SIGXFSZ, in this thread and all that it starts later. Call it before any
    /// thread is started. The system has no reason to refuse.
    pub fn block() -> std::io::Result<Self> {
        Self::block_all(&[Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP])
    }

    /// As [`block`](Self::block), for programs that SIGHUP shall end as usual.
    pub fn block_without_hangup() -> std::io::Result<Self> {
        Self::block_all(&[Signal::SIGTERM, Signal::SIGINT])
    }

    fn block_all(signals: &[Signal]) -> std::io::Result<Self> {
        let set: SigSet = signals.iter().copied().collect();
        set.thread_block()?;
        // A file over its limit (`ulimit -f`) then fails the write instead of ending the process.
        let mut quiet = SigSet::empty();
        quiet.add(Signal::SIGXFSZ);
        quiet.thread_block()?;
        Ok(Self(set))
    }

    /// From now on the first signal drains the server, and the second ends the process at once,
    /// with 128 plus the signal's number as its status. SIGHUP reloads, at any time: in `simurgh
    /// serve` all settings, elsewhere the certificates. Fails if the system has no thread left.
    pub fn drain(self, server: Handle) -> std::io::Result<()> {
        self.drain_telling(server, || {}, || {})
    }

    /// As [`drain`](Self::drain), and calls `tell` before the drain begins, and `last` before a
    /// second signal ends the process, for example to write out the log.
    pub fn drain_telling(
        self,
        server: Handle,
        tell: impl FnOnce() + Send + 'static,
        last: impl FnOnce() + Send + 'static,
    ) -> std::io::Result<()> {
        let reloading = server.clone();
        let drain = move |signal| {
            tracing::info!(signal, "draining; a second signal exits at once");
            tell();
            server.drain();
        };
        // On a thread of its own: it takes more stack than this one has, and may take a while.
        let reload = move || {
            let server = reloading.clone();
            let thread = std::thread::Builder::new().name("simurgh-reload".into());
            // It logs its errors.
            if let Err(error) = thread.spawn(move || drop(server.reload())) {
                tracing::error!(%error, "cannot start the thread that reloads");
            }
        };
        self.until_exit(drain, last, reload)
    }

    /// From now on each signal calls `heard`, on another thread, with its name and with the exit
    /// status for it: 128 plus its number. Fails if the system has no thread left.
    pub fn each(self, heard: impl Fn(&'static str, i32) + Send + 'static) -> std::io::Result<()> {
        let wait = move || {
            while let Ok(signal) = self.0.wait() {
                heard(signal.as_str(), 128 + signal as i32);
            }
        };
        start(wait)
    }

    /// From now on the first signal calls `first` with its name, on another thread; the second
    /// calls `second` and ends the process at once. The first signal again within 50 ms is the same
    /// request: `timeout` sends it to the process and to its group. Exit status and errors as for
    /// [`Signals::drain`].
    pub fn first_then_exit(
        self,
        first: impl FnOnce(&'static str) + Send + 'static,
        second: impl FnOnce() + Send + 'static,
    ) -> std::io::Result<()> {
        self.until_exit(first, second, || ())
    }

    fn until_exit(
        self,
        first: impl FnOnce(&'static str) + Send + 'static,
        second: impl FnOnce() + Send + 'static,
        hangup: impl Fn() + Send + 'static,
    ) -> std::io::Result<()> {
        let wait = move || {
            let Ok(asked) = self.wait_for_end(&hangup) else { return };
            first(asked.as_str());
            let since = Instant::now();
            while let Ok(signal) = self.wait_for_end(&hangup) {
                if signal == asked && since.elapsed() < SAME_REQUEST {
                    continue;
                }
                second();
                // The status that a shell reports for a process ended by a signal.
                std::process::exit(128 + signal as i32);
            }
        };
        start(wait)
    }

    /// Waits for a signal other than SIGHUP, and calls `hangup` for each of those.
    fn wait_for_end(&self, hangup: impl Fn()) -> nix::Result<Signal> {
        loop {
            match self.0.wait()? {
                Signal::SIGHUP => hangup(),
                signal => return Ok(signal),
            }
        }
    }
}

fn start(wait: impl FnOnce() + Send + 'static) -> std::io::Result<()> {
    std::thread::Builder::new()
        .name("simurgh-signals".into())
        .stack_size(128 << 10)
        .spawn(wait)
        .map(drop)
}
