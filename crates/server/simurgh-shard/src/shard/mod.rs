//! A shard: one thread's connections, and the transport between them and the shard's core.
//!
//! Bytes arrive in [`Handler::readable`]; `websocket` decodes messages and passes them to the core
//! (`simurgh_core`), which acts on the sockets through `transport`. `memory` returns the memory of
//! many closed connections to the system. Sockets of a driver in this process are in `driven`,
//! long-poll sessions in `polled`, an observer's queries in `survey`, requests of back ends in
//! `requests`. A shard shares no state with other threads: they reach it only by [`Mail`].

mod conn;
mod driven;
mod memory;
mod peers;
mod poll_sources;
mod polled;
mod relay;
mod requests;
mod survey;
mod transport;
mod websocket;

use std::hash::{BuildHasher, RandomState};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use simurgh_core::metrics::ShardMetrics;
use simurgh_core::{Core, NETWORK, Phase, guarded};
use simurgh_proto::ws::{self, CloseCode, Deflater, Inflater};
use simurgh_reactor::{Accepted, Closed, Handler, HandshakeError, Key, LocalOutput, Next, Slow};
use simurgh_socket::Regrant;

use crate::mail::{Mail, POLLED};
use crate::server::Server;
pub use conn::{Conn, USER_SOCKETS_MAX};
pub(crate) use conn::{Passing, Requester, Waiting};
use driven::Driven;
use memory::Tidying;
use peers::CountedPeers;
use polled::Polled;
use requests::Requests;
use simurgh_socket::{UserSocket, enter_shard};
use survey::Observed;
use transport::Later;
pub(crate) use transport::Transport;
use websocket::{HandingOff, Inbound, Unfinished};
pub use websocket::{Long, receive};

/// The sockets of this shard, as handlers of the reactor get them.
pub(crate) type Io = simurgh_reactor::Io<Conn>;

/// Bytes of an idle connection: its record with the reactor's part.
pub const CONNECTION_BYTES: usize = size_of::<Conn>() + 24;

pub struct Shard {
    pub(crate) server: Arc<Server>,
    pub(crate) index: u16,
    pub(crate) metrics: Arc<ShardMetrics>,
    pub(crate) core: Core<Server>,
    /// Work that the core has asked for, and that calls the core again.
    later: Vec<Later>,
    /// None until there is a driver.
    pub(crate) driven: Option<Box<Driven>>,
    /// None until there is a long-poll session.
    pub(crate) polled: Option<Box<Polled>>,
    pub(crate) inbound: Inbound,
    /// None unless a turn had no time for some messages.
    pub(crate) unfinished: Option<Box<Unfinished>>,
    /// None unless connections wait for the HTTP side.
    pub(crate) handing_off: Option<Box<HandingOff>>,
    /// None unless connections are limited by address or user, or come through proxies.
    pub(crate) counted_peers: Option<Box<CountedPeers>>,
    /// None until a message is compressed.
    deflater: Option<Box<Deflater>>,
    /// None until a compressed message comes.
    pub(crate) inflater: Option<Box<Inflater>>,
    tidying: Tidying,
    /// The last ticket ([`Waiting`]).
    pub(crate) tickets: u32,
    /// Only while an observer is open.
    pub(crate) observed: Option<Box<Observed>>,
    /// Only while requests of back ends wait for a pass over all sockets.
    pub(crate) requests: Option<Box<Requests>>,
}

// 1 KiB, and 8 bytes each for unfinished sockets, for those that wait for the HTTP side, for memory
// that is given up, and for requests; 48 for compression and its batches in the fan-out.
const _: () = assert!(size_of::<Shard>() <= 1104, "a shard without clients is over its budget");

impl Shard {
    /// Must be called on the shard's own thread.
    pub fn new(server: Arc<Server>, index: u16) -> Self {
        enter_shard(server.runtime.get());
        let metrics = server.metrics.get(usize::from(index)).cloned().unwrap_or_default();
        let seed = RandomState::new().hash_one(index);
        let mut core = Core::new(Arc::clone(&server), index, Arc::clone(&metrics), seed);
        if let Some(saved) = server.saved.begin(usize::from(index)) {
            core.restore_history(saved, 0);
        }
        if let Some(numbers) = server.saved.numbers.get() {
            core.restore_numbers(numbers);
        }
        Self {
            core,
            later: Vec::new(),
            driven: None,
            polled: None,
            server,
            index,
            metrics,
            inbound: Inbound::default(),
            unfinished: None,
            handing_off: None,
            counted_peers: None,
            deflater: None,
            inflater: None,
            tidying: Tidying::default(),
            tickets: 0,
            observed: None,
            requests: None,
        }
    }

