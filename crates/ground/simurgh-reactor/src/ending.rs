//! How connections end: closing once the output is written, cutting slow peers, resetting
//! connections that linger too long. All of it happens at the end of a turn, and each record is
//! returned to the handler exactly once.

use simurgh_data::Key;

use crate::connection::Closed;
use crate::handler::{Handler, Slow};
use crate::io::Io;
use crate::net;
use crate::slab::{
    CLOSE_SCHEDULED, CLOSING, CONNECTING, MUTE, OVER, PEER_SHUT, RESETS, SHUT, Socket, TLS,
};
use crate::turn::Reactor;

/// How long a turn may close connections, which is done twice.
const CLOSES_NS: u64 = 500_000;

impl<H: Handler> Reactor<H> {
    /// Ends the connections that are due. The handler may send and close more meanwhile, so this
    /// repeats until nothing is left, for a bounded number of rounds, and for some time: a
    /// connection's end may cost as much as a hundred messages. The rest waits for the next turn.
    pub(crate) fn end_connections(&mut self) {
        self.end_connections_until(self.io.clock_ns().saturating_add(CLOSES_NS));
    }

    pub(crate) fn end_connections_until(&mut self, until_ns: u64) {
        const ROUNDS_MAX: usize = 8;
        self.io.expire_linger();
        for _ in 0..ROUNDS_MAX {
            self.io.close_written();
            self.cut_slow();
            self.close_scheduled(until_ns);
            if !self.io.has_endings() && self.io.outbox.dirty.is_empty() {
                return;
            }
            self.io.flush();
            if self.io.clock_ns() >= until_ns {
                return;
            }
        }
    }

    fn cut_slow(&mut self) {
        for key in std::mem::take(&mut self.io.lists.slow) {
            match self.io.sockets.get(key) {
                Some(socket) if socket.flags & CLOSE_SCHEDULED == 0 => {}
                _ => continue,
            }
            self.io.counts.slow_cut += 1;
            match self.handler.slow(&mut self.io, key) {
                Slow::Cut { farewell } => self.io.cut(key, farewell),
                Slow::Abort => self.io.reset(key, Closed::Slow),
            }
        }
    }

    fn close_scheduled(&mut self, until_ns: u64) {
        self.hand_over_local();
        for _ in 0..self.io.lists.scheduled_closes.len() {
            let Some((key, why)) = self.io.lists.scheduled_closes.pop_front() else { return };
            if self.io.is_secure(key) {
                self.io.end_records(key);
            }
            let Some(socket) = self.io.sockets.remove(key) else { continue };
            self.io.counts.closed += 1;
            self.io.counts.connect_failed += u64::from(matches!(why, Closed::Unconnected(_)));
            self.io.forget(key, &socket);
            // With TLS also after an alert, so that the peer can read it.
            if let Some(fd) = &socket.fd
                && (matches!(why, Closed::Local | Closed::Slow) || socket.flags & TLS != 0)
                && socket.flags & (MUTE | CONNECTING | RESETS) == 0
            {
                net::close_gently(fd);
            }
            drop(socket.fd);
            self.handler.closed(&mut self.io, key, socket.data, why);
            if self.io.clock_ns() >= until_ns {
                return;
            }
        }
    }
}

impl<T> Io<T> {
    pub(crate) fn has_endings(&self) -> bool {
        !(self.lists.closing.is_empty()
            && self.lists.slow.is_empty()
            && self.lists.scheduled_closes.is_empty())
    }

    /// The reason for the end of a broken connection that is not read.
    pub(crate) fn end_of(&self, key: Key, is_error: bool) -> Closed {
        match self.sockets.get(key) {
            Some(socket) if socket.flags & OVER != 0 => Closed::Slow,
            Some(socket) if socket.flags & CLOSING != 0 => Closed::Local,
            Some(Socket { fd: Some(fd), flags, .. }) if flags & CONNECTING != 0 => {
                Closed::Unconnected(net::error_kind(fd))
            }
            Some(Socket { fd: Some(fd), .. }) if is_error => Closed::Reset(net::error_kind(fd)),
            _ => Closed::PeerEof,
        }
    }

    pub(crate) fn reset(&mut self, key: Key, why: Closed) {
        if let Some(socket) = self.sockets.get_mut(key) {
            // Before the handshake has ended, there is nothing to reset.
            if let Some(fd) = &socket.fd
                && socket.flags & (CONNECTING | RESETS) == 0
            {
                net::reset_on_close(fd);
            }
            socket.flags |= MUTE;
            self.schedule_close(key, why);
        }
    }

    /// All that the peer sent is read: the connection ends, with `half_close` after its output.
    pub(crate) fn peer_ended(&mut self, key: Key) {
        let Some(socket) = self.sockets.get_mut(key) else { return };
        let has_output = socket.span != 0 || socket.queue.is_some();
        if self.half_close && has_output && socket.flags & (CLOSE_SCHEDULED | MUTE | OVER) == 0 {
            socket.flags |= PEER_SHUT;
            self.close(key);
        } else {
            self.schedule_close(key, Closed::PeerEof);
        }
    }

    fn close_written(&mut self) {
        for key in std::mem::take(&mut self.lists.closing) {
            let Some(socket) = self.sockets.get(key) else { continue };
            let (flags, waits) = (socket.flags, socket.queue.is_some());
            if socket.fd.is_none() {
                // It has received its output, and has no peer that could close the other half.
                self.schedule_close(key, Closed::Local);
                continue;
            }
            if flags & CLOSING != 0 {
                match (waits, flags & OVER != 0) {
                    (true, _) => self.linger(key),
                    // The connection lingers until the peer closes too, or the time is up.
                    (false, true) => self.shut(key),
                    (false, false) if flags & PEER_SHUT != 0 => {
                        self.schedule_close(key, Closed::PeerEof);
                    }
                    (false, false) => self.schedule_close(key, Closed::Local),
                }
            } else if flags & SHUT != 0 && flags & CONNECTING == 0 && !waits {
                self.shut(key);
            }
        }
    }

    /// Tells the peer that no more will come.
    fn shut(&mut self, key: Key) {
        self.end_records(key);
        if let Some(fd) = self.sockets.get(key).and_then(|socket| socket.fd.as_ref()) {
            net::shutdown_write(fd);
        }
    }

    /// Leaves a slow connection only its last frame, and some time to take it.
    fn cut(&mut self, key: Key, last_frame: Vec<u8>) {
        let Some(socket) = self.sockets.get_mut(key) else { return };
        socket.flags |= CLOSING;
        if socket.queue.is_some() {
            self.cut_queue(key, last_frame);
        }
        if self.sockets.get(key).is_some_and(|socket| socket.flags & MUTE != 0) {
            return self.reset(key, Closed::Slow);
        }
        self.linger(key);
        self.drain_queue(key);
        self.list_ready(key);
    }

    fn expire_linger(&mut self) {
        while let Some((key, due_ns)) = self.lists.linger.front().copied() {
            if due_ns > self.now.ns {
                return;
            }
            self.lists.linger.pop_front();
            let over = self.sockets.get(key).is_some_and(|socket| socket.flags & OVER != 0);
            self.reset(key, if over { Closed::Slow } else { Closed::Local });
        }
    }
}
