//! The flush point, which every byte that leaves a shard passes. One call for all writes of a turn
//! (io_uring) was tried and saves nothing: see "Batched submission" in docs/BENCHMARKS.md.

use std::io::IoSlice;
use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendFlags};

use super::Io;
use simurgh_data::{Key, Run, Shared};

use crate::connection::Closed;
use crate::outbound::{DRAIN_BYTES_MAX, Dirty, Outbox, Piece, SLICES_MAX, fill};
use crate::queue::Queue;
use crate::slab::{
    BLOCKED, CLOSE_SCHEDULED, CLOSING, CONNECTING, MUTE, NO_SEND, OVER, SHAKING, Socket, TLS,
};
use crate::tls::PLAIN_BYTES_MAX;

#[cfg(target_os = "linux")]
const FLAGS: SendFlags = SendFlags::NOSIGNAL.union(SendFlags::DONTWAIT);
/// Elsewhere the sockets are non-blocking and Rust's runtime ignores SIGPIPE.
#[cfg(not(target_os = "linux"))]
const FLAGS: SendFlags = SendFlags::DONTWAIT;

#[inline]
pub(crate) fn send(fd: &OwnedFd, bytes: &[u8]) -> rustix::io::Result<usize> {
    rustix::net::send(fd, bytes, FLAGS)
}