    /// The core, and the sockets that it uses during a call.
    pub(crate) fn parts<'a>(&'a mut self, io: &'a mut Io) -> (&'a mut Core<Server>, Transport<'a>) {
        let Self { core, driven, later, server, counted_peers, deflater, metrics, .. } = self;
        (core, Transport { server, io, driven, counted_peers, deflater, metrics, later })
    }

    pub(crate) fn do_later(&mut self, io: &mut Io) {
        while !self.later.is_empty() {
            for later in std::mem::take(&mut self.later) {
                match later {
                    Later::Resume(key) => self.resume(io, key),
                    Later::Abandon(key, why) => self.abandoned(io, key, why),
                }
            }
        }
    }

    /// Bytes of a client, in any state of its connection.
    pub(crate) fn readable_bytes(&mut self, io: &mut Io, key: Key, data: &mut [u8]) {
        let Some(conn) = io.conn(key) else { return };
        let before = conn.inbound_bytes();
        match conn.socket.phase() {
            Phase::Head | Phase::Full => self.head(io, key, data),
            Phase::Open | Phase::Closing => self.frames(io, key, data),
            Phase::Connecting | Phase::Waiting => self.stash(io, key, data),
            Phase::Relay => relay::pass_on(io, key, data),
            Phase::Ending => {}
        }
        self.account_inbound(io, key, before);
    }

    fn resume_local(&mut self, io: &mut Io, key: Key) {
        match is_polled(io, key) {
            true => self.resume_polled(io, key),
            false => self.resume_driven(io, key),
        }
    }

    pub(crate) fn user_socket(&self, io: &Io, key: Key) -> Option<&UserSocket> {
        let at = io.conn_ref(key)?.socket.user_socket();
        self.server.user_sockets.get(usize::from(at))
    }

    pub(crate) fn drop_guarded<T>(&self, value: T) {
        if guarded(|| drop(value)).is_none() {
            self.metrics.errors_callback_panic.add(1);
        }
    }

    /// Closes a connection whose peer broke the protocol, or costs too much.
    pub(crate) fn fail(&mut self, io: &mut Io, key: Key, code: CloseCode) {
        let (core, mut out) = self.parts(io);
        core.fail(&mut out, key, code);
    }
}

/// Whether a local connection is a long-poll session, not a driver's socket.
fn is_polled(io: &Io, key: Key) -> bool {
    io.conn_ref(key).is_some_and(|conn| conn.socket.transport == POLLED)
}

impl Drop for Shard {
    fn drop(&mut self) {
        self.core.retire();
        if self.server.config.history_save.is_some()
            && self.server.drain_began.get().is_some()
            && !self.server.takeover.is_handed_over.load(Relaxed)
        {
            self.server.saved.end(self.core.take_history());
        }
        if let Some(ended) = self.server.ended.get(usize::from(self.index)) {
            ended.store(true, Relaxed);
        }
        // Applications' panics are caught; this would be one of our own. A server that has lost a
        // shard is of no use: all shards end, and the supervisor restarts the process.
        if std::thread::panicking() {
            for shard in 0..self.server.mailboxes.len() {
                self.server.post_to(shard as u16, Mail::Stop);
            }
        }
    }
}

impl Handler for Shard {
    type Conn = Conn;
    type Mail = Mail;

    fn accepted(&mut self, io: &mut Io, from: Accepted) -> Option<Conn> {
        let phase = if from.over_capacity { Phase::Full } else { Phase::Head };
        Some(Conn::new(phase, io.now().tick, NETWORK))
    }

    fn adopted(&mut self, io: &mut Io, _key: Key, _peer: SocketAddr) -> Option<Conn> {
        Some(Conn::new(Phase::Head, io.now().tick, NETWORK))
    }

    fn header(&mut self, io: &mut Io, key: Key, data: &[u8]) -> Option<usize> {
        self.header_before_tls(io, key, data)
    }

    fn insecure(&mut self, io: &mut Io, key: Key, why: &HandshakeError) {
        tracing::debug!(peer = ?io.peer_addr(key).ok(), %why, "a client could not be admitted");
    }

    fn readable(&mut self, io: &mut Io, key: Key, data: &mut [u8]) {
        match data.is_empty() {
            true => self.resume_local(io, key),
            false => self.readable_bytes(io, key, data),
        }
        self.do_later(io);
    }

    fn local(&mut self, io: &mut Io, output: &mut LocalOutput) {
        while let Some((key, data)) = output.next() {
            match is_polled(io, key) {
                true => self.collect_polled(io, key, data),
                false => self.receive_frames(io, key, data),
            }
        }
        self.send_events();
        if self.answer_polls(io) != Next::Idle {
            // Continues with the rest later.
            self.server.post_to(self.index, Mail::Pulse);
        }
    }

