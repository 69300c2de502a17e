//! Handshakes. A step takes up to 0.1 ms and cannot be divided, so they have a stage of each turn
//! to themselves, behind the established connections: whoever can go on waits in line, unread.

use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::io::Errno;
use rustix::net::RecvFlags;
use simurgh_data::Key;
use simurgh_tls::rustls::pki_types::ServerName;
use simurgh_tls::rustls::{ClientConfig, ProtocolVersion};
use simurgh_tls::{Handshake, HandshakeError, Progress};

use super::{BOXED, Boxed, NEW, NUMBER, Tls};
use crate::connection::Closed;
use crate::handler::Handler;
use crate::io::{Io, send};
use crate::slab::{CLOSE_SCHEDULED, CLOSING, IN_LINE, SHAKING, TLS, UNREAD};
use crate::turn::Reactor;

/// Time of a turn for handshakes; the last step may exceed it.
const SHAKE_NS: u64 = 300_000;
/// Handshakes under way: each has 10 to 80 kB.
const UNDER_WAY_MAX: usize = 2048;
/// A handshake under way for so long is given up if others wait.
const PATIENCE_NS: u64 = 1_000_000_000;
/// Connections that wait to begin: some seconds of work. Others are refused.
const NEW_MAX: usize = 32 << 10;
const READ_BYTES: usize = 16 << 10;

/// A fatal alert "internal error" in plaintext (RFC 8446 §6.2): the handshake has not begun.
const REFUSAL: [u8; 7] = [21, 3, 3, 0, 2, 2, 80];
const NOT_TLS: &[u8] = b"HTTP/1.1 400 Bad Request\r\nconnection: close\r\n\
    content-type: text/plain\r\ncontent-length: 35\r\n\r\nThis port speaks TLS: use https://\n";

/// Connections whose handshakes can go on.
#[derive(Default)]
pub(super) struct Line {
    begun: VecDeque<Key>,
    new: VecDeque<Key>,
    /// Handshakes under way, the oldest first; some may be done.
    oldest: VecDeque<(Key, u64)>,
    pub(super) under_way: usize,
}

impl Line {
    /// The next to go on: those that have begun come first.
    fn next(&mut self) -> Option<Key> {
        let may_begin = self.under_way < UNDER_WAY_MAX;
        self.begun.pop_front().or_else(|| self.new.pop_front().filter(|_| may_begin))
    }
}

impl Tls {
    pub(crate) fn has_work(&self) -> bool {
        !self.line.begun.is_empty()
            || (!self.line.new.is_empty() && self.line.under_way < UNDER_WAY_MAX)
    }

    fn shaking(&mut self, key: Key) -> Option<&mut Handshake> {
        let place = self.place(key);
        match self.boxed.get_mut(place & NUMBER).filter(|_| place & !NUMBER == BOXED)? {
            Boxed::Shaking(handshake) => Some(handshake),
            Boxed::Stock(_) => None,
        }
    }

    fn begin(&mut self, key: Key, handshake: Handshake, now_ns: u64) {
        let number = self.boxed.insert(Boxed::Shaking(Box::new(handshake)));
        self.set_place(key, BOXED | number);
        self.line.under_way += 1;
        self.line.oldest.push_back((key, now_ns));
    }

    fn take_handshake(&mut self, key: Key) -> Option<Handshake> {
        let place = self.place(key);
        self.shaking(key)?;
        match self.boxed.remove(place & NUMBER)? {
            Boxed::Shaking(handshake) => {
                self.line.under_way -= 1;
                self.set_place(key, super::NONE);
                Some(*handshake)
            }
            Boxed::Stock(_) => None,
        }
    }

    /// The oldest handshake under way, if it is to be given up for others.
    fn overdue(&mut self, now_ns: u64) -> Option<Key> {
        while let Some((key, since_ns)) = self.line.oldest.front().copied() {
            let is_shaking = self.shaking(key).is_some();
            let is_full = self.line.under_way >= UNDER_WAY_MAX && !self.line.new.is_empty();
            let is_old = now_ns.saturating_sub(since_ns) >= PATIENCE_NS;
            if is_shaking && !(is_full && is_old) {
                return None;
            }
            self.line.oldest.pop_front();
            if is_shaking {
                return Some(key);
            }
        }
        None
    }
}

impl<T> Io<T> {
    /// Begins TLS on a connection of [`Io::connect`]; `name` is what the server's certificate must
    /// be for. [`Handler::secured`] or [`Handler::insecure`] follows; what is sent before waits.
    pub fn begin_tls(
        &mut self,
        key: Key,
        config: &Arc<ClientConfig>,
        name: ServerName<'static>,
    ) -> Result<(), HandshakeError> {
        let mut hello = Vec::new();
        let handshake = Handshake::client(config, name, &mut hello)?;
        let Some(socket) = self.sockets.get_mut(key) else { return Ok(()) };
        socket.flags |= TLS | SHAKING;
        let tls = self.tls.get_or_insert_with(|| Box::new(Tls::new(Vec::new())));
        tls.begin(key, handshake, self.now.ns);
        self.send_raw(key, &hello);
        Ok(())
    }

    /// A connection's handshake has input.
    pub(crate) fn line_up(&mut self, key: Key) {
        let (Some(socket), Some(tls)) = (self.sockets.get_mut(key), &mut self.tls) else { return };
        socket.flags |= UNREAD;
        if socket.flags & IN_LINE != 0 {
            return;
        }
        socket.flags |= IN_LINE;
        let is_new = tls.place(key) & !NUMBER == NEW;
        if !is_new {
            return tls.line.begun.push_back(key);
        }
        if tls.line.new.len() < NEW_MAX {
            return tls.line.new.push_back(key);
        }
        if let Some(fd) = self.sockets.get(key).and_then(|socket| socket.fd.as_ref()) {
            send_refusal(fd);
        }
        self.counts.tls_refused += 1;
        self.schedule_close(key, Closed::Local);
    }

