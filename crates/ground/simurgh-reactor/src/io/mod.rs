//! Operations of a handler on the connections of its shard.
//!
//! Nothing here calls the handler: ends of connections are noted and carried out at the end of the
//! turn (`Reactor::end_connections` decides when), so a handler is never re-entered.

mod hand_off;
mod handshakes;
mod records;
mod write;

pub(crate) use records::Opened;
use write::{is_blocked, send};

use std::cell::Cell;
use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use mio::unix::SourceFd;
use mio::{Interest, Poll};

use simurgh_data::{Key, Now, Run, Shared};

use crate::clock::Clock;
use crate::config::Config;
use crate::connection::{Closed, Special, token};
use crate::net::{self, Ports};
use crate::outbound::{LocalOutput, Outbox};
use crate::slab::{
    CLOSE_SCHEDULED, CLOSING, CONNECTING, HELD, LISTED, MUTE, NO_SEND, PEER_SHUT, SHAKING, SHUT,
    Slab, Socket, TLS, UNREAD, WRITABLE,
};
use crate::stamps::Stamps;
use crate::stats::{Counts, ReactorStats};
use crate::tls::Tls;

/// The time of a turn for messages, mail and writes; fan-out has its own.
const TURN_NS: u64 = 1_000_000;
/// The output of a turn, bytes: writing it may take a millisecond.
const TURN_BYTES: usize = 512 << 10;
/// Parts into which a turn is divided where many connections are ready: fifty busy ones delay a
/// quiet one by five turns, not by fifty.
const SLICES_MAX: u32 = 10;

/// The part of a turn that one connection has taken, see [`Io::is_over`].
#[derive(Debug, Default)]
pub struct Slice(Option<u64>);

/// The shard's connections, and all operations on them.
pub struct Io<T> {
    pub(crate) poll: Poll,
    pub(crate) sockets: Slab<T>,
    pub(crate) outbox: Outbox,
    pub(crate) counts: Counts,
    pub(crate) now: Now,
    /// This turn has used its time: each of its stages ends after the next step.
    pub(crate) is_late: bool,
    slices: u32,
    pub(crate) ports: Ports,
    /// Only if the kernel is to stamp what it receives.
    pub(crate) stamps: Option<Stamps>,
    pub(crate) lists: Lists,
    /// `None` until there is a connection with TLS.
    pub(crate) tls: Option<Box<Tls>>,
    /// Output of local connections that the handler has not been given yet.
    pub(crate) local: LocalOutput,
    pub(crate) locals: usize,
    pub(crate) outbound_bytes_max: usize,
    pub(crate) outbound_budget_bytes: usize,
    pub(crate) slow_after_ns: Option<u64>,
    pub(crate) half_close: bool,
    /// Bytes of live shared frames, and of queues that are not shared.
    shared_bytes: Rc<Cell<usize>>,
    pub(crate) owned_bytes: usize,
    /// How long this thread could not serve although it should have, nanoseconds.
    pub(crate) lost_ns: u64,
    pub(crate) hand_off: Option<OwnedFd>,
    pub(crate) tun: Option<OwnedFd>,
    /// A descriptor was freed since accepting last failed.
    pub(crate) freed: bool,
    pub(crate) stop_listening: bool,
    pub(crate) stop: bool,
    pub(crate) clock: Clock,
    /// The last reading of the clock.
    pub(crate) looked_ns: Cell<u64>,
    linger_ns: u64,
    capacity: usize,
    stats: Arc<ReactorStats>,
}

#[derive(Default)]
pub(crate) struct Lists {
    /// To be read without an event.
    pub(crate) ready: VecDeque<Key>,
    /// Peers that have hung up: what they sent before is still to be read.
    pub(crate) hung_up: VecDeque<Key>,
    /// To be closed, or shut for writing, once their output is written.
    pub(crate) closing: Vec<Key>,
    /// Queues that exceeded the limit, or do not move.
    pub(crate) slow: Vec<Key>,
    /// Connections that had a queue when last checked, the longest unchecked first.
    pub(crate) blocked: VecDeque<Key>,
    pub(crate) drained: Vec<Key>,
    pub(crate) writable: VecDeque<Key>,
    pub(crate) scheduled_closes: VecDeque<(Key, Closed)>,
    /// Closing connections whose peers still take the rest, with their deadlines, ns.
    pub(crate) linger: VecDeque<(Key, u64)>,
}

