//! Sockets and poll sets, as every client and every bare loop of the benchmark has them.

use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::OwnedFd;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail, ensure};
use rustix::buffer::spare_capacity;
use rustix::event::Timespec;
use rustix::event::epoll::{self, Event, EventData, EventFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType, sockopt};

use crate::frames;

/// Waits for events, at most for `time`; they replace those in `events`, whose capacity bounds
/// them.
pub fn wait(epoll: &OwnedFd, events: &mut Vec<Event>, time: Option<Duration>) -> Result<()> {
    events.clear();
    let timeout = time.map(Timespec::try_from).transpose()?;
    match epoll::wait(epoll, spare_capacity(events), timeout.as_ref()) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(error) => bail!("epoll_wait: {error}"),
    }
}

/// Has a poll set tell of a socket under this number.
pub fn add(epoll: &OwnedFd, socket: &OwnedFd, number: usize, flags: EventFlags) -> Result<()> {
    Ok(epoll::add(epoll, socket, EventData::new_u64(u64::try_from(number)?), flags)?)
}

/// The source address of connection `index`: 16 of them, so that ports never run out.
/// Only a server on loopback is dialled from them.
fn source(index: usize, server: SocketAddrV4) -> Option<SocketAddrV4> {
    let host = u8::try_from(index % 16 + 1).ok()?;
    server.ip().is_loopback().then(|| SocketAddrV4::new(Ipv4Addr::new(127, 77, 1, host), 0))
}

/// Opens connection `index` to `server`. It resets instead of lingering when it is dropped, so that
/// no TIME_WAIT of one run weighs on the next.
pub fn dial(server: SocketAddrV4, index: usize, blocking: bool) -> Result<OwnedFd> {
    let mut flags = SocketFlags::CLOEXEC;
    flags.set(SocketFlags::NONBLOCK, !blocking);
    let socket = rustix::net::socket_with(AddressFamily::INET, SocketType::STREAM, flags, None)
        .context("socket")?;
    sockopt::set_tcp_nodelay(&socket, true)?;
    sockopt::set_socket_linger(&socket, Some(Duration::ZERO))?;
    if let Some(source) = source(index, server) {
        rustix::net::bind(&socket, &source).with_context(|| format!("bind to {source}"))?;
    }
    match rustix::net::connect(&socket, &server) {
        Ok(()) | Err(Errno::INPROGRESS) => Ok(socket),
        Err(error) => Err(anyhow!(error).context(format!("connect to {server}"))),
    }
}

/// A listening socket; with `shares_port` one of many on the same port, each of which gets its part
/// of those who come.
pub fn listener(listen: SocketAddrV4, shares_port: bool) -> Result<OwnedFd> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let listener = rustix::net::socket_with(AddressFamily::INET, SocketType::STREAM, flags, None)?;
    sockopt::set_socket_reuseaddr(&listener, true)?;
    if shares_port {
        sockopt::set_socket_reuseport(&listener, true)?;
    }
    // Accepted sockets inherit it on Linux.
    sockopt::set_tcp_nodelay(&listener, true)?;
    rustix::net::bind(&listener, &listen).with_context(|| format!("bind to {listen}"))?;
    rustix::net::listen(&listener, 4096)?;
    Ok(listener)
}

/// The next connection that waits, if any does.
pub fn accept(listener: &OwnedFd) -> Result<Option<OwnedFd>> {
    match rustix::net::accept_with(listener, SocketFlags::NONBLOCK | SocketFlags::CLOEXEC) {
        Ok(socket) => Ok(Some(socket)),
        Err(Errno::AGAIN | Errno::CONNABORTED) => Ok(None),
        Err(error) => bail!("accept: {error}"),
    }
}

/// Length of an HTTP head with its blank line.
pub fn head_length(input: &[u8]) -> Option<usize> {
    input.windows(4).position(|four| four == b"\r\n\r\n").map(|at| at + 4)
}

/// Only a 101 with the accept value of our key will do.
pub fn check_upgrade(head: &[u8]) -> Result<()> {
    let head = String::from_utf8_lossy(head);
    ensure!(head.starts_with("HTTP/1.1 101 "), "the upgrade was refused: {head}");
    ensure!(head.contains(frames::UPGRADE_ACCEPT), "wrong Sec-WebSocket-Accept: {head}");
    Ok(())
}

/// One `send`, and how many bytes it took; a peer that has gone takes all, and is noticed by the
/// read that follows.
pub fn send(socket: &OwnedFd, bytes: &[u8]) -> Result<usize> {
    match rustix::net::send(socket, bytes, SendFlags::NOSIGNAL | SendFlags::DONTWAIT) {
        Ok(count) => Ok(count),
        Err(Errno::PIPE | Errno::CONNRESET) => Ok(bytes.len()),
        Err(Errno::AGAIN) => Ok(0),
        Err(error) => bail!("send: {error}"),
    }
}
