//! Connections that the shard opens.
//!
//! A connection costs a socket, an option or two, `connect` and one registration in the poll set,
//! which asks for writability from the start: the first such event is the end of the handshake.
//! Keeping that registration costs nothing, since the kernel reports writability again only after a
//! write that it could not accept.

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;

use mio::Interest;
use mio::event::Event;

use simurgh_data::Key;

use crate::handler::Handler;
use crate::io::Io;
use crate::net::{self, ConnectOptions};
use crate::slab::{CONNECTING, NO_READ, RESETS, SHAKING, SHUT};
use crate::turn::Reactor;

impl<T> Io<T> {
    /// Opens a connection to `to`. The outcome comes later: one call of [`Handler::connected`], or
    /// of [`Handler::closed`] with [`crate::Closed::Unconnected`]. Output sent before waits for
    /// that.
    ///
    /// An error is what the system returned at once (no descriptor left, no free port, no route),
    /// with its own number ([`io::Error::raw_os_error`]) and `conn`. Only descriptors and ports
    /// limit the number of these connections, not [`Io::capacity`].
    ///
    /// Avoid a port of the kernel's own range that has no listener: a connection whose own address
    /// and port happen to be those of its destination is established, with itself.
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
        // After `connect`: before it, the kernel would report a socket without a peer as broken. An
        // event that came earlier is reported all the same.
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
    /// Handles the first event of an outgoing connection: its handshake has ended. `true` on
    /// success, and the event may have more.
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
        if flags & SHAKING != 0 {
            self.io.line_up(key);
        }
        if flags & NO_READ == 0 {
            self.handler.connected(&mut self.io, key);
        }
        true
    }
}
