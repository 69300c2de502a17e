//! The sockets on which a set of shards listens, in the process's own table: some of another
//! process, which listened before, and copies of all, for the process that listens next.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd, RawFd};

use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags,
};

use crate::net::{self, ListenError};
use crate::tables::{self, MainFd};

/// Descriptors that cross with one byte; the kernel takes 253.
const TOGETHER: usize = 64;

/// Listening sockets of the process's own table. They stay open until [`close`](Self::close), also
/// when the shards have closed their copies.
#[derive(Debug, Default)]
pub struct Listening(Vec<MainFd>);

impl Listening {
    /// Closes the sockets in this table. On a shard, which has another one, they stay open and come
    /// back.
    ///
    /// # Errors
    /// The calling thread is a shard.
    pub fn close(self) -> Result<(), Self> {
        match tables::thread_table().table {
            0 => Ok(()),
            _ => Err(self),
        }
    }

    /// Further sockets, of any kind.
    pub fn extend(&mut self, others: impl IntoIterator<Item = OwnedFd>) {
        self.0.extend(others.into_iter().map(MainFd::new));
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Sends the sockets over a Unix stream socket, for [`receive_listening`]. Blocks.
    ///
    /// # Errors
    /// The stream is broken.
    pub fn send(&self, stream: impl AsFd) -> io::Result<()> {
        for some in self.0.chunks(TOGETHER) {
            let fds: Vec<BorrowedFd<'_>> = some.iter().map(AsFd::as_fd).collect();
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(TOGETHER))];
            let mut control = SendAncillaryBuffer::new(&mut space);
            control.push(SendAncillaryMessage::ScmRights(&fds));
            rustix::net::sendmsg(
                &stream,
                &[IoSlice::new(&[0])],
                &mut control,
                SendFlags::NOSIGNAL,
            )?;
        }
        Ok(())
    }
}

/// Receives so many sockets that [`Listening::send`] sends. Blocks.
///
/// # Errors
/// The stream is broken or ends, or this process has no descriptors left.
pub fn receive_listening(stream: impl AsFd, count: usize) -> io::Result<Vec<OwnedFd>> {
    let mut received = Vec::new();
    while received.len() < count {
        let before = received.len();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(TOGETHER))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut byte = [0];
        let flags = RecvFlags::CMSG_CLOEXEC;
        match rustix::net::recvmsg(&stream, &mut [IoSliceMut::new(&mut byte)], &mut control, flags)
        {
            Err(Errno::INTR) => continue,
            Err(error) => return Err(error.into()),
            Ok(_) => {}
        }
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(fds) = message {
                received.extend(fds);
            }
        }
        if received.len() == before {
            return Err(io::Error::other("the listening sockets did not arrive"));
        }
    }
    Ok(received)
}

/// The sockets that a service manager has opened for this process (`LISTEN_FDS`, sd_listen_fds(3)).
/// Call it once, before any thread is started. Nothing, if they are meant for another process.
pub fn activated() -> Vec<OwnedFd> {
    let number = |name: &str| std::env::var(name).ok()?.parse::<u32>().ok();
    if number("LISTEN_PID") != Some(std::process::id()) {
        return Vec::new();
    }
    let count = number("LISTEN_FDS").unwrap_or(0).min(1024) as RawFd;
    (3..3 + count).filter_map(tables::passed).collect()
}

/// The sockets of a set, by the index of their address.
#[derive(Debug, Default)]
pub(crate) struct Addresses {
    pub(crate) all: Vec<SocketAddr>,
    /// Another process opened them.
    inherited: Vec<(OwnedFd, u16)>,
    pub(crate) kept: Listening,
}

impl Addresses {
    /// Takes an address that is among those of these sockets.
    pub(crate) fn inherit(&mut self, address: SocketAddr, sockets: Vec<OwnedFd>) {
        let index = self.all.len() as u16;
        self.all.push(address);
        self.inherited.extend(sockets.into_iter().map(|fd| (fd, index)));
    }

    /// Copies of the sockets of one of `shards`, with the index of their address: its part of those
    /// of another process, of which shards may have to share one, or new ones.
    pub(crate) fn open(
        &mut self,
        (shard, shards): (usize, usize),
        backlog: i32,
        receive_stamps: bool,
    ) -> Result<Vec<(OwnedFd, u16)>, ListenError> {
        let (mut own, mut opened) = (Vec::new(), Vec::new());
        for (index, address) in (0..).zip(&self.all) {
            let failed = |error: Errno| ListenError { address: *address, source: error.into() };
            let inherited = self.inherited.iter().filter(|(_, of)| *of == index);
            let inherited: Vec<&OwnedFd> = inherited.map(|(fd, _)| fd).collect();
            if inherited.is_empty() {
                let fd = net::listen(*address, backlog, receive_stamps)?;
                own.push((copy(&fd).map_err(failed)?, index));
                opened.push(fd);
                continue;
            }
            let first = shard % inherited.len();
            for fd in inherited.iter().skip(first).step_by(shards) {
                net::adopt_listener(fd, backlog, receive_stamps).map_err(failed)?;
                own.push((copy(fd).map_err(failed)?, index));
            }
        }
        self.kept.extend(opened);
        Ok(own)
    }

    /// All sockets, for the next process.
    pub(crate) fn take(&mut self) -> Listening {
        self.kept.extend(std::mem::take(&mut self.inherited).into_iter().map(|(fd, _)| fd));
        std::mem::take(&mut self.kept)
    }
}

fn copy(fd: &OwnedFd) -> rustix::io::Result<OwnedFd> {
    rustix::io::fcntl_dupfd_cloexec(fd, 3)
}
