//! Sockets: listening, accepting, connecting, and their options.
//!
//! Each shard listens by itself with SO_REUSEPORT and the kernel spreads connections over them.
//! That option would also let a second server join silently on the same port, so the address is
//! first taken without it ([`reserve`]).

use std::hash::{BuildHasher, RandomState};
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, Shutdown, SocketAddrAny, SocketType, sockopt};
use thiserror::Error;

use crate::syscalls;

const ATTEMPTS: usize = 8;
const PAUSE_MAX: Duration = Duration::from_millis(20);

/// Why an address could not be listened on.
#[derive(Debug, Error)]
#[error("cannot listen on {address}: {source}")]
pub struct ListenError {
    /// The address.
    pub address: SocketAddr,
    /// The error of the system.
    pub source: io::Error,
}

/// How an outgoing connection is opened.
#[derive(Clone, Copy, Debug, Default)]
pub struct ConnectOptions {
    /// The local address. With port 0 the kernel chooses the port when it has the destination, so
    /// that each destination has all ports; another port may also have connections to other
    /// destinations. Default: the address of the route.
    pub from: Option<SocketAddr>,
    /// The kernel's receive buffer, bytes, which it doubles. Default: the system's, which grows.
    pub receive_buffer_bytes: Option<usize>,
    /// Size of the kernel's send buffer, in the same way.
    pub send_buffer_bytes: Option<usize>,
    /// Every end of the connection is a reset, so neither side is left in TIME_WAIT and the port is
    /// free at once. What the kernel has not sent by then is lost. Default: an orderly end.
    pub reset_on_close: bool,
}

/// How the kernel looks for a free port.
///
/// By default it tries every second port of its range first. Once those have a connection to the
/// destination, each further one walks past all of them: measured, 20 µs become 500 from the
/// 14,000th on. If the socket sets a range, even the same one, the kernel tries all ports alike
/// (from Linux 6.8 on).
#[derive(Default)]
pub(crate) struct Ports {
    /// The last port of the kernel's range, once it was read; `None`: no range is set.
    last: Option<Option<u16>>,
}

impl Ports {
    #[cfg(target_os = "linux")]
    pub(crate) fn limit(&mut self, fd: &OwnedFd) -> rustix::io::Result<()> {
        let Some(last) = *self.last.get_or_insert_with(last_port) else { return Ok(()) };
        match syscalls::limit_ports(fd, last) {
            Err(Errno::NOPROTOOPT) => {
                self.last = Some(None);
                Ok(())
            }
            other => other,
        }
    }

    #[cfg(not(target_os = "linux"))]
    pub(crate) fn limit(&mut self, _fd: &OwnedFd) -> rustix::io::Result<()> {
        Ok(())
    }
}

#[cfg(target_os = "linux")]
fn last_port() -> Option<u16> {
    let range = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").ok()?;
    range.split_whitespace().nth(1)?.parse().ok()
}

/// Takes `address` exclusively, which fails if another socket listens there or has taken it, and
/// keeps it in such a way that shards, and only this user's sockets, may join. Returns the address
/// with the port that the system chose instead of 0.
pub(crate) fn reserve(address: SocketAddr) -> Result<(OwnedFd, SocketAddr), ListenError> {
    let bound = || {
        let fd = listening_socket(address)?;
        if address.port() == 0 {
            // A reusable port is not wanted: it might be another server's reservation.
            rustix::net::bind(&fd, &address)?;
        } else {
            // Else old connections in TIME_WAIT would prevent a restart of the server.
            sockopt::set_socket_reuseaddr(&fd, true)?;
            rustix::net::bind(&fd, &address)?;
            make_exclusive(&fd)?;
        }
        reuse_port(&fd)?;
        let actual = socket_addr(rustix::net::getsockname(&fd)?)?;
        Ok((fd, actual))
    };
    retry_in_use(bound).map_err(|source| ListenError { address, source })
}

/// If two sockets begin to listen at once, Linux may refuse both, for each counts as listening
/// before its own check. Then both try again, after different delays.
fn retry_in_use<T>(listening: impl Fn() -> io::Result<T>) -> io::Result<T> {
    for _ in 0..ATTEMPTS {
        match listening() {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
                let by_chance = RandomState::new().hash_one(0) % PAUSE_MAX.as_nanos() as u64;
                std::thread::sleep(Duration::from_nanos(by_chance));
            }
            done => return done,
        }
    }
    listening()
}

/// Makes a bound address this socket's alone. Sockets that may reuse an address may all be bound to
/// it until one listens, so a bind alone decides nothing between two servers that start at once.
/// Listening does: the system allows only one of them. Then the socket stays bound, without reuse.
#[cfg(target_os = "linux")]
fn make_exclusive(fd: &OwnedFd) -> rustix::io::Result<()> {
    rustix::net::listen(fd, 0)?;
    // Before it stops listening, so that no other socket can begin to.
    sockopt::set_socket_reuseaddr(fd, false)?;
    // No client must wait in a backlog that is never read.
    rustix::net::shutdown(fd, Shutdown::Read)
}

