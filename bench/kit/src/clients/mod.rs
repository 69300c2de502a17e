//! Clients by the thousand: one thread, one poll set. All upgrade to WebSocket; a [`Receiver`]
//! decides what they send then, and handles what they receive.

use std::cell::RefCell;
use std::net::SocketAddrV4;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::event::epoll::{self, CreateFlags, EventFlags};
use rustix::io::Errno;
use rustix::net::sockopt;

use secure::Secure;
use simurgh_tls::rustls::ClientConfig;

use crate::net::{self, check_upgrade, head_length};

mod counting;
pub mod events;
mod secure;
mod stamped;
mod verified;

pub use counting::{Clients, Counts, Diff, WAIT_MAX, user};
pub use stamped::{Language, Layout, Level, Outcome, StampedClients};
pub use verified::{Script, Tally, VerifiedClients};

/// Handshakes and joins in progress at once, as in the comparison with other servers.
const IN_FLIGHT: usize = 128;
const READ_BYTES: usize = 256 << 10;

/// Handles the events of connections.
pub trait Receiver {
    /// Another connection is being opened.
    fn opened(&mut self);

    /// Connection `index` is a WebSocket; returns what it sends first.
    fn upgraded(&mut self, index: usize) -> &[u8];

    /// Takes received bytes and returns how many. The rest comes again with what follows it.
    fn received(&mut self, index: usize, input: &[u8]) -> Result<usize>;

    /// The server has closed it.
    fn ended(&mut self, index: usize, error: Option<Errno>) -> Result<()>;
}

#[derive(Clone, Copy, Default, PartialEq)]
enum Phase {
    #[default]
    Connecting,
    Upgrading,
    Upgraded,
}

#[derive(Default)]
struct Connection {
    socket: Option<OwnedFd>,
    phase: Phase,
    /// Received bytes that were not taken yet.
    partial: Vec<u8>,
    /// Where a push needs no exclusive access, it seals.
    secure: RefCell<Option<Secure>>,
    /// The part of a record.
    sealed: Vec<u8>,
}

impl Connection {
    fn send(&self, bytes: &[u8]) -> Result<()> {
        let mut sealed = Vec::new();
        match &mut *self.secure.borrow_mut() {
            None => return self.send_sealed(bytes),
            Some(secure) => secure.seal(bytes, &mut sealed)?,
        }
        self.send_sealed(&sealed)
    }

    fn send_sealed(&self, bytes: &[u8]) -> Result<()> {
        let socket = self.socket.as_ref().context("the connection is closed")?;
        if bytes.is_empty() { Ok(()) } else { net::send_all(socket, bytes) }
    }
}

/// Makes the upgrade request of each connection.
type Request = Box<dyn Fn(usize) -> Vec<u8>>;

struct Connections<R> {
    epoll: OwnedFd,
    server: SocketAddrV4,
    request: Request,
    connections: Vec<Connection>,
    events: Vec<epoll::Event>,
    buf: Vec<u8>,
    upgraded: usize,
    receiver: R,
    tls: Option<Arc<ClientConfig>>,
}

impl<R: Receiver> Connections<R> {
    fn new(server: SocketAddrV4, request: Request, receiver: R) -> Result<Self> {
        Ok(Self {
            epoll: epoll::create(CreateFlags::CLOEXEC)?,
            server,
            request,
            connections: Vec::new(),
            events: Vec::with_capacity(512),
            buf: vec![0; READ_BYTES],
            upgraded: 0,
            receiver,
            tls: None,
        })
    }

    fn len(&self) -> usize {
        self.connections.len()
    }

    fn open(&mut self) -> Result<()> {
        let index = self.len();
        let socket = net::dial(self.server, index, false)?;
        let flags = EventFlags::IN | EventFlags::OUT | EventFlags::RDHUP | EventFlags::ET;
        net::add(&self.epoll, &socket, index, flags)?;
        self.connections.push(Connection { socket: Some(socket), ..Connection::default() });
        self.receiver.opened();
        Ok(())
    }

    fn is_upgraded(&self, index: usize) -> bool {
        self.connections.get(index).is_some_and(|it| it.phase == Phase::Upgraded)
    }

    fn send(&self, index: usize, bytes: &[u8]) -> Result<()> {
        self.connections.get(index).context("no such connection")?.send(bytes)
    }

