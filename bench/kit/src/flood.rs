//! The attackers' connections: raw bytes, one thread, one `poll` for all of them.

use std::net::{Ipv4Addr, SocketAddrV4, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::sockopt;

use crate::{frames, net, probe};

/// The path of a WebSocket.
pub const SOCKET: &str = "/socket/websocket?vsn=2.0.0";
const TICK: Duration = Duration::from_millis(20);
/// Bytes that are prepared for a connection at once.
const BATCH: usize = 64 << 10;

struct Socket {
    stream: Option<OwnedFd>,
    output: Vec<u8>,
    written: usize,
    /// Texts made for it so far.
    made: u64,
}

/// Connections from one address.
pub struct Crowd<'a> {
    server: SocketAddrV4,
    source: SocketAddrV4,
    /// The request for the upgrade to a WebSocket; `None` for plain HTTP.
    upgrade: Option<Vec<u8>>,
    sockets: Vec<Socket>,
    /// Whether it reads what the server sends.
    reads: bool,
    buf: Vec<u8>,
    sent: &'a AtomicU64,
}

impl<'a> Crowd<'a> {
    /// No connection yet; they come from 127.66.1.`host` and add their bytes to `sent`.
    pub fn http(server: SocketAddrV4, host: u8, sent: &'a AtomicU64) -> Self {
        let source = SocketAddrV4::new(Ipv4Addr::new(127, 66, 1, host), 0);
        let (upgrade, sockets, buf) = (None, Vec::new(), vec![0; 256 << 10]);
        Self { server, source, upgrade, sockets, reads: true, buf, sent }
    }

    /// Makes the connections WebSockets at this path.
    pub fn at(mut self, path: &str) -> Self {
        self.upgrade = Some(frames::upgrade_request(path, &self.server.to_string(), ""));
        self
    }

    /// Lets the kernel take little of what the server sends, and reads nothing.
    pub fn unread(mut self) -> Self {
        self.reads = false;
        self
    }

    /// Opens `count` more connections.
    pub fn open(mut self, count: usize) -> Result<Self> {
        for _ in 0..count {
            let stream = Some(self.dial()?);
            self.sockets.push(Socket { stream, output: Vec::new(), written: 0, made: 0 });
        }
        Ok(self)
    }

    fn dial(&self) -> Result<OwnedFd> {
        let stream = net::dial_from(Some(self.source), self.server, true)?;
        if !self.reads {
            sockopt::set_socket_recv_buffer_size(&stream, 4096)?;
        }
        let mut stream = TcpStream::from(stream);
        if let Some(upgrade) = &self.upgrade {
            probe::upgrade(&mut stream, upgrade)?;
        }
        stream.set_nonblocking(true)?;
        Ok(stream.into())
    }

    /// How many are open.
    pub fn open_count(&self) -> usize {
        self.sockets.iter().filter(|socket| socket.stream.is_some()).count()
    }

    /// Every connection sends the texts that `make` returns for it and its count of texts, as fast
    /// as the server takes them, until `make` returns none. A closed connection comes back within a
    /// second.
    pub fn flood(
        &mut self,
        until: Instant,
        mut make: impl FnMut(usize, u64) -> Option<String>,
    ) -> Result<()> {
        let is_websocket = self.upgrade.is_some();
        self.flood_while(
            || Instant::now() < until,
            |at, number| {
                let text = make(at, number)?;
                Some(if is_websocket { frames::text(text.as_bytes()) } else { text.into() })
            },
        )
    }

    /// The same with bytes, while `is_on`.
    pub fn flood_while(
        &mut self,
        is_on: impl Fn() -> bool,
        mut make: impl FnMut(usize, u64) -> Option<Vec<u8>>,
    ) -> Result<()> {
        let mut revived = Instant::now();
        while is_on() {
            for (at, socket) in self.sockets.iter_mut().enumerate() {
                while socket.stream.is_some() && socket.output.len() < BATCH && socket.written == 0
                {
                    let Some(bytes) = make(at, socket.made) else { break };
                    socket.output.extend_from_slice(&bytes);
                    socket.made += 1;
                }
            }
            self.pump()?;
            if revived.elapsed() > Duration::from_secs(1) {
                revived = Instant::now();
                self.revive();
            }
        }
        Ok(())
    }

    /// Opens closed connections again, as far as the server lets it.
    fn revive(&mut self) {
        for at in 0..self.sockets.len() {
            if self.sockets.get(at).is_some_and(|socket| socket.stream.is_none()) {
                let Ok(stream) = self.dial() else { return };
                if let Some(socket) = self.sockets.get_mut(at) {
                    *socket =
                        Socket { stream: Some(stream), output: Vec::new(), written: 0, made: 0 };
                }
            }
        }
    }

    /// Only reads, until that moment.
    pub fn rest(&mut self, until: Instant) -> Result<()> {
        while Instant::now() < until {
            self.pump()?;
        }
        Ok(())
    }

    /// One `poll`; writes and reads once where that is possible.
    fn pump(&mut self) -> Result<()> {
        let mut polled = Vec::new();
        let mut places = Vec::new();
        for (at, socket) in self.sockets.iter().enumerate() {
            let Some(stream) = &socket.stream else { continue };
            let mut flags = PollFlags::empty();
            flags.set(PollFlags::IN, self.reads);
            flags.set(PollFlags::OUT, !socket.output.is_empty());
            polled.push(PollFd::new(stream, flags));
            places.push(at);
        }
        if let Err(error) = poll(&mut polled, Some(&Timespec::try_from(TICK)?)) {
            ensure!(error == Errno::INTR, "poll: {error}");
        }
        let ready: Vec<PollFlags> = polled.iter().map(PollFd::revents).collect();
        drop(polled);
        for (at, flags) in places.into_iter().zip(ready) {
            self.exchange(at, flags);
        }
        Ok(())
    }

    /// Writes to a connection and reads from it, as far as `poll` has found that possible.
    fn exchange(&mut self, at: usize, flags: PollFlags) {
        let Some(socket) = self.sockets.get_mut(at) else { return };
        let Some(stream) = &socket.stream else { return };
        let mut is_over = flags.intersects(PollFlags::ERR | PollFlags::HUP);
        if flags.contains(PollFlags::OUT) {
            let count = net::send(stream, socket.output.get(socket.written..).unwrap_or_default());
            is_over |= count.is_err();
            socket.written += count.unwrap_or(0);
            if socket.written >= socket.output.len() {
                self.sent.fetch_add(socket.written as u64, Ordering::Relaxed);
                socket.output.clear();
                socket.written = 0;
            }
        }
        if flags.contains(PollFlags::IN) {
            let count = rustix::io::read(stream, &mut *self.buf);
            is_over |= !matches!(count, Ok(1..) | Err(Errno::AGAIN | Errno::INTR));
        }
        if is_over {
            socket.stream = None;
        }
    }
}
