//! The clients of an attack: one thread, one poll set, some that read and some that never do.
//!
//! Reading clients compare every message with the published one (`messages`), in its order. A
//! closed client or an ended server is a result here, not an error.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::io::Errno;
use rustix::net::{SendFlags, sockopt};
use simurgh_bench_kit::net;

use super::messages::{Message, NUMBERS_END, Room};
use simurgh_bench_kit::frames;
use simurgh_bench_kit::probe;

const READ_BYTES: usize = 256 << 10;
/// Bytes that a publisher has ready beyond what the socket takes.
const READY_BYTES: usize = 256 << 10;
/// The longest wait, whatever progress is made.
const LONGEST: Duration = Duration::from_secs(300);
/// How often clients on slow lines read.
const TICK: Duration = Duration::from_millis(10);
/// The receive buffer of a client on a slow line; the kernel may double it.
const LINE_BUFFER: usize = 128 << 10;
/// How much a slow line may catch up when this thread was late.
const CATCH_UP: Duration = Duration::from_millis(50);

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Pace {
    /// As fast as it can.
    Reads,
    /// This many bytes a second, like a slow line.
    Steady(u32),
    /// Never after its join.
    Never,
}

#[derive(Debug, Default)]
pub(super) struct Received {
    /// By publisher, the number that must come next.
    next: Vec<u32>,
    next_answer: u32,
    /// Broadcasts, in order and equal to the byte.
    pub(super) broadcasts: u64,
    /// Answers in order.
    pub(super) answered: u64,
    pub(super) refused: u64,
    /// Skipped numbers: correct only for messages that were refused.
    pub(super) passed_over: u64,
    /// Messages that came twice, out of order, or changed: must be 0.
    pub(super) wrong: u64,
}

impl Received {
    /// Records a message; `expected` is a body's length by its publisher, `own` an answer body's.
    fn enter(&mut self, message: &Message, expected: impl Fn(u32) -> usize, own: usize) {
        match *message {
            Message::Broadcast { from, number, body } => {
                let place = from as usize;
                if place >= self.next.len() {
                    self.next.resize(place + 1, 0);
                }
                let Some(next) = self.next.get_mut(place) else { return };
                let is_right = number >= *next && body == expected(from);
                self.broadcasts += u64::from(is_right);
                self.wrong += u64::from(!is_right);
                self.passed_over += u64::from(number.saturating_sub(*next));
                *next = number + 1;
            }
            Message::Answered { number, body } => {
                let is_right = number == self.next_answer && body == own;
                self.answered += u64::from(is_right);
                self.wrong += u64::from(!is_right);
                self.next_answer = number + 1;
            }
            Message::Refused => {
                self.refused += 1;
                self.next_answer += 1;
            }
            Message::Heartbeat => {}
            Message::Odd => self.wrong += 1,
        }
    }
}

/// The messages a publisher has still to send.
#[derive(Clone, Copy)]
struct Source {
    from: u32,
    next: u32,
    end: u32,
}

pub(super) struct Client {
    socket: Option<OwnedFd>,
    room: Rc<Room>,
    pace: Pace,
    input: Vec<u8>,
    output: Vec<u8>,
    written: usize,
    is_waiting: bool,
    source: Option<Source>,
    /// Bytes of the body of each answer.
    own_body: usize,
    pub(super) received: Received,
    close_code: Option<u16>,
}

impl Client {
    pub(super) fn is_over(&self) -> bool {
        self.socket.is_none()
    }

    /// Whether the kernel has taken all that it had to send.
    pub(super) fn has_sent_all(&self) -> bool {
        self.written == self.output.len()
            && self.source.is_none_or(|source| source.next == source.end)
    }
}

pub(super) struct Clients {
    epoll: OwnedFd,
    clients: Vec<Client>,
    events: Vec<Event>,
    buf: Vec<u8>,
    /// The length of a publisher's bodies.
    pub(super) bodies: Box<dyn Fn(u32) -> usize>,
    /// Bytes read and written: while it grows, progress is made.
    moved: u64,
    moved_at: Instant,
    /// When clients on slow lines last read.
    ticked: Instant,
}

