//! A server that does nothing but log times: when a request came, and when its answer went out.
//!
//! It shares no code with the load generator. Between two looks at its sockets pass microseconds.
//! Each request is logged with the last look that did not find it (`from_ns`) and the one that did
//! (`at_ns`), so its own lateness is known for each one.
//!
//! A request is a `GET` or a text frame of the form `/SCENARIO/USER/NAME/DELAY[/PUSH]`: the answer
//! leaves after DELAY µs, and PUSH µs after the request the frame `go` follows. `DELAY` may be
//! `drawn`. `GET /log` returns the log as JSON and clears it.

use std::collections::HashMap;
use std::net::SocketAddrV4;
use std::os::fd::OwnedFd;
use std::time::Duration;

use anyhow::{Context, Result};
use rustix::event::epoll::{Event, EventFlags};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

use simurgh_bench_kit::net::{self, Listener, head_length};
use simurgh_bench_kit::target::{CLIENT_CORE, SERVER_CORE};
use simurgh_bench_kit::{frames, sys};

/// A request, with nanoseconds of CLOCK_MONOTONIC.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub(super) struct Record {
    /// `/SCENARIO/USER/NAME/DELAY[/PUSH]`.
    pub(super) path: String,
    /// It had not come yet.
    pub(super) from_ns: u64,
    /// It had come.
    pub(super) at_ns: u64,
    /// Before and after the answer was sent; 0: never.
    pub(super) answered_ns: [u64; 2],
    /// The same of what was pushed.
    pub(super) pushed_ns: [u64; 2],
}

impl Record {
    /// A part of the path, from 0.
    pub(super) fn part(&self, index: usize) -> &str {
        self.path.split('/').nth(index + 1).unwrap_or_default()
    }

    pub(super) fn user(&self) -> u32 {
        self.part(1).parse().unwrap_or(0)
    }
}

/// Delays in µs that are `drawn`, each with the share of requests up to it, of 1,000.
pub(super) const DRAWN: [(u64, u64); 4] =
    [(600, 5_000), (920, 20_000), (992, 100_000), (1_000, 250_000)];

/// Between two looks, unless something comes. Without a pause the kernel would throttle it.
const LOOK_INTERVAL: Timespec = Timespec { tv_sec: 0, tv_nsec: 30_000 };

/// Serves until its parent ends.
pub(crate) fn serve() -> Result<()> {
    sys::die_with_parent()?;
    sys::pin(SERVER_CORE)?;
    let listener = Listener::open(SocketAddrV4::new([127, 77, 0, 1].into(), 0), false)?;
    println!("listening on {}", listener.address()?);
    Recorder { listener, sockets: HashMap::new(), log: Vec::new(), due: Vec::new(), drawn: 0 }.run()
}

/// Longer pauses of a core are stalls of the machine.
const STALL_NS: u64 = 250_000;
/// Between two looks at the clock.
const WATCH_INTERVAL: Timespec = Timespec { tv_sec: 0, tv_nsec: 50_000 };

/// Prints when the load generator's core stood still, until its parent ends. It runs before the
/// load generator there, so nothing but the machine can hold it up.
pub(crate) fn watch() -> Result<()> {
    sys::die_with_parent()?;
    sys::pin(CLIENT_CORE)?;
    let mut before_ns = now_ns();
    loop {
        poll(&mut [], Some(&WATCH_INTERVAL))?;
        let ns = now_ns();
        if ns - before_ns > STALL_NS {
            println!("stall {before_ns} {ns}");
        }
        before_ns = now_ns();
    }
}

struct Recorder {
    listener: Listener,
    /// By descriptor number: the socket, the part of a request that has come, and whether it
    /// carries frames.
    sockets: HashMap<usize, Socket>,
    log: Vec<Record>,
    due: Vec<Due>,
    drawn: u64,
}

struct Socket {
    fd: OwnedFd,
    input: Vec<u8>,
    is_websocket: bool,
}

/// Bytes to be sent, at a time, because of a request.
struct Due {
    at_ns: u64,
    socket: usize,
    record: usize,
    is_push: bool,
    bytes: Vec<u8>,
}

fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    u64::try_from(now.tv_sec * 1_000_000_000 + now.tv_nsec).unwrap_or_default()
}

impl Recorder {
    fn run(&mut self) -> Result<()> {
        let mut events: Vec<Event> = Vec::with_capacity(512);
        let (mut from_ns, mut buffer) = (now_ns(), vec![0; 64 << 10]);
        loop {
            // The wait of a poll set has whole milliseconds.
            let mut set = [PollFd::new(&self.listener.epoll, PollFlags::IN)];
            poll(&mut set, Some(&LOOK_INTERVAL))?;
            net::wait(&self.listener.epoll, &mut events, Some(Duration::ZERO))?;
            let at_ns = now_ns();
            for event in &events {
                match event.data.u64() {
                    Listener::NUMBER => self.accept()?,
                    number => self.read(usize::try_from(number)?, &mut buffer, (from_ns, at_ns)),
                }
            }
            self.send();
            from_ns = at_ns;
        }
    }

