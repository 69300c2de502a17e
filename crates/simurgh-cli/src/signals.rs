//! SIGTERM and SIGINT, waited for by one thread.
//!
//! They are blocked in every thread and taken by `sigwait`, never by a handler. A handler runs on
//! whatever thread the system picks and wakes its program by writing to a descriptor; on a shard,
//! whose descriptor table is its own, that number may be a client's socket.

use nix::sys::signal::{SigSet, Signal};
use simurgh::Handle;

/// The signals that end the server, blocked.
pub(crate) struct Signals(SigSet);

impl Signals {
    /// Blocks them in this thread and all it starts from now on. To be called before any is
    /// started.
    pub(crate) fn block() -> std::io::Result<Self> {
        let mut set = SigSet::empty();
        set.add(Signal::SIGTERM);
        set.add(Signal::SIGINT);
        set.thread_block()?;
        Ok(Self(set))
    }

    /// The first one drains, the second ends the process at once.
    pub(crate) fn drain(self, server: Handle) -> std::io::Result<()> {
        let wait = move || {
            let Ok(signal) = self.0.wait() else { return };
            tracing::info!(signal = signal.as_str(), "draining; a second signal exits at once");
            server.drain();
            if let Ok(signal) = self.0.wait() {
                // As a shell has it for a process that a signal ended.
                std::process::exit(128 + signal as i32);
            }
        };
        std::thread::Builder::new()
            .name("simurgh-signals".into())
            .stack_size(128 << 10)
            .spawn(wait)
            .map(drop)
    }
}
