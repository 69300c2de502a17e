//! The attackers' connections: raw bytes, one thread, one `poll` for all of them.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddrV4, TcpStream};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::sockopt;

use simurgh_bench_kit::{frames, net};

const TIMEOUT: Duration = Duration::from_secs(10);
/// Bytes of frames that are prepared for a socket at once.
const BATCH: usize = 64 << 10;

/// An address of loopback that no bystander has.
pub(super) fn source(host: u8) -> SocketAddrV4 {
    SocketAddrV4::new(Ipv4Addr::new(127, 66, 1, host), 0)
}

struct Socket {
    stream: Option<OwnedFd>,
    output: Vec<u8>,
    written: usize,
    /// Frames made for it so far.
    made: u64,
}

/// Connections from one address.
pub(super) struct Crowd {
    server: SocketAddrV4,
    host: u8,
    /// What each sends first, to upgrade to a WebSocket; `None` for plain HTTP.
    upgrade: Option<Vec<u8>>,
    sockets: Vec<Socket>,
    /// Whether it reads what the server sends.
    pub(super) reads: bool,
    pub(super) received: u64,
    pub(super) sent: u64,
    buf: Vec<u8>,
}

impl Crowd {
    pub(super) fn http(server: SocketAddrV4, host: u8) -> Self {
        Self {
            server,
            host,
            upgrade: None,
            sockets: Vec::new(),
            reads: true,
            received: 0,
            sent: 0,
            buf: vec![0; 256 << 10],
        }
    }

    /// `count` WebSockets at this path.
    pub(super) fn sockets(
        server: SocketAddrV4,
        host: u8,
        path: &str,
        count: usize,
    ) -> Result<Self> {
        let upgrade = frames::upgrade_request(path, &server.to_string(), "");
        let mut crowd = Self { upgrade: Some(upgrade), ..Self::http(server, host) };
        for _ in 0..count {
            crowd.open()?;
        }
        Ok(crowd)
    }

    /// Opens one more connection and returns its number.
    pub(super) fn open(&mut self) -> Result<usize> {
        let stream = Some(self.dial()?);
        self.sockets.push(Socket { stream, output: Vec::new(), written: 0, made: 0 });
        Ok(self.sockets.len() - 1)
    }

    fn dial(&self) -> Result<OwnedFd> {
        let mut stream = dial(self.server, self.host)?;
        if let Some(upgrade) = &self.upgrade {
            stream.write_all(upgrade)?;
            net::check_upgrade(&head(&mut stream)?)?;
        }
        stream.set_nonblocking(true)?;
        Ok(stream.into())
    }

    /// Makes the kernel take little of what is not read.
    pub(super) fn narrow(&self) -> Result<()> {
        for stream in self.sockets.iter().filter_map(|socket| socket.stream.as_ref()) {
            sockopt::set_socket_recv_buffer_size(stream, 4096)?;
        }
        Ok(())
    }

    pub(super) fn open_count(&self) -> usize {
        self.sockets.iter().filter(|socket| socket.stream.is_some()).count()
    }

    pub(super) fn len(&self) -> usize {
        self.sockets.len()
    }

    /// Drops connections that the server has closed. Those behind them get other numbers.
    pub(super) fn forget_closed(&mut self) {
        self.sockets.retain(|socket| socket.stream.is_some());
    }

    /// Queues bytes for one connection.
    pub(super) fn send(&mut self, at: usize, bytes: &[u8]) {
        if let Some(socket) = self.sockets.get_mut(at) {
            socket.output.extend_from_slice(bytes);
        }
    }

    /// Queues a text frame for one connection.
    pub(super) fn push(&mut self, at: usize, text: &str) {
        self.send(at, &frames::text(text.as_bytes()));
    }

