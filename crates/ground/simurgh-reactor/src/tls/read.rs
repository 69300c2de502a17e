//! From records to plaintext, in the loop's own read buffer.

use std::io;

use simurgh_data::Key;

use super::{Session, Tls};
use crate::connection::Closed;
use crate::handler::Handler;
use crate::io::Io;
use crate::slab::{CLOSE_SCHEDULED, SHAKING, TLS};
use crate::turn::Reactor;

/// Incomplete records of all connections, bytes. Beyond that the peers are closed whose parts are
/// largest and oldest.
const PARTIAL_BYTES_MAX: usize = 32 << 20;

/// What has come of a connection.
pub(crate) struct Opened {
    /// Plaintext, by its place in the buffer.
    pub(crate) plain: std::ops::Range<usize>,
    /// The peer sends no more, or is not to be heard any more.
    pub(crate) end: Option<Closed>,
}

impl Tls {
    /// Puts the part of a record that has come before at the front of the buffer; returns its
    /// length.
    pub(crate) fn unread(&mut self, key: Key, buffer: &mut [u8]) -> usize {
        if self.partial.is_empty() {
            return 0;
        }
        let Some((part, _)) = self.partial.remove(&key.slot) else { return 0 };
        self.partial_bytes -= part.len();
        match buffer.get_mut(..part.len()) {
            Some(front) => front.copy_from_slice(&part),
            None => return 0,
        }
        part.len()
    }

    /// Keeps the part of a record.
    fn keep(&mut self, key: Key, part: &[u8], now_ns: u64) {
        if !part.is_empty() {
            self.partial_bytes += part.len();
            self.partial.insert(key.slot, (part.to_vec(), now_ns));
        }
    }
}

impl<T> Io<T> {
    /// Opens the whole records at the front of the buffer, and keeps the rest.
    pub(crate) fn open_records(&mut self, key: Key, buffer: &mut Vec<u8>, bytes: usize) -> Opened {
        let nothing = || Opened { plain: 0..0, end: Some(Closed::Reset(io::ErrorKind::Other)) };
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
            if tls.partial_bytes > PARTIAL_BYTES_MAX {
                self.shed_partial();
            }
        }
        if !answer.is_empty() {
            self.send_raw(key, &answer);
        }
        let end = end.map(|end| match end {
            simurgh_tls::End::Closed => Closed::PeerEof,
            simurgh_tls::End::Alert(_) => Closed::Reset(io::ErrorKind::ConnectionReset),
            simurgh_tls::End::Failed(_) => Closed::Reset(io::ErrorKind::InvalidData),
        });
        Opened { plain, end }
    }

    #[cold]
    fn shed_partial(&mut self) {
        let Some(tls) = &self.tls else { return };
        let now_ns = self.now.ns;
        let mut found: Vec<(u128, u32, usize)> = Vec::new();
        for (slot, (bytes, since_ns)) in &tls.partial {
            let age = u128::from(now_ns.saturating_sub(*since_ns)) + 1;
            found.push((bytes.len() as u128 * age, *slot, bytes.len()));
        }
        found.sort_unstable_by(|one, two| two.cmp(one));
        let mut over = tls.partial_bytes.saturating_sub(PARTIAL_BYTES_MAX * 7 / 8);
        for (_, slot, bytes) in found {
            if let Some(key) = self.sockets.key_at(slot) {
                self.schedule_close(key, Closed::Slow);
            }
            over = over.saturating_sub(bytes);
            if over == 0 {
                return;
            }
        }
    }
}

impl<H: Handler> Reactor<H> {
    /// Gives the handler what `bytes` of the read buffer hold for a connection with TLS.
    pub(crate) fn read_records(&mut self, key: Key, bytes: usize, is_heard: bool) {
        let Opened { plain, end } = self.io.open_records(key, &mut self.buffer, bytes);
        if let Some(data) = self.buffer.get_mut(plain).filter(|it| !it.is_empty() && is_heard) {
            self.handler.readable(&mut self.io, key, data);
        }
        let is_there = self.io.sockets.get(key).is_some_and(|it| it.flags & CLOSE_SCHEDULED == 0);
        match end.filter(|_| is_there) {
            Some(Closed::PeerEof) => self.io.peer_ended(key),
            Some(why) => self.io.schedule_close(key, why),
            None => {}
        }
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