/// Elsewhere an address can be bound once, reusable or not.
#[cfg(not(target_os = "linux"))]
fn make_exclusive(_: &OwnedFd) -> rustix::io::Result<()> {
    Ok(())
}

pub(crate) fn listen(
    address: SocketAddr,
    backlog: i32,
    receive_stamps: bool,
) -> Result<OwnedFd, ListenError> {
    let listening = || {
        let fd = listening_socket(address)?;
        sockopt::set_socket_reuseaddr(&fd, true)?;
        reuse_port(&fd)?;
        // Accepted sockets inherit both on Linux.
        sockopt::set_tcp_nodelay(&fd, true)?;
        if receive_stamps {
            syscalls::stamp_received(&fd)?;
        }
        rustix::net::bind(&fd, &address)?;
        rustix::net::listen(&fd, backlog)?;
        // Not before: it would be forgotten.
        expect_answers(&fd)?;
        Ok(fd)
    };
    retry_in_use(listening).map_err(|source| ListenError { address, source })
}

/// Makes a socket that another process opened listen as [`listen`] does.
pub(crate) fn adopt_listener(
    fd: &OwnedFd,
    backlog: i32,
    receive_stamps: bool,
) -> rustix::io::Result<()> {
    prepare_adopted(fd)?;
    rustix::io::ioctl_fioclex(fd)?;
    if receive_stamps {
        syscalls::stamp_received(fd)?;
    }
    rustix::net::listen(fd, backlog)?;
    expect_answers(fd)
}

/// The address on which an IP socket listens; `None` for other sockets.
pub fn listening_address(fd: impl AsFd) -> Option<SocketAddr> {
    let listens = sockopt::socket_acceptconn(&fd).is_ok_and(|listens| listens);
    let own = rustix::net::getsockname(fd).ok().filter(|_| listens)?;
    socket_addr(own).ok()
}

fn listening_socket(address: SocketAddr) -> io::Result<OwnedFd> {
    let fd = socket(address)?;
    if address.is_ipv6() {
        sockopt::set_ipv6_v6only(&fd, true)?;
    }
    Ok(fd)
}

fn socket(address: SocketAddr) -> rustix::io::Result<OwnedFd> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    #[cfg(target_os = "linux")]
    let fd = {
        use rustix::net::SocketFlags;
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        rustix::net::socket_with(family, SocketType::STREAM, flags, None)?
    };
    #[cfg(not(target_os = "linux"))]
    let fd = {
        let fd = rustix::net::socket(family, SocketType::STREAM, None)?;
        rustix::io::ioctl_fionbio(&fd, true)?;
        rustix::io::ioctl_fioclex(&fd)?;
        fd
    };
    Ok(fd)
}

/// Begins an outgoing connection with few calls: a load generator makes millions of them.
pub(crate) fn connect(
    to: SocketAddr,
    how: &ConnectOptions,
    receive_stamps: bool,
    ports: &mut Ports,
) -> rustix::io::Result<OwnedFd> {
    let fd = socket(to)?;
    sockopt::set_tcp_nodelay(&fd, true)?;
    expect_answers(&fd)?;
    if receive_stamps {
        syscalls::stamp_received(&fd)?;
    }
    // Before the handshake, which tells the peer how large the window can grow.
    if let Some(bytes) = how.receive_buffer_bytes {
        sockopt::set_socket_recv_buffer_size(&fd, bytes)?;
    }
    if let Some(bytes) = how.send_buffer_bytes {
        sockopt::set_socket_send_buffer_size(&fd, bytes)?;
    }
    if how.reset_on_close {
        // Now and not at its end, so that it applies to a process that is killed, too.
        sockopt::set_socket_linger(&fd, Some(Duration::ZERO))?;
    }
    match how.from {
        None => ports.limit(&fd)?,
        Some(from) if from.port() == 0 => {
            ports.limit(&fd)?;
            syscalls::choose_port_at_connect(&fd)?;
            rustix::net::bind(&fd, &from)?;
        }
        Some(from) => {
            // The port may have other connections, or an old one in TIME_WAIT.
            sockopt::set_socket_reuseaddr(&fd, true)?;
            rustix::net::bind(&fd, &from)?;
        }
    }
    match rustix::net::connect(&fd, &to) {
        Ok(()) | Err(Errno::INPROGRESS | Errno::INTR) => Ok(fd),
        Err(error) => Err(error),
    }
}

