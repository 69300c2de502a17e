//! The bare server: sockets and epoll with nothing on top. It is the baseline of every measurement
//! of the server, on one thread or on as many threads and descriptor tables as `simurgh serve` has.
//!
//! It uses five bytes of memory per client: the descriptor and the state. Each message is answered
//! by one `send`; each thread sends a broadcast to its own members by one `send` each, one after
//! the other, while everything else waits. Threads forward broadcasts by a datagram. Only a peer
//! that sends half a message, or does not read, costs more. Do not use it as a server: it trusts
//! its peers and every process on this machine.

use std::collections::HashMap;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::OwnedFd;
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use rustix::event::epoll::{self, Event, EventData, EventFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, sockopt};
use simurgh_bench_kit::flags::{at_least, milliseconds, number};
use simurgh_bench_kit::net::{self, Listener, Slots};
use simurgh_bench_kit::{frames, sys};

use counts::{Count, Counts, now_ns, page, stretch};
use wire::{Message, Request};

mod counts;
mod tables;
#[cfg(test)]
mod tests;
mod wire;

/// A forgotten server ends by itself.
const LIFETIME: Duration = Duration::from_secs(3600);
const START_TIMEOUT: Duration = Duration::from_secs(60);
const BROADCASTS: u64 = u64::MAX - 1;
/// Holds the largest datagram; memory is touched only as far as reads fill it.
const READ_BYTES: usize = 64 * 1024;
/// Bytes of broadcasts that may wait for a thread that is still writing the one before.
const WAITING_BYTES: usize = 8 << 20;
/// Initial size of a thread's table of descriptors.
const TABLE_MAX: usize = 1 << 16;
/// Sends in a stretch: as many as a shard does in a slice of its fan-out.
const STRETCH_SENDS: usize = 48;
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

/// Options of the bare server, which are those of `simurgh serve` where it has them.
#[derive(Args, Clone, Debug, PartialEq)]
pub(crate) struct Options {
    /// Where it listens
    #[arg(long, value_name = "IP:PORT")]
    listen: SocketAddrV4,
    /// Threads; without it as many as `simurgh serve` has for `--max-connections`
    #[arg(long, value_name = "N", value_parser = at_least::<1>)]
    shards: Option<usize>,
    /// Connections it must have tables for
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = at_least::<1>)]
    max_connections: usize,
    /// The kernel sends acknowledgements at once, not with the answers
    #[arg(long)]
    quick_acks: bool,
    /// GET /arrivals has the time of each upgrade
    #[arg(long)]
    arrivals: bool,
    /// The request or message before whose answer it stops; 0: none
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = number::<u64>)]
    stall_at: u64,
    /// How long it stops
    #[arg(long = "stall-ms", value_name = "N", default_value = "0", value_parser = milliseconds)]
    stall: Duration,
    /// Ignored: `simurgh serve` has it
    #[arg(long)]
    idle_timeout: Option<String>,
    /// Ignored: `simurgh serve` has it
    #[arg(long)]
    check_origin: Option<String>,
}

/// The state that all threads share.
#[derive(Debug)]
struct Shared {
    options: Options,
    counts: Box<[Counts]>,
    /// Each thread's address for the others' broadcasts; set before the first client is served.
    peers: OnceLock<Vec<SocketAddrV4>>,
}

/// Serves until it is killed.
pub(crate) fn serve(options: &Options) -> Result<()> {
    sys::die_with_parent()?;
    let address = start(options)?;
    println!("listening on http://{address}");
    thread::sleep(LIFETIME);
    Ok(())
}

