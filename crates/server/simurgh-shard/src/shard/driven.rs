//! Driven sockets: the transport between a driver and the sessions of a shard.
//!
//! A driven socket is a local connection of the reactor. A driver sends commands, each for many
//! sockets, which are executed in order and in slices at the end of turns. With [`Wire::Values`] a
//! message goes straight to the core, and the core's messages go straight to the driver's queue;
//! otherwise both are encoded as frames, as for a client.

use std::collections::{HashMap, VecDeque};
use std::net::{Ipv4Addr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use simurgh_core::{Broadcast, NETWORK, Phase, Wire, nanoseconds, op_code};
use simurgh_proto::message::{Message, OwnedRef, Payload};
use simurgh_proto::params;
use simurgh_proto::serializer::{Frame, ServerMessage};
use simurgh_proto::ws::handshake::{HeadLimits, Request};
use simurgh_proto::ws::{self, CloseCode, Decoder, Event, FrameLimits, OpCode, Role};
use simurgh_reactor::{Key, Next};
use simurgh_socket::{ConnectInfo, ConnectKind, Transport, UserSocket};

use super::websocket::{check, client};
use super::{Conn, Io, Requester, Shard};
use crate::mail::POLLED;
use crate::mail::driver::{
    Answer, ClientMessage, CommandKind, Connect, DriverCommand, EventSender,
};
use crate::mail::driver_event::{DriverError, EventKind, Received, SocketId, What, kind};
use crate::server::Server;

/// Longest slice of executing commands.
const SLICE: Duration = Duration::from_micros(400);
/// Sockets between two reads of the clock.
const STRIDE: usize = 16;
/// Waiting commands of one socket that are executed at once.
const RESUMED_MAX: usize = 64;
/// Records that one step searches for sockets of a driver that is gone.
const SWEEP_RECORDS: usize = 512;
/// The mask of clients' frames, which must not be left out.
const MASK: Option<[u8; 4]> = Some([0x5a, 0xa5, 0x3c, 0xc3]);
/// Names no connection, for checking a request before there is one.
const NOT_YET: Key = Key { slot: u32::MAX, generation: u32::MAX };

/// The drivers of a shard and their commands; made for the first driver.
#[derive(Default)]
pub(crate) struct Driven {
    /// Indexed by `Socket::transport`.
    to_drivers: Vec<Option<EventSender>>,
    tasks: VecDeque<Task>,
    /// Commands for sockets that are not read now.
    waiting: HashMap<Key, VecDeque<Rc<DriverCommand>>>,
    frame: Vec<u8>,
}

struct Task {
    command: Rc<DriverCommand>,
    driver: u8,
    done: usize,
    /// When a driver is gone: the next record, and whether this round has found any of its sockets.
    cursor: u32,
    has_found: bool,
}

impl Driven {
    fn attach(&mut self, to_driver: EventSender) {
        let drivers = self.to_drivers.len();
        match self.to_drivers.iter_mut().find(|to_driver| to_driver.is_none()) {
            Some(place) => *place = Some(to_driver),
            None if drivers < usize::from(POLLED) => self.to_drivers.push(Some(to_driver)),
            // No slot is left: its commands will not find a socket.
            None => {}
        }
    }

    fn sender(&mut self, driver: u8) -> Option<&mut EventSender> {
        self.to_drivers.get_mut(usize::from(driver))?.as_mut()
    }

    /// Passes broadcasts to a socket; returns how many.
    #[inline]
    pub(crate) fn deliver_broadcasts<'a>(
        &mut self,
        driver: u8,
        key: Key,
        broadcasts: impl Iterator<Item = &'a Arc<Broadcast>>,
    ) -> u64 {
        let mut to_driver = self.sender(driver);
        let mut heard = 0;
        for broadcast in broadcasts {
            if let Some(to_driver) = &mut to_driver {
                to_driver.receive_broadcast(key, broadcast);
            }
            heard += 1;
        }
        heard
    }

    #[inline]
    pub(crate) fn deliver(&mut self, driver: u8, key: Key, message: &ServerMessage<'_>) {
        if let Some(to_driver) = self.sender(driver) {
            to_driver.receive(key, kind(message), || What::of(message));
        }
    }

    pub(crate) fn deliver_close(&mut self, driver: u8, key: Key, code: Option<CloseCode>) {
        if let Some(to_driver) = self.sender(driver) {
            to_driver
                .receive(key, EventKind::Closed, || What::Closed { code: code.map(|code| code.0) });
        }
    }
}

