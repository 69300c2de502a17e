//! The process that takes over from this one, and the one from which this one takes over.

use std::io;

use super::{Builder, Endpoint};
use crate::takeover::{self, Inherited};

impl Endpoint {
    /// From now on another process can take over.
    pub(super) fn offer(&mut self, handed_over: Option<takeover::HandedOver>) {
        let Some(handed_over) = handed_over else { return };
        match takeover::Control::start(&self.server, &self.addresses, handed_over) {
            Ok(control) => self.control = Some(control),
            Err(error) => tracing::warn!(%error, "no other process can take over from this one"),
        }
    }
}

impl Builder {
    /// Lets a process of the same user and program take over from this one later: it gets the
    /// listening sockets, histories, blocks and cached answers, and this one drains. Before that
    /// `handed_over` is called with its id. The command `simurgh restart` works then, too.
    ///
    /// With `now` this process takes over itself, if a server listens on its first address. Linux
    /// only.
    pub fn take_over(mut self, now: bool, handed_over: impl FnOnce(u32) + Send + 'static) -> Self {
        self.takeover.now = now;
        self.takeover.handed_over = Some(Box::new(handed_over));
        self
    }

    /// Listens on the sockets that a service manager has opened (`LISTEN_FDS`), where settings name
    /// their addresses. Call it before any thread is started.
    pub fn activated(mut self) -> Self {
        self.takeover.inherited = Inherited::activated();
        self
    }

    /// Has the server that runs with these settings start its program again, which then takes over.
    /// Returns the id of the new process. Blocks.
    ///
    /// # Errors
    /// No server runs, it belongs to another user, or the new process has failed.
    #[doc(hidden)]
    pub fn restart_running(self) -> io::Result<u32> {
        takeover::ask_for_restart(&self.config)
    }
}
