//! The trait of a protocol that runs on a shard, and the values that it and the loop exchange.

use std::net::SocketAddr;

use simurgh_data::{Key, Next};
use simurgh_tls::HandshakeError;

use crate::connection::Closed;
use crate::io::Io;
use crate::outbound::LocalOutput;

/// A protocol on a shard. All calls come from the shard's own thread, one at a time; none may
/// block. The loop catches no panic: a handler that runs foreign code guards it itself.
pub trait Handler: Sized {
    /// The protocol's record of a connection, stored inline in the shard's slab.
    type Conn;
    /// The mail that other threads post to the shard.
    type Mail: Send + 'static;

    /// A connection was accepted; returns its record. Its key is in `from`, but the record is in
    /// place only after this call, so output to it has to wait for [`Handler::readable`]. `None`,
    /// the default, closes it at once.
    fn accepted(&mut self, io: &mut Io<Self::Conn>, from: Accepted) -> Option<Self::Conn> {
        let _ = (io, from);
        None
    }

    /// A connection came by hand-off; returns its record. The bytes read before are delivered
    /// through [`Handler::readable`] right after. `None`, the default, closes it at once.
    fn adopted(
        &mut self,
        io: &mut Io<Self::Conn>,
        key: Key,
        peer: SocketAddr,
    ) -> Option<Self::Conn> {
        let _ = (io, key, peer);
        None
    }

    /// A connection of [`Io::connect`] is established; called once, before any other call for it,
    /// and not if the handler has closed it meanwhile.
    fn connected(&mut self, io: &mut Io<Self::Conn>, key: Key) {
        let _ = (io, key);
    }

    /// The first bytes of an accepted connection with TLS, if [`crate::Config::has_header`]: how
    /// many of them are a header in front of the handshake. `None`: it is incomplete, and the same
    /// bytes come again with more, or the handler has closed the connection. Called again if the
    /// header ends before the handshake begins. At most 16 kB are shown.
    fn header(&mut self, io: &mut Io<Self::Conn>, key: Key, data: &[u8]) -> Option<usize> {
        let _ = (io, key, data);
        Some(0)
    }

    /// The TLS handshake of a connection is done, before any other call for it but
    /// [`Handler::connected`].
    fn secured(&mut self, io: &mut Io<Self::Conn>, key: Key) {
        let _ = (io, key);
    }

    /// The TLS handshake of a connection has failed: it closes.
    fn insecure(&mut self, io: &mut Io<Self::Conn>, key: Key, why: &HandshakeError) {
        let _ = (io, key, why);
    }

    /// Bytes arrived, in the loop's own read buffer; they may be changed in place. The handler
    /// takes all of them and keeps what it cannot use yet. For a local connection there are none:
    /// the call follows [`Io::announce_local`].
    fn readable(&mut self, io: &mut Io<Self::Conn>, key: Key, data: &mut [u8]);

    /// Output of local connections ([`Io::open_local`]); that of others goes to their sockets.
    /// Nothing must be sent from here.
    fn local(&mut self, io: &mut Io<Self::Conn>, output: &mut LocalOutput) {
        let _ = (io, output);
    }

    /// A packet came from the TUN device of [`crate::Config::tun`], in the loop's own read buffer.
    fn packet(&mut self, io: &mut Io<Self::Conn>, packet: &mut [u8]) {
        let _ = (io, packet);
    }

    /// The connection has ended; called exactly once for each record that was not taken away. Its
    /// descriptor is closed and `key` finds nothing any more.
    fn closed(&mut self, io: &mut Io<Self::Conn>, key: Key, conn: Self::Conn, why: Closed);

    /// A mail came; give its bytes back with [`crate::Mailbox::discharge`] after its effect.
    fn mail(&mut self, io: &mut Io<Self::Conn>, mail: Self::Mail);

    /// Runs at the end of each turn, after the flush: fan-out slices, sweeps. Returns when it has
    /// to run again at the latest. At most 1 ms per call keeps a turn under 2 ms.
    fn turn_end(&mut self, io: &mut Io<Self::Conn>) -> Next;

    /// A connection whose output waited has none waiting any more: the peer has caught up.
    fn drained(&mut self, io: &mut Io<Self::Conn>, key: Key) {
        let _ = (io, key);
    }

    /// The connection's outbound queue exceeded [`crate::Config::outbound_bytes_max`], did not move
    /// for [`crate::Config::slow_after`], or was the worst when all queues exceeded
    /// [`crate::Config::outbound_budget_bytes`].
    fn slow(&mut self, io: &mut Io<Self::Conn>, key: Key) -> Slow;

    /// The shard stops: the last call before every connection is closed.
    fn stopping(&mut self, io: &mut Io<Self::Conn>) {
        let _ = io;
    }
}

/// Where an accepted connection came from.
#[derive(Clone, Copy, Debug)]
pub struct Accepted {
    /// The key the connection will have.
    pub key: Key,
    /// Index of the listener in the list of addresses.
    pub listener: u16,
    /// The shard is full and this one was taken from the reserve: refuse it and close soon.
    pub over_capacity: bool,
}

/// How to end a connection whose queue exceeded the limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Slow {
    /// Drop what is queued except for the rest of a write that has begun, append `farewell`, give
    /// the peer [`crate::Config::linger`] to take that, then close.
    Cut {
        /// The last bytes, for example a close frame; may be empty.
        farewell: Vec<u8>,
    },
    /// Reset the connection at once.
    Abort,
}
