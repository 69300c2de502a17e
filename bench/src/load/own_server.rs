//! A small server within the benchmark, on a thread: it accepts connections, answers an upgrade, a
//! `GET /` and every text frame, records when each connection came, and can stop for a while, like
//! a server that collects garbage or waits for a disk.
//!
//! It measures the arrival times itself, so that a load generator does not judge itself.

use std::collections::HashMap;
use std::net::SocketAddrV4;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::event::epoll::{Event, EventFlags};
use rustix::io::Errno;
use rustix::net::SendFlags;

use simurgh_bench_kit::net::{self, Listener, head_length};
use simurgh_bench_kit::target::SERVER_CORE;
use simurgh_bench_kit::{frames, sys};

const OK: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";

#[derive(Clone, Copy, Debug)]
pub(super) struct Stall {
    /// Before the answer to this request, counted from 1.
    pub(super) at: u64,
    /// The duration of the stop.
    pub(super) lasts: Duration,
}

/// The server; ends when dropped.
pub(super) struct OwnServer {
    pub(super) address: SocketAddrV4,
    seen: Arc<Mutex<Seen>>,
    stop: Arc<AtomicBool>,
    thread: Option<thread::JoinHandle<Result<()>>>,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Seen {
    /// When each connection was accepted, in order.
    pub(super) accepted: Vec<Instant>,
    /// Requests and frames that were answered.
    pub(super) answered: u64,
}

impl OwnServer {
    /// Starts it on the server's core.
    pub(super) fn start(stall: Option<Stall>) -> Result<Self> {
        let listener = Listener::open(SocketAddrV4::new([127, 77, 0, 1].into(), 0), false)?;
        let address = listener.address()?;
        let seen = Arc::new(Mutex::new(Seen::default()));
        let stop = Arc::new(AtomicBool::new(false));
        let thread = {
            let (seen, stop) = (Arc::clone(&seen), Arc::clone(&stop));
            thread::spawn(move || {
                sys::pin(SERVER_CORE)?;
                let sockets = HashMap::new();
                Server { listener, sockets, stall, answered: 0 }.run(&seen, &stop)
            })
        };
        Ok(Self { address, seen, stop, thread: Some(thread) })
    }

    pub(super) fn seen(&self) -> Seen {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The number of connections accepted so far.
    pub(super) fn accepted(&self) -> usize {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).accepted.len()
    }

    /// Ends it; an error if its thread failed.
    pub(super) fn finish(mut self) -> Result<Seen> {
        self.stop.store(true, Ordering::Relaxed);
        match self.thread.take().map(thread::JoinHandle::join) {
            Some(Ok(outcome)) => outcome.context("the benchmark's own server")?,
            _ => bail!("the benchmark's own server panicked"),
        }
        Ok(self.seen())
    }
}

impl Drop for OwnServer {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // The error is only returned by `finish`.
            let _ = thread.join();
        }
    }
}

struct Server {
    listener: Listener,
    /// By descriptor number: the socket and the part of a request that has been read.
    sockets: HashMap<usize, (OwnedFd, Vec<u8>)>,
    stall: Option<Stall>,
    answered: u64,
}

impl Server {
    fn run(&mut self, seen: &Mutex<Seen>, stop: &AtomicBool) -> Result<()> {
        let mut events: Vec<Event> = Vec::with_capacity(512);
        let wait = Duration::from_millis(50);
        let mut buf = vec![0; 16 * 1024];
        while !stop.load(Ordering::Relaxed) {
            net::wait(&self.listener.epoll, &mut events, Some(wait))?;
            let mut accepted = Vec::new();
            for event in &events {
                match event.data.u64() {
                    Listener::NUMBER => self.accept(&mut accepted)?,
                    socket => self.ready(usize::try_from(socket)?, &mut buf),
                }
            }
            let mut seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
            seen.accepted.append(&mut accepted);
            seen.answered = self.answered;
        }
        Ok(())
    }

    fn accept(&mut self, accepted: &mut Vec<Instant>) -> Result<()> {
        let Self { listener, sockets, .. } = self;
        let taken = listener.accept_some(EventFlags::IN, |number, socket| {
            accepted.push(Instant::now());
            sockets.insert(number, (socket, Vec::new()));
        });
        match taken {
            // They wait for others to leave; the delay then shows in the figures.
            Err(error) if matches!(error.downcast_ref(), Some(&(Errno::MFILE | Errno::NFILE))) => {
                thread::sleep(Duration::from_millis(1));
                Ok(())
            }
            taken => taken.map(drop),
        }
    }

    fn ready(&mut self, number: usize, buf: &mut [u8]) {
        let Some((socket, _)) = self.sockets.get(&number) else { return };
        let count = match rustix::io::read(socket, &mut *buf) {
            Ok(count) => count,
            Err(Errno::AGAIN | Errno::INTR) => return,
            Err(_) => 0,
        };
        let alive = count > 0 && self.input(number, buf.get(..count).unwrap_or_default());
        if !alive {
            self.sockets.remove(&number);
        }
    }