fn send_slices(fd: &OwnedFd, slices: &[IoSlice<'_>]) -> rustix::io::Result<usize> {
    match slices {
        [only] => send(fd, only),
        _ => rustix::net::sendmsg(fd, slices, &mut SendAncillaryBuffer::default(), FLAGS),
    }
}

/// The kernel has no room now; a later try may succeed.
pub(crate) fn is_blocked(error: Errno) -> bool {
    matches!(error, Errno::AGAIN | Errno::INTR | Errno::NOBUFS | Errno::NOMEM)
}

pub(super) fn flush<T>(io: &mut Io<T>) {
    if io.outbox.dirty.is_empty() {
        return;
    }
    // Moved out: nothing is added to it while it is written.
    let mut outbox = std::mem::take(&mut io.outbox);
    let mut dirty = std::mem::take(&mut outbox.dirty);
    for entry in dirty.drain(..) {
        flush_one(io, &outbox, entry);
    }
    outbox.reset(dirty);
    io.outbox = outbox;
}

fn flush_one<T>(io: &mut Io<T>, outbox: &Outbox, dirty: Dirty) {
    let Some(socket) = io.sockets.get_mut(dirty.key) else { return };
    socket.span = 0;
    if socket.flags & MUTE != 0 {
        return;
    }
    if socket.queue.is_some() || socket.flags & (CONNECTING | SHAKING) != 0 {
        return queue_rest(io, outbox, dirty, 0);
    }
    if socket.flags & TLS != 0 {
        return flush_records(io, outbox, dirty);
    }
    let Some(fd) = &socket.fd else {
        for piece in outbox.spans(dirty).flat_map(Piece::slices) {
            io.local.add(dirty.key, piece);
        }
        return;
    };
    if let Some(bytes) = outbox.single(dirty) {
        io.counts.writes += 1;
        match send(fd, bytes) {
            Ok(written) if written == bytes.len() => io.counts.bytes_out += written as u64,
            outcome => cut_short(io, outbox, dirty, 0, outcome),
        }
        return;
    }
    // Megabytes for one connection must not delay the others: the next event writes more.
    if outbox.spans(dirty).map(Piece::len).sum::<usize>() > DRAIN_BYTES_MAX {
        return queue_rest(io, outbox, dirty, 0);
    }
    flush_chain(io, outbox, dirty);
}

/// With TLS: one record if it is enough, else through the queue.
fn flush_records<T>(io: &mut Io<T>, outbox: &Outbox, dirty: Dirty) {
    if outbox.spans(dirty).map(Piece::len).sum::<usize>() > PLAIN_BYTES_MAX {
        queue_rest(io, outbox, dirty, 0);
        return io.drain_records(dirty.key);
    }
    io.send_record(dirty.key, outbox.spans(dirty).flat_map(Piece::slices));
}

/// Several pieces: one gathered write for each [`SLICES_MAX`] of them.
fn flush_chain<T>(io: &mut Io<T>, outbox: &Outbox, dirty: Dirty) {
    let mut pieces = outbox.spans(dirty).flat_map(Piece::slices);
    let mut done = 0;
    loop {
        let mut slices = [IoSlice::new(&[]); SLICES_MAX];
        let (filled, bytes) = fill(&mut slices, &mut pieces, DRAIN_BYTES_MAX);
        let Some(slices) = slices.get(..filled).filter(|_| filled > 0) else { return };
        let fd = io.sockets.get(dirty.key).and_then(|socket| socket.fd.as_ref());
        let Some(fd) = fd else { return };
        io.counts.writes += 1;
        match send_slices(fd, slices) {
            Ok(written) if written == bytes => io.counts.bytes_out += bytes as u64,
            outcome => return cut_short(io, outbox, dirty, done, outcome),
        }
        done += bytes;
    }
}

/// Handles a partial or failed write that began `done` bytes into `dirty`.
#[cold]
fn cut_short<T>(
    io: &mut Io<T>,
    outbox: &Outbox,
    dirty: Dirty,
    done: usize,
    outcome: rustix::io::Result<usize>,
) {
    if let Some(written) = taken(io, dirty.key, outcome) {
        queue_rest(io, outbox, dirty, done + written);
    }
}

/// How much of a write the kernel accepted; `None` if the connection is broken and closes.
fn taken<T>(io: &mut Io<T>, key: Key, outcome: rustix::io::Result<usize>) -> Option<usize> {
    io.counts.writes_blocked += 1;
    match outcome {
        Ok(written) => {
            io.counts.bytes_out += written as u64;
            Some(written)
        }
        Err(error) if is_blocked(error) => Some(0),
        Err(error) => {
            io.schedule_close(key, Closed::Reset(error.kind()));
            None
        }
    }
}

fn queue_rest<T>(io: &mut Io<T>, outbox: &Outbox, dirty: Dirty, mut written: usize) {
    io.enqueue(dirty.key, |queue| {
        for piece in outbox.spans(dirty) {
            let skip = written.min(piece.len());
            written -= skip;
            queue.push(piece, skip);
        }
    });
}

impl<T> Io<T> {
    /// Lets `fill` add to the queue, asks for writability, and checks both limits.
    pub(crate) fn enqueue(&mut self, key: Key, fill: impl FnOnce(&mut Queue)) {
        let now_ns = self.served_ns();
        let Some(socket) = self.sockets.get_mut(key) else { return };
        let fresh = socket.queue.is_none();
        let queue = socket.queue.get_or_insert_with(|| Box::new(Queue::new(now_ns)));
        let (bytes, owned) = (queue.bytes(), queue.owned());
        fill(queue);
        self.counts.queued_bytes += (queue.bytes() - bytes) as u64;
        self.owned_bytes += queue.owned() - owned;
        if queue.bytes() > self.outbound_bytes_max && socket.flags & (OVER | CLOSE_SCHEDULED) == 0 {
            socket.flags |= OVER;
            self.lists.slow.push(key);
        }
        if socket.flags & BLOCKED == 0 {
            socket.flags |= BLOCKED;
            self.lists.blocked.push_back(key);
        }
        // Until its handshake has ended, a connection waits for writability anyway.
        if fresh && let Some(socket) = self.sockets.get(key).filter(|s| s.flags & CONNECTING == 0) {
            self.reregister(socket, key, true);
        }
        if self.waiting_bytes() > self.outbound_budget_bytes {
            self.cut_worst();
        }
    }

    /// Handles a partial or failed write of shared frames that began `done` bytes after their
    /// start; returns whether they wait now.
    #[cold]
    pub(super) fn run_cut_short(
        &mut self,
        key: Key,
        run: &Run,
        done: usize,
        outcome: rustix::io::Result<usize>,
    ) -> bool {
        let Some(written) = taken(self, key, outcome) else { return false };
        self.enqueue(key, |queue| queue.push(Piece::Run(run), done + written));
        true
    }

    /// Sends shared frames that are not contiguous, or queues them behind other output.
    #[cold]
    pub(super) fn send_gathered(&mut self, key: Key, run: &Run) {
        let Some(socket) = self.sockets.get(key) else { return };
        let is_free = socket.flags & (NO_SEND | CONNECTING | SHAKING) == 0
            && (socket.span == 0 && socket.queue.is_none());
        if is_free && socket.flags & TLS != 0 {
            self.send_secured(key, run, &[]);
            return;
        }
        if !is_free || socket.fd.is_none() {
            return self.run_behind(key, run);
        }
        let mut frames = run.frames().map(Shared::as_bytes);
        let mut done = 0;
        while done < run.len() {
            if done >= DRAIN_BYTES_MAX {
                // The next event reports that it can be written.
                return self.enqueue(key, |queue| queue.push(Piece::Run(run), done));
            }
            let mut slices = [IoSlice::new(&[]); SLICES_MAX];
            let (filled, bytes) = fill(&mut slices, &mut frames, DRAIN_BYTES_MAX);
            let fd = self.sockets.get(key).and_then(|socket| socket.fd.as_ref());
            let Some(fd) = fd else { return };
            self.counts.writes += 1;
            match send_slices(fd, slices.get(..filled).unwrap_or_default()) {
                Ok(written) if written == bytes => self.counts.bytes_out += bytes as u64,
                outcome => {
                    self.run_cut_short(key, run, done, outcome);
                    return;
                }
            }
            done += bytes;
        }
    }

    /// Shared frames for a connection that has other output before them.
    pub(super) fn run_behind(&mut self, key: Key, run: &Run) {
        let Some(socket) = self.sockets.get_mut(key) else { return };
        if socket.flags & NO_SEND != 0 {
            return;
        }
        let waits = socket.queue.is_some() || socket.flags & (CONNECTING | SHAKING) != 0;
        if socket.span == 0 && waits {
            self.enqueue(key, |queue| queue.push(Piece::Run(run), 0));
        } else {
            self.send_run_later(key, run.clone());
        }
    }

    /// The socket of `key` is writable again: writes its queue, and drops it when it is empty.
    pub(crate) fn drain_queue(&mut self, key: Key) {
        if self.is_secure(key) {
            return self.drain_records(key);
        }
        let (now_ns, mut drained) = (self.served_ns(), 0);
        loop {
            let Some(socket) = self.sockets.get_mut(key) else { return };
            let Socket { fd, queue, flags, .. } = socket;
            let Some(fd) = fd else { return };
            let Some(waiting) = queue.as_mut().filter(|_| *flags & MUTE == 0) else { return };
            let mut slices = [IoSlice::new(&[]); SLICES_MAX];
            let (filled, _) = waiting.slices(&mut slices, DRAIN_BYTES_MAX);
            if filled == 0 {
                break;
            }
            if drained >= DRAIN_BYTES_MAX {
                // If it could be written already, no event announces that again.
                return self.list_writable(key);
            }
            self.counts.writes += 1;
            match send_slices(fd, slices.get(..filled).unwrap_or_default()) {
                Ok(written) => {
                    drained += written;
                    self.counts.bytes_out += written as u64;
                    self.counts.queued_bytes -= written as u64;
                    self.owned_bytes -= waiting.owned();
                    waiting.advance(written, now_ns);
                    self.owned_bytes += waiting.owned();
                }
                Err(Errno::INTR) => {}
                Err(error) if is_blocked(error) => return,
                Err(error) => return self.schedule_close(key, Closed::Reset(error.kind())),
            }
        }
        self.queue_is_empty(key);
    }

    /// All that waited for a connection is written.
    pub(crate) fn queue_is_empty(&mut self, key: Key) {
        let Some(socket) = self.sockets.get_mut(key) else { return };
        socket.queue = None;
        self.lists.drained.push(key);
        if socket.flags & NO_SEND != 0 {
            // Waited for by `close` or `shutdown_write`, or cut.
            self.lists.closing.push(key);
        }
        if let Some(socket) = self.sockets.get(key).filter(|s| s.flags & CLOSING == 0) {
            self.reregister(socket, key, false);
        }
    }
}
