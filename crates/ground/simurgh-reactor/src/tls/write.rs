//! From plaintext to records, at the moment they are written.

use std::io::IoSlice;

use simurgh_data::{Key, Run};

use super::{PLAIN_BYTES_MAX, Session, Tls};
use crate::connection::Closed;
use crate::io::{Io, is_blocked, send};
use crate::outbound::{DRAIN_BYTES_MAX, Piece, SLICES_MAX};
use crate::slab::{CONNECTING, MUTE, SHAKING};

impl Tls {
    /// Seals one record of at most [`PLAIN_BYTES_MAX`] bytes. `None`: nothing more can be sent.
    fn seal<'p>(&mut self, key: Key, pieces: impl Iterator<Item = &'p [u8]>) -> Option<&[u8]> {
        let mut out = std::mem::take(&mut self.scratch);
        out.clear();
        let is_sealed = match self.session(key) {
            Some(Session::Record(mut record)) => record.seal(pieces, &mut out).is_ok(),
            Some(Session::Stock(stock)) => stock.seal(pieces, &mut out).is_ok(),
            None => false,
        };
        self.scratch = out;
        is_sealed.then_some(&*self.scratch)
    }

    fn close(&mut self, key: Key) -> Option<&[u8]> {
        let mut out = std::mem::take(&mut self.scratch);
        out.clear();
        match self.session(key) {
            Some(Session::Record(mut record)) => record.close(&mut out),
            Some(Session::Stock(stock)) => stock.close(&mut out),
            None => {}
        }
        self.scratch = out;
        Some(&*self.scratch).filter(|it| !it.is_empty())
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
            self.counts.writes += 1;
            match send(fd, bytes) {
                Ok(written) => done = written,
                Err(error) if is_blocked(error) => {}
                Err(error) => return self.schedule_close(key, Closed::Reset(error.kind())),
            }
            self.counts.bytes_out += done as u64;
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
        counts.writes += 1;
        let outcome = send(fd, record);
        let done = match outcome {
            Ok(written) => written,
            Err(error) if is_blocked(error) => 0,
            Err(error) => {
                self.schedule_close(key, Closed::Reset(error.kind()));
                return false;
            }
        };
        counts.bytes_out += done as u64;
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