    /// Refuses a connection before its handshake.
    pub(crate) fn refuse_handshake(&mut self, fd: &OwnedFd) {
        self.counts.tls_refused += 1;
        send_refusal(fd);
    }
}

fn send_refusal(fd: &OwnedFd) {
    // If there is no room for it, the connection closes without.
    let _ = send(fd, &REFUSAL);
}

impl<H: Handler> Reactor<H> {
    /// Goes on with handshakes for a part of the turn.
    pub(crate) fn shake(&mut self) {
        let Some(tls) = &mut self.io.tls else { return };
        if let Some(key) = tls.overdue(self.io.now.ns) {
            self.io.counts.tls_refused += 1;
            self.io.schedule_close(key, Closed::Slow);
        }
        if self.io.tls.as_ref().is_none_or(|tls| !tls.has_work()) {
            return;
        }
        let until_ns = self.io.clock_ns() + SHAKE_NS;
        while let Some(key) = self.io.tls.as_mut().and_then(|tls| tls.line.next()) {
            self.go_on_shaking(key);
            if self.io.clock_ns() >= until_ns {
                return;
            }
        }
    }

    fn go_on_shaking(&mut self, key: Key) {
        let Some(socket) = self.io.sockets.get_mut(key) else { return };
        socket.flags &= !IN_LINE;
        if socket.flags & SHAKING == 0 || socket.flags & (CLOSE_SCHEDULED | CLOSING) != 0 {
            return;
        }
        let Some(fd) = &socket.fd else { return };
        let room = self.buffer.len().min(READ_BYTES);
        let buffer = self.buffer.get_mut(..room).unwrap_or_default();
        let bytes = match rustix::net::recv(fd, buffer, RecvFlags::DONTWAIT) {
            Ok((_, 0)) => return self.io.peer_ended(key),
            Ok((_, bytes)) => bytes,
            Err(Errno::INTR) => return self.io.line_up(key),
            Err(Errno::AGAIN) => {
                socket.flags &= !UNREAD;
                return;
            }
            Err(error) => return self.io.schedule_close(key, Closed::Reset(error.kind())),
        };
        let is_all = bytes < room && socket.flags & crate::slab::PEER_SHUT == 0;
        if is_all {
            socket.flags &= !UNREAD;
        }
        self.io.counts.reads += 1;
        self.io.counts.bytes_in += bytes as u64;
        self.shake_with(key, bytes);
        if !is_all {
            match self.io.is_shaking(key) {
                true => self.io.line_up(key),
                false => self.io.list_ready(key),
            }
        }
    }

    /// Gives bytes of the read buffer to a handshake.
    fn shake_with(&mut self, key: Key, bytes: usize) {
        let now_ns = self.io.now.ns;
        let Some(tls) = &mut self.io.tls else { return };
        let place = tls.place(key);
        if place & !NUMBER == NEW {
            let config = tls.configs.get((place & NUMBER) as usize).and_then(Option::as_ref);
            let Some(handshake) = config.map(Handshake::server) else { return };
            match handshake {
                Ok(handshake) => tls.begin(key, handshake, now_ns),
                Err(error) => return self.fail_to_shake(key, &error),
            }
        }
        let Some(handshake) = tls.shaking(key) else { return };
        let input = self.buffer.get(..bytes).unwrap_or_default();
        let mut answer = Vec::new();
        let received = handshake.receive(input, &mut answer);
        self.io.send_raw(key, &answer);
        match received {
            Ok(Progress::Continues) => {}
            Ok(Progress::Done) => self.secure(key),
            Err(error) => self.fail_to_shake(key, &error),
        }
    }

    /// A handshake is done.
    fn secure(&mut self, key: Key) {
        let Some(tls) = &mut self.io.tls else { return };
        let Some(handshake) = tls.take_handshake(key) else { return };
        let negotiated = handshake.negotiated();
        let is_tls12 = negotiated.version == Some(ProtocolVersion::TLSv1_2);
        self.io.counts.tls_resumed += u64::from(negotiated.is_resumed);
        self.io.counts.tls_12 += u64::from(is_tls12);
        let (established, rest) = match handshake.finish() {
            Ok(done) => done,
            Err(error) => return self.fail_to_shake(key, &error),
        };
        let Some(()) = tls.establish(key, established) else {
            return self.io.schedule_close(key, Closed::Reset(io::ErrorKind::OutOfMemory));
        };
        let Some(socket) = self.io.sockets.get_mut(key) else { return };
        socket.flags &= !SHAKING;
        self.io.counts.tls_handshakes += 1;
        self.io.list_writable(key);
        self.handler.secured(&mut self.io, key);
        if rest.is_empty() {
            return;
        }
        if self.buffer.len() < rest.len() {
            self.buffer.resize(rest.len(), 0);
        }
        if let Some(front) = self.buffer.get_mut(..rest.len()) {
            front.copy_from_slice(&rest);
        }
        self.read_records(key, rest.len(), true);
    }

    fn fail_to_shake(&mut self, key: Key, error: &HandshakeError) {
        self.io.counts.tls_failed += 1;
        if matches!(error, HandshakeError::NotTls) {
            self.io.send_raw(key, NOT_TLS);
        }
        self.handler.insecure(&mut self.io, key, error);
        self.io.schedule_close(key, Closed::Reset(io::ErrorKind::InvalidData));
    }
}