impl Shard {
    pub(crate) fn take_driver_command(&mut self, command: DriverCommand) {
        let driven = self.driven.get_or_insert_default();
        if let CommandKind::Attach(to_driver) = command.what {
            return driven.attach(to_driver);
        }
        let is_of = |to_driver: &Option<EventSender>| {
            to_driver.as_ref().is_some_and(|it| it.is_of(&command.queue))
        };
        let Some(driver) = driven.to_drivers.iter().position(is_of) else { return };
        let (driver, command) = (driver as u8, Rc::new(command));
        driven.tasks.push_back(Task { command, driver, done: 0, cursor: 0, has_found: false });
    }

    /// Executes commands, for at most one slice.
    pub(crate) fn drive(&mut self, io: &mut Io) -> Next {
        let deadline = io.clock_ns() + nanoseconds(SLICE);
        let mut is_first = true;
        loop {
            let next = self.driven.as_deref_mut().and_then(|driven| driven.tasks.pop_front());
            let Some(mut task) = next else { return Next::Idle };
            // Events of earlier commands are sent at the end of this turn.
            let waits = matches!(task.command.what, CommandKind::Settle(_)) && !is_first;
            is_first = false;
            if waits || !self.work(io, &mut task, deadline) {
                if let Some(driven) = &mut self.driven {
                    driven.tasks.push_front(task);
                }
                return Next::Now;
            }
        }
    }

    pub(crate) fn send_events(&mut self) {
        if let Some(driven) = self.driven.as_deref_mut() {
            driven.to_drivers.iter_mut().flatten().for_each(EventSender::send);
        }
    }

    /// Continues a command; returns whether it is done.
    fn work(&mut self, io: &mut Io, task: &mut Task, deadline: u64) -> bool {
        let command = Rc::clone(&task.command);
        match &command.what {
            CommandKind::Attach(_) => true,
            CommandKind::Settle(answer) => {
                // The driver may be gone.
                let _ = answer.send(Vec::new());
                true
            }
            CommandKind::Connect(connect) => self.connect(io, connect, task, deadline),
            CommandKind::Send(keys, _) | CommandKind::Close(keys) => {
                while let Some(key) = keys.get(task.done) {
                    task.done += 1;
                    self.ask(io, *key, task.driver, &command);
                    if task.done.is_multiple_of(STRIDE) && io.clock_ns() >= deadline {
                        return false;
                    }
                }
                true
            }
            CommandKind::Detach => self.detach(io, task, deadline),
        }
    }

    /// Executes a command for one socket, once that is read.
    fn ask(&mut self, io: &mut Io, key: Key, driver: u8, command: &Rc<DriverCommand>) {
        let Some(conn) = io.conn_ref(key).filter(|conn| conn.socket.transport == driver) else {
            return;
        };
        let is_pending = conn.socket.phase().is_pending();
        let Some(driven) = self.driven.as_deref_mut() else { return };
        if is_pending || io.is_held(key) || driven.waiting.contains_key(&key) {
            driven.waiting.entry(key).or_default().push_back(Rc::clone(command));
            return io.announce_local(key);
        }
        self.carry_out(io, key, command);
    }

    /// A socket is read again: executes the commands that waited.
    pub(crate) fn resume_driven(&mut self, io: &mut Io, key: Key) {
        for _ in 0..RESUMED_MAX {
            let Some(phase) = io.conn_ref(key).map(|conn| conn.socket.phase()) else { return };
            if phase.is_pending() || io.is_held(key) {
                break;
            }
            let Some(driven) = self.driven.as_deref_mut() else { return };
            let Some(waiting) = driven.waiting.get_mut(&key) else { return };
            let Some(command) = waiting.pop_front() else {
                driven.waiting.remove(&key);
                return;
            };
            self.carry_out(io, key, &command);
        }
        io.announce_local(key);
    }

    fn carry_out(&mut self, io: &mut Io, key: Key, command: &DriverCommand) {
        let Some((phase, wire)) =
            io.conn_ref(key).map(|conn| (conn.socket.phase(), conn.socket.wire()))
        else {
            return;
        };
        match (&command.what, wire) {
            _ if phase != Phase::Open => {}
            (CommandKind::Send(_, sent), Wire::Values) => {
                let tick = io.now().tick;
                if let Some(conn) = io.conn(key) {
                    conn.socket.heard(tick);
                }
                self.count_message(key);
                self.received(io, key, Some(sent.message().into()));
            }
            (CommandKind::Close(_), Wire::Values) => {
                self.peer_closes(io, key, Some(CloseCode::NORMAL));
            }
            (CommandKind::Send(_, sent), _) => {
                let join_ref = self.join_ref(io, key, sent);
                let mut message = sent.message();
                if let Some(join_ref) = &join_ref {
                    message.join_ref = join_ref.as_ref();
                }
                self.pass_frame(io, key, |out| frame(out, wire, &message));
            }
            (CommandKind::Close(_), _) => self.pass_frame(io, key, |out| {
                ws::encode_close(CloseCode::NORMAL, "", MASK, out);
            }),
            (
                CommandKind::Attach(_)
                | CommandKind::Connect(_)
                | CommandKind::Settle(_)
                | CommandKind::Detach,
                _,
            ) => {}
        }
    }