/// Starts the threads, which run as long as the process. Returns their address.
pub(crate) fn start(options: &Options) -> Result<SocketAddrV4> {
    let count = options.shards.unwrap_or_else(|| tables::count_for(options.max_connections));
    let (_reserved, address) = reserve(options.listen)?;
    let counts = (0..count).map(|_| Counts::default()).collect();
    let shared = Arc::new(Shared { options: options.clone(), counts, peers: OnceLock::new() });
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
    /// When each connection was upgraded, if that is wanted.
    arrivals: Vec<u64>,
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
        let mut listener = Listener::open(address, true)?;
        if !shared.options.quick_acks {
            listener = listener.without_quick_acks()?;
        }
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
            arrivals: Vec::new(),
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
        });
        match accepted {
            // They wait for others to leave; the delay then shows in the figures.
            Err(error) if matches!(error.downcast_ref(), Some(&(Errno::MFILE | Errno::NFILE))) => {
                thread::sleep(Duration::from_millis(1));
                Ok(())
            }
            accepted => accepted.map(drop),
        }
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
        let mut kept;
        let input = if self.is(number, IN_PART) {
            self.unset(number, IN_PART);
            kept = self.parts.remove(&number).unwrap_or_default();
            kept.extend_from_slice(input);
            kept.as_mut_slice()
        } else {
            input
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
                frames::TEXT => match wire::message(frame.payload) {
                    Some(message) => self.message(number, &message)?,
                    None => {
                        self.stall();
                        self.send(number, &frames::plain(frame.payload))?;
                    }
                },
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
                if self.shared.options.arrivals {
                    self.arrivals.push(now_ns());
                }
                self.set(number, UPGRADED);
                self.add(Count::Sockets, 1);
                self.add(Count::Upgrades, 1);
                return self.send(number, &frames::switching(key));
            }
            Request::Metrics => wire::answer(&page(&self.shared.counts)),
            Request::Arrivals => {
                let times: Vec<String> = self.arrivals.iter().map(u64::to_string).collect();
                wire::answer(&times.join("\n"))
            }
            Request::Broadcast(message) => {
                let body = message.payload.to_string();
                self.broadcast(
                    message.topic.as_bytes(),
                    message.event.as_bytes(),
                    body.as_bytes(),
                )?;
                wire::answer("{}")
            }
            Request::Other => {
                self.stall();
                wire::answer("ok")
            }
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
                    self.add(Count::Channels, 1);
                }
            }
            b"send" => return self.send_to_some(message.body),
            event => self.broadcast(message.topic, event, message.body)?,
        }
        let mut answer = std::mem::take(&mut self.answer);
        wire::reply(message, &mut answer);
        let sent = self.send(number, &answer);
        self.answer = answer;
        sent
    }

    /// Stops at the request or message that its flags name.
    fn stall(&self) {
        let options = &self.shared.options;
        if self.add(Count::Answered, 1) == options.stall_at {
            thread::sleep(options.stall);
        }
    }

    /// Sends a frame of a size, which a client names, to some clients in the order of their
    /// descriptors.
    fn send_to_some(&mut self, body: &[u8]) -> Result<()> {
        let order: wire::Order = serde_json::from_slice(body)?;
        let frame = wire::frame_of(&order.event, order.bytes);
        let clients = (0..self.state.len()).filter(|number| self.is(*number, UPGRADED));
        let some: Vec<usize> = clients.skip(order.first).take(order.count).collect();
        some.into_iter().try_for_each(|number| self.send(number, &frame))
    }

    fn broadcast(&mut self, topic: &[u8], event: &[u8], body: &[u8]) -> Result<()> {
        let frame = wire::broadcast(topic, event, body)?;
        let datagram = [&[room(topic)], frame.as_slice()].concat();
        let shared = Arc::clone(&self.shared);
        let peers = shared.peers.get().map_or(&[][..], Vec::as_slice);
        for (_, peer) in peers.iter().enumerate().filter(|(index, _)| *index != self.index) {
            rustix::net::sendto(&self.broadcasts, &datagram, SendFlags::DONTWAIT, peer)
                .context("pass a broadcast on")?;
            self.add(Count::Posted, 1);
        }
        self.send_to_members(room(topic), &frame)
    }

    fn receive(&mut self, buf: &mut [u8]) -> Result<()> {
        let length = match rustix::net::recv(&self.broadcasts, &mut *buf, RecvFlags::DONTWAIT) {
            Ok((length, _)) => length,
            Err(Errno::AGAIN) => return Ok(()),
            Err(error) => bail!("broadcasts: {error}"),
        };
        self.add(Count::Taken, 1);
        let Some((room, frame)) = buf.get(..length).and_then(<[u8]>::split_first) else {
            return Ok(());
        };
        self.send_to_members(*room, frame)
    }

    fn send_to_members(&mut self, room: u8, frame: &[u8]) -> Result<()> {
        let mut sent = 0;
        for nth in 0..self.state.len().div_ceil(STRETCH_SENDS) {
            let begun = stretch();
            for number in (nth * STRETCH_SENDS..self.state.len()).take(STRETCH_SENDS) {
                if self.is(number, room) {
                    self.send(number, frame)?;
                    sent += 1;
                }
            }
            self.counts().into_iter().for_each(|counts| counts.end(begun));
        }
        self.add(Count::Deliveries, sent);
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
        self.add(Count::Refused, 1);
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
        let rooms = (state & (IN_CROWD | IN_OTHER)).count_ones();
        if let Some(counts) = self.counts() {
            counts.sub(Count::Sockets, u64::from(state & UPGRADED != 0));
            counts.sub(Count::Channels, rooms.into());
        }
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

    /// This thread's counts.
    fn counts(&self) -> Option<&Counts> {
        self.shared.counts.get(self.index)
    }

    /// Returns the new count.
    fn add(&self, count: Count, more: u64) -> u64 {
        self.counts().map_or(0, |counts| counts.add(count, more))
    }
}

/// The state of a member of this topic.
fn room(topic: &[u8]) -> u8 {
    if topic == CROWD { IN_CROWD } else { IN_OTHER }
}
