//! The bare server: the bare loop on as many threads and tables as `simurgh serve` would have.
//!
//! It uses five bytes of memory per client: the descriptor and the state. Each message is answered
//! by one `send`; each thread sends a broadcast to its own members by one `send` each, one after
//! the other, while everything else waits. Threads forward broadcasts by a datagram. Only a peer
//! that sends half a message, or does not read, costs more. Do not use it as a server: it trusts
//! its peers and every process on this machine.

use std::collections::HashMap;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::{self, Sender};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use rustix::event::epoll::{self, Event, EventData, EventFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, sockopt};
use simurgh_bench_kit::net::{self, Listener, Slots};

use super::counts::{Counts, Shared};
use super::wire::{self, Message, Request};
use super::{Serve, tables};
use simurgh_bench_kit::{frames, sys};

/// A forgotten server ends by itself.
pub(super) const LIFETIME: Duration = Duration::from_secs(3600);
const START_TIMEOUT: Duration = Duration::from_secs(60);
const BROADCASTS: u64 = u64::MAX - 1;
/// Holds the largest datagram; memory is touched only as far as reads fill it.
const READ_BYTES: usize = 64 * 1024;
/// Bytes of broadcasts that may wait for a thread that is still writing the one before.
const WAITING_BYTES: usize = 8 << 20;
/// Initial size of a thread's table of descriptors.
const TABLE_MAX: usize = 1 << 16;
const EVENTS: EventFlags = EventFlags::IN.union(EventFlags::RDHUP).union(EventFlags::ET);

/// The topic of the crowd; all others count as one.
const CROWD: &[u8] = b"rooms:lobby";
// The states of a client.
const UPGRADED: u8 = 1;
const IN_CROWD: u8 = 2;
const IN_OTHER: u8 = 4;
/// The beginning of a message is kept.
const IN_PART: u8 = 8;
/// Bytes wait until it reads.
const IS_SLOW: u8 = 16;
/// It is closed once all bytes are sent.
const ENDS: u8 = 32;

/// Serves until it is killed.
pub(super) fn serve(options: &Serve) -> Result<()> {
    sys::die_with_parent()?;
    let count = tables::count_for(options.connections);
    let address = start(options.listen, count, options.tell_at)?;
    println!("listening on http://{address}");
    thread::sleep(LIFETIME);
    Ok(())
}

/// Starts the threads, which run as long as the process. Returns their address.
fn start(listen: SocketAddrV4, count: usize, tell_at: u64) -> Result<SocketAddrV4> {
    let (_reserved, address) = reserve(listen)?;
    let shared = Arc::new(Shared::new(count, tell_at));
    let (sender, opened) = mpsc::channel();
    tables::start(count, "bare", |index| {
        let (shared, sender) = (Arc::clone(&shared), sender.clone());
        Box::new(move || Bare::open(index, address, shared, &sender)?.run())
    })?;
    let mut peers = vec![address; count];
    for _ in 0..count {
        let (index, peer): (usize, _) =
            opened.recv_timeout(START_TIMEOUT).context("not all threads listen")?;
        *peers.get_mut(index).context("a thread too many")? = peer;
    }
    ensure!(shared.peers.set(peers).is_ok(), "started twice");
    Ok(address)
}

/// Checks that the address is free, and reserves it for sockets that share the port.
fn reserve(listen: SocketAddrV4) -> Result<(OwnedFd, SocketAddrV4)> {
    let socket = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None)?;
    if listen.port() != 0 {
        sockopt::set_socket_reuseaddr(&socket, true)?;
    }
    rustix::net::bind(&socket, &listen).with_context(|| format!("bind to {listen}"))?;
    sockopt::set_socket_reuseaddr(&socket, true)?;
    sockopt::set_socket_reuseport(&socket, true)?;
    let address = SocketAddrV4::try_from(rustix::net::getsockname(&socket)?)?;
    Ok((socket, address))
}

