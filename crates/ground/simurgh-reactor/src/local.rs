//! Local connections: records without a descriptor, whose other end is the handler itself.
//!
//! They are treated as all others, so a protocol can be driven without a network: their output
//! passes the outbox and the flush, and holding and closing work as usual. They are never slow, and
//! do not count towards the limit of descriptors.

use simurgh_data::Key;

use crate::connection::Closed;
use crate::handler::Handler;
use crate::io::Io;
use crate::slab::{HELD, NO_READ, UNREAD};
use crate::turn::Reactor;

impl<T> Io<T> {
    /// Opens a local connection, at once. `conn` is returned when there is no memory for it.
    pub fn open_local(&mut self, conn: T) -> Result<Key, T> {
        let Some(key) = self.sockets.reserve() else { return Err(conn) };
        self.sockets.insert(key, None, conn, 0);
        self.locals += 1;
        self.counts.local = self.locals as u64;
        Ok(key)
    }

    /// Ends a local connection with this turn, as its other end would; the first reason counts.
    pub fn end_local(&mut self, key: Key, why: Closed) {
        if self.sockets.get(key).is_some_and(|socket| socket.fd.is_none()) {
            self.schedule_close(key, why);
        }
    }

    /// Calls [`Handler::readable`] for a local connection, with no bytes, once it is not held.
    pub fn announce_local(&mut self, key: Key) {
        let Some(socket) = self.sockets.get_mut(key).filter(|socket| socket.fd.is_none()) else {
            return;
        };
        socket.flags |= UNREAD;
        if socket.flags & (HELD | NO_READ) == 0 {
            self.list_ready(key);
        }
    }

    pub(crate) fn wired(&self) -> usize {
        self.sockets.len().saturating_sub(self.locals)
    }
}

impl<H: Handler> Reactor<H> {
    pub(crate) fn hand_over_local(&mut self) {
        if !self.io.local.is_some() {
            return;
        }
        let mut output = std::mem::take(&mut self.io.local);
        self.handler.local(&mut self.io, &mut output);
        output.clear();
        if !self.io.local.is_some() {
            self.io.local = output;
        }
    }
}