impl Clients {
    /// No clients yet.
    pub(super) fn new() -> Result<Self> {
        Ok(Self {
            epoll: epoll::create(CreateFlags::CLOEXEC)?,
            clients: Vec::new(),
            events: Vec::with_capacity(256),
            buf: vec![0; READ_BYTES],
            bodies: Box::new(|_| 64),
            moved: 0,
            moved_at: Instant::now(),
            ticked: Instant::now(),
        })
    }

    /// Joins one more; returns its index.
    pub(super) fn join(&mut self, room: &Rc<Room>, pace: Pace) -> Result<usize> {
        let place = self.clients.len();
        let stream = joined(room, place)?;
        let socket = OwnedFd::from(stream);
        if let Pace::Steady(_) = pace {
            sockopt::set_socket_recv_buffer_size(&socket, LINE_BUFFER)?;
        }
        epoll::add(&self.epoll, &socket, data(place)?, flags(pace, false))?;
        self.clients.push(Client {
            socket: Some(socket),
            room: Rc::clone(room),
            pace,
            input: Vec::new(),
            output: Vec::new(),
            written: 0,
            is_waiting: false,
            source: None,
            own_body: 0,
            received: Received::default(),
            close_code: None,
        });
        Ok(place)
    }

    /// Joins this many more; they have the last indices.
    pub(super) fn join_many(&mut self, room: &Rc<Room>, pace: Pace, count: usize) -> Result<()> {
        (0..count).try_for_each(|_| self.join(room, pace).map(drop))
    }

    pub(super) fn clients(&self) -> &[Client] {
        &self.clients
    }

    pub(super) fn client(&self, place: usize) -> Option<&Client> {
        self.clients.get(place)
    }

    /// Has a client publish `count` messages as publisher `from`, as fast as its socket takes them.
    pub(super) fn publish(&mut self, place: usize, from: u32, count: u32) {
        if let Some(client) = self.clients.get_mut(place) {
            client.source = Some(Source { from, next: 0, end: count.min(NUMBERS_END) });
        }
        self.send(place, &[]);
    }

    /// Sets the body length of a client's answers.
    pub(super) fn expect_answers_of(&mut self, place: usize, bytes: usize) {
        if let Some(client) = self.clients.get_mut(place) {
            client.own_body = bytes;
        }
    }

    pub(super) fn send(&mut self, place: usize, bytes: &[u8]) {
        if let Some(client) = self.clients.get_mut(place) {
            client.output.extend_from_slice(bytes);
        }
        self.write(place);
    }

    /// Messages that were changed or skipped, over all clients, minus those that were refused.
    pub(super) fn wrong(&self) -> u64 {
        let refused: u64 = self.clients.iter().map(|client| client.received.refused).sum();
        let wrong = |it: &Received| it.wrong + it.passed_over.saturating_sub(refused);
        self.clients.iter().map(|client| wrong(&client.received)).sum()
    }

    pub(super) fn moved_at(&self) -> Instant {
        self.moved_at
    }

    /// How connections ended: close codes, and 0 for those that were cut without one.
    pub(super) fn endings(&self) -> BTreeMap<u16, usize> {
        let mut endings = BTreeMap::new();
        for client in self.clients.iter().filter(|client| client.is_over()) {
            *endings.entry(client.close_code.unwrap_or(0)).or_default() += 1;
        }
        endings
    }

    /// Runs for `time`.
    pub(super) fn rest(&mut self, time: Duration) -> Result<()> {
        let until = Instant::now() + time;
        while let Some(left) = until.checked_duration_since(Instant::now()) {
            if left.is_zero() {
                break;
            }
            self.pump(left)?;
        }
        Ok(())
    }

    /// Runs until `done` (`true`), or until there was no progress for `wait_max` (`false`).
    pub(super) fn until(
        &mut self,
        wait_max: Duration,
        done: impl Fn(&Self) -> bool,
    ) -> Result<bool> {
        let begun = Instant::now();
        while !done(self) {
            let since = self.moved_at.max(begun);
            if since.elapsed() > wait_max || begun.elapsed() > LONGEST {
                return Ok(false);
            }
            self.pump(Duration::from_millis(50))?;
        }
        Ok(true)
    }

