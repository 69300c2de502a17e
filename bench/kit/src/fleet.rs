//! The clients: one thread, one epoll, as many joined connections as one descriptor table holds.
//!
//! Every delivery is verified, not only counted: broadcasts carry a running number and each
//! connection knows which one it must see next, so one that is missing, doubled or out of order is
//! noticed on the connection it happened to.

use std::collections::BTreeMap;
use std::net::SocketAddrV4;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::event::epoll::{self, CreateFlags, Event, EventFlags};
use rustix::io::Errno;
use rustix::net::{SendFlags, sockopt};
use serde::Serialize;

use crate::frames::{self, Kind};
use crate::net::{self, check_upgrade, head_length};

/// Handshakes under way at once, as in the comparison with other servers.
const IN_FLIGHT: usize = 128;
const READ_BYTES: usize = 64 * 1024;

/// What each client sends to get in.
pub struct Script {
    /// The upgrade request.
    pub upgrade: Vec<u8>,
    /// The whole masked join frame.
    pub join: Vec<u8>,
}

impl Script {
    /// A V2 client of `rooms:lobby` at the server's own address.
    pub fn lobby(server: SocketAddrV4) -> Self {
        let path = "/socket/websocket?vsn=2.0.0";
        let mut join = Vec::new();
        frames::masked(frames::TEXT, frames::JOIN, &mut join);
        Self { upgrade: frames::upgrade_request(path, &server.to_string(), ""), join }
    }
}

/// Everything that was received, over all connections.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Tally {
    /// Broadcasts received, each at its turn.
    pub delivered: u64,
    /// Numbers a connection was passed over for.
    pub missed: u64,
    /// Broadcasts received a second time or after a later one.
    pub repeated: u64,
    /// `new:msg` of the wrong form or length, fragments, and what is not a Channels message.
    pub odd: u64,
    /// Replies after the join's.
    pub replies: u64,
    /// Replies whose status was not `ok`.
    pub refused: u64,
    /// Other messages by event.
    pub events: BTreeMap<String, u64>,
    /// Close frames by code.
    pub closes: BTreeMap<u16, u64>,
    /// Connections that ended without the client wanting it.
    pub lost: u64,
}

#[derive(Clone, Copy, PartialEq)]
enum State {
    Connecting,
    Upgrading,
    Joining,
    Joined,
}

struct Conn {
    socket: Option<OwnedFd>,
    state: State,
    /// Number of the broadcast that must come next.
    next: u32,
    /// Bytes of a frame that is not whole yet.
    partial: Vec<u8>,
}

/// All connections of one run.
pub struct Fleet {
    epoll: OwnedFd,
    server: SocketAddrV4,
    script: Script,
    conns: Vec<Conn>,
    events: Vec<Event>,
    buf: Vec<u8>,
    tally: Tally,
    joined: usize,
    /// Number of the next broadcast that will be published.
    next: u32,
    /// Copy of `tally.delivered` for the join probe's thread.
    progress: Arc<AtomicU64>,
}

impl Fleet {
    /// No connection yet.
    pub fn new(server: SocketAddrV4, script: Script) -> Result<Self> {
        Ok(Self {
            epoll: epoll::create(CreateFlags::CLOEXEC)?,
            server,
            script,
            conns: Vec::new(),
            events: Vec::with_capacity(256),
            buf: vec![0; READ_BYTES],
            tally: Tally::default(),
            joined: 0,
            next: 0,
            progress: Arc::default(),
        })
    }

    /// What came in so far.
    pub fn tally(&self) -> &Tally {
        &self.tally
    }

    /// Joined connections that are still open.
    pub fn joined(&self) -> usize {
        self.joined
    }