impl<T> Io<T> {
    pub(crate) fn new(
        config: &Config,
        clock: Clock,
        capacity: usize,
        hand_off: Option<OwnedFd>,
        stats: Arc<ReactorStats>,
    ) -> io::Result<Self> {
        Ok(Self {
            poll: Poll::new()?,
            sockets: Slab::new(),
            outbox: Outbox::default(),
            counts: Counts::default(),
            now: Now::from_ns(clock.ns()),
            is_late: false,
            slices: 1,
            ports: Ports::default(),
            stamps: config.receive_stamps.then(|| Stamps::new(clock)),
            lists: Lists::default(),
            tls: config
                .tls
                .iter()
                .any(Option::is_some)
                .then(|| Tls::new(config.tls.clone(), config.has_header).into()),
            local: LocalOutput::default(),
            locals: 0,
            outbound_bytes_max: config.outbound_bytes_max,
            outbound_budget_bytes: config.outbound_budget_bytes,
            slow_after_ns: config.slow_after.map(nanoseconds),
            half_close: config.half_close,
            shared_bytes: Rc::default(),
            owned_bytes: 0,
            lost_ns: 0,
            hand_off,
            tun: None,
            freed: false,
            stop_listening: false,
            stop: false,
            clock,
            looked_ns: Cell::default(),
            linger_ns: nanoseconds(config.linger),
            capacity,
            stats,
        })
    }

    /// The time of this turn.
    pub fn now(&self) -> Now {
        self.now
    }

    /// A new reading of the same clock, where the time of the turn is too coarse.
    pub fn clock_ns(&self) -> u64 {
        let ns = self.clock.ns();
        self.looked_ns.set(ns);
        ns
    }

    /// Looks at the clock: whether this turn has used its time, or has much to write. Then a
    /// handler stops where it can, and all stages of the turn end after their next step. For use
    /// after work that may take more than some microseconds; stages look only now and then.
    pub fn is_late(&mut self) -> bool {
        self.note_late(self.clock_ns());
        self.is_late
    }

    fn note_late(&mut self, now_ns: u64) {
        let is_over = now_ns >= self.now.ns.saturating_add(TURN_NS);
        self.is_late |= is_over || self.outbox.turn_bytes >= TURN_BYTES;
    }

    /// Looks at the clock, as [`is_late`](Self::is_late): whether this turn, or one connection's
    /// part of it, has used its time. The part begins with its first look.
    pub fn is_over(&mut self, slice: &mut Slice) -> bool {
        let now_ns = self.clock_ns();
        let since_ns = *slice.0.get_or_insert(now_ns);
        self.note_late(now_ns);
        self.is_late || now_ns.saturating_sub(since_ns) >= TURN_NS / u64::from(self.slices)
    }

    /// Divides turns by the number of connections that were ready together. The number of parts
    /// rises at once and falls by one a turn.
    pub(crate) fn share_among(&mut self, count: usize) {
        let count = u32::try_from(count).unwrap_or(SLICES_MAX);
        self.slices = count.max(self.slices - 1).clamp(1, SLICES_MAX);
    }

    /// When the kernel received the last segment of the bytes that are being handled, on the same
    /// clock. Only within [`crate::Handler::readable`], with [`Config::receive_stamps`], on Linux;
    /// and not at first: the kernel takes up to about 0.2 s to enable stamps when no socket on the
    /// machine had them.
    ///
    /// The kernel stamps by the wall clock, whose distance to this one is measured each 100 ms to
    /// about 0.1 µs; after the wall clock was set, stamps are wrong by as much until the next
    /// measurement.
    pub fn received_at(&self) -> Option<u64> {
        self.stamps.as_ref()?.received_at
    }

    /// The shard's counters as published at the end of the last turn.
    pub fn stats(&self) -> &Arc<ReactorStats> {
        &self.stats
    }

    /// Open connections.
    pub fn len(&self) -> usize {
        self.sockets.len()
    }

    /// Whether it has no connection.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The number of connections from which on new ones count as over capacity.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// The record of a connection.
    #[inline]
    pub fn conn(&mut self, key: Key) -> Option<&mut T> {
        self.sockets.get_mut(key).map(|socket| &mut socket.data)
    }

    /// The record of a connection, read-only.
    #[inline]
    pub fn conn_ref(&self, key: Key) -> Option<&T> {
        self.sockets.get(key).map(|socket| &socket.data)
    }

