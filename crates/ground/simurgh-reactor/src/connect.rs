//! Connections that the shard opens.
//!
//! A connection costs a socket, an option or two, `connect` and one registration in the poll set,
//! which asks for writability from the start: the end of the handshake is the first such event.
//! That the registration goes on asking for it costs nothing, for the kernel reports writability
//! anew only after a write that it could not take.

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;

use mio::Interest;
use mio::event::Event;

use crate::connection::Key;
use crate::handler::Handler;
use crate::io::Io;
use crate::net::{self, ConnectOptions};
use crate::slab::{CONNECTING, NO_READ, RESETS, SHUT};
use crate::turn::Reactor;

impl<T> Io<T> {
    /// Opens a connection to `to`. The outcome comes later: one call of [`Handler::connected`], or
    /// one of [`Handler::closed`] with [`crate::Closed::Unconnected`]. What
    /// is sent before waits for that.
    ///
    /// An error is what the system returned at once (no descriptor left, no free port, no route),
    /// as its own number ([`io::Error::raw_os_error`]); `conn` comes back with it. Only descriptors
    /// and ports limit how many there are, not [`Io::capacity`].
    ///
    /// Beware of a port of the kernel's own range at which nobody listens: a connection whose own
    /// address and port happen to be those it goes to comes up, with itself.
    pub fn connect(
        &mut self,
        to: SocketAddr,
        how: &ConnectOptions,
        conn: T,
    ) -> Result<Key, (io::Error, T)> {
        match self.begin_connecting(to, how) {
            Ok((key, fd)) => {
                let resets = if how.reset_on_close { RESETS } else { 0 };
                self.insert(key, fd, conn, CONNECTING | resets);
                self.counts.connects += 1;
                Ok(key)
            }
            Err(error) => Err((error, conn)),
        }
    }

    fn begin_connecting(
        &mut self,
        to: SocketAddr,
        how: &ConnectOptions,
    ) -> io::Result<(Key, OwnedFd)> {
        let fd = net::connect(to, how, self.stamps.is_some(), &mut self.ports)?;
        let key = self.sockets.reserve().ok_or(io::ErrorKind::OutOfMemory)?;
        // After `connect`: before, the kernel would report a socket without a peer as broken. An
        // event that has come already is reported all the same.
        match self.register(&fd, key, Interest::READABLE | Interest::WRITABLE) {
            Ok(()) => Ok((key, fd)),
            Err(error) => {
                self.sockets.unreserve(key);
                Err(error)
            }
        }
    }
}

impl<H: Handler> Reactor<H> {
    /// The first event of an outgoing connection: its handshake has ended; `true` if well, and
    /// the event may bring more.
    pub(crate) fn handshake_ended(&mut self, key: Key, event: &Event) -> bool {
        // A refusal is reported as writable, too.
        if event.is_error() || event.is_write_closed() {
            let why = self.io.end_of(key, true);
            self.io.schedule_close(key, why);
            return false;
        }
        let Some(socket) = self.io.sockets.get_mut(key).filter(|_| event.is_writable()) else {
            return false;
        };
        socket.flags &= !CONNECTING;
        let (flags, waits) = (socket.flags, socket.queue.is_some());
        self.io.counts.connected += 1;
        if flags & SHUT != 0 && !waits {
            self.io.lists.closing.push(key);
        }
        if flags & NO_READ == 0 {
            self.handler.connected(&mut self.io, key);
        }
        true
    }
}
