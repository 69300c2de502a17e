//! Connections over a TUN device: local connections of the reactor, whose other end is a TCP of
//! this tool ([`simurgh_load_client::tun`]). Users see no difference.

use std::io::{self, ErrorKind as IoErrorKind};
use std::net::SocketAddr;

use simurgh_load_client::OUTBOUND_BYTES_MAX;
use simurgh_load_client::tun::{Arrival, End, Stack};
use simurgh_reactor::{Closed, Key, LocalOutput};

use super::Worker;
use super::services::{Conn, Net};

pub(super) fn now_ms(io: &Net) -> u64 {
    io.now().ns / 1_000_000
}

/// How the reactor names the end of a socket that ended like this.
fn closed(end: End) -> Closed {
    match end {
        End::Refused => Closed::Unconnected(IoErrorKind::ConnectionRefused),
        End::Reset => Closed::Reset(IoErrorKind::ConnectionReset),
        End::TimedOut(false) => Closed::Unconnected(IoErrorKind::TimedOut),
        End::TimedOut(true) => Closed::Reset(IoErrorKind::TimedOut),
        End::Closed => Closed::PeerEof,
    }
}

/// Begins a connection of the user at `owner`.
pub(super) fn dial(io: &mut Net, tun: &mut Stack, to: SocketAddr, owner: u32) -> io::Result<Key> {
    let SocketAddr::V4(to) = to else { return Err(IoErrorKind::Unsupported.into()) };
    let key = io.open_local(Conn::socket(owner)).map_err(|_| IoErrorKind::OutOfMemory)?;
    let now_ms = now_ms(io);
    let place = tun.connect(io, now_ms, to, key);
    if let Some(conn) = io.conn(key) {
        match &place {
            Ok(place) => conn.place = *place,
            Err(_) => *conn = Conn::NOBODY,
        }
    }
    if place.is_err() {
        io.abort(key);
    }
    place.map(|_| key)
}

impl Worker {
    /// A packet came from the device.
    pub(super) fn packet_in(&mut self, io: &mut Net, packet: &mut [u8]) {
        let Some(tun) = &mut self.services.tun else { return };
        let now_ms = now_ms(io);
        let Some(Arrival { key, is_connected, data, end }) = tun.receive(io, now_ms, packet) else {
            return;
        };
        if is_connected {
            self.established(io, key);
        }
        if !io.is_held(key) {
            if !data.is_empty() {
                self.bytes_in(io, key, data);
            }
        } else if let Some(tun) = &mut self.services.tun {
            // Also the end of what it sends, which the user of a socket would not see now either.
            let place = io.conn_ref(key).map_or(Conn::NO_PLACE, |conn| conn.place);
            tun.hold((place, key), data);
            io.announce_local(key);
        }
        match end {
            Some(End::Closed) if io.is_held(key) => io.announce_local(key),
            Some(end) => io.end_local(key, closed(end)),
            None => {}
        }
    }

    /// A connection over the device is read again.
    pub(super) fn read_held(&mut self, io: &mut Net, key: Key) {
        let place = io.conn_ref(key).map_or(Conn::NO_PLACE, |conn| conn.place);
        let Some(tun) = &mut self.services.tun else { return };
        let (mut held, has_ended) = tun.read((place, key));
        if !held.is_empty() {
            self.bytes_in(io, key, &mut held);
        }
        match has_ended {
            true if io.is_held(key) => io.announce_local(key),
            true => io.end_local(key, Closed::PeerEof),
            false => {}
        }
    }

    /// Output of users to the device.
    pub(super) fn output_to_tun(&mut self, io: &mut Net, output: &mut LocalOutput) {
        let Some(tun) = &mut self.services.tun else { return };
        let now_ms = now_ms(io);
        while let Some((key, bytes)) = output.next() {
            let Some(place) = io.conn_ref(key).map(|conn| conn.place) else { continue };
            if tun.send(io, now_ms, (place, key), bytes) > OUTBOUND_BYTES_MAX {
                io.end_local(key, Closed::Slow);
            }
        }
    }

    /// Sends acknowledgements that no output took along, and handles timers.
    pub(super) fn run_tun(&mut self, io: &mut Net) {
        let Some(tun) = &mut self.services.tun else { return };
        let now_ms = now_ms(io);
        tun.flush(io, now_ms);
        while let Some((key, end)) = tun.run_due(io, now_ms) {
            io.end_local(key, closed(end));
        }
    }
}
