//! The flush point: every byte that leaves a shard leaves through here. One call for all writes of
//! a turn (io_uring) was tried and saves nothing: see "Batched submission" in docs/BENCHMARKS.md.

use std::io::IoSlice;
use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendFlags};

use crate::handler::{Closed, Key};
use crate::io::Io;
use crate::outbound::{Dirty, Piece, SLICES_MAX, Shared};
use crate::slab::{CLOSING, CONNECTING, DOOMED, MUTE, NO_SEND, OVER, Socket};

#[cfg(target_os = "linux")]
const FLAGS: SendFlags = SendFlags::NOSIGNAL.union(SendFlags::DONTWAIT);
/// Elsewhere the sockets are non-blocking and Rust's runtime ignores SIGPIPE.
#[cfg(not(target_os = "linux"))]
const FLAGS: SendFlags = SendFlags::DONTWAIT;

/// One plain write.
#[inline]
pub(crate) fn send(fd: &OwnedFd, bytes: &[u8]) -> rustix::io::Result<usize> {
    rustix::net::send(fd, bytes, FLAGS)
}

/// One gathered write.
fn send_slices(fd: &OwnedFd, slices: &[IoSlice<'_>]) -> rustix::io::Result<usize> {
    match slices {
        [only] => send(fd, only),
        _ => rustix::net::sendmsg(fd, slices, &mut SendAncillaryBuffer::default(), FLAGS),
    }
}

/// The kernel has no room now; a later try may succeed.
fn is_blocked(error: Errno) -> bool {
    error == Errno::AGAIN
        || error == Errno::WOULDBLOCK
        || error == Errno::INTR
        || error == Errno::NOBUFS
        || error == Errno::NOMEM
}

/// Writes all that is pending: one write a connection.
pub(crate) fn flush<T>(io: &mut Io<T>) {
    if io.outbox.dirty.is_empty() {
        return;
    }
    let mut dirty = std::mem::take(&mut io.outbox.dirty);
    for entry in dirty.drain(..) {
        flush_one(io, entry);
    }
    io.outbox.reset(dirty);
}

fn flush_one<T>(io: &mut Io<T>, dirty: Dirty) {
    let Some(socket) = io.sockets.get_mut(dirty.key) else { return };
    socket.span = 0;
    if socket.flags & MUTE != 0 {
        return;
    }
    if socket.queue.is_some() || socket.flags & CONNECTING != 0 {
        queue_rest(io, dirty, 0);
        return;
    }
    let Some(fd) = &socket.fd else {
        for piece in io.outbox.spans(dirty) {
            io.local.add(dirty.key, piece.bytes());
        }
        return;
    };
    if let Some(piece) = io.outbox.single(dirty) {
        io.counts.writes += 1;
        match send(fd, piece.bytes()) {
            Ok(written) if written == piece.bytes().len() => io.counts.bytes_out += written as u64,
            outcome => cut_short(io, dirty, 0, outcome),
        }
        return;
    }
    flush_chain(io, dirty);
}

/// Several spans: one gathered write for each [`SLICES_MAX`] of them.
fn flush_chain<T>(io: &mut Io<T>, dirty: Dirty) {
    let mut done = 0;
    loop {
        let mut slices = [IoSlice::new(&[]); SLICES_MAX];
        let (mut filled, mut bytes) = (0, 0);
        for (slot, piece) in slices.iter_mut().zip(io.outbox.spans(dirty).skip(done)) {
            *slot = IoSlice::new(piece.bytes());
            bytes += piece.bytes().len();
            filled += 1;
        }
        let Some(slices) = slices.get(..filled).filter(|_| filled > 0) else { return };
        let fd = io.sockets.get(dirty.key).and_then(|socket| socket.fd.as_ref());
        let Some(fd) = fd else { return };
        io.counts.writes += 1;
        match send_slices(fd, slices) {
            Ok(written) if written == bytes => io.counts.bytes_out += bytes as u64,
            outcome => return cut_short(io, dirty, done, outcome),
        }
        done += filled;
    }
}

/// A write that began at span `done` of `dirty` took only part, or failed.
#[cold]
fn cut_short<T>(io: &mut Io<T>, dirty: Dirty, done: usize, outcome: rustix::io::Result<usize>) {
    let Some(written) = taken(io, dirty.key, outcome) else { return };
    let before: usize = io.outbox.spans(dirty).take(done).map(|piece| piece.bytes().len()).sum();
    queue_rest(io, dirty, before + written);
}

/// How much of a write the kernel took; `None`, and the connection is doomed, if it is broken.
fn taken<T>(io: &mut Io<T>, key: Key, outcome: rustix::io::Result<usize>) -> Option<usize> {
    io.counts.writes_blocked += 1;
    match outcome {
        Ok(written) => {
            io.counts.bytes_out += written as u64;
            Some(written)
        }
        Err(error) if is_blocked(error) => Some(0),
        Err(error) => {
            io.doom(key, Closed::Reset(error.kind()));
            None
        }
    }
}

/// Queues the spans of `dirty` without their first `written` bytes.
fn queue_rest<T>(io: &mut Io<T>, dirty: Dirty, mut written: usize) {
    let Io { sockets, outbox, .. } = io;
    let Some(socket) = sockets.get_mut(dirty.key) else { return };
    let fresh = socket.queue.is_none();
    let queue = socket.queue.get_or_insert_default();
    let before = queue.bytes();
    for piece in outbox.spans(dirty) {
        let skip = written.min(piece.bytes().len());
        written -= skip;
        queue.push(piece, skip);
    }
    let after = queue.bytes();
    queued(io, dirty.key, fresh, before, after);
}

/// After something was queued: asks for writability, and looks at the limit.
///
/// What one turn writes to a peer that was up to date is queued whatever its size, else a single
/// large message could never be sent; from then on the limit holds.
fn queued<T>(io: &mut Io<T>, key: Key, fresh: bool, before: usize, after: usize) {
    io.counts.queued_bytes += (after - before) as u64;
    let Some(socket) = io.sockets.get_mut(key) else { return };
    if before > 0 && after > io.outbound_bytes_max && socket.flags & (OVER | DOOMED) == 0 {
        socket.flags |= OVER;
        io.lists.slow.push(key);
    }
    // Until its handshake has ended a connection waits for writability anyway.
    if fresh && let Some(socket) = io.sockets.get(key).filter(|s| s.flags & CONNECTING == 0) {
        io.reregister(socket, key, true);
    }
}

impl<T> Io<T> {
    /// A shared frame that the kernel took only in part, or not.
    #[cold]
    pub(crate) fn shared_cut_short(
        &mut self,
        key: Key,
        frame: &Shared,
        outcome: rustix::io::Result<usize>,
    ) {
        if let Some(written) = taken(self, key, outcome) {
            self.queue_shared(key, frame, written);
        }
    }

    /// A shared frame for a connection that has something before it.
    pub(crate) fn shared_behind(&mut self, key: Key, frame: &Shared) {
        let Some(socket) = self.sockets.get_mut(key) else { return };
        if socket.flags & NO_SEND != 0 {
            return;
        }
        if socket.span == 0 {
            self.queue_shared(key, frame, 0);
        } else {
            self.send_shared_later(key, frame);
        }
    }

    fn queue_shared(&mut self, key: Key, frame: &Shared, written: usize) {
        let Some(socket) = self.sockets.get_mut(key) else { return };
        let fresh = socket.queue.is_none();
        let queue = socket.queue.get_or_insert_default();
        let before = queue.bytes();
        queue.push(Piece::Shared(frame), written);
        let after = queue.bytes();
        queued(self, key, fresh, before, after);
    }

    /// The socket of `key` is writable again: writes its queue, and forgets it when it is empty.
    pub(crate) fn drain_queue(&mut self, key: Key) {
        loop {
            let Some(socket) = self.sockets.get_mut(key) else { return };
            let Socket { fd, queue, flags, .. } = socket;
            let Some(fd) = fd else { return };
            let Some(waiting) = queue.as_mut().filter(|_| *flags & MUTE == 0) else { return };
            let mut slices = [IoSlice::new(&[]); SLICES_MAX];
            let filled = waiting.slices(&mut slices);
            if filled == 0 {
                break;
            }
            self.counts.writes += 1;
            match send_slices(fd, slices.get(..filled).unwrap_or_default()) {
                Ok(written) => {
                    self.counts.bytes_out += written as u64;
                    self.counts.queued_bytes -= written as u64;
                    waiting.advance(written);
                }
                Err(Errno::INTR) => {}
                Err(error) if is_blocked(error) => return,
                Err(error) => return self.doom(key, Closed::Reset(error.kind())),
            }
        }
        let Some(socket) = self.sockets.get_mut(key) else { return };
        socket.queue = None;
        if socket.flags & NO_SEND != 0 {
            // Waited for by `close` or `shutdown_write`, or cut.
            self.lists.closing.push(key);
        }
        if let Some(socket) = self.sockets.get(key).filter(|s| s.flags & CLOSING == 0) {
            self.reregister(socket, key, false);
        }
    }
}
