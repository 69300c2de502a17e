//! Connections that leave for the HTTP side.

use std::os::fd::AsRawFd;

use mio::unix::SourceFd;
use simurgh_data::Key;

use super::Io;
use crate::handoff::{self, HandOffError};
use crate::slab::{CONNECTING, NO_READ, SHUT, Socket, TLS};

impl<T> Io<T> {
    /// Hands a connection and the bytes already read from it to the other end of the hand-off;
    /// returns its record. On an error the connection stays on the shard.
    pub fn hand_off(&mut self, key: Key, read_ahead: &[u8]) -> Result<T, HandOffError> {
        self.flush();
        let socket = self
            .sockets
            .get(key)
            .filter(|socket| socket.flags & (NO_READ | SHUT | CONNECTING | TLS) == 0);
        let socket = socket.ok_or(HandOffError::NotOpen)?;
        let fd = socket.fd.as_ref().ok_or(HandOffError::NotOpen)?;
        if socket.queue.is_some() {
            return Err(HandOffError::OutputQueued);
        }
        let end = self.hand_off.as_ref().ok_or(HandOffError::Gone)?;
        // The other side may read the counters as soon as it has the connection.
        self.counts.open -= 1;
        self.stats.publish(&self.counts);
        if let Err(error) = handoff::send(end, fd, read_ahead) {
            self.counts.open += 1;
            self.counts.hand_off_refused += 1;
            return Err(error);
        }
        // The record was just looked up.
        self.leave(key).map(|socket| socket.data).ok_or(HandOffError::NotOpen)
    }

    /// Hands one end of a new socket pair to the other end of the hand-off, as a connection from
    /// which these bytes were read; returns the key of its other end, which has this record.
    pub fn hand_off_pair(&mut self, conn: T, read_ahead: &[u8]) -> Result<Key, HandOffError> {
        let (ours, theirs) = handoff::stream_pair().map_err(|_| HandOffError::Full)?;
        let key = self.register_new(&ours).ok_or(HandOffError::Full)?;
        let end = self.hand_off.as_ref().ok_or(HandOffError::Gone);
        if let Err(error) = end.and_then(|end| handoff::send(end, &theirs, read_ahead)) {
            self.refuse(key, ours);
            return Err(error);
        }
        self.insert(key, ours, conn, 0);
        Ok(key)
    }

    /// Removes a connection whose descriptor stays open.
    fn leave(&mut self, key: Key) -> Option<Socket<T>> {
        // The open file stays, so closing our number would leave it in the poll set.
        let fd = self.sockets.get(key)?.fd.as_ref()?.as_raw_fd();
        let socket = self.sockets.remove(key)?;
        if let Err(error) = self.poll.registry().deregister(&mut SourceFd(&fd)) {
            tracing::warn!(%error, "a connection could not be removed from the poll set");
        }
        self.counts.taken += 1;
        self.forget(key, &socket);
        Some(socket)
    }
}
