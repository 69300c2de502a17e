//! Clients that connect whether or not the server answers, and again as phoenix.js does if it
//! refuses them.

use std::net::SocketAddrV4;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use anyhow::Result;
use rustix::event::epoll::{self, CreateFlags, Event, EventFlags};
use rustix::io::Errno;
use simurgh_bench_kit::{frames, net};

const TICK: Duration = Duration::from_millis(5);
/// Between the first connects of two clients.
const BETWEEN: Duration = Duration::from_micros(200);
/// The waits of phoenix.js before it connects again, ms. The last one is repeated.
const WAITS_MS: [u64; 10] = [10, 50, 100, 150, 200, 250, 500, 1_000, 2_000, 5_000];

#[derive(Default)]
struct Member {
    socket: Option<OwnedFd>,
    has_sent: bool,
    is_in: bool,
    /// Connects that were refused.
    refused: usize,
    /// When it connects.
    due: Option<Instant>,
}

pub(super) struct Crowd {
    epoll: OwnedFd,
    server: SocketAddrV4,
    lines: fn(usize) -> String,
    members: Vec<Member>,
    events: Vec<Event>,
}

impl Crowd {
    /// Clients that connect soon, with these header lines.
    pub(super) fn new(
        server: SocketAddrV4,
        count: usize,
        lines: fn(usize) -> String,
    ) -> Result<Self> {
        let begun = Instant::now();
        let due = (0_u32..).map(|index| Some(begun + BETWEEN * index));
        let members = due.take(count).map(|due| Member { due, ..Member::default() }).collect();
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        Ok(Self { epoll, server, lines, members, events: Vec::with_capacity(512) })
    }

    /// The number of clients that are connected.
    pub(super) fn connected(&self) -> usize {
        self.members.iter().filter(|member| member.is_in).count()
    }

    /// The number of connects that were refused.
    pub(super) fn refused(&self) -> usize {
        self.members.iter().map(|member| member.refused).sum()
    }

    /// Runs until that moment, or until all are connected.
    pub(super) fn run(&mut self, until: Instant) -> Result<()> {
        while Instant::now() < until && self.connected() < self.members.len() {
            self.turn()?;
        }
        Ok(())
    }

    /// Begins the connects that are due, and waits for events once.
    pub(super) fn turn(&mut self) -> Result<()> {
        let now = Instant::now();
        for (index, member) in self.members.iter_mut().enumerate() {
            if member.due.is_some_and(|due| due <= now) {
                let socket = net::dial(self.server, index, false)?;
                let flags = EventFlags::IN | EventFlags::OUT | EventFlags::RDHUP | EventFlags::ET;
                net::add(&self.epoll, &socket, index, flags)?;
                (member.socket, member.has_sent, member.due) = (Some(socket), false, None);
            }
        }
        let mut events = std::mem::take(&mut self.events);
        net::wait(&self.epoll, &mut events, Some(TICK))?;
        for event in &events {
            self.ready(usize::try_from(event.data.u64())?)?;
        }
        self.events = events;
        Ok(())
    }

    fn ready(&mut self, index: usize) -> Result<()> {
        let Some(member) = self.members.get_mut(index) else { return Ok(()) };
        let Some(socket) = &member.socket else { return Ok(()) };
        if !member.has_sent {
            member.has_sent = true;
            let (path, host) = ("/socket/websocket?vsn=2.0.0", self.server.to_string());
            let request = frames::upgrade_request(path, &host, &(self.lines)(index));
            net::send(socket, &request)?;
        }
        let mut buf = [0; 1024];
        match rustix::io::read(socket, &mut buf) {
            Err(Errno::AGAIN | Errno::INTR) => {}
            Ok(1..) if buf.starts_with(b"HTTP/1.1 101 ") => member.is_in = true,
            Ok(_) | Err(_) => {
                let wait = WAITS_MS.get(member.refused).or(WAITS_MS.last()).copied();
                member.due = Some(Instant::now() + Duration::from_millis(wait.unwrap_or(0)));
                (member.socket, member.is_in) = (None, false);
                member.refused += 1;
            }
        }
        Ok(())
    }
}
