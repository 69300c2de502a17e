//! Sockets and poll sets for every client and every bare loop of the benchmark.

use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail, ensure};
use rustix::buffer::spare_capacity;
use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType, sockopt};

use crate::frames;

/// Waits at most for `time`; the new events replace `events`, whose capacity bounds them.
pub fn wait(epoll: &OwnedFd, events: &mut Vec<Event>, time: Option<Duration>) -> Result<()> {
    events.clear();
    let timeout = time.map(Timespec::try_from).transpose()?;
    match epoll::wait(epoll, spare_capacity(events), timeout.as_ref()) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(error) => bail!("epoll_wait: {error}"),
    }
}

/// Adds a socket to a poll set under this number.
pub fn add(epoll: &OwnedFd, socket: &OwnedFd, number: usize, flags: EventFlags) -> Result<()> {
    Ok(epoll::add(epoll, socket, EventData::new_u64(u64::try_from(number)?), flags)?)
}

/// The source address of connection `index`: 16 of them, so that ports never run out.
/// Only a server on loopback is dialled from them.
fn source(index: usize, server: SocketAddrV4) -> Option<SocketAddrV4> {
    let host = u8::try_from(index % 16 + 1).ok()?;
    server.ip().is_loopback().then(|| SocketAddrV4::new(Ipv4Addr::new(127, 77, 1, host), 0))
}

/// Opens connection `index` to `server`. Dropping it resets it instead of lingering, so that no
/// TIME_WAIT of one run affects the next.
pub fn dial(server: SocketAddrV4, index: usize, blocking: bool) -> Result<OwnedFd> {
    dial_from(source(index, server), server, blocking)
}

/// As [`dial`], from this address.
pub fn dial_from(
    source: Option<SocketAddrV4>,
    server: SocketAddrV4,
    blocking: bool,
) -> Result<OwnedFd> {
    let mut flags = SocketFlags::CLOEXEC;
    flags.set(SocketFlags::NONBLOCK, !blocking);
    let socket = rustix::net::socket_with(AddressFamily::INET, SocketType::STREAM, flags, None)
        .context("socket")?;
    sockopt::set_tcp_nodelay(&socket, true)?;
    sockopt::set_socket_linger(&socket, Some(Duration::ZERO))?;
    if let Some(source) = source {
        rustix::net::bind(&socket, &source).with_context(|| format!("bind to {source}"))?;
    }
    match rustix::net::connect(&socket, &server) {
        Ok(()) | Err(Errno::INPROGRESS) => Ok(socket),
        Err(error) => Err(anyhow!(error).context(format!("connect to {server}"))),
    }
}

/// A listening socket in the poll set of a bare loop.
pub struct Listener {
    /// The poll set.
    pub epoll: OwnedFd,
    socket: OwnedFd,
}

impl Listener {
    /// Its number in the poll set.
    pub const NUMBER: u64 = u64::MAX;

    /// Listens; with `shares_port` several listeners on the same port share the clients.
    pub fn open(listen: SocketAddrV4, shares_port: bool) -> Result<Self> {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket =
            rustix::net::socket_with(AddressFamily::INET, SocketType::STREAM, flags, None)?;
        sockopt::set_socket_reuseaddr(&socket, true)?;
        if shares_port {
            sockopt::set_socket_reuseport(&socket, true)?;
        }
        // Accepted sockets inherit it on Linux.
        sockopt::set_tcp_nodelay(&socket, true)?;
        rustix::net::bind(&socket, &listen).with_context(|| format!("bind to {listen}"))?;
        rustix::net::listen(&socket, 4096)?;
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, &socket, EventData::new_u64(Self::NUMBER), EventFlags::IN)?;
        Ok(Self { epoll, socket })
    }

    /// Acknowledgements wait for the answers, also on accepted sockets, which inherit the option.
    pub fn without_quick_acks(self) -> Result<Self> {
        sockopt::set_tcp_quickack(&self.socket, false)?;
        Ok(self)
    }

    /// The address it listens on.
    pub fn address(&self) -> Result<SocketAddrV4> {
        Ok(SocketAddrV4::try_from(rustix::net::getsockname(&self.socket)?)?)
    }

    /// The next waiting connection, if there is one.
    pub fn accept(&self) -> Result<Option<OwnedFd>> {
        match rustix::net::accept_with(&self.socket, SocketFlags::NONBLOCK | SocketFlags::CLOEXEC) {
            Ok(socket) => Ok(Some(socket)),
            Err(Errno::AGAIN | Errno::CONNABORTED) => Ok(None),
            Err(error) => Err(anyhow!(error).context("accept")),
        }
    }

    /// Some of the waiting connections, each in the poll set under its descriptor's number.
    pub fn accept_some(
        &self,
        flags: EventFlags,
        mut take: impl FnMut(usize, OwnedFd),
    ) -> Result<u64> {
        for accepted in 0..64 {
            let Some(socket) = self.accept()? else { return Ok(accepted) };
            let number = usize::try_from(socket.as_raw_fd())?;
            add(&self.epoll, &socket, number, flags)?;
            take(number, socket);
        }
        Ok(64)
    }
}

/// Sockets by their descriptors' numbers: four bytes each.
#[derive(Default)]
pub struct Slots(pub Vec<Option<OwnedFd>>);

impl Slots {
    /// The socket with that number.
    pub fn get(&self, number: usize) -> Option<&OwnedFd> {
        self.0.get(number)?.as_ref()
    }

    /// Adds a socket.
    pub fn put(&mut self, number: usize, socket: OwnedFd) {
        if self.0.len() <= number {
            self.0.resize_with(number + 1, || None);
        }
        if let Some(slot) = self.0.get_mut(number) {
            *slot = Some(socket);
        }
    }

    /// Closes a socket.
    pub fn close(&mut self, number: usize) {
        if let Some(slot) = self.0.get_mut(number) {
            *slot = None;
        }
    }
}

/// Length of an HTTP head with its blank line.
pub fn head_length(input: &[u8]) -> Option<usize> {
    input.windows(4).position(|four| four == b"\r\n\r\n").map(|at| at + 4)
}

/// Accepts only a 101 with the accept value of our key.
pub fn check_upgrade(head: &[u8]) -> Result<()> {
    let head = String::from_utf8_lossy(head);
    ensure!(head.starts_with("HTTP/1.1 101 "), "the upgrade was refused: {head}");
    ensure!(head.contains(frames::UPGRADE_ACCEPT), "wrong Sec-WebSocket-Accept: {head}");
    Ok(())
}

/// One `send`; returns the bytes it took. A closed peer takes all: the next read notices it.
pub fn send(socket: &OwnedFd, bytes: &[u8]) -> Result<usize> {
    match rustix::net::send(socket, bytes, SendFlags::NOSIGNAL | SendFlags::DONTWAIT) {
        Ok(count) => Ok(count),
        Err(Errno::PIPE | Errno::CONNRESET) => Ok(bytes.len()),
        Err(Errno::AGAIN) => Ok(0),
        Err(error) => bail!("send: {error}"),
    }
}

/// One `send` that has to take all.
pub fn send_all(socket: &OwnedFd, bytes: &[u8]) -> Result<()> {
    let sent = rustix::net::send(socket, bytes, SendFlags::NOSIGNAL)?;
    ensure!(sent == bytes.len(), "the peer does not read: {sent} of {} bytes", bytes.len());
    Ok(())
}