    /// Answers all whole requests; `false` ends the connection.
    fn input(&mut self, number: usize, bytes: &[u8]) -> bool {
        let Some((_, kept)) = self.sockets.get_mut(&number) else { return false };
        kept.extend_from_slice(bytes);
        let mut input = std::mem::take(kept);
        loop {
            let (used, answer) = match answer(&input) {
                Answer::Part => break,
                Answer::End => return false,
                Answer::Upgrade(used, answer) => (used, answer),
                Answer::Counted(used, answer) => {
                    self.answered += 1;
                    if let Some(stall) = self.stall.filter(|stall| stall.at == self.answered) {
                        thread::sleep(stall.lasts);
                    }
                    (used, answer)
                }
            };
            input.drain(..used);
            let Some((socket, _)) = self.sockets.get(&number) else { return false };
            let sent = rustix::net::send(socket, &answer, SendFlags::NOSIGNAL);
            if sent != Ok(answer.len()) {
                return false;
            }
        }
        if let Some((_, kept)) = self.sockets.get_mut(&number) {
            *kept = input;
        }
        true
    }
}

enum Answer {
    Part,
    End,
    /// The upgrade: bytes used, and the answer.
    Upgrade(usize, Vec<u8>),
    /// A request or a message.
    Counted(usize, Vec<u8>),
}

/// The answer to what `input` begins with.
fn answer(input: &[u8]) -> Answer {
    if input.starts_with(b"G") {
        let Some(length) = head_length(input) else { return Answer::Part };
        let head = String::from_utf8_lossy(input.get(..length).unwrap_or_default());
        let key = head.lines().find_map(|line| {
            let (name, value) = line.split_once(':')?;
            name.eq_ignore_ascii_case("sec-websocket-key").then(|| value.trim().to_owned())
        });
        return match key {
            None => Answer::Counted(length, OK.to_vec()),
            Some(key) => Answer::Upgrade(length, frames::switching(&key)),
        };
    }
    let (Some((header, length)), Some(first)) = (frames::lengths(input), input.first()) else {
        return Answer::Part;
    };
    // A client's payload follows a mask. The benchmark sends nothing larger.
    let header = header + frames::MASK.len();
    if length > usize::from(u16::MAX) {
        return Answer::End;
    }
    let (Some(mask), Some(payload)) =
        (input.get(header - 4..header), input.get(header..header + length))
    else {
        return Answer::Part;
    };
    match first & 0x0f {
        frames::TEXT | frames::BINARY if length < 126 => {
            let masks = mask.iter().cycle();
            let plain: Vec<u8> =
                payload.iter().zip(masks).map(|(byte, mask)| byte ^ mask).collect();
            Answer::Counted(header + length, frames::plain(&plain))
        }
        _ => Answer::End,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn upgrades_requests_and_frames_are_answered_when_they_are_whole() {
        let request = frames::upgrade_request("/", "here", "");
        for cut in 1..request.len() {
            assert!(matches!(answer(&request[..cut]), Answer::Part));
        }
        assert!(matches!(answer(&request), Answer::Upgrade(n, _) if n == request.len()));
        assert!(matches!(answer(b"GET / HTTP/1.1\r\n\r\n"), Answer::Counted(18, _)));
        let mut frame = Vec::new();
        frames::masked(frames::TEXT, b"hello", &mut frame);
        for cut in 0..frame.len() {
            assert!(matches!(answer(&frame[..cut]), Answer::Part));
        }
        let Answer::Counted(11, back) = answer(&frame) else { panic!("no answer") };
        assert_eq!(back, frames::plain(b"hello"));
        frame.clear();
        frames::masked(frames::CLOSE, b"\x03\xe8", &mut frame);
        assert!(matches!(answer(&frame), Answer::End));
    }

    #[test]
    fn it_stops_when_told_and_goes_on() {
        let stall = Stall { at: 2, lasts: Duration::from_millis(300) };
        let server = OwnServer::start(Some(stall)).unwrap();
        let ask = || {
            let socket = net::dial(server.address, 0, true).unwrap();
            let begun = Instant::now();
            rustix::net::send(&socket, b"GET / HTTP/1.1\r\n\r\n", SendFlags::empty()).unwrap();
            let mut answer = [0; 64];
            assert_eq!(rustix::io::read(&socket, &mut answer).unwrap(), OK.len());
            begun.elapsed()
        };
        assert!(ask() < Duration::from_millis(250));
        assert!(ask() >= Duration::from_millis(300));
        assert!(ask() < Duration::from_millis(250));
        let seen = server.finish().unwrap();
        assert_eq!((seen.accepted.len(), seen.answered), (3, 3));
        assert!(seen.accepted.is_sorted());
    }
}