    /// The join_ref that a client would send: in binary frames a missing one differs from null.
    fn join_ref(&self, io: &Io, key: Key, sent: &ClientMessage) -> Option<OwnedRef> {
        if !sent.join_ref.is_null() {
            return None;
        }
        self.core.join_ref(key, &io.conn_ref(key)?.socket, &sent.topic)
    }

    fn peer_closes(&mut self, io: &mut Io, key: Key, code: Option<CloseCode>) {
        let (core, mut out) = self.parts(io);
        core.peer_closed(&mut out, key, code);
    }

    /// Passes a frame to a socket, as from a client.
    fn pass_frame(&mut self, io: &mut Io, key: Key, write: impl FnOnce(&mut Vec<u8>)) {
        let Some(driven) = self.driven.as_deref_mut() else { return };
        let mut bytes = std::mem::take(&mut driven.frame);
        bytes.clear();
        write(&mut bytes);
        if !bytes.is_empty() {
            self.readable_bytes(io, key, &mut bytes);
        }
        if let Some(driven) = self.driven.as_deref_mut() {
            bytes.shrink_to(64 << 10);
            driven.frame = bytes;
        }
    }

    /// The server sends frames to a driven socket.
    pub(crate) fn receive_frames(&mut self, io: &mut Io, key: Key, mut data: &mut [u8]) {
        let Some(conn) = io.conn_ref(key) else { return };
        let (driver, wire) = (conn.socket.transport, conn.socket.wire());
        let Some(to_driver) = self.driven.as_deref_mut().and_then(|driven| driven.sender(driver))
        else {
            return;
        };
        let limits = FrameLimits { frame_bytes_max: usize::MAX, message_bytes_max: usize::MAX };
        // Each call has whole frames, so no state is kept for the next.
        let mut decoder = Decoder::new();
        while let Ok(Some(event)) = decoder.next(Role::Client, &limits, &mut data) {
            let frame = match &event {
                Event::Text(text) => Frame::Text(text),
                Event::Binary(bytes) => Frame::Binary(bytes),
                Event::Close(close) => {
                    let code = close.as_ref().map(|close| close.code.0);
                    to_driver.receive(key, EventKind::Closed, || What::Closed { code });
                    // The server closed first, or has just answered the close.
                    io.close(key);
                    return;
                }
                Event::Compressed(_) | Event::Ping(_) | Event::Pong(_) => continue,
            };
            match wire.serializer().map(|serializer| serializer.decode_server(frame)) {
                Some(Ok(message)) => to_driver.receive(key, kind(&message), || What::of(&message)),
                Some(Err(error)) => tracing::error!(%error, "cannot decode a message to a driver"),
                None => to_driver.receive(key, EventKind::Message, || bare(frame)),
            }
        }
    }

    /// A driven socket is gone. An open one has not reported its close yet.
    pub(crate) fn driven_gone(&mut self, key: Key, driver: u8, conn: &Conn) {
        if let Some(driven) = self.driven.as_deref_mut().filter(|_| driver != NETWORK) {
            if conn.socket.is_open() {
                driven.deliver_close(driver, key, None);
            }
            driven.waiting.remove(&key);
        }
    }

    /// Opens sockets; returns whether all have been tried.
    fn connect(&mut self, io: &mut Io, connect: &Connect, task: &mut Task, deadline: u64) -> bool {
        let server = Arc::clone(&self.server);
        let mut answers = Vec::new();
        let asked = request(io, &server, connect, |io, wire, user_socket, info| {
            while task.done < connect.count {
                task.done += 1;
                let decided = self.ask_connect(user_socket, info);
                let mut conn = Conn::new(Phase::Head, io.now().tick, task.driver);
                conn.socket.lead_to(connect.user_socket, wire);
                answers.extend(match io.open_local(conn) {
                    Ok(key) => self.driven_decided(io, key, &connect.answer, decided),
                    Err(_) => {
                        self.drop_guarded(decided);
                        Some(self.no_place())
                    }
                });
                if task.done.is_multiple_of(STRIDE) && io.clock_ns() >= deadline {
                    return;
                }
            }
        });
        if let Err(status) = asked {
            self.metrics.upgrades_refused.add((connect.count - task.done) as u64);
            answers.resize(connect.count - task.done, refused(status, String::new()));
            task.done = connect.count;
        }
        // The driver may be gone.
        let _ = connect.answer.send(answers);
        task.done == connect.count
    }