    pub(super) fn pump(&mut self, time: Duration) -> Result<()> {
        let moved = self.moved;
        let is_ticking =
            self.clients.iter().any(|it| !it.is_over() && matches!(it.pace, Pace::Steady(_)));
        let time = if is_ticking { time.min(self.tick()) } else { time };
        let mut events = std::mem::take(&mut self.events);
        net::wait(&self.epoll, &mut events, Some(time))?;
        for event in &events {
            let (place, flags) = (usize::try_from(event.data.u64())?, event.flags);
            if flags.contains(EventFlags::OUT) {
                self.write(place);
            }
            if flags.intersects(EventFlags::IN | ENDED) {
                self.read(place, READ_BYTES);
            }
        }
        self.events = events;
        if self.moved != moved {
            self.moved_at = Instant::now();
        }
        Ok(())
    }

    /// Clients on slow lines read what has come, if it is time; returns the time until the next.
    fn tick(&mut self) -> Duration {
        let since = self.ticked.elapsed();
        if let Some(left) = TICK.checked_sub(since).filter(|left| !left.is_zero()) {
            return left;
        }
        self.ticked = Instant::now();
        let ms = since.min(CATCH_UP).as_millis() as usize;
        for place in 0..self.clients.len() {
            if let Some(Client { pace: Pace::Steady(rate), .. }) = self.clients.get(place) {
                self.read(place, *rate as usize / 1_000 * ms);
            }
        }
        TICK
    }