    /// Every connection sends the frames that `make` returns for it and its count of frames, as
    /// fast as the server takes them. A connection that was closed comes back after a second.
    pub(super) fn flood(
        &mut self,
        until: Instant,
        mut make: impl FnMut(usize, u64) -> String,
    ) -> Result<()> {
        let mut revived = Instant::now();
        while Instant::now() < until {
            for (at, socket) in self.sockets.iter_mut().enumerate() {
                if socket.stream.is_none() {
                    continue;
                }
                while socket.output.len() < BATCH && socket.written == 0 {
                    frames::masked(
                        frames::TEXT,
                        make(at, socket.made).as_bytes(),
                        &mut socket.output,
                    );
                    socket.made += 1;
                }
            }
            self.pump(Duration::from_millis(20))?;
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
                    (socket.output, socket.written, socket.made) = (Vec::new(), 0, 0);
                    socket.stream = Some(stream);
                }
            }
        }
    }

    /// Sends what is queued, and reads, until that moment.
    pub(super) fn rest(&mut self, until: Instant) -> Result<()> {
        while Instant::now() < until {
            self.pump(Duration::from_millis(50))?;
        }
        Ok(())
    }

    /// Sends what is queued; the server has `within` to take all of it.
    pub(super) fn flush(&mut self, within: Duration) -> Result<()> {
        let until = Instant::now() + within;
        while self.sockets.iter().any(|it| it.stream.is_some() && !it.output.is_empty())
            && Instant::now() < until
        {
            self.pump(Duration::from_millis(20))?;
        }
        Ok(())
    }

    /// One `poll`; writes and reads once where that is possible.
    pub(super) fn pump(&mut self, time: Duration) -> Result<()> {
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
        if let Err(error) = poll(&mut polled, Some(&Timespec::try_from(time)?)) {
            ensure!(error == Errno::INTR, "poll: {error}");
        }
        let ready: Vec<PollFlags> = polled.iter().map(PollFd::revents).collect();
        drop(polled);
        for (at, flags) in places.into_iter().zip(ready) {
            self.ready(at, flags);
        }
        if self.sockets.iter().all(|socket| socket.stream.is_none()) {
            std::thread::sleep(time);
        }
        Ok(())
    }

    fn ready(&mut self, at: usize, flags: PollFlags) {
        let Self { sockets, buf, received, sent, .. } = self;
        let Some(socket) = sockets.get_mut(at) else { return };
        let Some(stream) = &socket.stream else { return };
        let mut is_over = flags.intersects(PollFlags::ERR | PollFlags::HUP);
        if flags.contains(PollFlags::OUT) {
            match net::send(stream, socket.output.get(socket.written..).unwrap_or_default()) {
                Ok(count) => {
                    socket.written += count;
                    *sent += count as u64;
                }
                Err(_) => is_over = true,
            }
            if socket.written >= socket.output.len() {
                socket.output.clear();
                socket.written = 0;
            }
        }
        if flags.contains(PollFlags::IN) {
            match rustix::io::read(stream, &mut *buf) {
                Ok(0) => is_over = true,
                Ok(count) => *received += count as u64,
                Err(Errno::AGAIN | Errno::INTR) => {}
                Err(_) => is_over = true,
            }
        }
        if is_over {
            socket.stream = None;
        }
    }
}

fn dial(server: SocketAddrV4, host: u8) -> Result<TcpStream> {
    let stream = TcpStream::from(net::dial_from(Some(source(host)), server, true)?);
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.set_write_timeout(Some(TIMEOUT))?;
    Ok(stream)
}

fn head(stream: &mut TcpStream) -> Result<Vec<u8>> {
    let mut head = Vec::new();
    let mut byte = [0];
    while net::head_length(&head).is_none() {
        ensure!(stream.read(&mut byte)? == 1, "the server closed instead of answering");
        head.extend_from_slice(&byte);
        ensure!(head.len() < 16_384, "no end of the response head");
    }
    Ok(head)
}

/// The status line and the body of a request without keep-alive.
pub(super) fn ask(
    server: SocketAddrV4,
    host: u8,
    request: &str,
    body: &str,
) -> Result<(String, String)> {
    let mut stream = dial(server, host)?;
    let length = body.len();
    let request = format!(
        "{request} HTTP/1.1\r\nHost: {server}\r\nConnection: close\r\n\
         Content-Length: {length}\r\n\r\n{body}"
    );
    stream.write_all(request.as_bytes())?;
    let mut answer = String::new();
    stream.take(1 << 20).read_to_string(&mut answer)?;
    let (head, body) = answer.split_once("\r\n\r\n").context("no answer")?;
    Ok((head.lines().next().unwrap_or_default().to_owned(), body.to_owned()))
}

/// The token of a new long-poll session.
pub(super) fn session(server: SocketAddrV4, host: u8) -> Result<String> {
    let (_, body) = ask(server, host, "GET /socket/longpoll?vsn=2.0.0", "")?;
    let answer: serde_json::Value = serde_json::from_str(&body).with_context(|| body.clone())?;
    let token = answer.get("token").and_then(serde_json::Value::as_str).context(body)?;
    Ok(token.to_owned())
}
