//! New connections.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Duration;

use mio::Interest;
use rustix::io::Errno;

use simurgh_data::Key;

use crate::connection::Special;
use crate::handler::{Accepted, Handler};
use crate::io::Io;
use crate::net;
use crate::slab::{Flags, SHAKING, TLS};
use crate::stage::{ACCEPT, Stage};

/// Connections accepted per turn and listener.
const ACCEPT_MAX: usize = 64;
/// Connections accepted from a listener before it closes: more than a backlog holds.
const ACCEPT_LAST_MAX: usize = 8192;
/// How long accepting pauses when the system has no memory or descriptors left.
const PAUSE_NS: u64 = 100_000_000;

/// Room for at least this many listeners. A block of the size of one listener would stay for ever
/// among the short-lived blocks of connections, on a page that the allocator then keeps.
const LISTENERS_ROOM: usize = 4;

pub(crate) struct Listeners {
    sockets: Vec<Listener>,
    /// Open connections from which on even the reserve is used up.
    open_max: usize,
    /// The reserve is used up: pause until a connection ends.
    is_full: bool,
    paused_until_ns: Option<u64>,
}

struct Listener {
    fd: OwnedFd,
    /// The index of its address: several sockets may listen on one.
    address: u16,
    /// The backlog may hold connections that no event will announce again.
    ready: bool,
}

impl Listeners {
    /// Each socket comes with the index of its address.
    pub(crate) fn new<T>(
        listening: Vec<(OwnedFd, u16)>,
        open_max: usize,
        io: &Io<T>,
    ) -> io::Result<Self> {
        for (index, (fd, _)) in listening.iter().enumerate() {
            let index = u16::try_from(index).map_err(io::Error::other)?;
            io.register_special(fd.as_raw_fd(), Special::Listener(index))?;
        }
        let mut sockets = Vec::with_capacity(listening.len().max(LISTENERS_ROOM));
        let listener = |(fd, address)| Listener { fd, address, ready: true };
        sockets.extend(listening.into_iter().map(listener));
        Ok(Self { sockets, open_max, is_full: false, paused_until_ns: None })
    }

    pub(crate) fn set_ready(&mut self, index: usize) {
        if let Some(listener) = self.sockets.get_mut(index) {
            listener.ready = true;
        }
    }

    pub(crate) fn has_work<T>(&self, io: &Io<T>) -> bool {
        let resting = self.paused_until_ns.is_some() || (self.is_full && !io.freed);
        (!resting && self.sockets.iter().any(|listener| listener.ready))
            || (io.stop_listening && !self.sockets.is_empty())
    }

    pub(crate) fn pause_ends_in(&self, now_ns: u64) -> Option<Duration> {
        Some(Duration::from_nanos(self.paused_until_ns?.saturating_sub(now_ns)))
    }

    /// The sockets may stay open elsewhere, and then stay in the poll set unless they leave it.
    pub(crate) fn close<T>(&mut self, io: &Io<T>) {
        for listener in self.sockets.drain(..) {
            io.deregister_special(listener.fd.as_raw_fd());
        }
        self.paused_until_ns = None;
    }

    /// Accepts from the backlogs, a bounded number per turn. `is_busy`: events are left for the
    /// next turn. New connections would bring more of them than a turn handles, and all connections
    /// would wait behind them; the kernel's backlog delays nobody else.
    pub(crate) fn accept<H: Handler>(
        &mut self,
        handler: &mut H,
        io: &mut Io<H::Conn>,
        is_busy: bool,
    ) {
        if self.sockets.is_empty() {
            return;
        }
        let stop = io.stop_listening;
        if self.is_full && io.freed {
            self.is_full = false;
        }
        if self.paused_until_ns.is_some_and(|until_ns| until_ns <= io.now.ns) {
            self.paused_until_ns = None;
        }
        let most = match (stop, is_busy) {
            (true, _) => ACCEPT_LAST_MAX,
            (false, true) => 1,
            (false, false) => ACCEPT_MAX,
        };
        let mut stage = Stage::begin(ACCEPT, io);
        // Another listener comes first each turn, so none starves when the time is up early.
        let count = self.sockets.len();
        let first = io.counts.turns as usize;
        for index in (0..count).map(|index| (first + index) % count) {
            // When listening stops, the kernel resets what is left in the backlog.
            if stop {
                self.set_ready(index);
            }
            for _ in 0..most {
                if !self.accept_one(handler, io, index) || (stage.is_over(io) && !stop) {
                    break;
                }
            }
        }
        if stop {
            self.close(io);
        }
    }

    /// Accepts one connection; `false` if there is none or accepting has to pause.
    fn accept_one<H: Handler>(
        &mut self,
        handler: &mut H,
        io: &mut Io<H::Conn>,
        index: usize,
    ) -> bool {
        if self.is_full || self.paused_until_ns.is_some() {
            return false;
        }
        if io.wired() >= self.open_max {
            io.counts.accept_pauses += 1;
            self.is_full = true;
            io.freed = false;
            return false;
        }
        let Some(listener) = self.sockets.get_mut(index).filter(|l| l.ready) else {
            return false;
        };
        match net::accept(&listener.fd) {
            Ok(fd) => {
                let Some(key) = io.register_new(&fd) else { return true };
                let over_capacity = io.wired() >= io.capacity();
                io.counts.accepted += 1;
                io.counts.over_capacity += u64::from(over_capacity);
                let listener = listener.address;
                let is_secure = io.tls.as_ref().is_some_and(|tls| tls.is_used_by(listener));
                if is_secure && over_capacity {
                    // A handshake only to refuse it politely would cost too much.
                    io.refuse_handshake(&fd);
                    io.refuse(key, fd);
                    return true;
                }
                let from = Accepted { key, listener, over_capacity };
                let Some(conn) = handler.accepted(io, from) else {
                    io.refuse(key, fd);
                    return true;
                };
                if let Some(tls) = io.tls.as_mut().filter(|_| is_secure) {
                    tls.add_new(key, listener);
                }
                io.insert(key, fd, conn, if is_secure { TLS | SHAKING } else { 0 });
                true
            }
            Err(Errno::AGAIN) => {
                listener.ready = false;
                false
            }
            // The reserve should prevent MFILE, but the handler may open descriptors too.
            Err(Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::NOBUFS) => {
                io.counts.accept_pauses += 1;
                self.paused_until_ns = Some(io.now.ns.saturating_add(PAUSE_NS));
                false
            }
            // An error of that connection, not of the listener: continue with the next.
            Err(_) => true,
        }
    }
}

impl<T> Io<T> {
    /// Reserves a key for a new connection and registers its descriptor; `None`, and the connection
    /// is refused, if the system has no memory for it.
    pub(crate) fn register_new(&mut self, fd: &OwnedFd) -> Option<Key> {
        let key = self.sockets.reserve()?;
        match self.register(fd, key, Interest::READABLE) {
            Ok(()) => Some(key),
            Err(error) => {
                tracing::warn!(%error, "a new connection could not be registered");
                self.sockets.unreserve(key);
                None
            }
        }
    }

    pub(crate) fn insert(&mut self, key: Key, fd: OwnedFd, conn: T, flags: Flags) {
        self.sockets.insert(key, Some(fd), conn, flags);
        self.counts.open = self.wired() as u64;
    }

    pub(crate) fn refuse(&mut self, key: Key, fd: OwnedFd) {
        self.sockets.unreserve(key);
        self.counts.closed += 1;
        drop(fd);
    }
}
