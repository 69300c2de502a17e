//! Records of TLS: from the read buffer, and at the moment they are written.

use std::io::{ErrorKind, IoSlice};
use std::os::fd::OwnedFd;

use simurgh_data::{Key, Run};
use simurgh_tls::End;

use super::{Io, is_blocked, send};
use crate::connection::Closed;
use crate::outbound::{DRAIN_BYTES_MAX, Piece, SLICES_MAX};
use crate::slab::{CONNECTING, MUTE, SHAKING, TLS};
use crate::stats::Counts;
use crate::tls::{PLAIN_BYTES_MAX, Session};

/// The content of records.
pub(crate) struct Opened {
    /// Plaintext, by its place in the buffer.
    pub(crate) plain: std::ops::Range<usize>,
    /// The peer sends no more, or is not to be heard any more.
    pub(crate) end: Option<Closed>,
}
impl<T> Io<T> {
    /// Opens the whole records at the front of the buffer, and keeps the rest.
    pub(crate) fn open_records(&mut self, key: Key, buffer: &mut Vec<u8>, bytes: usize) -> Opened {
        let nothing = || Opened { plain: 0..0, end: Some(Closed::Reset(ErrorKind::Other)) };
        let now_ns = self.now.ns;
        let Some(tls) = &mut self.tls else { return nothing() };
        let mut answer = Vec::new();
        let data = buffer.get_mut(..bytes).unwrap_or_default();
        let (plain, used, end) = match tls.session(key) {
            Some(Session::Record(mut record)) => {
                let opened = record.open(data, &mut answer);
                (opened.plain, opened.used, opened.end)
            }
            Some(Session::Stock(stock)) => {
                let mut plain = Vec::new();
                let opened = stock.open(data, &mut plain, &mut answer);
                let (used, end) = (opened.used, opened.end);
                // Behind the ciphertext, as its rest is still to be kept.
                let start = bytes;
                if buffer.len() < start + plain.len() {
                    buffer.resize(start + plain.len(), 0);
                }
                let place = start..start + plain.len();
                if let Some(to) = buffer.get_mut(place.clone()) {
                    to.copy_from_slice(&plain);
                }
                (place, used, end)
            }
            None => return nothing(),
        };
        if end.is_none() {
            let rest = buffer.get(used..bytes).unwrap_or_default();
            tls.keep(key, rest, now_ns);
            for slot in tls.to_shed(now_ns) {
                if let Some(key) = self.sockets.key_at(slot) {
                    self.schedule_close(key, Closed::Slow);
                }
            }
        }
        if !answer.is_empty() {
            self.send_raw(key, &answer);
        }
        let end = end.map(|end| match end {
            End::Closed => Closed::PeerEof,
            End::Alert(alert) => Closed::Alert(alert),
            End::Failed(_) => Closed::Reset(ErrorKind::InvalidData),
        });
        Opened { plain, end }
    }
}

impl<T> Io<T> {
    /// Writes bytes of the wire behind what waits; what the socket does not take waits, too.
    pub(crate) fn send_raw(&mut self, key: Key, bytes: &[u8]) {
        let Some(socket) = self.sockets.get(key).filter(|it| it.flags & MUTE == 0) else { return };
        let Some(fd) = socket.fd.as_ref().filter(|_| !bytes.is_empty()) else { return };
        let mut done = 0;
        let waits = socket.queue.as_ref().is_some_and(|queue| queue.has_sealed());
        if !waits && socket.flags & CONNECTING == 0 {
            match send_some(&mut self.counts, fd, bytes) {
                Ok(written) => done = written,
                Err(error) => return self.schedule_close(key, Closed::Reset(error.kind())),
            }
        }
        let rest = bytes.get(done..).unwrap_or_default();
        if !rest.is_empty() {
            self.counts.writes_blocked += u64::from(!waits);
            self.enqueue(key, |queue| queue.push_sealed(rest));
        }
    }