/// Tells the kernel that received bytes will be answered, so that acknowledgements travel with the
/// answers: 3 of 17 packets fewer for a connect, an upgrade and a join. Accepted sockets inherit
/// it; the kernel drops it where answers stay away.
fn expect_answers(fd: &OwnedFd) -> rustix::io::Result<()> {
    #[cfg(target_os = "linux")]
    sockopt::set_tcp_quickack(fd, false)?;
    #[cfg(not(target_os = "linux"))]
    let _ = fd;
    Ok(())
}

pub(crate) fn has_input(fd: &OwnedFd) -> bool {
    let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
    rustix::net::recv(fd, &mut [0_u8; 1][..], flags).is_ok_and(|(_, bytes)| bytes > 0)
}

fn reuse_port(fd: &OwnedFd) -> io::Result<()> {
    Ok(sockopt::set_socket_reuseport(fd, true)?)
}

pub(crate) fn accept(listener: &OwnedFd) -> rustix::io::Result<OwnedFd> {
    #[cfg(target_os = "linux")]
    {
        use rustix::net::SocketFlags;
        rustix::net::accept_with(listener, SocketFlags::NONBLOCK | SocketFlags::CLOEXEC)
    }
    #[cfg(not(target_os = "linux"))]
    {
        let fd = rustix::net::accept(listener)?;
        rustix::io::ioctl_fioclex(&fd)?;
        prepare_adopted(&fd)?;
        Ok(fd)
    }
}

/// Makes a socket from elsewhere behave like an accepted one.
pub(crate) fn prepare_adopted(fd: &OwnedFd) -> rustix::io::Result<()> {
    rustix::io::ioctl_fionbio(fd, true)?;
    // In some tests it is not a TCP socket, and there is nothing to delay.
    let _ = sockopt::set_tcp_nodelay(fd, true);
    Ok(())
}

/// The peer of a Unix socket is on this machine: its address is 127.0.0.1 with port 0.
pub(crate) fn peer_addr(fd: impl AsFd) -> io::Result<SocketAddr> {
    let peer = rustix::net::getpeername(fd)?.ok_or(io::ErrorKind::NotConnected)?;
    if peer.address_family() == AddressFamily::UNIX {
        return Ok(SocketAddr::from(([127, 0, 0, 1], 0)));
    }
    socket_addr(peer)
}

pub(crate) fn is_unix(fd: impl AsFd) -> bool {
    rustix::net::getsockname(fd).is_ok_and(|own| own.address_family() == AddressFamily::UNIX)
}

fn socket_addr(address: SocketAddrAny) -> io::Result<SocketAddr> {
    SocketAddr::try_from(address).map_err(io::Error::from)
}

/// The error that broke the connection, as the kernel remembers it.
pub(crate) fn error_kind(fd: &OwnedFd) -> io::ErrorKind {
    match sockopt::socket_error(fd) {
        Ok(Err(error)) => error.kind(),
        _ => io::ErrorKind::ConnectionReset,
    }
}

pub(crate) fn reset_on_close(fd: &OwnedFd) {
    // It fails only for a socket that is already gone.
    let _ = sockopt::set_socket_linger(fd, Some(Duration::ZERO));
}

pub(crate) fn shutdown_write(fd: &OwnedFd) {
    let _ = rustix::net::shutdown(fd, Shutdown::Write);
}

/// Ends the connection in an orderly way. Unread input would turn the close into a reset, which
/// discards output that the peer has not received yet, so received input is read first.
pub(crate) fn close_gently(fd: &OwnedFd) {
    const ROUNDS_MAX: usize = 32;
    let mut unread = [0_u8; 2048];
    for _ in 0..ROUNDS_MAX {
        match rustix::net::recv(fd, &mut unread, RecvFlags::DONTWAIT) {
            Ok((_, bytes)) if bytes > 0 => {}
            _ => break,
        }
    }
    let _ = rustix::net::shutdown(fd, Shutdown::Both);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sockets_disable_delay_and_are_not_inherited() {
        let (_reserved, address) = reserve(([127, 0, 0, 1], 0).into()).unwrap();
        let listener = listen(address, 1, false).unwrap();
        let how = ConnectOptions {
            receive_buffer_bytes: Some(100_000),
            send_buffer_bytes: Some(50_000),
            ..ConnectOptions::default()
        };
        let ours = connect(address, &how, false, &mut Ports::default()).unwrap();
        assert_eq!(sockopt::socket_recv_buffer_size(&ours).unwrap(), 200_000);
        assert_eq!(sockopt::socket_send_buffer_size(&ours).unwrap(), 100_000);
        let theirs = loop {
            match accept(&listener) {
                Ok(fd) => break fd,
                Err(error) => assert_eq!(error, Errno::AGAIN),
            }
        };
        for fd in [ours, theirs] {
            assert!(sockopt::tcp_nodelay(&fd).unwrap());
            let flags = rustix::io::fcntl_getfd(&fd).unwrap();
            assert!(flags.contains(rustix::io::FdFlags::CLOEXEC));
        }
    }
}