    fn closed(&mut self, io: &mut Io, key: Key, conn: Conn, _why: Closed) {
        self.forget_inbound(key, conn.inbound_bytes());
        relay::end(io, &conn);
        self.uncount_peer(key);
        self.tidying.one_left();
        match conn.socket.transport {
            POLLED => self.polled_gone(key),
            driver => self.driven_gone(key, driver, &conn),
        }
        let (core, mut out) = self.parts(io);
        core.closed(&mut out, key, conn.socket);
        self.do_later(io);
    }

    fn mail(&mut self, io: &mut Io, mail: Mail) {
        match mail {
            Mail::Core(mail) => {
                let is_quick = matches!(mail, simurgh_core::Mail::Broadcast(_));
                let (core, mut out) = self.parts(io);
                core.mail(&mut out, mail);
                if is_quick {
                    return self.do_later(io);
                }
            }
            Mail::ToChannel(channel, what) => {
                let Some(what) = what.take() else { return };
                let (core, mut out) = self.parts(io);
                core.mail(&mut out, simurgh_core::Mail::ToChannel(channel, what));
            }
            Mail::Connected(key, ticket, connect) => self.connected(io, key, ticket, connect),
            Mail::Regrant(key, Regrant { value, lifetime, limits }) => {
                if let Some(name) = limits {
                    self.limit(io, key, &name);
                }
                if let Some(lifetime) = lifetime {
                    let (core, mut out) = self.parts(io);
                    core.keep(&mut out, key, value, lifetime);
                }
            }
            Mail::Read(key, ticket, read) => self.was_read(io, key, ticket, read),
            Mail::Drive(command) => self.take_driver_command(*command),
            Mail::LongPoll(command) => self.take_poll_command(io, *command),
            Mail::Observe(query) => self.answer_query(io, *query),
            Mail::Order(order, counted) => self.take_order(io, order, counted),
            Mail::Question(question, answered) => self.take_question(question, answered),
            Mail::Reload(_until_taken) => {
                let server = self.server.now();
                self.server = Arc::clone(&server);
                let (core, mut out) = self.parts(io);
                core.reload(&mut out, &server);
            }
            Mail::HandOver(answer) => answer(self.core.hand_over()),
            // Behind what this shard has posted to itself.
            Mail::TakeBack(false) => self.server.post_to(self.index, Mail::TakeBack(true)),
            Mail::TakeBack(true) => self.core.take_back(),
            Mail::Pulse => {}
            Mail::Stop => io.stop(),
        }
        self.do_later(io);
        io.is_late();
    }

    fn drained(&mut self, io: &mut Io, key: Key) {
        relay::go_on(io, key);
        let (core, out) = self.parts(io);
        core.drained(&out, key);
    }

    fn slow(&mut self, _io: &mut Io, _key: Key) -> Slow {
        self.metrics.slow_peer_disconnects.add(1);
        let mut farewell = Vec::new();
        ws::encode_close(CloseCode::TRY_AGAIN, "too slow", None, &mut farewell);
        Slow::Cut { farewell }
    }

    fn turn_end(&mut self, io: &mut Io) -> Next {
        let now = io.now();
        let unfinished = self.go_on(io);
        let handing_off = self.hand_off_waiting(io);
        self.do_later(io);
        // Early, so that the rest of this turn covers the sockets opened by drivers.
        let driving = self.drive(io);
        let expiring = self.expire_polled(io);
        // Channels of expired sockets may broadcast their end, so the fan-out comes second.
        let due = {
            let (core, mut out) = self.parts(io);
            core.tick(&mut out)
        };
        self.do_later(io);
        let judged = self.judge_inbound(io);
        let tidied = self.tidy(now);
        let fanning_out = {
            let (core, mut out) = self.parts(io);
            core.fan_out(&mut out)
        };
        let looking = self.survey(io);
        let requested = self.work_on_requests(io);
        let settling = {
            let (core, mut out) = self.parts(io);
            core.settle(&mut out)
        };
        self.do_later(io);
        self.send_events();
        let polling = self.answer_polls(io);
        let next = fanning_out.sooner(due, now).sooner(judged, now).sooner(tidied, now);
        let next = next.sooner(settling, now).sooner(driving, now).sooner(looking, now);
        let next = next.sooner(expiring, now).sooner(polling, now).sooner(requested, now);
        next.sooner(unfinished, now).sooner(handing_off, now)
    }
}
