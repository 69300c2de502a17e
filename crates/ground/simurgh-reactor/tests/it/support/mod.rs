//! A shard that runs scripts of a test and reports its events.
#![allow(unreachable_pub)]

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use simurgh_reactor::{
    Accepted, Closed, Config, HandOffEnd, Handler, Io, Key, LocalOutput, Mailbox, Next,
    ShardHandle, ShardSet, Slow,
};
use simurgh_tls::HandshakeError;

pub const WAIT_MAX: Duration = Duration::from_secs(30);

pub type Script = Box<dyn FnOnce(&mut Probe, &mut Io<Conn>) + Send>;

#[derive(Debug, PartialEq, Eq)]
pub enum Event {
    Accepted { shard: usize, key: Key, over_capacity: bool },
    Adopted(Key),
    Connected(Key),
    Read(Key, Vec<u8>),
    Local(Key, Vec<u8>),
    Closed(Key, Closed),
    Slow(Key),
    Secured(Key),
    Insecure(Key, String),
}

#[derive(Debug, Default)]
pub struct Conn {
    pub bytes: usize,
}

pub struct Probe {
    pub shard: usize,
    pub events: Sender<Event>,
    /// Sends back what it reads, and reports no reads.
    pub echo: bool,
    pub slow: Slow,
    pub next: Next,
    /// How long it takes for what it reads.
    pub takes: Duration,
}

impl Probe {
    fn tell(&self, event: Event) {
        // The test may be over.
        let _ = self.events.send(event);
    }
}

impl Handler for Probe {
    type Conn = Conn;
    type Mail = Script;

    fn accepted(&mut self, _io: &mut Io<Conn>, from: Accepted) -> Option<Conn> {
        let Accepted { key, over_capacity, .. } = from;
        self.tell(Event::Accepted { shard: self.shard, key, over_capacity });
        Some(Conn::default())
    }

    fn adopted(&mut self, _io: &mut Io<Conn>, key: Key, _peer: SocketAddr) -> Option<Conn> {
        self.tell(Event::Adopted(key));
        Some(Conn::default())
    }

    fn connected(&mut self, io: &mut Io<Conn>, key: Key) {
        assert!(io.conn_ref(key).is_some());
        self.tell(Event::Connected(key));
    }

    fn secured(&mut self, io: &mut Io<Conn>, key: Key) {
        assert!(io.is_secure(key));
        self.tell(Event::Secured(key));
    }

    fn insecure(&mut self, io: &mut Io<Conn>, key: Key, why: &HandshakeError) {
        assert!(io.conn_ref(key).is_some());
        self.tell(Event::Insecure(key, why.to_string()));
    }

    fn readable(&mut self, io: &mut Io<Conn>, key: Key, data: &mut [u8]) {
        io.conn(key).unwrap().bytes += data.len();
        std::thread::sleep(self.takes);
        if self.echo {
            io.send(key, data);
        } else {
            self.tell(Event::Read(key, data.to_vec()));
        }
    }

    fn local(&mut self, io: &mut Io<Conn>, output: &mut LocalOutput) {
        while let Some((key, data)) = output.next() {
            assert!(io.conn_ref(key).is_some());
            self.tell(Event::Local(key, data.to_vec()));
        }
    }

    fn closed(&mut self, io: &mut Io<Conn>, key: Key, _conn: Conn, why: Closed) {
        assert!(io.conn(key).is_none());
        self.tell(Event::Closed(key, why));
    }

    fn mail(&mut self, io: &mut Io<Conn>, script: Script) {
        script(self, io);
    }

    fn turn_end(&mut self, _io: &mut Io<Conn>) -> Next {
        self.next
    }

    fn slow(&mut self, io: &mut Io<Conn>, key: Key) -> Slow {
        assert!(io.conn_ref(key).is_some());
        self.tell(Event::Slow(key));
        self.slow.clone()
    }
}

pub struct Server {
    pub address: SocketAddr,
    pub mailboxes: Vec<Mailbox<Script>>,
    pub shards: Vec<ShardHandle>,
    pub ends: Vec<HandOffEnd>,
    pub events: Receiver<Event>,
}

impl Server {
    pub fn start(shards: usize, echo: bool, config: &Config) -> Self {
        Self::listening(&["127.0.0.1:0".parse().unwrap()], shards, echo, config)
    }

