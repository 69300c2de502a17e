//! Local connections: records without a descriptor, whose other end is the handler itself.
//!
//! They take the same ways as all others, so a protocol can be driven without a network: their
//! output passes the outbox and the flush, holding and closing mean what they always mean. Nothing
//! of them is ever slow, and the limit of descriptors does not count them.

use crate::handler::{Handler, Key};
use crate::io::Io;
use crate::slab::{HELD, NO_READ, UNREAD};
use crate::turn::Reactor;

/// What the room for output keeps from turn to turn, bytes.
const KEPT_BYTES: usize = 256 << 10;

/// What was sent to local connections, in order.
#[derive(Debug, Default)]
pub struct LocalOutput {
    bytes: Vec<u8>,
    /// Whose, and where in `bytes` it ends.
    pieces: Vec<(Key, usize)>,
    /// Pieces that were taken.
    taken: usize,
}

impl LocalOutput {
    /// What was sent next, and to whom; it may be changed in place.
    #[allow(clippy::should_implement_trait, reason = "what it returns borrows from this")]
    pub fn next(&mut self) -> Option<(Key, &mut [u8])> {
        let start = self.taken.checked_sub(1).and_then(|last| self.pieces.get(last));
        let start = start.map_or(0, |(_, end)| *end);
        let (key, end) = *self.pieces.get(self.taken)?;
        self.taken += 1;
        Some((key, self.bytes.get_mut(start..end)?))
    }

    pub(crate) fn is_some(&self) -> bool {
        !self.pieces.is_empty()
    }

    pub(crate) fn add(&mut self, key: Key, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
        match self.pieces.last_mut() {
            Some((last, end)) if *last == key => *end = self.bytes.len(),
            _ => self.pieces.push((key, self.bytes.len())),
        }
    }

    fn clear(&mut self) {
        self.pieces.clear();
        self.taken = 0;
        self.bytes.clear();
        self.bytes.shrink_to(KEPT_BYTES);
    }
}

impl<T> Io<T> {
    /// Opens a local connection, at once. `conn` comes back when there is no memory for it.
    pub fn open_local(&mut self, conn: T) -> Result<Key, T> {
        let Some(key) = self.sockets.reserve() else { return Err(conn) };
        self.sockets.insert(key, None, conn, 0);
        self.locals += 1;
        self.counts.local = self.locals as u64;
        Ok(key)
    }

    /// Whether this is a local connection.
    pub fn is_local(&self, key: Key) -> bool {
        self.sockets.get(key).is_some_and(|socket| socket.fd.is_none())
    }

    /// Has [`Handler::readable`] called for a local connection, with no bytes, once it is not held.
    pub fn announce_local(&mut self, key: Key) {
        let Some(socket) = self.sockets.get_mut(key).filter(|socket| socket.fd.is_none()) else {
            return;
        };
        socket.flags |= UNREAD;
        if socket.flags & (HELD | NO_READ) == 0 {
            self.list_ready(key);
        }
    }

    /// Connections with a descriptor.
    pub(crate) fn wired(&self) -> usize {
        self.sockets.len().saturating_sub(self.locals)
    }
}

impl<H: Handler> Reactor<H> {
    /// Gives the handler what was sent to local connections.
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
