//! Connections that change sides: from a shard to the HTTP side, and back for an upgrade on a
//! kept-alive connection.
//!
//! Each shard shares a Unix socket pair with the process's own table, made before the tables were
//! separated. A connection crosses it as SCM_RIGHTS, never by number, together with the bytes
//! already read from it.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
};
use thiserror::Error;

use crate::tables::MainFd;

/// The most bytes that cross with a connection.
pub const READ_AHEAD_BYTES_MAX: usize = 128 << 10;

/// Why a connection could not be handed over; it stays on its side.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum HandOffError {
    /// The other side has too many waiting (EAGAIN, ETOOMANYREFS): answer 503.
    #[error("too many connections wait for the hand-off")]
    Full,
    /// The other side has ended.
    #[error("the receiving thread has ended")]
    Gone,
    /// The connection is gone or closing.
    #[error("the connection is no longer open")]
    NotOpen,
    /// Output waits for the peer; it would be lost.
    #[error("output waits for the client")]
    OutputQueued,
    /// More than [`READ_AHEAD_BYTES_MAX`].
    #[error("too many bytes were read ahead")]
    TooLong,
}

/// The end of a shard's hand-off in the process's own table. It must not be used on a shard.
#[derive(Debug)]
pub struct HandOffEnd {
    fd: MainFd,
}

impl HandOffEnd {
    pub(crate) fn new(fd: OwnedFd) -> Self {
        Self { fd: MainFd::new(fd) }
    }

    /// Takes over one connection, non-blocking, with the bytes read from it before. The descriptor
    /// is missing if none was left to receive it: that connection is lost. `Ok(None)`: the shard
    /// has ended. An error of kind `WouldBlock`: nothing is there now.
    pub fn recv(&self) -> io::Result<Option<(Option<OwnedFd>, Vec<u8>)>> {
        recv(self.as_fd())
    }

    /// Gives a connection to the shard, non-blocking, with the bytes read from it before.
    pub fn send(&self, fd: OwnedFd, read_ahead: &[u8]) -> Result<(), (HandOffError, OwnedFd)> {
        send(self.as_fd(), fd.as_fd(), read_ahead).map_err(|error| (error, fd))
    }
}

/// For `AsyncFd` and similar wrappers.
impl AsFd for HandOffEnd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl AsRawFd for HandOffEnd {
    fn as_raw_fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }
}

pub(crate) fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    // Message boundaries, and an end of file when the other side is gone.
    #[cfg(target_os = "linux")]
    let kind = SocketType::SEQPACKET;
    #[cfg(not(target_os = "linux"))]
    let kind = SocketType::DGRAM;
    let ends = pair_of(kind)?;
    for end in [&ends.0, &ends.1] {
        // Room for a long read-ahead; the system may grant less, which results in `Full`.
        let _ = rustix::net::sockopt::set_socket_send_buffer_size(end, 4 * READ_AHEAD_BYTES_MAX);
    }
    Ok(ends)
}

pub(crate) fn send(
    end: impl AsFd,
    connection: impl AsFd,
    read_ahead: &[u8],
) -> Result<(), HandOffError> {
    if read_ahead.len() > READ_AHEAD_BYTES_MAX {
        return Err(HandOffError::TooLong);
    }
    let fds = [connection.as_fd()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    control.push(SendAncillaryMessage::ScmRights(&fds));
    // A message of no bytes would look like the end of file.
    let message = [IoSlice::new(&[0]), IoSlice::new(read_ahead)];
    #[cfg(target_os = "linux")]
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    #[cfg(not(target_os = "linux"))]
    let flags = SendFlags::DONTWAIT;
    match rustix::net::sendmsg(end, &message, &mut control, flags) {
        Ok(_) => Ok(()),
        Err(Errno::PIPE | Errno::CONNREFUSED | Errno::CONNRESET | Errno::NOTCONN) => {
            Err(HandOffError::Gone)
        }
        Err(_) => Err(HandOffError::Full),
    }
}

/// The result of [`recv`]: the connection, if a descriptor was left for it, and its bytes.
pub(crate) type Received = (Option<OwnedFd>, Vec<u8>);

pub(crate) fn recv(end: impl AsFd) -> io::Result<Option<Received>> {
    let mut bytes = vec![0; waiting_bytes(&end)?];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    #[cfg(target_os = "linux")]
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    #[cfg(not(target_os = "linux"))]
    let flags = RecvFlags::DONTWAIT;
    let received =
        rustix::net::recvmsg(&end, &mut [IoSliceMut::new(&mut bytes)], &mut control, flags)?;
    if received.bytes == 0 {
        return Ok(None);
    }
    let fd = control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
        _ => None,
    });
    bytes.truncate(received.bytes);
    bytes.remove(0);
    Ok(Some((fd, bytes)))
}

/// Two ends of one stream, not blocking.
pub(crate) fn stream_pair() -> rustix::io::Result<(OwnedFd, OwnedFd)> {
    pair_of(SocketType::STREAM)
}

#[cfg(target_os = "linux")]
fn pair_of(kind: SocketType) -> rustix::io::Result<(OwnedFd, OwnedFd)> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    rustix::net::socketpair(AddressFamily::UNIX, kind, flags, None)
}

#[cfg(not(target_os = "linux"))]
fn pair_of(kind: SocketType) -> rustix::io::Result<(OwnedFd, OwnedFd)> {
    let ends = rustix::net::socketpair(AddressFamily::UNIX, kind, SocketFlags::empty(), None)?;
    for end in [&ends.0, &ends.1] {
        rustix::io::ioctl_fionbio(end, true)?;
        rustix::io::ioctl_fioclex(end)?;
    }
    Ok(ends)
}

#[cfg(target_os = "linux")]
fn waiting_bytes(end: &impl AsFd) -> io::Result<usize> {
    let flags = RecvFlags::PEEK | RecvFlags::TRUNC | RecvFlags::DONTWAIT;
    let (_, bytes) = rustix::net::recv(end, &mut [0_u8; 1], flags)?;
    Ok(bytes.clamp(1, READ_AHEAD_BYTES_MAX + 1))
}

#[cfg(not(target_os = "linux"))]
fn waiting_bytes(_end: &impl AsFd) -> io::Result<usize> {
    Ok(READ_AHEAD_BYTES_MAX + 1)
}