    /// One shard without a listener.
    pub fn start_client(config: &Config) -> Self {
        Self::listening(&[], 1, false, config)
    }

    pub fn listening(addresses: &[SocketAddr], shards: usize, echo: bool, config: &Config) -> Self {
        let mut set = ShardSet::prepare(shards, 1 << 20).unwrap();
        let bound = if addresses.is_empty() { Vec::new() } else { set.bind(addresses).unwrap() };
        let address = bound.first().copied().unwrap_or((Ipv4Addr::UNSPECIFIED, 0).into());
        let (sender, events) = channel();
        let ends = set.take_hand_off_ends();
        let mailboxes = set.mailboxes().to_vec();
        let spawn = |_| {
            let events = sender.clone();
            set.spawn("probe", config.clone(), move |shard| Probe {
                shard: shard.index,
                events,
                echo,
                slow: Slow::Cut { farewell: b"bye".to_vec() },
                next: Next::Idle,
                takes: Duration::ZERO,
            })
            .unwrap()
        };
        let shards = (0..shards).map(spawn).collect();
        Self { address, mailboxes, shards, ends, events }
    }

    pub fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(WAIT_MAX)).unwrap();
        stream.set_write_timeout(Some(WAIT_MAX)).unwrap();
        stream
    }

    /// Connects and waits until the shard has it.
    pub fn connect_with_key(&self) -> (TcpStream, Key) {
        let stream = self.connect();
        match self.event() {
            Event::Accepted { key, .. } => (stream, key),
            other => panic!("{other:?} instead of a connection"),
        }
    }

    pub fn event(&self) -> Event {
        self.events.recv_timeout(WAIT_MAX).expect("something should have happened")
    }

    /// Checks that nothing is reported for a moment.
    pub fn assert_quiet(&self) {
        if let Ok(event) = self.events.recv_timeout(Duration::from_millis(100)) {
            panic!("unexpected {event:?}");
        }
    }

    pub fn read(&self, key: Key) -> Vec<u8> {
        match self.event() {
            Event::Read(from, bytes) if from == key => bytes,
            other => panic!("{other:?} instead of bytes"),
        }
    }

    pub fn ask<R: Send + 'static>(
        &self,
        script: impl FnOnce(&mut Probe, &mut Io<Conn>) -> R + Send + 'static,
    ) -> R {
        let (answer, answered) = channel();
        let script: Script = Box::new(move |probe, io| answer.send(script(probe, io)).unwrap());
        assert!(self.mailboxes[0].post_anyway(script));
        answered.recv_timeout(WAIT_MAX).expect("the shard should have answered")
    }

    /// Waits until `condition` holds for the counters of the first shard.
    pub fn await_counts(&self, condition: impl Fn(&simurgh_reactor::Counts) -> bool) {
        let until = Instant::now() + WAIT_MAX;
        while !condition(&self.shards[0].stats().read()) {
            assert!(Instant::now() < until, "{:?}", self.shards[0].stats().read());
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    pub fn stop(&mut self) {
        for shard in &self.shards {
            shard.stop();
        }
        for shard in self.shards.drain(..) {
            shard.join().unwrap();
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.stop();
        }
    }
}

pub fn read_exactly(stream: &mut TcpStream, bytes: usize) -> Vec<u8> {
    let mut buffer = vec![0; bytes];
    stream.read_exact(&mut buffer).unwrap();
    buffer
}

/// Reads until the end; the flag says whether that was orderly.
pub fn read_to_end(stream: &mut TcpStream) -> (Vec<u8>, bool) {
    let mut all = Vec::new();
    let mut buffer = vec![0; 1 << 16];
    loop {
        match stream.read(&mut buffer) {
            Ok(0) => return (all, true),
            Ok(bytes) => all.extend_from_slice(&buffer[..bytes]),
            Err(error) if error.kind() == ErrorKind::ConnectionReset => return (all, false),
            Err(error) => panic!("{error}"),
        }
    }
}

pub fn reset(stream: TcpStream) {
    rustix::net::sockopt::set_socket_linger(&stream, Some(Duration::ZERO)).unwrap();
}

pub fn write(stream: &mut TcpStream, bytes: &[u8]) {
    stream.write_all(bytes).unwrap();
}
