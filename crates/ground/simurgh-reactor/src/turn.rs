//! The loop, which runs in turns.
//!
//! A turn is: mail, events, packets of a TUN device, sockets left over from the previous turn, some
//! of the connections whose peers hung up, new connections, flush, `turn_end`, flush. Sockets left
//! over have sent more than others, so they come behind them. Ends come last and a few at a time,
//! since one costs more than a message: when many peers hang up at once, the others do not wait for
//! all of them. Each stage stops after its share of time or of output and continues in the next
//! turn, so no number of connections keeps the others waiting and a turn stays below 2 ms.

use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use mio::Events;
use mio::event::Event;
use rustix::io::Errno;
use rustix::net::RecvFlags;
use rustix::time::{ClockId, clock_gettime};

use simurgh_data::{Key, Next, Now};

use crate::accept::Listeners;
use crate::clock;
use crate::connection::{Closed, HAND_OFF, LISTENER, SPECIAL, TIMER, TUN, WAKER, key_of};
use crate::handler::Handler;
use crate::io::Io;
use crate::mailbox::Inbox;
use crate::slab::{
    CLOSE_SCHEDULED, CONNECTING, HELD, LISTED, MUTE, NO_READ, OVER, PEER_SHUT, SHAKING, TLS, UNREAD,
};
use crate::stage::{self, Stage};
use crate::timer::Timer;
use crate::{handoff, net};

const EVENTS_MAX: usize = 512;
const ADOPT_MAX: usize = 16;
/// The read buffer with TLS, at least: an incomplete record and as much again.
const RECORDS_BYTES: usize = 48 << 10;
/// In a longer turn, or a sleep that is so much too long, the shard could not serve.
const LOST_NS_MIN: u64 = 1_000_000_000;
/// Turns of this duration together have the thread's CPU time read, nanoseconds.
const CPU_STEP_NS: u64 = 100_000;
/// The capacity that the list of hung-up connections keeps. It is not a power of two: such a block
/// would stay among other blocks of that size, on a page that the allocator then keeps.
const HUNG_UP_KEPT: usize = 192;

pub(crate) struct Reactor<H: Handler> {
    pub(crate) handler: H,
    pub(crate) io: Io<H::Conn>,
    listeners: Listeners,
    inbox: Inbox<H::Mail>,
    events: Events,
    events_done: usize,
    events_left: bool,
    mail_left: bool,
    hand_off_left: bool,
    /// The TUN device may have packets that no event announces again.
    pub(crate) packets_left: bool,
    pub(crate) buffer: Vec<u8>,
    timer: Timer,
    next: Next,
    /// When connections with waiting output are checked next, nanoseconds.
    pub(crate) slow_look_ns: u64,
    ended_ns: u64,
    /// The duration of turns since the CPU time was read.
    uncounted_ns: u64,
}

impl<H: Handler> Reactor<H> {
    pub(crate) fn new(
        handler: H,
        mut io: Io<H::Conn>,
        listeners: Listeners,
        inbox: Inbox<H::Mail>,
        read_buffer_bytes: usize,
    ) -> Self {
        io.lists.hung_up = VecDeque::with_capacity(HUNG_UP_KEPT);
        Self {
            ended_ns: io.clock_ns(),
            handler,
            io,
            listeners,
            inbox,
            events: Events::with_capacity(EVENTS_MAX),
            events_done: 0,
            events_left: false,
            mail_left: false,
            hand_off_left: false,
            packets_left: false,
            buffer: vec![0; read_buffer_bytes.max(1)],
            timer: Timer::default(),
            next: Next::Now,
            slow_look_ns: 0,
            uncounted_ns: 0,
        }
    }

    pub(crate) fn run(mut self) -> io::Result<()> {
        loop {
            let waited = self.wait()?;
            let begun_ns = self.io.clock_ns();
            self.note_lost(begun_ns, waited);
            self.io.now = Now::at(begun_ns, self.io.lost_ns);
            (self.io.is_late, self.io.outbox.turn_bytes) = (false, 0);
            self.turn();
            let stop = self.io.stop || self.inbox.asked_to_stop();
            if stop {
                self.end();
            }
            self.count(begun_ns);
            if stop {
                return Ok(());
            }
        }
    }