    fn write(&mut self, place: usize) {
        let Self { epoll, clients, bodies, moved, .. } = self;
        let Some(client) = clients.get_mut(place) else { return };
        let Some(socket) = &client.socket else { return };
        let is_blocked = loop {
            if client.written == client.output.len() {
                client.output.clear();
                client.written = 0;
                let Some(source) = client.source.as_mut().filter(|it| it.next < it.end) else {
                    break false;
                };
                let body = bodies(source.from);
                while source.next < source.end && client.output.len() < READY_BYTES {
                    client.room.push(source.from, source.next, body, &mut client.output);
                    source.next += 1;
                }
            }
            let rest = client.output.get(client.written..).unwrap_or_default();
            match rustix::net::send(socket, rest, SendFlags::NOSIGNAL) {
                Ok(sent) => {
                    client.written += sent;
                    *moved += sent as u64;
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => break true,
                // The server's data from before it closed is still to be read.
                Err(_) => {
                    (client.output, client.written, client.source) = (Vec::new(), 0, None);
                    break false;
                }
            }
        };
        if client.is_waiting != is_blocked {
            client.is_waiting = is_blocked;
            if let Ok(data) = data(place) {
                // Fails only for a closed socket, from which no more data comes.
                let _ = epoll::modify(&*epoll, socket, data, flags(client.pace, is_blocked));
            }
        }
    }

    /// Reads once, `most` bytes at most: epoll reports sockets again that have more to read.
    fn read(&mut self, place: usize, most: usize) {
        let Self { clients, bodies, buf, moved, .. } = self;
        let Some(client) = clients.get_mut(place) else { return };
        let Some(socket) = &client.socket else { return };
        if client.pace == Pace::Never {
            // Such an event comes only when the server has closed it.
            client.socket = None;
            return;
        }
        let room = most.min(buf.len());
        let count = match rustix::io::read(socket, buf.get_mut(..room).unwrap_or_default()) {
            Err(Errno::AGAIN | Errno::INTR) => return,
            Ok(0) | Err(_) => {
                client.socket = None;
                return;
            }
            Ok(count) => count,
        };
        *moved += count as u64;
        let input = buf.get(..count).unwrap_or_default();
        let mut gathered = std::mem::take(&mut client.input);
        if gathered.is_empty() {
            let used = client.consume(input, bodies);
            gathered.extend_from_slice(input.get(used..).unwrap_or_default());
        } else {
            gathered.extend_from_slice(input);
            let used = client.consume(&gathered, bodies);
            gathered.drain(..used);
        }
        // One large message must not leave its size behind in a thousand clients.
        if gathered.is_empty() && gathered.capacity() > READ_BYTES * 2 {
            gathered = Vec::new();
        }
        client.input = gathered;
    }
}

impl Client {
    /// Handles the whole frames at the front of `input`, and returns their length.
    fn consume(&mut self, input: &[u8], bodies: &dyn Fn(u32) -> usize) -> usize {
        let mut used = 0;
        while let Some(frame) = frames::frame(input.get(used..).unwrap_or_default()) {
            used += frame.len;
            let message = match (frame.opcode, frame.fin) {
                (frames::CLOSE, _) => {
                    self.close_code = Some(frame.close_code());
                    self.socket = None;
                    return input.len();
                }
                (frames::TEXT, true) => self.room.read(frame.payload),
                _ => Message::Odd,
            };
            self.received.enter(&message, bodies, self.own_body);
        }
        used
    }
}

const ENDED: EventFlags = EventFlags::HUP.union(EventFlags::ERR).union(EventFlags::RDHUP);

fn flags(pace: Pace, is_blocked: bool) -> EventFlags {
    let mut flags = EventFlags::empty();
    flags.set(EventFlags::IN, pace == Pace::Reads);
    // Its end is read after all earlier data.
    flags.set(EventFlags::RDHUP, !matches!(pace, Pace::Steady(_)));
    flags.set(EventFlags::OUT, is_blocked);
    flags
}

fn data(place: usize) -> Result<EventData> {
    Ok(EventData::new_u64(u64::try_from(place)?))
}

/// A connection that has upgraded and joined, and is non-blocking from here on.
pub(super) fn joined(room: &Room, place: usize) -> Result<TcpStream> {
    let mut stream = probe::upgraded(room.server, place, &room.script)?;
    stream.write_all(&room.script.join)?;
    let mut input = Vec::new();
    let mut buf = [0; 4096];
    loop {
        if let Some(frame) = frames::frame(&input) {
            let is_it = frame.payload == room.joined && frame.len == input.len();
            ensure!(is_it, "a join got {}", String::from_utf8_lossy(&input));
            break;
        }
        let count = stream.read(&mut buf).context("no reply to a join")?;
        ensure!(count > 0, "closed instead of answering a join");
        input.extend_from_slice(buf.get(..count).unwrap_or_default());
    }
    stream.set_nonblocking(true)?;
    Ok(stream)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn received(messages: &[Message]) -> Received {
        let mut received = Received::default();
        messages.iter().for_each(|message| received.enter(message, |from| from as usize, 7));
        received
    }

    #[test]
    fn each_publisher_is_tracked_by_its_own_numbers() {
        let broadcast = |from, number, body| Message::Broadcast { from, number, body };
        let all = received(&[
            broadcast(1, 0, 1),
            broadcast(2, 0, 2),
            broadcast(1, 1, 1),
            broadcast(2, 1, 2),
        ]);
        assert_eq!((all.broadcasts, all.wrong), (4, 0));
        let gap = received(&[broadcast(1, 0, 1), broadcast(1, 2, 1), broadcast(1, 3, 1)]);
        assert_eq!((gap.broadcasts, gap.passed_over, gap.wrong), (3, 1, 0));
        let twice = received(&[broadcast(1, 0, 1), broadcast(1, 0, 1)]);
        assert_eq!((twice.broadcasts, twice.wrong), (1, 1));
        let short = received(&[broadcast(5, 0, 4)]);
        assert_eq!((short.broadcasts, short.wrong), (0, 1));
    }

    #[test]
    fn replies_are_matched_in_order_and_a_refusal_replaces_one() {
        let answered = |number| Message::Answered { number, body: 7 };
        let all = received(&[answered(0), Message::Refused, answered(2), Message::Heartbeat]);
        assert_eq!((all.answered, all.refused, all.wrong), (2, 1, 0));
        assert_eq!(received(&[answered(1)]).wrong, 1);
        assert_eq!(received(&[Message::Answered { number: 0, body: 6 }]).wrong, 1);
        assert_eq!(received(&[Message::Odd]).wrong, 1);
    }
}