    /// The peer's address, asked of the kernel; a local connection has none.
    pub fn peer_addr(&self, key: Key) -> io::Result<SocketAddr> {
        let fd = self.sockets.get(key).and_then(|socket| socket.fd.as_ref());
        net::peer_addr(fd.ok_or(io::ErrorKind::NotFound)?)
    }

    /// Whether the connection is a Unix socket, asked of the kernel.
    pub fn is_unix(&self, key: Key) -> bool {
        let fd = self.sockets.get(key).and_then(|socket| socket.fd.as_ref());
        fd.is_some_and(net::is_unix)
    }

    /// Bytes that the connection's peer has not taken yet, without those of this turn.
    #[inline]
    pub fn queued(&self, key: Key) -> usize {
        let queue = self.sockets.get(key).and_then(|socket| socket.queue.as_ref());
        queue.map_or(0, |queue| queue.bytes())
    }

    /// Adds to what this turn writes to the connection. Does nothing if it is gone, closing or cut.
    pub fn send(&mut self, key: Key, bytes: &[u8]) {
        self.send_with(key, |out| out.extend_from_slice(bytes));
    }

    /// Like [`Io::send`], but `write` appends straight to the turn's arena, and must not change
    /// what is there. `false`, and `write` is not called, if nothing can be sent.
    pub fn send_with(&mut self, key: Key, write: impl FnOnce(&mut Vec<u8>)) -> bool {
        self.write_with(key, |_, out| write(out)).is_some()
    }

    /// Like [`Io::send_with`], with access to the connection's record.
    pub fn write_with<R>(
        &mut self,
        key: Key,
        write: impl FnOnce(&mut T, &mut Vec<u8>) -> R,
    ) -> Option<R> {
        let socket = self.sockets.get_mut(key).filter(|socket| socket.flags & NO_SEND == 0)?;
        let start = self.outbox.arena.len();
        let result = write(&mut socket.data, &mut self.outbox.arena);
        debug_assert!(self.outbox.arena.len() >= start, "the arena holds other output");
        self.outbox.add_written(&mut socket.span, key, start);
        self.flush_if_full();
        Some(result)
    }

    /// Bytes that wait for peers; shared frames count once.
    pub fn waiting_bytes(&self) -> usize {
        self.shared_bytes.get() + self.owned_bytes
    }

    /// Wraps bytes for many connections; they count as waiting until they are dropped.
    pub fn share(&self, bytes: impl AsRef<[u8]> + 'static) -> Shared {
        Shared::counted(bytes, &self.shared_bytes)
    }

    /// The fan-out path: writes `frame` now if nothing is pending or queued for the connection,
    /// else after that; what the peer does not take is referred to, not copied.
    #[inline]
    pub fn send_shared(&mut self, key: Key, frame: &Shared) {
        debug_assert!(!frame.goes_on(), "what is in parts is a run");
        self.send_chosen(key, |_| Some((frame.as_bytes(), || Run::of(frame))));
    }

    /// The same for several frames, or one in parts. `whole` is the same bytes in one piece, for a
    /// single write; if empty, the system gathers them. Returns whether output now waits for the
    /// peer, as far as known.
    #[inline]
    pub fn send_run(&mut self, key: Key, run: &Run, whole: &[u8]) -> bool {
        if whole.is_empty() {
            self.send_gathered(key, run);
            return self.queued(key) > 0;
        }
        self.send_chosen(key, |_| Some((whole, || run.clone()))).unwrap_or(false)
    }

    /// The same where the connection's record decides what is sent: the bytes in one piece, and
    /// their run. `None`, and nothing is done, if the connection is gone or nothing is chosen.
    #[inline]
    pub fn send_chosen<'r, R: FnOnce() -> Run>(
        &mut self,
        key: Key,
        choose: impl FnOnce(&T) -> Option<(&'r [u8], R)>,
    ) -> Option<bool> {
        let socket = self.sockets.get_mut(key)?;
        let (bytes, run) = choose(&socket.data)?;
        let is_busy = socket.span != 0 || socket.queue.is_some();
        if socket.flags & (NO_SEND | CONNECTING | TLS) != 0 || is_busy {
            if socket.flags & (NO_SEND | CONNECTING | SHAKING) == 0 && !is_busy {
                return Some(self.send_secured(key, &run(), bytes));
            }
            self.run_behind(key, &run());
            return Some(self.queued(key) > 0);
        }
        let Some(fd) = &socket.fd else {
            self.local.add(key, bytes);
            return Some(false);
        };
        self.counts.writes += 1;
        Some(match write::send(fd, bytes) {
            Ok(written) if written == bytes.len() => {
                self.counts.bytes_out += written as u64;
                false
            }
            outcome => self.run_cut_short(key, &run(), 0, outcome),
        })
    }