    fn rest_until(&mut self, until: Instant) -> Result<()> {
        while let Some(left) = until.checked_duration_since(Instant::now()) {
            if left.is_zero() {
                break;
            }
            self.pump(left)?;
        }
        Ok(())
    }

    fn pump(&mut self, time: Duration) -> Result<()> {
        let mut events = std::mem::take(&mut self.events);
        net::wait(&self.epoll, &mut events, Some(time))?;
        let mut buf = std::mem::take(&mut self.buf);
        let ready = |event: &epoll::Event| self.ready(usize::try_from(event.data.u64())?, &mut buf);
        let outcome = events.iter().try_for_each(ready);
        (self.buf, self.events) = (buf, events);
        outcome
    }

    /// Reads one connection until it is empty: events are edge triggered.
    fn ready(&mut self, index: usize, buf: &mut [u8]) -> Result<()> {
        loop {
            let Some(connection) = self.connections.get_mut(index) else { return Ok(()) };
            let Some(socket) = &connection.socket else { return Ok(()) };
            if connection.phase == Phase::Connecting {
                if let Err(error) = sockopt::socket_error(socket)? {
                    bail!("connection {index} failed: {error}");
                }
                connection.phase = Phase::Upgrading;
                let request = (self.request)(index);
                match &self.tls {
                    None => net::send_all(socket, &request)?,
                    Some(config) => {
                        let mut hello = Vec::new();
                        *connection.secure.get_mut() = Some(Secure::begin(config, &mut hello)?);
                        net::send_all(socket, &hello)?;
                    }
                }
            }
            let error = match rustix::io::read(socket, &mut *buf) {
                Ok(0) => None,
                Ok(count) => {
                    self.open_and_take(index, buf.get_mut(..count).unwrap_or_default())?;
                    if count < buf.len() {
                        return Ok(());
                    }
                    continue;
                }
                Err(Errno::AGAIN) => return Ok(()),
                Err(Errno::INTR) => continue,
                Err(error) => Some(error),
            };
            connection.socket = None;
            return self.receiver.ended(index, error);
        }
    }

    /// Decrypts, with TLS.
    fn open_and_take(&mut self, index: usize, input: &mut [u8]) -> Result<()> {
        let Some(connection) = self.connections.get_mut(index) else { return Ok(()) };
        let Some(secure) = connection.secure.get_mut() else { return self.take(index, input) };
        let (mut answer, was_open) = (Vec::new(), secure.is_open());
        let mut sealed = std::mem::take(&mut connection.sealed);
        let plain = if was_open && sealed.is_empty() {
            let (plain, used) = secure.open(input, &mut answer)?;
            sealed = input.get(used..).unwrap_or_default().to_vec();
            plain
        } else {
            sealed.extend_from_slice(input);
            if !was_open {
                match secure.shake(&std::mem::take(&mut sealed), &mut answer)? {
                    Some(rest) => sealed = rest,
                    None => return connection.send_sealed(&answer),
                }
            }
            let (plain, used) = secure.open(&mut sealed, &mut answer)?;
            sealed.drain(..used);
            plain
        };
        connection.sealed = sealed;
        connection.send_sealed(&answer)?;
        if !was_open {
            connection.send(&(self.request)(index))?;
        }
        if plain.is_empty() { Ok(()) } else { self.take(index, &plain) }
    }

    fn take(&mut self, index: usize, input: &[u8]) -> Result<()> {
        let Some(connection) = self.connections.get_mut(index) else { return Ok(()) };
        let mut gathered = std::mem::take(&mut connection.partial);
        let mut input = input;
        if !gathered.is_empty() {
            gathered.extend_from_slice(input);
            input = &gathered;
        }
        if connection.phase == Phase::Upgrading {
            let Some(length) = head_length(input) else {
                connection.partial = input.to_vec();
                return Ok(());
            };
            let (head, rest) = input.split_at(length);
            check_upgrade(head)?;
            connection.phase = Phase::Upgraded;
            self.upgraded += 1;
            input = rest;
            let first = self.receiver.upgraded(index);
            if !first.is_empty() {
                connection.send(first)?;
            }
        }
        let used = self.receiver.received(index, input)?;
        connection.partial = input.get(used..).unwrap_or_default().to_vec();
        Ok(())
    }
}