    /// Sends plaintext to a connection that has nothing waiting, in one record. Returns whether
    /// some of it waits now.
    pub(crate) fn send_record<'p>(
        &mut self,
        key: Key,
        pieces: impl Iterator<Item = &'p [u8]>,
    ) -> bool {
        let Self { tls, sockets, counts, .. } = self;
        let (Some(socket), Some(tls)) = (sockets.get(key), tls) else { return false };
        let Some(fd) = &socket.fd else { return false };
        let Some(record) = tls.seal(key, pieces) else { return false };
        let done = match send_some(counts, fd, record) {
            Ok(written) => written,
            Err(error) => {
                self.schedule_close(key, Closed::Reset(error.kind()));
                return false;
            }
        };
        let Some(rest) = record.get(done..).filter(|it| !it.is_empty()) else { return false };
        counts.writes_blocked += 1;
        let rest = rest.to_vec();
        self.enqueue(key, |queue| queue.push_sealed(&rest));
        true
    }

    /// The same for frames of any length. Returns whether some wait now.
    #[cold]
    pub(crate) fn send_secured(&mut self, key: Key, run: &Run, whole: &[u8]) -> bool {
        let is_short = run.len() <= PLAIN_BYTES_MAX;
        match is_short && whole.len() == run.len() {
            true => self.send_record(key, std::iter::once(whole)),
            false if is_short => self.send_record(key, Piece::Run(run).slices()),
            false => {
                self.enqueue(key, |queue| queue.push(Piece::Run(run), 0));
                self.drain_records(key);
                self.queued(key) > 0
            }
        }
    }

    /// Writes what waits for a connection with TLS, record by record.
    pub(crate) fn drain_records(&mut self, key: Key) {
        let (now_ns, mut drained) = (self.served_ns(), 0);
        loop {
            let Self { tls, sockets, counts, owned_bytes, .. } = self;
            let Some(socket) = sockets.get_mut(key).filter(|it| it.flags & MUTE == 0) else {
                return;
            };
            let (Some(fd), Some(queue)) = (&socket.fd, &mut socket.queue) else { return };
            if drained >= DRAIN_BYTES_MAX {
                return self.list_writable(key);
            }
            if !queue.has_sealed() {
                let mut slices = [IoSlice::new(&[]); SLICES_MAX];
                let (filled, bytes) = queue.slices(&mut slices, PLAIN_BYTES_MAX);
                if bytes == 0 {
                    break;
                }
                if socket.flags & SHAKING != 0 {
                    return;
                }
                let pieces = slices.iter().take(filled).map(|it| &**it);
                let record = tls.as_mut().and_then(|tls| tls.seal(key, pieces));
                let Some(record) = record else { return };
                let owned = queue.owned();
                queue.skip(bytes);
                queue.push_sealed(record);
                counts.queued_bytes += (record.len() - bytes) as u64;
                *owned_bytes = *owned_bytes + queue.owned() - owned;
            }
            counts.writes += 1;
            match send(fd, queue.sealed()) {
                Ok(written) => {
                    drained += written;
                    counts.bytes_out += written as u64;
                    counts.queued_bytes -= written as u64;
                    *owned_bytes -= queue.owned();
                    queue.advance_sealed(written, now_ns);
                    *owned_bytes += queue.owned();
                }
                Err(rustix::io::Errno::INTR) => {}
                Err(error) if is_blocked(error) => return,
                Err(error) => return self.schedule_close(key, Closed::Reset(error.kind())),
            }
        }
        self.queue_is_empty(key);
    }

    /// Announces the end of what is sent (close_notify), once, unless something still waits.
    pub(crate) fn end_records(&mut self, key: Key) {
        let Self { tls, sockets, .. } = self;
        let (Some(socket), Some(tls)) = (sockets.get(key), tls) else { return };
        let is_free = socket.flags & MUTE == 0 && socket.queue.is_none();
        let Some(fd) = socket.fd.as_ref().filter(|_| is_free) else { return };
        if let Some(record) = tls.close(key) {
            // It is small: if there is no room, the peer does not read, and gets no end.
            let _ = send(fd, record);
        }
    }
}

/// Writes as much as the socket takes, maybe nothing.
fn send_some(counts: &mut Counts, fd: &OwnedFd, bytes: &[u8]) -> rustix::io::Result<usize> {
    counts.writes += 1;
    match send(fd, bytes) {
        Ok(written) => {
            counts.bytes_out += written as u64;
            Ok(written)
        }
        Err(error) if is_blocked(error) => Ok(0),
        Err(error) => Err(error),
    }
}

impl<T> Io<T> {
    /// Whether the connection has TLS, be its handshake done or not.
    pub fn is_secure(&self, key: Key) -> bool {
        self.sockets.get(key).is_some_and(|socket| socket.flags & TLS != 0)
    }

    /// Whether its handshake is under way.
    pub(crate) fn is_shaking(&self, key: Key) -> bool {
        self.sockets.get(key).is_some_and(|socket| socket.flags & SHAKING != 0)
    }
}