struct Bare {
    index: usize,
    shared: Arc<Shared>,
    listener: Listener,
    /// Receives the other threads' broadcasts.
    broadcasts: OwnedFd,
    /// By descriptor number: four bytes a client …
    sockets: Slots,
    /// … and one.
    state: Vec<u8>,
    /// The kept bytes of clients that are `IN_PART`.
    parts: HashMap<usize, Vec<u8>>,
    /// The unsent bytes of clients that are `IS_SLOW`.
    unsent: HashMap<usize, Vec<u8>>,
    /// A buffer that is used again for each answer.
    answer: Vec<u8>,
}

impl Bare {
    /// Opens what a thread needs in its own table; `opened` gets its address for broadcasts.
    fn open(
        index: usize,
        address: SocketAddrV4,
        shared: Arc<Shared>,
        opened: &Sender<(usize, SocketAddrV4)>,
    ) -> Result<Self> {
        // Acknowledgements are sent with the answers, as in Simurgh.
        let listener = Listener::open(address, true)?.without_quick_acks()?;
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket = rustix::net::socket_with(AddressFamily::INET, SocketType::DGRAM, flags, None)?;
        // Without root the system's limit applies.
        sockopt::set_socket_recv_buffer_size_force(&socket, WAITING_BYTES)
            .or_else(|_| sockopt::set_socket_recv_buffer_size(&socket, WAITING_BYTES))?;
        rustix::net::bind(&socket, &SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0))?;
        epoll::add(&listener.epoll, &socket, EventData::new_u64(BROADCASTS), EventFlags::IN)?;
        let _ = opened.send((index, SocketAddrV4::try_from(rustix::net::getsockname(&socket)?)?));
        // At full size from the start, so that growing leaves no memory behind.
        let most = usize::try_from(sys::raise_descriptor_limit()?)?.min(TABLE_MAX);
        Ok(Self {
            index,
            shared,
            listener,
            broadcasts: socket,
            sockets: Slots(Vec::with_capacity(most)),
            state: Vec::with_capacity(most),
            parts: HashMap::new(),
            unsent: HashMap::new(),
            answer: Vec::new(),
        })
    }

    fn run(mut self) -> Result<()> {
        let mut events: Vec<Event> = Vec::with_capacity(512);
        let mut buf = vec![0; READ_BYTES];
        loop {
            net::wait(&self.listener.epoll, &mut events, None)?;
            for event in &events {
                match event.data.u64() {
                    Listener::NUMBER => self.accept()?,
                    BROADCASTS => self.receive(&mut buf)?,
                    client => self.ready(usize::try_from(client)?, event.flags, &mut buf)?,
                }
            }
        }
    }

    fn accept(&mut self) -> Result<()> {
        let Self { listener, sockets, state, .. } = self;
        let accepted = listener.accept_some(EVENTS, |number, socket| {
            if state.len() <= number {
                state.resize(number + 1, 0);
            }
            sockets.put(number, socket);
        })?;
        self.shared.accepted(accepted);
        Ok(())
    }

    fn ready(&mut self, number: usize, event: EventFlags, buf: &mut [u8]) -> Result<()> {
        if event.contains(EventFlags::OUT) {
            self.flush(number)?;
        }
        let ends = event.intersects(EventFlags::RDHUP | EventFlags::HUP | EventFlags::ERR);
        loop {
            let Some(socket) = self.sockets.get(number) else { return Ok(()) };
            let count = match rustix::io::read(socket, &mut *buf) {
                Ok(count) => count,
                Err(Errno::AGAIN) => return Ok(()),
                Err(_) => 0,
            };
            if count == 0 {
                self.close(number);
                return Ok(());
            }
            let is_all = count < buf.len() && !ends;
            if let Err(error) = self.input(number, buf.get_mut(..count).unwrap_or_default()) {
                eprintln!("simurgh-bench: a client was not understood: {error:#}");
                self.close(number);
            }
            if is_all {
                return Ok(());
            }
        }
    }

    /// Joins new input to the kept part, and keeps the incomplete rest.
    fn input(&mut self, number: usize, input: &mut [u8]) -> Result<()> {
        let mut kept = match self.is(number, IN_PART) {
            true => self.parts.remove(&number).unwrap_or_default(),
            false => Vec::new(),
        };
        self.unset(number, IN_PART);
        let input = match kept.is_empty() {
            true => input,
            false => {
                kept.extend_from_slice(input);
                kept.as_mut_slice()
            }
        };
        let taken = self.messages(number, input)?;
        let rest = input.get(taken..).unwrap_or_default();
        if !rest.is_empty() && self.set(number, IN_PART) {
            self.parts.insert(number, rest.to_vec());
        }
        Ok(())
    }

    /// Answers all whole messages; returns their bytes.
    fn messages(&mut self, number: usize, input: &mut [u8]) -> Result<usize> {
        let mut taken = 0;
        if !self.is(number, UPGRADED) {
            let Some((request, length)) = wire::request(input)? else { return Ok(0) };
            self.request(number, request)?;
            if !self.is(number, UPGRADED) {
                return Ok(input.len());
            }
            taken = length;
        }
        while let Some(frame) = wire::frame(input.get_mut(taken..).unwrap_or_default())? {
            taken += frame.len;
            match frame.opcode {
                frames::TEXT => {
                    let message = wire::message(frame.payload);
                    self.message(number, &message.context("not a message of the benchmark's")?)?;
                }
                frames::CLOSE => {
                    self.close(number);
                    return Ok(input.len());
                }
                // Ping and pong.
                _ => {}
            }
        }
        Ok(taken)
    }

    fn request(&mut self, number: usize, request: Request<'_>) -> Result<()> {
        let answer = match request {
            Request::Upgrade(key) => {
                self.set(number, UPGRADED);
                self.counts(|counts| counts.sockets.add(1));
                return self.send(number, &frames::switching(key));
            }
            Request::Metrics => wire::answer("200 OK", &self.shared.page()),
            Request::Broadcast(message) => {
                let body = message.payload.to_string();
                self.broadcast(
                    message.topic.as_bytes(),
                    message.event.as_bytes(),
                    body.as_bytes(),
                )?;
                wire::answer("200 OK", "{}")
            }
            Request::Other => wire::answer("404 Not Found", ""),
        };
        self.send(number, &answer)?;
        if self.is(number, IS_SLOW) {
            self.set(number, ENDS);
        } else {
            self.close(number);
        }
        Ok(())
    }

    fn message(&mut self, number: usize, message: &Message<'_>) -> Result<()> {
        match message.event {
            b"heartbeat" => {}
            b"phx_join" => {
                let room = room(message.topic);
                if !self.is(number, room) {
                    self.set(number, room);
                    self.counts(|counts| counts.channels.add(1));
                }
            }
            event => return self.broadcast(message.topic, event, message.body),
        }
        let mut answer = std::mem::take(&mut self.answer);
        wire::reply(message, &mut answer);
        let sent = self.send(number, &answer);
        self.answer = answer;
        sent
    }

    fn broadcast(&mut self, topic: &[u8], event: &[u8], body: &[u8]) -> Result<()> {
        let frame = wire::broadcast(topic, event, body)?;
        let datagram = [&[room(topic)], frame.as_slice()].concat();
        let shared = Arc::clone(&self.shared);
        let peers = shared.peers.get().map_or(&[][..], Vec::as_slice);
        for (_, peer) in peers.iter().enumerate().filter(|(index, _)| *index != self.index) {
            rustix::net::sendto(&self.broadcasts, &datagram, SendFlags::DONTWAIT, peer)
                .context("pass a broadcast on")?;
            self.counts(|counts| counts.posted.add(1));
        }
        self.send_to_members(room(topic), &frame)
    }

    fn receive(&mut self, buf: &mut [u8]) -> Result<()> {
        let length = match rustix::net::recv(&self.broadcasts, &mut *buf, RecvFlags::DONTWAIT) {
            Ok((length, _)) => length,
            Err(Errno::AGAIN) => return Ok(()),
            Err(error) => bail!("broadcasts: {error}"),
        };
        self.counts(|counts| counts.taken.add(1));
        let Some((room, frame)) = buf.get(..length).and_then(<[u8]>::split_first) else {
            return Ok(());
        };
        self.send_to_members(*room, frame)
    }

    fn send_to_members(&mut self, room: u8, frame: &[u8]) -> Result<()> {
        let mut sent = 0;
        for number in 0..self.state.len() {
            if self.is(number, room) {
                self.send(number, frame)?;
                sent += 1;
            }
        }
        self.counts(|counts| counts.deliveries.add(sent));
        Ok(())
    }

    /// One `send`. Unsent bytes are kept until the client reads, because its next frame would be
    /// corrupt after half of this one; such sends are counted.
    fn send(&mut self, number: usize, bytes: &[u8]) -> Result<()> {
        let Some(socket) = self.sockets.get(number) else { return Ok(()) };
        let Some(state) = self.state.get_mut(number) else { return Ok(()) };
        let mut taken = 0;
        if *state & IS_SLOW == 0 {
            taken = net::send(socket, bytes)?;
            if taken == bytes.len() {
                return Ok(());
            }
            *state |= IS_SLOW;
            let data = EventData::new_u64(u64::try_from(number)?);
            epoll::modify(&self.listener.epoll, socket, data, EVENTS | EventFlags::OUT)?;
        }
        let rest = bytes.get(taken..).unwrap_or_default();
        self.unsent.entry(number).or_default().extend_from_slice(rest);
        self.counts(|counts| counts.refused.add(1));
        Ok(())
    }

    /// The client has read: sends more.
    fn flush(&mut self, number: usize) -> Result<()> {
        let Some(socket) = self.sockets.get(number) else { return Ok(()) };
        let Some(unsent) = self.unsent.get_mut(&number) else { return Ok(()) };
        let taken = net::send(socket, unsent)?;
        unsent.drain(..taken);
        if !unsent.is_empty() {
            return Ok(());
        }
        let data = EventData::new_u64(u64::try_from(number)?);
        epoll::modify(&self.listener.epoll, socket, data, EVENTS)?;
        self.unsent.remove(&number);
        self.unset(number, IS_SLOW);
        if self.is(number, ENDS) {
            self.close(number);
        }
        Ok(())
    }

    fn close(&mut self, number: usize) {
        let Some(state) = self.state.get_mut(number).map(std::mem::take) else { return };
        if state & UPGRADED != 0 {
            self.counts(|counts| counts.sockets.sub(1));
        }
        let rooms = (state & (IN_CROWD | IN_OTHER)).count_ones();
        self.counts(|counts| counts.channels.sub(rooms.into()));
        if state & IN_PART != 0 {
            self.parts.remove(&number);
        }
        if state & IS_SLOW != 0 {
            self.unsent.remove(&number);
        }
        self.sockets.close(number);
    }

    fn is(&self, number: usize, what: u8) -> bool {
        self.state.get(number).is_some_and(|state| state & what != 0)
    }

    /// `false` if the client has been closed.
    fn set(&mut self, number: usize, what: u8) -> bool {
        let is_there = self.sockets.get(number).is_some();
        if let Some(state) = self.state.get_mut(number).filter(|_| is_there) {
            *state |= what;
        }
        is_there
    }

    fn unset(&mut self, number: usize, what: u8) {
        if let Some(state) = self.state.get_mut(number) {
            *state &= !what;
        }
    }

    fn counts(&self, change: impl FnOnce(&Counts)) {
        if let Some(counts) = self.shared.counts.get(self.index) {
            change(counts);
        }
    }
}