    /// Notes time in which the shard could not serve (the process was stopped, the machine was
    /// suspended). It does not count against connections that waited meanwhile.
    fn note_lost(&mut self, now_ns: u64, waited: Option<Duration>) {
        let passed_ns = now_ns.saturating_sub(self.ended_ns);
        let Some(waited) = waited.filter(|_| passed_ns > LOST_NS_MIN) else { return };
        let meant_ns = u64::try_from(waited.as_nanos()).unwrap_or(u64::MAX);
        let lost_ns = passed_ns.saturating_sub(meant_ns);
        if lost_ns > LOST_NS_MIN {
            self.io.lost_ns += lost_ns;
        }
    }

    /// Fetches events, unless some of the last fetch are left. Returns how long it meant to wait at
    /// most; `None`: until something happens.
    fn wait(&mut self) -> io::Result<Option<Duration>> {
        if self.events_left {
            return Ok(Some(Duration::ZERO));
        }
        let own = self.timeout();
        let mut timeout = own.into_iter().chain(self.handler_timeout()).min();
        let asleep = timeout != Some(Duration::ZERO) && self.inbox.fall_asleep();
        if !asleep {
            timeout = Some(Duration::ZERO);
        } else if let Next::At(at_ns) = self.next
            && self.timer.set(&self.io, at_ns)
        {
            // If both are due at about the same time, both would wake it.
            timeout = own;
        }
        let meant = timeout.into_iter().chain(self.handler_timeout().filter(|_| asleep)).min();
        let polled = self.io.poll.poll(&mut self.events, timeout);
        if asleep {
            self.inbox.awake();
        }
        self.io.share_among(self.events_done);
        self.events_done = 0;
        self.events_left = true;
        match polled {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {
                self.events.clear();
                Ok(meant)
            }
            other => other.map(|()| meant),
        }
    }

    fn timeout(&self) -> Option<Duration> {
        let work = self.mail_left
            || self.hand_off_left
            || self.packets_left
            || !self.io.lists.ready.is_empty()
            || !self.io.lists.hung_up.is_empty()
            || !self.io.lists.writable.is_empty()
            || !self.io.lists.drained.is_empty()
            || self.io.has_endings()
            || self.io.tls.as_ref().is_some_and(|tls| tls.has_work())
            || self.io.local.is_some()
            || self.listeners.has_work(&self.io);
        let work = work.then_some(Duration::ZERO);
        let paused = self.listeners.pause_ends_in(self.io.now.ns);
        let due = [work, paused, self.io.linger_due(), self.slow_check_due()];
        due.into_iter().flatten().min()
    }

    fn handler_timeout(&self) -> Option<Duration> {
        match self.next {
            Next::Now => Some(Duration::ZERO),
            Next::After(time) => Some(time),
            Next::At(ns) => Some(Duration::from_nanos(ns.saturating_sub(self.io.clock_ns()))),
            Next::Idle => None,
        }
    }

    fn turn(&mut self) {
        self.take_mail();
        let left_over = self.io.lists.ready.len();
        self.take_events();
        self.read_packets();
        self.read_ready(left_over);
        self.read_hung_up();
        self.write_more();
        self.shake();
        for key in std::mem::take(&mut self.io.lists.drained) {
            self.handler.drained(&mut self.io, key);
        }
        self.check_slow();
        if self.hand_off_left {
            self.adopt();
        }
        self.listeners.accept(&mut self.handler, &mut self.io, self.events_left);
        self.io.flush();
        self.end_connections();
        self.next = self.handler.turn_end(&mut self.io);
        let closed = self.io.counts.closed;
        self.io.flush();
        self.end_connections();
        // The handler may have changed connections for which `turn_end` is still to be called.
        if self.io.counts.closed != closed {
            self.next = Next::Now;
        }
    }

    fn take_mail(&mut self) {
        let mut stage = Stage::begin(stage::MAIL, &self.io);
        self.mail_left = false;
        while let Some(mail) = self.inbox.next() {
            self.io.counts.mails += 1;
            self.handler.mail(&mut self.io, mail);
            if stage.is_over(&self.io) {
                self.mail_left = true;
                return;
            }
        }
    }

    /// Reads sockets whose last read filled the buffer, or that were released: this many, once
    /// each.
    fn read_ready(&mut self, count: usize) {
        let mut stage = Stage::begin(stage::READY, &self.io);
        for _ in 0..count {
            let Some(key) = self.io.lists.ready.pop_front() else { return };
            if let Some(socket) = self.io.sockets.get_mut(key) {
                socket.flags &= !LISTED;
                self.read(key);
            }
            if stage.is_over(&self.io) {
                return;
            }
        }
    }