    /// The application has decided about a socket, or panicked (`None`); the outcome, unless it
    /// decides later.
    pub(crate) fn driven_decided(
        &mut self,
        io: &mut Io,
        key: Key,
        answer: &Answer,
        decided: Option<simurgh_socket::Connect>,
    ) -> Option<Result<SocketId, DriverError>> {
        let refused = match decided.map(|decided| self.without_denied(decided).0) {
            Some(ConnectKind::Later(work)) => {
                let requester = Some(Requester::Driver(answer.clone()));
                self.await_connect(io, key, Vec::new(), requester, &[], work);
                return None;
            }
            Some(ConnectKind::Ok(state)) if self.server.connection_limit.take() => {
                self.read_again(io, key);
                self.open(io, key, &[], state);
                return Some(Ok(SocketId { key, shard: self.index }));
            }
            Some(ConnectKind::Ok(state)) => {
                self.drop_guarded(state);
                self.no_place()
            }
            Some(ConnectKind::Refuse { status, body }) => self.refuse_driven(status, body),
            None => self.refuse_driven(500, String::new()),
        };
        self.end_unopened(io, key);
        Some(refused)
    }

    pub(crate) fn refuse_driven(&self, status: u16, body: String) -> Result<SocketId, DriverError> {
        self.metrics.upgrades_refused.add(1);
        refused(status, body)
    }

    fn no_place(&self) -> Result<SocketId, DriverError> {
        self.metrics.refused_full.add(1);
        self.refuse_driven(503, String::new())
    }

    /// Closes the sockets of a driver that is gone; returns whether all are closed.
    fn detach(&mut self, io: &mut Io, task: &mut Task, deadline: u64) -> bool {
        let driver = task.driver;
        let mut keys = Vec::new();
        loop {
            io.sweep(
                &mut task.cursor,
                SWEEP_RECORDS,
                |_, conn| conn.socket.transport == driver,
                &mut keys,
            );
            task.has_found |= !keys.is_empty();
            for key in keys.drain(..) {
                self.peer_closes(io, key, None);
            }
            // A round that finds none is the last. Sockets found remain until the turn ends.
            if task.cursor == 0 {
                if std::mem::take(&mut task.has_found) {
                    return false;
                }
                if let Some(driven) = self.driven.as_deref_mut()
                    && let Some(to_driver) = driven.to_drivers.get_mut(usize::from(driver))
                {
                    *to_driver = None;
                }
                return true;
            }
            if io.clock_ns() >= deadline {
                return false;
            }
        }
    }
}

fn refused(status: u16, body: String) -> Result<SocketId, DriverError> {
    Err(DriverError::Refused { status, body })
}

/// Checks a request as a client's is checked, and passes `then` the input of a connect function.
/// The error is an HTTP status.
fn request(
    io: &mut Io,
    server: &Server,
    connect: &Connect,
    then: impl FnOnce(&mut Io, Wire, &UserSocket, &ConnectInfo<'_>),
) -> Result<(), u16> {
    let parsed = Request::parse(&connect.head, &HeadLimits::default());
    let (request, _) = parsed.map_err(|error| error.status())?.ok_or(400_u16)?;
    let user_socket = server.user_sockets.get(usize::from(connect.user_socket)).ok_or(404_u16)?;
    let checked = check(server, user_socket, &request, io, NOT_YET, false);
    let checked = checked.map_err(|(status, _)| status)?;
    let params = match &user_socket.parts().connect {
        Some(_) => params::decode(request.query()).map_err(|_| 400_u16)?,
        None => serde_json::Value::Null,
    };
    let own = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let peer = client(server, &request, io, NOT_YET, Some(own));
    let auth_token = checked.token.as_deref();
    let wire = match checked.wire {
        Wire::Plain => Wire::Plain,
        _ if connect.values => Wire::Values,
        wire => wire,
    };
    let transport = Transport::Driver;
    let info = user_socket.connect_info(&request, params, auth_token, peer, transport, None);
    then(io, wire, user_socket, &info);
    Ok(())
}

fn frame(out: &mut Vec<u8>, wire: Wire, message: &Message<'_>) {
    let Some(serializer) = wire.serializer() else {
        let (opcode, bytes) = match &message.payload {
            Payload::Json(text) => (OpCode::Text, text.as_bytes()),
            Payload::Binary(_) | Payload::User(_) => (OpCode::Binary, message.payload.data()),
        };
        return ws::encode(opcode, bytes, MASK, out);
    };
    let mut text = Vec::new();
    match serializer.message(&mut text, message) {
        Ok(kind) => ws::encode(op_code(kind), &text, MASK, out),
        // A binary payload in V1: as with a client, it is not sent.
        Err(error) => tracing::warn!(%error, "cannot encode a message from a driver"),
    }
}

/// A message without Channels.
fn bare(frame: Frame<'_>) -> What {
    What::Message(match frame {
        Frame::Text(text) => Received::own("", "text", Payload::Json(text.to_owned().into())),
        Frame::Binary(bytes) => Received::own("", "binary", Payload::Binary(bytes.to_vec().into())),
    })
}
