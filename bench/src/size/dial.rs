//! The clients of bare connections: `connect`, one registration in a poll set, and nothing else.
//!
//! It has as many threads and tables as the server, each with its part of the connections. Source
//! ports are computed: the kernel's own choice would need an option that delays it until the
//! destination is known, and searches past all ports in use.

use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::OwnedFd;
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use rustix::event::epoll::{self, CreateFlags, Event, EventFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};
use simurgh_bench_kit::net;

use super::counts::now_ns;
use super::server::LIFETIME;
use super::{Dial, tables};
use simurgh_bench_kit::sys;

const UNDER_WAY: usize = 64;
/// Ports used of each source address, from this one on: below those that the kernel chooses.
const PORTS: usize = 28_000;
const FIRST_PORT: usize = 4_000;
/// Source addresses are 127.78.1.1 to 127.78.250.250.
const HOSTS: usize = 250;

/// Prepares and prints so, connects at a line of input and prints when, stays until killed.
pub(super) fn run(options: &Dial) -> Result<()> {
    sys::die_with_parent()?;
    let count = tables::count_for(options.connections);
    ensure!(options.connections <= PORTS * HOSTS * HOSTS, "there are no ports for so many");
    // One more than there are threads, for this one.
    let gate = Arc::new(Barrier::new(count + 1));
    let (done, all_done) = mpsc::channel();
    tables::start(count, "dial", |index| {
        let (gate, done) = (Arc::clone(&gate), done.clone());
        let part = part(options.connections, count, index);
        let server = options.server;
        Box::new(move || {
            let mut dialler = Dialler::new(server, part)?;
            gate.wait();
            gate.wait();
            dialler.dial(&done)
        })
    })?;
    gate.wait();
    println!("ready");
    std::io::stdin().read_line(&mut String::new())?;
    println!("first at {}", now_ns());
    gate.wait();
    for _ in 0..count {
        all_done.recv().context("a thread has ended")?;
    }
    println!("all at {}", now_ns());
    thread::sleep(LIFETIME);
    Ok(())
}

/// The connections of thread `index` of `count`.
fn part(connections: usize, count: usize, index: usize) -> std::ops::Range<usize> {
    connections * index / count..connections * (index + 1) / count
}

/// The source address of connection `number`.
fn source(number: usize) -> Result<SocketAddrV4> {
    let (host, port) = (number / PORTS, FIRST_PORT + number % PORTS);
    let (third, fourth) = (u8::try_from(1 + host / HOSTS)?, u8::try_from(1 + host % HOSTS)?);
    Ok(SocketAddrV4::new(Ipv4Addr::new(127, 78, third, fourth), u16::try_from(port)?))
}

struct Dialler {
    epoll: OwnedFd,
    server: SocketAddrV4,
    left: std::ops::Range<usize>,
    /// In the order in which they were opened, and whether they are connected.
    sockets: Vec<(OwnedFd, bool)>,
}

impl Dialler {
    fn new(server: SocketAddrV4, part: std::ops::Range<usize>) -> Result<Self> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        Ok(Self { epoll, server, sockets: Vec::with_capacity(part.len()), left: part })
    }

    fn dial(&mut self, done: &Sender<()>) -> Result<()> {
        let mut up = 0;
        let mut events: Vec<Event> = Vec::with_capacity(2 * UNDER_WAY);
        loop {
            while self.sockets.len() - up < UNDER_WAY
                && let Some(number) = self.left.next()
            {
                self.open(number).with_context(|| format!("connection {number}"))?;
            }
            if up == self.sockets.len() {
                break;
            }
            net::wait(&self.epoll, &mut events, None)?;
            for event in &events {
                let index = usize::try_from(event.data.u64())?;
                let Some((socket, is_up)) = self.sockets.get_mut(index) else { continue };
                let flags = event.flags;
                if flags.intersects(EventFlags::ERR | EventFlags::HUP) {
                    let why = sockopt::socket_error(&*socket)?.err();
                    bail!("a connection did not come up, or broke: {why:?}");
                }
                up += usize::from(!std::mem::replace(is_up, true));
            }
        }
        done.send(())?;
        // The sockets stay open until the process ends.
        loop {
            thread::sleep(Duration::from_secs(3600));
        }
    }

    fn open(&mut self, number: usize) -> Result<()> {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket =
            rustix::net::socket_with(AddressFamily::INET, SocketType::STREAM, flags, None)?;
        // A reset at the end, even when this process is killed: no TIME_WAIT stays.
        sockopt::set_socket_linger(&socket, Some(Duration::ZERO))?;
        let source = source(number)?;
        let bound = match rustix::net::bind(&socket, &source) {
            // A listener on all addresses has this port: let the kernel find another.
            Err(Errno::ADDRINUSE) => {
                rustix::net::bind(&socket, &SocketAddrV4::new(*source.ip(), 0))
            }
            other => other,
        };
        bound.with_context(|| format!("bind to {source}"))?;
        match rustix::net::connect(&socket, &self.server) {
            Ok(()) | Err(Errno::INPROGRESS) => {}
            Err(error) => bail!("connect: {error}"),
        }
        let events = EventFlags::IN | EventFlags::OUT | EventFlags::ET;
        net::add(&self.epoll, &socket, self.sockets.len(), events)?;
        self.sockets.push((socket, false));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_connection_has_a_source_and_a_thread_of_its_own() {
        assert_eq!(source(0).unwrap().to_string(), "127.78.1.1:4000");
        assert_eq!(source(PORTS - 1).unwrap().to_string(), "127.78.1.1:31999");
        assert_eq!(source(PORTS).unwrap().to_string(), "127.78.1.2:4000");
        assert_eq!(source(2_000_000).unwrap().to_string(), "127.78.1.72:16000");
        assert_eq!(source(PORTS * HOSTS).unwrap().to_string(), "127.78.2.1:4000");
        for (connections, count) in [(2_000_000, 107), (5, 7), (0, 2)] {
            let mut next = 0;
            for index in 0..count {
                let part = part(connections, count, index);
                assert_eq!(part.start, next);
                next = part.end;
            }
            assert_eq!(next, connections);
        }
    }
}