    fn take_events(&mut self) {
        let mut stage = Stage::begin(stage::EVENTS, &self.io);
        // The list is moved out while its events are handled; an empty one allocates nothing.
        let events = std::mem::replace(&mut self.events, Events::with_capacity(0));
        let mut left = false;
        for event in events.iter().skip(self.events_done) {
            self.events_done += 1;
            self.take_event(event);
            if stage.is_over(&self.io) {
                left = true;
                break;
            }
        }
        self.events = events;
        self.events_left = left;
    }

    fn take_event(&mut self, event: &Event) {
        let key = key_of(event.token());
        if key.slot == SPECIAL {
            match key.generation {
                WAKER => self.inbox.woken(),
                HAND_OFF => self.hand_off_left = true,
                // The event only had to wake the loop.
                TIMER => {}
                TUN => self.packets_left = true,
                listener => self.listeners.set_ready((listener - LISTENER) as usize),
            }
            return;
        }
        let connecting =
            self.io.sockets.get(key).is_some_and(|socket| socket.flags & CONNECTING != 0);
        if connecting && !self.handshake_ended(key, event) {
            return;
        }
        if event.is_writable() {
            // Writing megabytes here would delay the events after this one.
            self.io.list_writable(key);
        }
        let Some(socket) = self.io.sockets.get_mut(key) else { return };
        let broken = event.is_error() || event.is_write_closed();
        if event.is_read_closed() {
            socket.flags |= PEER_SHUT;
        }
        if broken && socket.flags & (HELD | NO_READ) != 0 {
            // It is not read, so no other event reports its end.
            let why = self.io.end_of(key, event.is_error());
            self.io.schedule_close(key, why);
        } else if broken || event.is_read_closed() {
            self.io.list_hung_up(key);
        } else if event.is_readable() && socket.flags & LISTED == 0 {
            self.read(key);
        }
    }

    /// Reads what hung-up peers had sent, and handles their ends.
    fn read_hung_up(&mut self) {
        if self.io.lists.hung_up.is_empty() {
            return;
        }
        let mut stage = Stage::begin(stage::HUNG_UP, &self.io);
        while let Some(key) = self.io.lists.hung_up.pop_front() {
            if let Some(socket) = self.io.sockets.get_mut(key) {
                socket.flags &= !LISTED;
                self.read(key);
            }
            if stage.is_over(&self.io) {
                break;
            }
        }
        if self.io.lists.hung_up.is_empty() && self.io.lists.hung_up.capacity() > HUNG_UP_KEPT {
            self.io.lists.hung_up = VecDeque::with_capacity(HUNG_UP_KEPT);
        }
    }

    /// Reads once, at most one buffer; a second time only to learn whether the peer has closed.
    fn read(&mut self, key: Key) {
        loop {
            let Some(socket) = self.io.sockets.get_mut(key) else { return };
            if socket.flags & CLOSE_SCHEDULED != 0 {
                return;
            }
            socket.flags |= UNREAD;
            // Unread input of a cut peer would turn the close into a reset, which can lose the last
            // frame.
            let was_cut = socket.flags & OVER != 0 && socket.flags & MUTE == 0;
            if !was_cut && socket.flags & (HELD | NO_READ) != 0 {
                return;
            }
            let Some(fd) = &socket.fd else {
                socket.flags &= !UNREAD;
                return self.handler.readable(&mut self.io, key, &mut []);
            };
            let is_secure = socket.flags & TLS != 0;
            if socket.flags & SHAKING != 0 {
                return self.io.line_up(key);
            }
            let before = match self.io.tls.as_mut().filter(|_| is_secure) {
                Some(tls) => {
                    if self.buffer.len() < RECORDS_BYTES {
                        self.buffer.resize(RECORDS_BYTES, 0);
                    }
                    tls.unread(key, &mut self.buffer)
                }
                None => 0,
            };
            let room = self.buffer.get_mut(before..).unwrap_or_default();
            let free = room.len();
            let received = match &mut self.io.stamps {
                None => rustix::net::recv(fd, room, RecvFlags::DONTWAIT).map(|(_, bytes)| bytes),
                Some(stamps) => stamps.recv(self.io.now, fd, room),
            };
            let bytes = match received {
                Ok(0) if was_cut => return self.io.schedule_close(key, Closed::Slow),
                Ok(0) => return self.io.peer_ended(key),
                Ok(bytes) => bytes,
                Err(Errno::INTR) => continue,
                Err(Errno::AGAIN) => {
                    socket.flags &= !UNREAD;
                    return;
                }
                Err(error) => return self.io.schedule_close(key, Closed::Reset(error.kind())),
            };
            let drained = bytes < free && socket.flags & PEER_SHUT == 0;
            if drained {
                socket.flags &= !UNREAD;
            }
            let again = bytes < free && !drained;
            self.io.counts.reads += 1;
            self.io.counts.bytes_in += bytes as u64;
            let data = self.buffer.get_mut(..bytes).unwrap_or_default();
            if is_secure {
                self.read_records(key, before + bytes, !was_cut);
            } else if !was_cut {
                self.handler.readable(&mut self.io, key, data);
            }
            if let Some(stamps) = &mut self.io.stamps {
                stamps.received_at = None;
            }
            if !drained && !again {
                self.io.list_ready(key);
            }
            if !again {
                return;
            }
        }
    }