    /// Deliveries as they are counted, for another thread to look at.
    pub fn progress(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.progress)
    }

    /// Opens connections until `total` are joined.
    pub fn grow(&mut self, total: usize, within: Duration) -> Result<()> {
        let deadline = Instant::now() + within;
        while self.joined < total {
            let open = self.conns.len();
            let lost = usize::try_from(self.tally.lost)?;
            if open < total && open.saturating_sub(self.joined + lost) < IN_FLIGHT {
                self.open()?;
                continue;
            }
            ensure!(lost == 0, "the server cut {lost} connections during the joins");
            ensure!(self.tally.refused == 0, "a join was refused");
            ensure!(
                Instant::now() < deadline,
                "{} of {total} joined after {within:?}",
                self.joined
            );
            self.pump(Duration::from_millis(100))?;
        }
        Ok(())
    }

    fn open(&mut self) -> Result<()> {
        let index = self.conns.len();
        let socket = net::dial(self.server, index, false)?;
        let flags = EventFlags::IN | EventFlags::OUT | EventFlags::RDHUP | EventFlags::ET;
        net::add(&self.epoll, &socket, index, flags)?;
        let state = State::Connecting;
        self.conns.push(Conn { socket: Some(socket), state, next: 0, partial: Vec::new() });
        Ok(())
    }

    /// Reads for `time`, so that stragglers are seen and the server comes to rest.
    pub fn rest(&mut self, time: Duration) -> Result<()> {
        let until = Instant::now() + time;
        while let Some(left) = until.checked_duration_since(Instant::now()) {
            if left.is_zero() {
                break;
            }
            self.pump(left)?;
        }
        Ok(())
    }

    /// Reads until `done`, at most for `within`.
    fn until(&mut self, within: Duration, done: impl Fn(&Tally) -> bool) -> Result<()> {
        let deadline = Instant::now() + within;
        while !done(&self.tally) {
            ensure!(self.tally.lost == 0, "the server cut {} connections", self.tally.lost);
            ensure!(Instant::now() < deadline, "nothing more after {within:?}: {:?}", self.tally);
            self.pump(Duration::from_millis(100))?;
        }
        Ok(())
    }

    /// Publishes `count` broadcasts in one write of the first client.
    pub fn publish(&mut self, count: u32) -> Result<()> {
        let mut bytes = Vec::new();
        for seq in self.next..self.next + count {
            frames::masked(frames::TEXT, &frames::push(seq), &mut bytes);
        }
        self.next += count;
        self.write(0, &bytes)
    }

    /// Publishes, waits until every client has every one and the publisher its replies; the time
    /// until then.
    pub fn broadcast(&mut self, count: u32, within: Duration) -> Result<Duration> {
        let target = self.tally.delivered + u64::from(count) * u64::try_from(self.joined)?;
        let replies = self.tally.replies + u64::from(count);
        let started = Instant::now();
        self.publish(count)?;
        self.until(within, |tally| tally.delivered >= target && tally.replies >= replies)?;
        Ok(started.elapsed())
    }

    /// Waits for a broadcast published earlier: until all clients have `delivered` in total.
    pub fn await_delivered(&mut self, delivered: u64, within: Duration) -> Result<()> {
        self.until(within, |tally| tally.delivered >= delivered)
    }

    /// One heartbeat of the first client; the time until its answer.
    pub fn heartbeat(&mut self) -> Result<Duration> {
        let mut bytes = Vec::new();
        frames::masked(frames::TEXT, frames::HEARTBEAT, &mut bytes);
        let target = self.tally.replies + 1;
        let started = Instant::now();
        self.write(0, &bytes)?;
        self.until(Duration::from_secs(5), |tally| tally.replies >= target)?;
        Ok(started.elapsed())
    }

    /// One heartbeat of every client at once, no answer awaited.
    pub fn send_heartbeats(&self) -> Result<()> {
        let mut bytes = Vec::new();
        frames::masked(frames::TEXT, frames::HEARTBEAT, &mut bytes);
        (0..self.conns.len()).try_for_each(|index| self.write(index, &bytes))
    }

    /// The same, all answers awaited.
    pub fn heartbeat_all(&mut self) -> Result<()> {
        let target = self.tally.replies + u64::try_from(self.conns.len())?;
        self.send_heartbeats()?;
        self.until(Duration::from_secs(60), |tally| tally.replies >= target)
    }

    /// Connections that have not had exactly every broadcast so far.
    pub fn behind(&self) -> usize {
        self.conns.iter().filter(|conn| conn.next != self.next).count()
    }

    fn write(&self, index: usize, bytes: &[u8]) -> Result<()> {
        let socket = self.conns.get(index).and_then(|conn| conn.socket.as_ref());
        let socket = socket.context("the connection is closed")?;
        let sent = rustix::net::send(socket, bytes, SendFlags::NOSIGNAL)?;
        ensure!(sent == bytes.len(), "the server does not read: {sent} of {} bytes", bytes.len());
        Ok(())
    }

    /// Waits for events, at most for `time`, and handles them.
    fn pump(&mut self, time: Duration) -> Result<()> {
        let mut events = std::mem::take(&mut self.events);
        net::wait(&self.epoll, &mut events, Some(time))?;
        for event in &events {
            self.ready(usize::try_from(event.data.u64())?)?;
        }
        self.events = events;
        self.progress.store(self.tally.delivered, Ordering::Relaxed);
        Ok(())
    }

    fn ready(&mut self, index: usize) -> Result<()> {
        let Some(conn) = self.conns.get_mut(index) else { return Ok(()) };
        let Some(socket) = &conn.socket else { return Ok(()) };
        if conn.state == State::Connecting {
            if let Err(error) = sockopt::socket_error(socket)? {
                bail!("connection {index} failed: {error}");
            }
            conn.state = State::Upgrading;
            let request = std::mem::take(&mut self.script.upgrade);
            let sent = self.write(index, &request);
            self.script.upgrade = request;
            sent?;
        }
        let mut buf = std::mem::take(&mut self.buf);
        let outcome = self.drain(index, &mut buf);
        self.buf = buf;
        outcome
    }

    /// Reads one connection until it is empty: events are edge triggered.
    fn drain(&mut self, index: usize, buf: &mut [u8]) -> Result<()> {
        loop {
            let Some(conn) = self.conns.get_mut(index) else { return Ok(()) };
            let Some(socket) = &conn.socket else { return Ok(()) };
            let count = match rustix::io::read(socket, &mut *buf) {
                Ok(0) => return self.lose(index),
                Ok(count) => count,
                Err(Errno::AGAIN) => return Ok(()),
                Err(Errno::INTR) => continue,
                Err(_) => return self.lose(index),
            };
            let whole = count < buf.len();
            let Some(input) = buf.get(..count) else { return Ok(()) };
            if conn.partial.is_empty() {
                let used = self.consume(index, input)?;
                self.keep(index, input.get(used..).unwrap_or_default().to_vec());
            } else {
                let mut input_so_far = std::mem::take(&mut conn.partial);
                input_so_far.extend_from_slice(input);
                let used = self.consume(index, &input_so_far)?;
                self.keep(index, input_so_far.split_off(used));
            }
            if whole {
                return Ok(());
            }
        }
    }

    fn keep(&mut self, index: usize, rest: Vec<u8>) {
        if let Some(conn) = self.conns.get_mut(index) {
            conn.partial = rest;
        }
    }

    /// Handles what is whole at the front of `input` and returns how much that was.
    fn consume(&mut self, index: usize, input: &[u8]) -> Result<usize> {
        let mut used = 0;
        if self.conns.get(index).is_some_and(|conn| conn.state == State::Upgrading) {
            let Some(head) = head_length(input) else { return Ok(0) };
            check_upgrade(input.get(..head).unwrap_or_default())?;
            used = head;
            if let Some(conn) = self.conns.get_mut(index) {
                conn.state = State::Joining;
            }
            let join = std::mem::take(&mut self.script.join);
            let sent = self.write(index, &join);
            self.script.join = join;
            sent?;
        }
        while let Some(frame) = frames::frame(input.get(used..).unwrap_or_default()) {
            used += frame.len;
            self.message(index, &frame);
        }
        Ok(used)
    }

    fn message(&mut self, index: usize, frame: &frames::Frame<'_>) {
        if frame.opcode == frames::CLOSE {
            let code =
                frame.payload.first_chunk::<2>().map_or(1005, |two| u16::from_be_bytes(*two));
            *self.tally.closes.entry(code).or_default() += 1;
            return;
        }
        if !frame.fin || !matches!(frame.opcode, frames::TEXT | frames::BINARY) {
            self.tally.odd += 1;
            return;
        }
        let Some(conn) = self.conns.get_mut(index) else { return };
        match frames::classify(frame.payload) {
            Kind::Broadcast(seq) => {
                if seq < conn.next {
                    self.tally.repeated += 1;
                    return;
                }
                self.tally.missed += u64::from(seq - conn.next);
                self.tally.delivered += 1;
                conn.next = seq + 1;
            }
            Kind::Reply(ok) => {
                self.tally.refused += u64::from(!ok);
                if conn.state == State::Joining {
                    if ok {
                        conn.state = State::Joined;
                        conn.next = self.next;
                        self.joined += 1;
                    }
                } else {
                    self.tally.replies += 1;
                }
            }
            Kind::Event(name) => *self.tally.events.entry(name).or_default() += 1,
            Kind::Odd => self.tally.odd += 1,
        }
    }

    fn lose(&mut self, index: usize) -> Result<()> {
        let conn = self.conns.get_mut(index).context("no such connection")?;
        conn.socket = None;
        self.tally.lost += 1;
        if conn.state == State::Joined {
            self.joined = self.joined.saturating_sub(1);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fleet() -> Fleet {
        let server = "127.0.0.1:1".parse().unwrap();
        let mut fleet = Fleet::new(server, Script::lobby(server)).unwrap();
        let state = State::Joined;
        fleet.conns.push(Conn { socket: None, state, next: 0, partial: Vec::new() });
        fleet.joined = 1;
        fleet
    }

    #[test]
    fn a_gap_a_repeat_and_a_swap_are_noticed() {
        let mut fleet = fleet();
        for seq in [0, 1, 1, 4, 3] {
            fleet.consume(0, &frames::plain(&frames::broadcast(seq))).unwrap();
        }
        let tally = fleet.tally();
        assert_eq!((tally.delivered, tally.missed, tally.repeated), (3, 2, 2));
        fleet.next = 5;
        assert_eq!(fleet.behind(), 0);
        fleet.next = 6;
        assert_eq!(fleet.behind(), 1);
    }

    #[test]
    fn half_a_frame_stays() {
        let mut fleet = fleet();
        let one = frames::plain(&frames::broadcast(0));
        let two = [one.as_slice(), &one[..10]].concat();
        assert_eq!(fleet.consume(0, &two).unwrap(), one.len());
        assert_eq!(fleet.tally().delivered, 1);
    }

    #[test]
    fn announcements_and_closes_are_counted_apart() {
        let mut fleet = fleet();
        let entered = b"[null,null,\"rooms:lobby\",\"user:entered\",{\"user\":\"b\"}]";
        fleet.consume(0, &frames::plain(entered)).unwrap();
        fleet.consume(0, &[0x88, 2, 0x03, 0xf4]).unwrap();
        assert_eq!(fleet.tally().events, BTreeMap::from([("user:entered".to_owned(), 1)]));
        assert_eq!(fleet.tally().closes, BTreeMap::from([(1012, 1)]));
    }
}