/// The state of a member of this topic.
fn room(topic: &[u8]) -> u8 {
    if topic == CROWD { IN_CROWD } else { IN_OTHER }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    const CLIENTS: usize = 6;
    const WAIT_MAX: Duration = Duration::from_secs(20);

    /// A client that checks what it receives.
    struct Client {
        socket: OwnedFd,
        got: Vec<u8>,
    }

    impl Client {
        fn dial(server: SocketAddrV4, index: usize) -> Self {
            let socket = net::dial(server, index, true).unwrap();
            let wait = Some(WAIT_MAX);
            sockopt::set_socket_timeout(&socket, sockopt::Timeout::Recv, wait).unwrap();
            Self { socket, got: Vec::new() }
        }

        fn joined(server: SocketAddrV4, index: usize) -> Self {
            let mut client = Self::dial(server, index);
            client.say(&frames::upgrade_request("/socket/websocket?vsn=2.0.0", "x", ""));
            client.expect(&frames::switching(frames::UPGRADE_KEY));
            client.send(frames::JOIN);
            client.expect(&frames::plain(frames::JOIN_REPLY));
            client
        }

        fn say(&self, bytes: &[u8]) {
            let sent = rustix::net::send(&self.socket, bytes, SendFlags::NOSIGNAL);
            assert_eq!(sent, Ok(bytes.len()));
        }

        fn send(&self, payload: &[u8]) {
            let mut frame = Vec::new();
            frames::masked(frames::TEXT, payload, &mut frame);
            self.say(&frame);
        }

        /// Exactly these bytes must come next.
        fn expect(&mut self, bytes: &[u8]) {
            let mut buf = vec![0; READ_BYTES];
            while self.got.len() < bytes.len() {
                let count = rustix::io::read(&self.socket, &mut *buf).unwrap();
                assert!(count > 0, "closed after {:?}", String::from_utf8_lossy(&self.got));
                self.got.extend_from_slice(&buf[..count]);
            }
            let rest = self.got.split_off(bytes.len());
            assert_eq!(String::from_utf8_lossy(&self.got), String::from_utf8_lossy(bytes));
            self.got = rest;
        }

        /// All bytes until the server closes.
        fn rest(mut self) -> String {
            let mut buf = vec![0; READ_BYTES];
            loop {
                match rustix::io::read(&self.socket, &mut *buf).unwrap() {
                    0 => return String::from_utf8(self.got).unwrap(),
                    count => self.got.extend_from_slice(&buf[..count]),
                }
            }
        }
    }

    fn sum(server: SocketAddrV4, name: &str) -> u64 {
        let client = Client::dial(server, 0);
        // In parts, like programs that write a request while they make it.
        for part in ["GET ", "/metrics", " HTTP/1.1\r\n", "host: x\r\n\r\n"] {
            client.say(part.as_bytes());
        }
        let page = client.rest();
        let lines = page.lines().filter_map(|line| line.strip_prefix(name)?.split_once(' '));
        let values: Vec<u64> = lines.map(|(_, value)| value.parse().unwrap()).collect();
        assert_eq!(values.len(), 2, "{page}");
        values.iter().sum()
    }

    fn figure(server: SocketAddrV4, name: &str, expected: u64) {
        let begun = Instant::now();
        while sum(server, name) != expected {
            assert!(begun.elapsed() < WAIT_MAX, "{name} is {}", sum(server, name));
            thread::sleep(Duration::from_millis(20));
        }
    }

    #[test]
    fn all_members_get_what_one_says_and_heartbeats_come_back() {
        let server = start(SocketAddrV4::new([127, 77, 0, 2].into(), 0), 2, 0).unwrap();
        let mut clients: Vec<Client> =
            (0..CLIENTS).map(|index| Client::joined(server, index)).collect();
        figure(server, "simurgh_sockets", 6);
        figure(server, "simurgh_channels", 6);
        clients[0].send(&frames::push(1));
        for client in &mut clients {
            client.expect(&frames::plain(&frames::broadcast(1)));
        }
        // Longer than one read, so the frame is cut anywhere.
        let long = format!("{{\"body\":\"{}\"}}", "x".repeat(10_000));
        let mut frame = Vec::new();
        let push = format!("[\"1\",\"9\",\"rooms:lobby\",\"new:msg\",{long}]");
        frames::masked(frames::TEXT, push.as_bytes(), &mut frame);
        for part in frame.chunks(3_001) {
            clients[1].say(part);
            thread::sleep(Duration::from_millis(5));
        }
        let copy = format!("[null,null,\"rooms:lobby\",\"new:msg\",{long}]");
        for client in &mut clients {
            client.expect(&frames::plain(copy.as_bytes()));
        }
        clients[2].send(frames::HEARTBEAT);
        clients[2].send(b"[null,\"77\",\"phoenix\",\"heartbeat\",{}]");
        clients[2].expect(&frames::plain(frames::HEARTBEAT_REPLY));
        let second = r#"[null,"77","phoenix","phx_reply",{"status":"ok","response":{}}]"#;
        clients[2].expect(&frames::plain(second.as_bytes()));
        figure(server, "simurgh_deliveries_total", 12);
        figure(server, "bare_refused_total", 0);
        clients.truncate(2);
        figure(server, "simurgh_sockets", 2);
        figure(server, "simurgh_channels", 2);
    }

    #[test]
    fn a_topic_of_few_is_told_over_http() {
        let server = start(SocketAddrV4::new([127, 77, 0, 3].into(), 0), 2, 0).unwrap();
        let mut crowd = Client::joined(server, 0);
        let mut speaker = Client::joined(server, 1);
        speaker.send(b"[\"2\",\"2\",\"rooms:road\",\"phx_join\",{}]");
        let reply = br#"["2","2","rooms:road","phx_reply",{"status":"ok","response":{}}]"#;
        speaker.expect(&frames::plain(reply));
        figure(server, "simurgh_channels", 3);
        let body = r#"{"topic":"rooms:road","event":"new:msg","payload":{"body":"go"}}"#;
        let http = Client::dial(server, 2);
        let length = body.len();
        let head = format!("POST /api/broadcast HTTP/1.1\r\nContent-Length: {length}\r\n\r\n");
        http.say(head.as_bytes());
        http.say(body.as_bytes());
        let answer = http.rest();
        assert!(answer.starts_with("HTTP/1.1 200 ") && answer.ends_with("\r\n\r\n{}"), "{answer}");
        let copy = b"[null,null,\"rooms:road\",\"new:msg\",{\"body\":\"go\"}]";
        speaker.expect(&frames::plain(copy));
        crowd.send(frames::HEARTBEAT);
        crowd.expect(&frames::plain(frames::HEARTBEAT_REPLY));
        figure(server, "simurgh_deliveries_total", 1);
    }

    #[test]
    fn whoever_does_not_read_gets_everything_later() {
        let server = start(SocketAddrV4::new([127, 77, 0, 4].into(), 0), 2, 0).unwrap();
        let mut slow = Client::joined(server, 0);
        let mut hearing = Client::joined(server, 1);
        let body = "y".repeat(60_000);
        let push = format!("[\"1\",\"9\",\"rooms:lobby\",\"new:msg\",\"{body}\"]");
        let copy = format!("[null,null,\"rooms:lobby\",\"new:msg\",\"{body}\"]");
        let copy = frames::plain(copy.as_bytes());
        for count in 1..=300 {
            hearing.send(push.as_bytes());
            hearing.expect(&copy);
            figure(server, "simurgh_deliveries_total", count * 2);
        }
        assert!(sum(server, "bare_refused_total") > 0, "everything was taken at once");
        for _ in 0..300 {
            slow.expect(&copy);
        }
    }
}
