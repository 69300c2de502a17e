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

use crate::handler::{Handler, Key};
use crate::io::Io;
use crate::net;
use crate::slab::{CONNECTING, NO_READ, RESETS, SHUT};
use crate::turn::Reactor;

/// How an outgoing connection is opened.
#[derive(Clone, Copy, Debug, Default)]
pub struct ConnectOptions {
    /// The local address. With port 0 the kernel chooses the port when it knows the destination,
    /// so that each destination has all ports; another port may be that of a connection to
    /// elsewhere, too. Default: what the route says.
    pub from: Option<SocketAddr>,
    /// Size of the kernel's buffer for what is received, bytes; the kernel doubles it. Default:
    /// the system's, which grows with what arrives.
    pub receive_buffer_bytes: Option<usize>,
    /// The same for what is sent.
    pub send_buffer_bytes: Option<usize>,
    /// The connection's end is a reset, however it comes about, so neither side is left in
    /// TIME_WAIT and the port is free at once. What the kernel has not sent by then is lost.
    /// Default: an orderly end.
    pub reset_on_close: bool,
}

/// How the kernel looks for a free port.
///
/// Left alone, it tries every second port of its range first. Once those have a connection to the
/// destination, each further one walks past all of them: measured, 20 µs become 500 from the
/// 14,000th on. With a range of its own for the socket, though it be the same, it tries all ports
/// alike (from Linux 6.8 on).
#[derive(Default)]
pub(crate) struct Ports {
    /// The last port of the kernel's range, once it was asked for; `None`: left alone.
    last: Option<Option<u16>>,
}

impl Ports {
    #[cfg(target_os = "linux")]
    pub(crate) fn limit(&mut self, fd: &OwnedFd) -> rustix::io::Result<()> {
        use rustix::io::Errno;
        let Some(last) = *self.last.get_or_insert_with(last_port) else { return Ok(()) };
        match crate::syscalls::limit_ports(fd, last) {
            Err(Errno::NOPROTOOPT) => {
                self.last = Some(None);
                Ok(())
            }
            other => other,
        }
    }

    #[cfg(not(target_os = "linux"))]
    pub(crate) fn limit(&mut self, _fd: &OwnedFd) -> rustix::io::Result<()> {
        Ok(())
    }
}

/// The last port the kernel chooses for connections.
#[cfg(target_os = "linux")]
fn last_port() -> Option<u16> {
    let range = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").ok()?;
    range.split_whitespace().nth(1)?.parse().ok()
}

impl<T> Io<T> {
    /// Opens a connection to `to`. What becomes of it is told later: once by
    /// [`Handler::connected`], or by [`Handler::closed`] with [`crate::Closed::Unconnected`]. What
    /// is sent before waits for that.
    ///
    /// An error is what the system said at once (no descriptor left, no free port, no route),
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
                self.seat(key, fd, conn, CONNECTING | resets);
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
