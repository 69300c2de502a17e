//! Handshakes. A step takes up to 0.1 ms and cannot be divided, so they have a stage of each turn
//! to themselves, behind the established connections: whoever can go on waits in line, unread.

use std::io::ErrorKind;

use rustix::io::Errno;
use rustix::net::RecvFlags;
use simurgh_data::Key;
use simurgh_tls::rustls::ProtocolVersion;
use simurgh_tls::{Handshake, HandshakeError, Progress};

use crate::connection::Closed;
use crate::handler::Handler;
use crate::io::Opened;
use crate::slab::{CLOSE_SCHEDULED, CLOSING, IN_LINE, PEER_SHUT, SHAKING, UNREAD};
use crate::tls::Plan;
use crate::turn::Reactor;

/// Time of a turn for handshakes; the last step may exceed it.
const SHAKE_NS: u64 = 300_000;
/// Handshakes that are given up in a turn.
const GIVEN_UP_MAX: usize = 32;
const READ_BYTES: usize = 16 << 10;
const NOT_TLS: &[u8] = b"HTTP/1.1 400 Bad Request\r\nconnection: close\r\n\
    content-type: text/plain\r\ncontent-length: 35\r\n\r\nThis port speaks TLS: use https://\n";

impl<H: Handler> Reactor<H> {
    /// Goes on with handshakes for a part of the turn.
    pub(crate) fn shake(&mut self) {
        let now_ns = self.io.now.ns;
        for _ in 0..GIVEN_UP_MAX {
            let overdue = self.io.tls.as_mut().and_then(|tls| tls.overdue(now_ns));
            let Some(key) = overdue else { break };
            self.io.give_up_handshake(key);
        }
        if self.io.tls.as_ref().is_none_or(|tls| !tls.has_work()) {
            return;
        }
        let until_ns = self.io.clock_ns() + SHAKE_NS;
        while let Some(key) = self.io.tls.as_mut().and_then(|tls| tls.next_in_line(now_ns)) {
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
        if let Some(plan) = self.io.tls.as_mut().and_then(|tls| tls.take_plan(key)) {
            self.begin_as_client(key, plan);
        }
        let may_have_header = self.io.tls.as_ref().is_some_and(|tls| tls.may_have_header(key));
        if may_have_header && !self.skip_header(key) {
            return;
        }
        let Some(socket) = self.io.sockets.get_mut(key) else { return };
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
        let is_all = bytes < room && socket.flags & PEER_SHUT == 0;
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

    fn begin_as_client(&mut self, key: Key, Plan { config, name }: Plan) {
        let (now_ns, mut hello) = (self.io.now.ns, Vec::new());
        match Handshake::client(&config, name, &mut hello) {
            Ok(handshake) => {
                let Some(tls) = &mut self.io.tls else { return };
                tls.begin(key, handshake, now_ns);
                self.io.send_raw(key, &hello);
            }
            Err(error) => self.fail_to_shake(key, &error),
        }
    }

    /// Skips a header in front of a handshake. Returns whether the handshake can begin. An
    /// incomplete header stays in the kernel, so that a slow one takes no memory here.
    fn skip_header(&mut self, key: Key) -> bool {
        let Some(socket) = self.io.sockets.get(key) else { return false };
        let Some(fd) = &socket.fd else { return false };
        let room = self.buffer.len().min(READ_BYTES);
        let buffer = self.buffer.get_mut(..room).unwrap_or_default();
        let flags = RecvFlags::DONTWAIT;
        // The read that follows finds an end or an error, too.
        let Ok((_, bytes @ 1..)) = rustix::net::recv(fd, buffer, flags | RecvFlags::PEEK) else {
            return true;
        };
        let data = self.buffer.get(..bytes).unwrap_or_default();
        let header = self.handler.header(&mut self.io, key, data);
        let Some(socket) = self.io.sockets.get_mut(key) else { return false };
        match (header, &socket.fd) {
            (Some(0), _) => true,
            (Some(header), Some(fd)) => {
                let header = self.buffer.get_mut(..header).unwrap_or_default();
                let _ = rustix::net::recv(fd, header, flags);
                true
            }
            _ if socket.flags & CLOSE_SCHEDULED != 0 => {
                self.io.counts.tls_failed += 1;
                false
            }
            _ if socket.flags & PEER_SHUT != 0 => {
                self.io.peer_ended(key);
                false
            }
            _ => {
                socket.flags &= !UNREAD;
                false
            }
        }
    }

    /// Gives bytes of the read buffer to a handshake.
    fn shake_with(&mut self, key: Key, bytes: usize) {
        let now_ns = self.io.now.ns;
        let Some(tls) = &mut self.io.tls else { return };
        let config = tls.config_of_new(key);
        let is_new = config.is_some();
        if let Some(config) = config {
            match Handshake::server(&config) {
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
            Err(error) => {
                if is_new && matches!(error, HandshakeError::NotTls) {
                    self.io.send_raw(key, NOT_TLS);
                }
                self.fail_to_shake(key, &error);
            }
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
            return self.io.schedule_close(key, Closed::Reset(ErrorKind::OutOfMemory));
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
        self.handler.insecure(&mut self.io, key, error);
        self.io.schedule_close(key, Closed::Reset(ErrorKind::InvalidData));
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
