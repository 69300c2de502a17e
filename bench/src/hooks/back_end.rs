//! The application: a bare loop on one thread, which answers at once, at a rate, or never.

use std::collections::{HashMap, VecDeque};
use std::net::SocketAddrV4;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use rustix::event::epoll::EventFlags;
use rustix::io::Errno;
use simurgh_bench_kit::net::{self, Listener};

use super::{COOKIE, USER_LEN};

const TICK: Duration = Duration::from_millis(2);
const READ_BYTES: usize = 16 << 10;

/// When questions are answered.
#[derive(Clone, Copy)]
pub(super) enum Pace {
    AtOnce,
    /// The first so many at once, the others never.
    Only(usize),
    /// One after the other, each after this time.
    Every(Duration),
}

/// The questions so far, by kind, and the most without an answer at a time.
#[derive(Default)]
pub(super) struct Counts {
    connects: AtomicUsize,
    joins: AtomicUsize,
    pub(super) in_flight_max: AtomicUsize,
}

/// A running application; it ends when dropped.
pub(super) struct BackEnd {
    pub(super) address: SocketAddrV4,
    pub(super) counts: Arc<Counts>,
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<Result<()>>>,
}

impl BackEnd {
    /// Starts on the caller's core.
    pub(super) fn start(listen: SocketAddrV4, pace: Pace) -> Result<Self> {
        let listener = Listener::open(listen, false)?;
        let address = listener.address()?;
        let (counts, is_over) = (Arc::<Counts>::default(), Arc::<AtomicBool>::default());
        let work = Work {
            listener,
            sockets: HashMap::new(),
            waiting: VecDeque::new(),
            pace,
            next: Instant::now(),
            answered: 0,
            counts: Arc::clone(&counts),
        };
        let ends = Arc::clone(&is_over);
        let thread = thread::Builder::new().name("back end".into());
        let thread = Some(thread.spawn(move || work.run(&ends))?);
        Ok(Self { address, counts, is_over, thread })
    }

    pub(super) fn questions(&self) -> usize {
        self.counts.connects.load(Relaxed) + self.counts.joins.load(Relaxed)
    }
}

impl Drop for BackEnd {
    fn drop(&mut self) {
        self.is_over.store(true, Relaxed);
        // Its port is free when the thread has ended.
        if let Some(Ok(Err(error))) = self.thread.take().map(JoinHandle::join) {
            eprintln!("the back end ended: {error:#}");
        }
    }
}

/// A connection of the server, and the part of a request that has come.
struct Socket {
    fd: OwnedFd,
    input: Vec<u8>,
}

/// A question without an answer.
struct Waiting {
    socket: usize,
    answer: String,
}

struct Work {
    listener: Listener,
    sockets: HashMap<usize, Socket>,
    waiting: VecDeque<Waiting>,
    pace: Pace,
    /// When the next question is answered.
    next: Instant,
    answered: usize,
    counts: Arc<Counts>,
}

impl Work {
    fn run(mut self, is_over: &AtomicBool) -> Result<()> {
        let mut events = Vec::with_capacity(512);
        let mut buf = vec![0; READ_BYTES];
        while !is_over.load(Relaxed) {
            net::wait(&self.listener.epoll, &mut events, Some(TICK))?;
            for event in &events {
                if event.data.u64() == Listener::NUMBER {
                    let sockets = &mut self.sockets;
                    self.listener.accept_some(EventFlags::IN, |number, fd| {
                        sockets.insert(number, Socket { fd, input: Vec::new() });
                    })?;
                } else {
                    self.read(usize::try_from(event.data.u64())?, &mut buf)?;
                }
            }
            self.answer()?;
        }
        Ok(())
    }

    fn read(&mut self, number: usize, buf: &mut [u8]) -> Result<()> {
        let Some(socket) = self.sockets.get_mut(&number) else { return Ok(()) };
        match rustix::io::read(&socket.fd, &mut *buf) {
            Ok(count @ 1..) => {
                socket.input.extend_from_slice(buf.get(..count).unwrap_or_default());
            }
            Err(Errno::AGAIN | Errno::INTR) => return Ok(()),
            Ok(0) | Err(_) => {
                self.sockets.remove(&number);
                self.waiting.retain(|waiting| waiting.socket != number);
                return Ok(());
            }
        }
        if let Some((answer, count)) = question(&socket.input, &self.counts)? {
            socket.input.drain(..count);
            if matches!(self.pace, Pace::Every(_)) && self.waiting.is_empty() {
                self.next = self.next.max(Instant::now());
            }
            self.waiting.push_back(Waiting { socket: number, answer });
            self.counts.in_flight_max.fetch_max(self.waiting.len(), Relaxed);
        }
        Ok(())
    }

    /// Answers the questions whose time has come.
    fn answer(&mut self) -> Result<()> {
        while !self.waiting.is_empty() {
            match self.pace {
                Pace::Only(count) if self.answered >= count => break,
                Pace::Every(time) if self.next + time > Instant::now() => break,
                Pace::Every(time) => self.next += time,
                Pace::AtOnce | Pace::Only(_) => {}
            }
            let Some(Waiting { socket, answer }) = self.waiting.pop_front() else { break };
            if let Some(socket) = self.sockets.get(&socket) {
                net::send_all(&socket.fd, answer.as_bytes())?;
                self.answered += 1;
            }
        }
        Ok(())
    }
}

/// The answer to the request at the front of these bytes, and the request's length; `None`: more
/// are needed.
fn question(input: &[u8], counts: &Counts) -> Result<Option<(String, usize)>> {
    let Some(length) = net::head_length(input) else { return Ok(None) };
    let head = String::from_utf8_lossy(input.get(..length).unwrap_or_default());
    let (_, rest) = head.split_once("content-length: ").context("a question without a length")?;
    let body: usize = rest.lines().next().unwrap_or_default().parse()?;
    if input.len() < length + body {
        return Ok(None);
    }
    let answer = if head.contains("/join HTTP/1.1\r\n") {
        counts.joins.fetch_add(1, Relaxed);
        r#"{"cache_for":600}"#.to_owned()
    } else {
        counts.connects.fetch_add(1, Relaxed);
        let cookie = head.split_once(COOKIE).map_or("", |(_, cookie)| cookie);
        let user = cookie.get(..USER_LEN).unwrap_or("nobody");
        format!(r#"{{"user":"{user}","cache_for":600}}"#)
    };
    let head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length";
    Ok(Some((format!("{head}: {}\r\n\r\n{answer}", answer.len()), length + body)))
}
