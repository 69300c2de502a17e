//! SIGTERM and SIGINT, waited for by one thread.
//!
//! They are blocked in every thread and taken by `sigwait`, never by a handler. A handler runs on
//! whatever thread the system picks and wakes its program by writing to a descriptor; on a shard,
//! whose descriptor table is its own, that number may be a client's socket.

use nix::sys::signal::{SigSet, Signal};

use crate::handle::Handle;

/// The signals that end a server, blocked in the threads that exist and those to come.
#[derive(Debug)]
pub struct Signals(SigSet);

impl Signals {
    /// Blocks them in this thread and all it starts from now on, and SIGXFSZ, which nobody waits
    /// for. To be called before any thread is started.
    ///
    /// # Errors
    /// What the system says; it has no reason to refuse.
    pub fn block() -> std::io::Result<Self> {
        let mut set = SigSet::empty();
        set.add(Signal::SIGTERM);
        set.add(Signal::SIGINT);
        set.thread_block()?;
        // A file over its limit (`ulimit -f`) is an error of the write, not the end of the process.
        let mut quiet = SigSet::empty();
        quiet.add(Signal::SIGXFSZ);
        quiet.thread_block()?;
        Ok(Self(set))
    }

    /// From now on the first signal drains the server, the second ends the process at once, with
    /// 128 plus the signal's number as its status.
    ///
    /// # Errors
    /// The system gives no thread.
    pub fn drain(self, server: Handle) -> std::io::Result<()> {
        self.drain_telling(server, || {})
    }

    /// As [`drain`](Self::drain), and calls `tell` before the drain begins.
    ///
    /// # Errors
    /// The system gives no thread.
    pub fn drain_telling(
        self,
        server: Handle,
        tell: impl FnOnce() + Send + 'static,
    ) -> std::io::Result<()> {
        let drain = move |signal| {
            tracing::info!(signal, "draining; a second signal exits at once");
            tell();
            server.drain();
        };
        self.first_then_exit(drain, || {})
    }

    /// From now on each signal calls `heard`, on a thread of its own, with its name and with the
    /// status of a process that it ends: 128 plus its number.
    ///
    /// # Errors
    /// The system gives no thread.
    pub fn each(self, heard: impl Fn(&'static str, i32) + Send + 'static) -> std::io::Result<()> {
        let wait = move || {
            while let Ok(signal) = self.0.wait() {
                heard(signal.as_str(), 128 + signal as i32);
            }
        };
        start(wait)
    }

    /// From now on the first signal calls `first` with its name, on a thread of its own; the second
    /// ends the process at once, as [`Signals::drain`] has it, after a call of `second`.
    ///
    /// # Errors
    /// The system gives no thread.
    pub fn first_then_exit(
        self,
        first: impl FnOnce(&'static str) + Send + 'static,
        second: impl FnOnce() + Send + 'static,
    ) -> std::io::Result<()> {
        let wait = move || {
            let Ok(signal) = self.0.wait() else { return };
            first(signal.as_str());
            if let Ok(signal) = self.0.wait() {
                second();
                // As a shell has it for a process that a signal ended.
                std::process::exit(128 + signal as i32);
            }
        };
        start(wait)
    }
}

fn start(wait: impl FnOnce() + Send + 'static) -> std::io::Result<()> {
    std::thread::Builder::new()
        .name("simurgh-signals".into())
        .stack_size(128 << 10)
        .spawn(wait)
        .map(drop)
}
