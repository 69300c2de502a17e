//! Handshakes of TLS: their beginning, and connections that are refused before.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use simurgh_data::Key;
use simurgh_tls::rustls::ClientConfig;
use simurgh_tls::rustls::pki_types::ServerName;

use super::{Io, send};
use crate::connection::Closed;
use crate::slab::{CONNECTING, IN_LINE, SHAKING, TLS, UNREAD};
use crate::tls::{Plan, Tls};

/// A fatal alert "internal error" in plaintext (RFC 8446 §6.2): the handshake has not begun.
const REFUSAL: [u8; 7] = [21, 3, 3, 0, 2, 2, 80];

impl<T> Io<T> {
    /// Begins TLS on a connection of [`Io::connect`]; `name` is what the server's certificate must
    /// be for. [`Handler::secured`](crate::Handler::secured) or
    /// [`insecure`](crate::Handler::insecure) follows; what is sent before waits. Handshakes that
    /// have begun go on first, so that a thread with too many finishes some.
    pub fn begin_tls(&mut self, key: Key, config: &Arc<ClientConfig>, name: ServerName<'static>) {
        let Some(socket) = self.sockets.get_mut(key) else { return };
        socket.flags |= TLS | SHAKING;
        let is_connected = socket.flags & CONNECTING == 0;
        let tls = self.tls.get_or_insert_with(|| Box::new(Tls::new(Vec::new(), false)));
        tls.plan(key, Plan { config: Arc::clone(config), name });
        if is_connected {
            self.line_up(key);
        }
    }

    /// A connection's handshake has input.
    pub(crate) fn line_up(&mut self, key: Key) {
        let (Some(socket), Some(tls)) = (self.sockets.get_mut(key), &mut self.tls) else { return };
        socket.flags |= UNREAD;
        if socket.flags & IN_LINE == 0 {
            socket.flags |= IN_LINE;
            tls.line_up(key, self.now.ns);
        }
    }

    /// Gives up a handshake that has taken too long.
    pub(crate) fn give_up_handshake(&mut self, key: Key) {
        let (Some(socket), Some(tls)) = (self.sockets.get(key), &self.tls) else { return };
        if let Some(fd) = socket.fd.as_ref().filter(|_| tls.config_of_new(key).is_some()) {
            send_refusal(fd);
        }
        self.counts.tls_refused += 1;
        self.schedule_close(key, Closed::Slow);
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