    fn accept(&mut self) -> Result<()> {
        let Self { listener, sockets, .. } = self;
        listener.accept_some(EventFlags::IN, |number, fd| {
            sockets.insert(number, Socket { fd, input: Vec::new(), is_websocket: false });
        })?;
        Ok(())
    }

    fn read(&mut self, number: usize, buffer: &mut [u8], seen: (u64, u64)) {
        let Some(socket) = self.sockets.get_mut(&number) else { return };
        let count = rustix::io::read(&socket.fd, &mut *buffer).unwrap_or_default();
        socket.input.extend_from_slice(buffer.get(..count).unwrap_or_default());
        let mut input = std::mem::take(&mut socket.input);
        let mut is_open = count > 0;
        while is_open && let Some(used) = self.take(number, &input, seen) {
            input.drain(..used);
            is_open = used > 0;
        }
        match self.sockets.get_mut(&number).filter(|_| is_open) {
            Some(socket) => socket.input = input,
            None => drop(self.sockets.remove(&number)),
        }
    }

    /// Takes a whole request: its bytes, 0 to close the connection, or nothing if it is not whole.
    fn take(&mut self, number: usize, input: &[u8], seen: (u64, u64)) -> Option<usize> {
        let socket = self.sockets.get_mut(&number)?;
        if socket.is_websocket {
            let (header, length) = frames::lengths(input)?;
            let header = header + frames::MASK.len();
            let mask = input.get(header - 4..header)?;
            let payload = input.get(header..header + length)?;
            if input.first()? & 0x0f != frames::TEXT {
                return Some(0);
            }
            let plain = payload.iter().zip(mask.iter().cycle()).map(|(byte, mask)| byte ^ mask);
            let path = String::from_utf8(plain.collect()).unwrap_or_default();
            self.record(number, &path, seen, frames::plain(b"ok"));
            return Some(header + length);
        }
        let length = head_length(input)?;
        let head = String::from_utf8_lossy(input.get(..length)?).into_owned();
        let path = head.split(' ').nth(1)?;
        if path == "/log" {
            let log = serde_json::to_string(&std::mem::take(&mut self.log)).unwrap_or_default();
            self.due.clear();
            let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", log.len());
            // Blocking, since nothing is measured now.
            let _ = rustix::io::ioctl_fionbio(&socket.fd, false);
            let mut rest = (head + &log).into_bytes();
            while let Ok(sent @ 1..) = rustix::io::write(&socket.fd, &rest) {
                rest.drain(..sent);
            }
            return Some(0);
        }
        let key = head.lines().find_map(|line| {
            let (name, value) = line.split_once(':')?;
            name.eq_ignore_ascii_case("sec-websocket-key").then(|| value.trim().to_owned())
        });
        socket.is_websocket = key.is_some();
        let ok = || b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok".to_vec();
        self.record(number, path, seen, key.map_or_else(ok, |key| frames::switching(&key)));
        Some(length)
    }

    fn record(&mut self, socket: usize, path: &str, (from_ns, at_ns): (u64, u64), bytes: Vec<u8>) {
        let record = Record { path: path.to_owned(), from_ns, at_ns, ..Record::default() };
        let delay_us = match record.part(3) {
            "drawn" => {
                self.drawn += 1;
                // Each thousand has the same delays, in an order that hits all users.
                let place = self.drawn * 617 % 1_000;
                DRAWN.iter().find(|(up_to, _)| place < *up_to).map_or(0, |(_, delay)| *delay)
            }
            text => text.parse().unwrap_or(0),
        };
        let (number, push) = (self.log.len(), record.part(4).parse::<u64>());
        self.log.push(record);
        let due = |delay_us: u64, is_push, bytes| {
            let at_ns = at_ns + delay_us * 1_000;
            Due { at_ns, socket, record: number, is_push, bytes }
        };
        self.due.push(due(delay_us, false, bytes));
        if let Ok(push_us) = push {
            self.due.push(due(push_us, true, frames::plain(b"go")));
        }
    }

    /// Sends what is due.
    fn send(&mut self) {
        let Self { due, sockets, log, .. } = self;
        due.retain(|one| {
            let before_ns = now_ns();
            if one.at_ns > before_ns {
                return true;
            }
            if let Some(socket) = sockets.get(&one.socket) {
                // A client that has gone misses it.
                let _ = net::send(&socket.fd, &one.bytes);
            }
            if let Some(record) = log.get_mut(one.record) {
                let times = [before_ns, now_ns()];
                match one.is_push {
                    true => record.pushed_ns = times,
                    false => record.answered_ns = times,
                }
            }
            false
        });
    }
}

/// The log so far, which the recorder forgets.
pub(super) fn log(server: SocketAddrV4) -> Result<Vec<Record>> {
    use std::io::{Read, Write};
    let mut socket = std::net::TcpStream::connect(server)?;
    socket.write_all(b"GET /log HTTP/1.1\r\n\r\n")?;
    let mut text = String::new();
    socket.read_to_string(&mut text)?;
    let (_, body) = text.split_once("\r\n\r\n").context("no log")?;
    serde_json::from_str(body).context("the log")
}
