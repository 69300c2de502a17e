//! The connections of one device: finds the connection of a packet, sends what is due, and keeps
//! the timers. Without I/O and clock.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io;
use std::net::{Ipv4Addr, SocketAddrV4};

use simurgh_reactor::{Io, Key};

use super::rto::Rto;
use super::segment::{self, ACK, Ends, FIN, HEADER_BYTES, RST, SYN, Segment};
use super::table::{Record, Table};
use super::tcp::{End, Received, Tcp};
use super::{Network, PORT_FIRST, PORTS};
use crate::connection::NO_KEY;

/// How long a timer may be set: a later deadline is looked at again then. It is not above the
/// shortest timeout, so that a timer of an earlier connection of a place is never too late.
const TIMER_MS_MAX: u64 = 1000;

/// Takes packets to the network, which may lose them.
pub trait Link {
    /// Sends one IPv4 packet.
    fn send(&mut self, packet: &[u8]);
}

impl<T> Link for Io<T> {
    fn send(&mut self, packet: &[u8]) {
        self.send_packet(packet);
    }
}

/// The meaning of a packet for the user of a connection.
#[derive(Debug, PartialEq, Eq)]
pub struct Arrival<'p> {
    /// The user's key.
    pub key: Key,
    /// The connection is established.
    pub is_connected: bool,
    /// New bytes for the user.
    pub data: &'p mut [u8],
    /// The connection has ended, after `data`.
    pub end: Option<End>,
}

/// The connections of one device. Times are milliseconds of one clock.
pub struct Stack {
    first: Ipv4Addr,
    /// Places for connections: each has one of the addresses, and a port.
    places: u32,
    table: Table,
    remotes: Vec<SocketAddrV4>,
    /// Connections with something to send.
    due: Vec<u32>,
    timers: BinaryHeap<Reverse<(u64, u32)>>,
    rto: Rto,
    packet: Vec<u8>,
}

impl Stack {
    /// A stack with the client addresses of a network. Connections begin at `sequence`, which
    /// should be higher than in an earlier run.
    pub fn new(network: &Network, sequence: u32) -> Self {
        Self {
            first: network.first_client(),
            places: u32::try_from(network.clients()).unwrap_or(u32::MAX - 1),
            table: Table::new(sequence),
            remotes: Vec::new(),
            due: Vec::new(),
            timers: BinaryHeap::new(),
            rto: Rto::default(),
            packet: Vec::with_capacity(HEADER_BYTES),
        }
    }

    /// Whether there is no connection any more, not even one that is still closing.
    pub fn is_empty(&self) -> bool {
        self.table.len() == 0
    }

    /// Begins a connection, whose place it returns; all later calls need both place and `key`. An
    /// error if all places are used.
    pub fn connect(
        &mut self,
        link: &mut impl Link,
        now_ms: u64,
        to: SocketAddrV4,
        key: Key,
    ) -> io::Result<u32> {
        let known = self.remotes.iter().position(|remote| *remote == to);
        let remote = known.unwrap_or_else(|| {
            self.remotes.push(to);
            self.remotes.len() - 1
        });
        let remote = u16::try_from(remote).map_err(|_| io::ErrorKind::InvalidInput)?;
        let place = self.table.add(key, remote, self.places);
        let place = place.ok_or(io::ErrorKind::AddrNotAvailable)?;
        self.transmit(link, now_ms, place);
        Ok(place)
    }