    fn adopt(&mut self) {
        let mut taken = 0;
        while taken < ADOPT_MAX {
            let Some(end) = &self.io.hand_off else { break };
            match handoff::recv(end) {
                Ok(Some((Some(fd), read_ahead))) => self.adopt_one(fd, read_ahead),
                Ok(Some((None, _))) => {
                    tracing::warn!("no file descriptor was left for a connection handed back");
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Ok(None) | Err(_) => {
                    // The other side has ended; connections are refused from now on.
                    self.io.hand_off = None;
                    break;
                }
            }
            taken += 1;
        }
        // No further event announces what is left.
        self.hand_off_left = taken == ADOPT_MAX;
    }

    fn adopt_one(&mut self, fd: OwnedFd, mut read_ahead: Vec<u8>) {
        // A peer without an address is already gone.
        let Ok(peer) = net::peer_addr(&fd) else { return };
        if let Err(error) = net::prepare_adopted(&fd) {
            tracing::warn!(%error, "a connection handed back could not be used");
            return;
        }
        let Some(key) = self.io.register_new(&fd) else { return };
        self.io.counts.adopted += 1;
        let Some(conn) = self.handler.adopted(&mut self.io, key, peer) else {
            return self.io.refuse(key, fd);
        };
        self.io.insert(key, fd, conn, 0);
        if !read_ahead.is_empty() {
            self.handler.readable(&mut self.io, key, &mut read_ahead);
        }
    }

    fn end(&mut self) {
        self.handler.stopping(&mut self.io);
        self.io.flush();
        self.end_connections_until(u64::MAX);
        self.listeners.close(&self.io);
        let (mut cursor, mut keys) = (0, Vec::new());
        loop {
            self.io.sweep(&mut cursor, 4096, |_, _| true, &mut keys);
            for key in keys.drain(..) {
                self.io.schedule_close(key, Closed::Local);
            }
            self.end_connections_until(u64::MAX);
            if cursor == 0 {
                break;
            }
        }
    }

    /// Counts the turn by the clock, and by the CPU time of this thread: its duration if no other
    /// thread had used the core. The kernel takes 0.5 µs to tell the latter, so short turns are
    /// counted together, or with a longer one behind them.
    fn count(&mut self, begun_ns: u64) {
        self.ended_ns = self.io.clock_ns();
        let turn_ns = self.ended_ns.saturating_sub(begun_ns);
        self.uncounted_ns += turn_ns;
        let before_ns = self.io.counts.cpu_ns;
        let mut turn_cpu_ns = 0;
        if before_ns == 0 || self.uncounted_ns >= CPU_STEP_NS {
            self.uncounted_ns = 0;
            let cpu_ns = clock::nanoseconds(clock_gettime(ClockId::ThreadCPUTime));
            turn_cpu_ns = cpu_ns.saturating_sub(before_ns).min(turn_ns);
            self.io.counts.cpu_ns = cpu_ns;
        }
        // What was sent during so long a turn could not be read.
        self.io.lost_ns += if turn_ns > LOST_NS_MIN { turn_ns } else { 0 };
        self.io.counts.count_turn(turn_ns, turn_cpu_ns);
        self.io.publish();
    }
}