    /// Adds frames to this turn's output by reference: a burst of frames leaves in one write.
    pub fn send_run_later(&mut self, key: Key, run: Run) {
        let Some(socket) = self.sockets.get_mut(key).filter(|s| s.flags & NO_SEND == 0) else {
            return;
        };
        self.outbox.add_run(&mut socket.span, key, run);
        self.flush_if_full();
    }

    /// Writes what the turn has gathered so far, as its end does: for the end of a fan-out slice.
    pub fn flush(&mut self) {
        write::flush(self);
    }

    /// Stops reading from the connection. A reset by the peer is still noticed; a close of its
    /// half, only at the [`Io::release`].
    pub fn hold(&mut self, key: Key) {
        if let Some(socket) = self.sockets.get_mut(key) {
            socket.flags |= HELD;
        }
    }

    /// Reads again, including what came meanwhile.
    pub fn release(&mut self, key: Key) {
        let Some(socket) = self.sockets.get_mut(key) else { return };
        socket.flags &= !HELD;
        if socket.flags & UNREAD != 0 {
            self.list_ready(key);
        }
    }

    /// Whether [`Io::hold`] is in force.
    pub fn is_held(&self, key: Key) -> bool {
        self.sockets.get(key).is_some_and(|socket| socket.flags & HELD != 0)
    }

    /// Whether the peer has sent bytes that were not read yet: asked of the kernel.
    pub fn has_input(&self, key: Key) -> bool {
        let fd = self.sockets.get(key).and_then(|socket| socket.fd.as_ref());
        fd.is_some_and(net::has_input)
    }

    /// Whether the peer is known to have closed its sending half; earlier input may be unread.
    pub fn peer_has_shut(&self, key: Key) -> bool {
        self.sockets.get(key).is_some_and(|socket| socket.flags & PEER_SHUT != 0)
    }

    /// Closes the connection once its output is written, at the latest after [`Config::linger`].
    /// From now on it has neither input nor further output.
    pub fn close(&mut self, key: Key) {
        if let Some(socket) = self.sockets.get_mut(key)
            && socket.flags & (CLOSING | CLOSE_SCHEDULED) == 0
        {
            socket.flags |= CLOSING;
            self.lists.closing.push(key);
        }
    }

    /// Tells the peer, once the output is written, that no more will come, and continues reading
    /// until it closes too or [`Io::close`]: then the last bytes are not lost to a reset.
    pub fn shutdown_write(&mut self, key: Key) {
        if let Some(socket) = self.sockets.get_mut(key)
            && socket.flags & NO_SEND == 0
        {
            socket.flags |= SHUT;
            self.lists.closing.push(key);
        }
    }

    /// Resets the connection at the end of the turn; nothing more is written.
    pub fn abort(&mut self, key: Key) {
        self.reset(key, Closed::Local);
    }

    /// Passes the records of the next `records` slots, used or not, from `cursor` on to `visit`,
    /// and collects the keys for which it returns `true`. The cursor is 0 again after the last
    /// slot.
    pub fn sweep(
        &mut self,
        cursor: &mut u32,
        records: usize,
        mut visit: impl FnMut(Key, &mut T) -> bool,
        out: &mut Vec<Key>,
    ) {
        self.sockets.visit(cursor, records, |key, socket| {
            if visit(key, &mut socket.data) {
                out.push(key);
            }
        });
    }

    /// Accepts what is in the backlog and then closes the listeners.
    pub fn stop_listening(&mut self) {
        self.stop_listening = true;
    }

    /// Ends the loop after this turn: pending output is written, all connections are closed.
    pub fn stop(&mut self) {
        self.stop = true;
    }
}

impl<T> Io<T> {
    pub(crate) fn register(&self, fd: &OwnedFd, key: Key, interest: Interest) -> io::Result<()> {
        self.poll.registry().register(&mut SourceFd(&fd.as_raw_fd()), token(key), interest)
    }