    /// Handles a packet of the device. [`Stack::flush`] sends its acknowledgement, unless that goes
    /// with output.
    pub fn receive<'p>(
        &mut self,
        link: &mut impl Link,
        now_ms: u64,
        packet: &'p mut [u8],
    ) -> Option<Arrival<'p>> {
        let (ends, segment, payload) = segment::parse(packet)?;
        let bytes = payload.len();
        let Some((place, tcp)) = self.find(ends) else {
            self.refuse(link, ends, &segment, bytes);
            return None;
        };
        let received = tcp.receive(now_ms as u32, &segment, bytes);
        let Received { is_connected, data, end, rtt_ms, is_refused } = received;
        if is_refused {
            self.refuse(link, ends, &segment, bytes);
        }
        if let Some(rtt_ms) = rtt_ms {
            self.rto.measured(rtt_ms);
        }
        self.list(place);
        let key = self.table.place(place)?.user()?;
        Some(Arrival { key, is_connected, data: payload.get_mut(data).unwrap_or_default(), end })
    }

    fn find(&mut self, ends: Ends) -> Option<(u32, &mut Tcp)> {
        let Ends { local, remote } = ends;
        let address = local.ip().to_bits().checked_sub(self.first.to_bits())?;
        let port = u32::from(local.port().checked_sub(PORT_FIRST)?);
        let place = address.checked_mul(PORTS)?.checked_add(port)?;
        let tcp = &mut self.table.place(place)?.tcp;
        let of = self.remotes.get(usize::from(tcp.remote));
        (!tcp.is_dead() && of == Some(&remote)).then_some((place, tcp))
    }

    fn ends(&self, place: u32, remote: u16) -> Option<Ends> {
        let address = Ipv4Addr::from_bits(self.first.to_bits() + place / PORTS);
        let local = SocketAddrV4::new(address, PORT_FIRST + (place % PORTS) as u16);
        Some(Ends { local, remote: *self.remotes.get(usize::from(remote))? })
    }

    /// Answers a segment that belongs to no connection (RFC 9293 §3.10.7.1).
    fn refuse(&mut self, link: &mut impl Link, ends: Ends, segment: &Segment, payload: usize) {
        if segment.has(RST) {
            return;
        }
        let reset = if segment.has(ACK) {
            Segment { seq: segment.ack, flags: RST, ..Segment::default() }
        } else {
            let length = payload as u32 + u32::from(segment.has(SYN)) + u32::from(segment.has(FIN));
            let ack = segment.seq.wrapping_add(length);
            Segment { ack, flags: RST | ACK, ..Segment::default() }
        };
        segment::write(&mut self.packet, ends, &reset, &[]);
        link.send(&self.packet);
    }

    fn record(&mut self, place: u32, key: Key) -> Option<&mut Record> {
        self.table.place(place).filter(|record| record.key == key && !record.tcp.is_dead())
    }

    /// Sends bytes to the peer, together with what is due. Returns how many now wait for it.
    pub fn send(
        &mut self,
        link: &mut impl Link,
        now_ms: u64,
        (place, key): (u32, Key),
        bytes: &[u8],
    ) -> usize {
        let Some(record) = self.record(place, key) else { return 0 };
        let waiting = record.tcp.send(bytes);
        self.transmit(link, now_ms, place);
        waiting
    }

    /// Keeps bytes of an [`Arrival`] for [`Stack::read`]: the connection's window shrinks by them.
    pub fn hold(&mut self, (place, key): (u32, Key), bytes: &[u8]) {
        if let Some(record) = self.record(place, key) {
            record.tcp.hold(bytes);
        }
    }

    /// The bytes that were kept, and whether the peer sends no more.
    pub fn read(&mut self, (place, key): (u32, Key)) -> (Vec<u8>, bool) {
        let Some(record) = self.record(place, key) else { return (Vec::new(), false) };
        let read = (record.tcp.take_held(), record.tcp.peer_has_closed());
        self.list(place);
        read
    }

    /// Closes the connection for its user. Its output is still delivered, then it ends by itself.
    pub fn close(&mut self, link: &mut impl Link, now_ms: u64, (place, key): (u32, Key)) {
        let Some(record) = self.record(place, key) else { return };
        record.key = NO_KEY;
        record.tcp.close();
        self.transmit(link, now_ms, place);
    }

    /// Resets the connection.
    pub fn abort(&mut self, link: &mut impl Link, (place, key): (u32, Key)) {
        if self.record(place, key).is_some() {
            self.reset(link, place);
        }
    }

    /// Resets all connections.
    pub fn abort_all(&mut self, link: &mut impl Link) {
        for place in 0..self.table.places() {
            self.reset(link, place);
        }
    }

    fn reset(&mut self, link: &mut impl Link, place: u32) {
        let Some(record) = self.table.place(place).filter(|record| !record.tcp.is_dead()) else {
            return;
        };
        let (reset, remote) = (record.tcp.abort(), record.tcp.remote);
        self.table.free(place);
        let ends = self.ends(place, remote);
        if let Some((reset, ends)) = reset.zip(ends) {
            segment::write(&mut self.packet, ends, &reset, &[]);
            link.send(&self.packet);
        }
    }

    /// Notes that the connection may have something to send.
    fn list(&mut self, place: u32) {
        if let Some(record) = self.table.place(place).filter(|record| !record.is_listed) {
            record.is_listed = true;
            self.due.push(place);
        }
    }

    /// Sends what is due for all connections: acknowledgements, and output after one.
    pub fn flush(&mut self, link: &mut impl Link, now_ms: u64) {
        let mut due = std::mem::take(&mut self.due);
        for place in due.drain(..) {
            if let Some(record) = self.table.place(place) {
                record.is_listed = false;
            }
            self.transmit(link, now_ms, place);
        }
        self.due = due;
    }

    fn transmit(&mut self, link: &mut impl Link, now_ms: u64, place: u32) {
        let remote = self.table.place(place).map_or(0, |record| record.tcp.remote);
        let Some(ends) = self.ends(place, remote) else { return };
        let Some(record) = self.table.place(place) else { return };
        let packet = &mut self.packet;
        record.tcp.transmit(now_ms as u32, |segment, payload| {
            segment::write(packet, ends, segment, payload);
            link.send(packet);
        });
        self.settle(now_ms, place);
    }

    /// Frees the connection's place, or sets its timer.
    fn settle(&mut self, now_ms: u64, place: u32) {
        let rto_ms = self.rto.ms();
        let Some(record) = self.table.place(place) else { return };
        if record.tcp.is_done() {
            self.table.free(place);
        } else if let Some(deadline_ms) = record.tcp.deadline_ms(rto_ms)
            && !record.has_timer
        {
            record.has_timer = true;
            let left_ms = deadline_ms.wrapping_sub(now_ms as u32) as i32;
            let due_ms = now_ms + u64::from(left_ms.max(0) as u32).min(TIMER_MS_MAX);
            self.timers.push(Reverse((due_ms, place)));
        }
    }

    /// When [`Stack::run_due`] has work.
    pub fn next_ms(&self) -> Option<u64> {
        self.timers.peek().map(|next| next.0.0)
    }

    /// Handles timers that are due. Returns a connection that has ended, and is to be called again
    /// until it returns none.
    pub fn run_due(&mut self, link: &mut impl Link, now_ms: u64) -> Option<(Key, End)> {
        let rto_ms = self.rto.ms();
        while self.next_ms().is_some_and(|due_ms| due_ms <= now_ms) {
            let Some(Reverse((_, place))) = self.timers.pop() else { break };
            let Some(record) = self.table.place(place) else { continue };
            record.has_timer = false;
            let deadline_ms = record.tcp.deadline_ms(rto_ms);
            let is_due =
                deadline_ms.is_some_and(|at_ms| at_ms.wrapping_sub(now_ms as u32) as i32 <= 0);
            let end = if is_due { record.tcp.timeout(now_ms as u32) } else { None };
            let user = record.user();
            self.transmit(link, now_ms, place);
            if let Some(ended) = user.zip(end) {
                return Some(ended);
            }
        }
        None
    }
}
