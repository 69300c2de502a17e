//! Connections with TLS that are for the HTTP side. It cannot have their keys, so it gets one end
//! of a socket pair, and this shard passes the bytes on between the other end and the client.
//!
//! At most a read buffer waits for one side: then the other is not read.

use simurgh_core::{NETWORK, Phase};
use simurgh_reactor::{HandOffError, Key};

use super::{Conn, Io, Passing};

/// Gives the HTTP side a connection with these bytes, as [`simurgh_reactor::Io::hand_off`] does
/// with one without TLS.
pub(super) fn begin(io: &mut Io, key: Key, read_ahead: &[u8]) -> Result<(), HandOffError> {
    let tick = io.now().tick;
    let mut to_http = Conn::new(Phase::Relay, tick, NETWORK);
    to_http.passing = Some(Box::new(Passing::Relay(key)));
    let other = io.hand_off_pair(to_http, read_ahead)?;
    if let Some(conn) = io.conn(key) {
        conn.socket.enter(Phase::Relay, tick);
        conn.passing = Some(Box::new(Passing::Relay(other)));
    }
    Ok(())
}

fn other_end(conn: &Conn) -> Option<Key> {
    match conn.passing.as_deref() {
        Some(Passing::Relay(other)) => Some(*other),
        _ => None,
    }
}

/// Bytes of one end, for the other.
pub(super) fn pass_on(io: &mut Io, key: Key, data: &[u8]) {
    let Some(other) = io.conn_ref(key).and_then(other_end) else { return io.close(key) };
    io.send(other, data);
    if io.queued(other) > 0 {
        io.hold(key);
    }
}

/// All output of a connection is written: its other end is read again.
pub(super) fn go_on(io: &mut Io, key: Key) {
    if let Some(other) = io.conn_ref(key).and_then(other_end) {
        io.release(other);
    }
}

/// One end is closed: so is the other, behind its output.
pub(super) fn end(io: &mut Io, conn: &Conn) {
    if let Some(other) = other_end(conn) {
        io.close(other);
    }
}