    pub(crate) fn register_special(&self, fd: RawFd, what: Special) -> io::Result<()> {
        self.poll.registry().register(&mut SourceFd(&fd), what.token(), Interest::READABLE)
    }

    pub(crate) fn deregister_special(&self, fd: RawFd) {
        if let Err(error) = self.poll.registry().deregister(&mut SourceFd(&fd)) {
            tracing::warn!(%error, "epoll_ctl failed");
        }
    }

    /// Asks for events of `key` again, with or without those of writability.
    pub(crate) fn reregister(&self, socket: &Socket<T>, key: Key, writable: bool) {
        let mut interest = Interest::READABLE;
        if writable {
            interest |= Interest::WRITABLE;
        }
        let Some(fd) = socket.fd.as_ref().map(AsRawFd::as_raw_fd) else { return };
        let registry = self.poll.registry();
        if let Err(error) = registry.reregister(&mut SourceFd(&fd), token(key), interest) {
            // It fails only without kernel memory; the queue waits for its next write or deadline.
            tracing::warn!(%error, "epoll_ctl failed");
        }
    }

    /// Puts `key` on the list of sockets to read without an event.
    pub(crate) fn list_ready(&mut self, key: Key) {
        if let Some(socket) = self.sockets.get_mut(key)
            && socket.flags & LISTED == 0
        {
            socket.flags |= LISTED;
            self.lists.ready.push_back(key);
        }
    }

    /// Puts `key` on the list of sockets whose queue can be written, if it has one.
    pub(crate) fn list_writable(&mut self, key: Key) {
        if let Some(socket) = self.sockets.get_mut(key)
            && socket.queue.is_some()
            && socket.flags & WRITABLE == 0
        {
            socket.flags |= WRITABLE;
            self.lists.writable.push_back(key);
        }
    }

    pub(crate) fn list_hung_up(&mut self, key: Key) {
        if let Some(socket) = self.sockets.get_mut(key)
            && socket.flags & LISTED == 0
        {
            socket.flags |= LISTED;
            self.lists.hung_up.push_back(key);
        }
    }

    /// Notes that `key` ends with this turn; the first reason counts.
    pub(crate) fn schedule_close(&mut self, key: Key, why: Closed) {
        if let Some(socket) = self.sockets.get_mut(key)
            && socket.flags & CLOSE_SCHEDULED == 0
        {
            socket.flags |= CLOSE_SCHEDULED;
            if matches!(why, Closed::Reset(_) | Closed::Unconnected(_)) {
                socket.flags |= MUTE;
            }
            self.lists.scheduled_closes.push_back((key, why));
        }
    }

    /// Notes until when a closing connection may still be written to.
    pub(crate) fn linger(&mut self, key: Key) {
        self.lists.linger.push_back((key, self.now.ns.saturating_add(self.linger_ns)));
    }

    pub(crate) fn linger_due(&self) -> Option<Duration> {
        let (_, due) = self.lists.linger.front()?;
        Some(Duration::from_nanos(due.saturating_sub(self.now.ns)))
    }

    /// Counts a removed connection out.
    pub(crate) fn forget(&mut self, key: Key, socket: &Socket<T>) {
        if let Some(tls) = self.tls.as_mut().filter(|_| socket.flags & TLS != 0) {
            tls.forget(key);
        }
        if let Some(queue) = &socket.queue {
            self.counts.queued_bytes -= queue.bytes() as u64;
            self.owned_bytes -= queue.owned();
        }
        match socket.fd {
            Some(_) => self.freed = true,
            None => self.locals -= 1,
        }
        self.counts.open = self.wired() as u64;
        self.counts.local = self.locals as u64;
    }

    pub(crate) fn publish(&mut self) {
        self.counts.waiting_bytes = self.waiting_bytes() as u64;
        self.counts.lost_ms = self.lost_ns / 1_000_000;
        self.counts.tls_under_way = self.tls.as_ref().map_or(0, |tls| tls.under_way() as u64);
        self.stats.publish(&self.counts);
    }

    /// Time for which this thread could serve, nanoseconds.
    pub(crate) fn served_ns(&self) -> u64 {
        self.now.ns.saturating_sub(self.lost_ns)
    }

    fn flush_if_full(&mut self) {
        if self.outbox.is_full() {
            self.flush();
        }
    }
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
