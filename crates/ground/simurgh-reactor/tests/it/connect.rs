//! Connections that a shard opens: their outcomes, and the calls of the handler.
#![cfg(target_os = "linux")]

use std::collections::BTreeSet;
use std::io::{ErrorKind, Read};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use crate::support::{Conn, Event, Server, WAIT_MAX, read_exactly, read_to_end, write};
use rustix::io::Errno;
use rustix::net::sockopt;
use simurgh_reactor::{
    Closed, Config, ConnectOptions, HandOffError, Handler, Io, Key, Next, ShardSet, Shared, Slow,
};

fn connect(client: &Server, to: SocketAddr, how: ConnectOptions) -> Key {
    client.ask(move |_, io| io.connect(to, &how, Conn::default()).unwrap())
}

/// The error that the system returns at once, and the mark of the returned record.
fn refusal(client: &Server, to: SocketAddr, how: ConnectOptions) -> (Errno, usize) {
    client.ask(move |_, io| {
        let before = (io.len(), open_descriptors());
        let (error, conn) = io.connect(to, &how, Conn { bytes: 77 }).unwrap_err();
        assert_eq!((io.len(), open_descriptors()), before, "something was left behind");
        (Errno::from_io_error(&error).expect("the system's own number"), conn.bytes)
    })
}

fn open_descriptors() -> usize {
    std::fs::read_dir("/proc/thread-self/fd").unwrap().count()
}

fn client() -> Server {
    Server::start_client(&Config::default())
}

fn listener() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    // A bound on every wait: it applies to accepting, and accepted sockets inherit it.
    sockopt::set_socket_timeout(&listener, sockopt::Timeout::Recv, Some(WAIT_MAX)).unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

/// A listener whose backlog is full with one connection: the next client gets no answer.
fn mute_listener() -> (TcpListener, SocketAddr, TcpStream) {
    let (listener, address) = listener();
    rustix::net::listen(&listener, 0).unwrap();
    let first = TcpStream::connect(address).unwrap();
    (listener, address, first)
}

fn free_port(ip: Ipv4Addr) -> SocketAddr {
    TcpListener::bind((ip, 0)).unwrap().local_addr().unwrap()
}

const SECOND_LOOPBACK: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);

/// A connection to a port without a listener would be established with itself, if its own port
/// happened to be the same; another local address prevents that.
fn from_second_loopback() -> ConnectOptions {
    ConnectOptions { from: Some((SECOND_LOOPBACK, 0).into()), ..ConnectOptions::default() }
}

#[test]
fn outgoing_connection_opens_and_carries_bytes() {
    let server = Server::start(1, true, &Config::default());
    let client = client();
    let key = connect(&client, server.address, ConnectOptions::default());
    assert_eq!(client.event(), Event::Connected(key));
    client.ask(move |_, io| io.send(key, b"there and back"));
    assert_eq!(client.read(key), b"there and back");
    client.ask(move |_, io| io.close(key));
    assert_eq!(client.event(), Event::Closed(key, Closed::Local));
    client.assert_quiet();
    let counts = client.ask(|_, io| io.stats().read());
    assert_eq!((counts.connects, counts.connected, counts.connect_failed), (1, 1, 0));
}

#[test]
fn outgoing_connection_knows_its_peer_address() {
    let (_listener, address) = listener();
    let client = client();
    let key = connect(&client, address, ConnectOptions::default());
    assert_eq!(client.event(), Event::Connected(key));
    assert_eq!(client.ask(move |_, io| io.peer_addr(key).unwrap()), address);
}

#[test]
fn refused_connection_is_reported_once_and_asynchronously() {
    let nobody = free_port(Ipv4Addr::LOCALHOST);
    let client = client();
    let key = connect(&client, nobody, from_second_loopback());
    let refused = Closed::Unconnected(ErrorKind::ConnectionRefused);
    assert_eq!(client.event(), Event::Closed(key, refused));
    client.assert_quiet();
    let counts = client.ask(|_, io| io.stats().read());
    assert_eq!((counts.connects, counts.connected, counts.connect_failed), (1, 0, 1));
    assert_eq!((counts.open, counts.closed, counts.queued_bytes), (0, 1, 0));
}

#[test]
fn data_sent_to_a_refused_connection_is_dropped() {
    let nobody = free_port(Ipv4Addr::LOCALHOST);
    let client = client();
    let key = client.ask(move |_, io| {
        let key = io.connect(nobody, &from_second_loopback(), Conn::default()).unwrap();
        io.send(key, b"in vain");
        key
    });
    let refused = Closed::Unconnected(ErrorKind::ConnectionRefused);
    assert_eq!(client.event(), Event::Closed(key, refused));
    client.assert_quiet();
    assert_eq!(client.ask(|_, io| io.stats().read()).queued_bytes, 0);
}

#[test]
fn unanswered_connection_attempt_can_be_ended() {
    let (_listener, address, _first) = mute_listener();
    let client = client();
    let ends: [fn(&mut Io<Conn>, Key); 4] = [
        |io, key| io.abort(key),
        |io, key| io.close(key),
        |io, key| {
            io.close(key);
            io.abort(key);
        },
        |io, key| {
            assert_eq!(io.hand_off(key, b"").unwrap_err(), HandOffError::NotOpen);
            io.shutdown_write(key);
            io.abort(key);
        },
    ];
    for reset_on_close in [false, true] {
        for end in ends {
            let how = ConnectOptions { reset_on_close, ..ConnectOptions::default() };
            let key = connect(&client, address, how);
            client.ask(move |_, io| end(io, key));
            assert_eq!(client.event(), Event::Closed(key, Closed::Local));
        }
    }
    client.assert_quiet();
    let counts = client.ask(|_, io| io.stats().read());
    assert_eq!((counts.connects, counts.connected, counts.connect_failed), (8, 0, 0));
    assert_eq!(counts.open, 0);
}

#[test]
fn connection_closed_while_opening_is_not_reported_as_connected() {
    let (listener, address) = listener();
    let client = client();
    client.ask(move |_, io| {
        let key = io.connect(address, &ConnectOptions::default(), Conn::default()).unwrap();
        io.close(key);
    });
    assert!(matches!(client.event(), Event::Closed(_, Closed::Local)));
    client.assert_quiet();
    drop(listener);
}

#[test]
fn data_sent_before_the_connection_opens_arrives_first() {
    let (listener, address) = listener();
    let client = client();
    let key = client.ask(move |_, io| {
        let key = io.connect(address, &ConnectOptions::default(), Conn::default()).unwrap();
        // Not even tried, though the kernel has finished the handshake by now.
        io.send_shared(key, &Shared::from(b"one ".to_vec()));
        assert_eq!(io.queued(key), 4);
        io.send(key, b"two ");
        io.flush();
        io.send_shared(key, &Shared::from(b"three".to_vec()));
        io.shutdown_write(key);
        assert_eq!(io.queued(key), 13);
        key
    });
    let (mut peer, _) = listener.accept().unwrap();
    assert_eq!(client.event(), Event::Connected(key));
    assert_eq!(read_to_end(&mut peer), (b"one two three".to_vec(), true));
    write(&mut peer, b"answer");
    assert_eq!(client.read(key), b"answer");
    drop(peer);
    assert_eq!(client.event(), Event::Closed(key, Closed::PeerEof));
}

#[test]
fn half_close_before_the_connection_opens_is_deferred() {
    let (listener, address) = listener();
    let client = client();
    let key = client.ask(move |_, io| {
        let key = io.connect(address, &ConnectOptions::default(), Conn::default()).unwrap();
        io.shutdown_write(key);
        key
    });
    let (mut peer, _) = listener.accept().unwrap();
    assert_eq!(client.event(), Event::Connected(key));
    assert_eq!(read_to_end(&mut peer), (Vec::new(), true));
    write(&mut peer, b"still heard");
    assert_eq!(client.read(key), b"still heard");
}

#[test]
fn requests_during_a_long_connect_run_once_it_is_open() {
    let (listener, address, _first) = mute_listener();
    let client = client();
    let [speaks, shuts, closes] = client.ask(move |_, io| {
        let how = ConnectOptions::default();
        let keys = [(); 3].map(|()| io.connect(address, &how, Conn::default()).unwrap());
        io.send(keys[0], b"patience");
        io.shutdown_write(keys[1]);
        io.send(keys[2], b"my last word");
        io.close(keys[2]);
        keys
    });
    client.assert_quiet();
    // They come in at the second SYN, a second after the first.
    rustix::net::listen(&listener, 8).unwrap();
    drop(listener.accept().unwrap());
    let mut said = BTreeSet::new();
    let mut peers: Vec<TcpStream> = (0..3).map(|_| listener.accept().unwrap().0).collect();
    for peer in &mut peers {
        let mut bytes = [0; 16];
        let read = peer.read(&mut bytes).unwrap();
        said.insert(bytes[..read].to_vec());
    }
    assert_eq!(said, [&b""[..], b"patience", b"my last word"].map(<[u8]>::to_vec).into());
    // A connection that the handler has closed is not reported as connected.
    let mut told = [(); 3].map(|()| client.event());
    told.sort_by_key(|event| format!("{event:?}"));
    let mut connected = [speaks, shuts];
    connected.sort();
    let [one, two] = connected.map(Event::Connected);
    assert_eq!(told, [Event::Closed(closes, Closed::Local), one, two]);
    client.assert_quiet();
    assert_eq!(client.ask(|_, io| io.stats().read()).connected, 3);
}

#[test]
fn bytes_and_end_arriving_with_the_handshake_are_reported_in_order() {
    let (listener, address) = listener();
    let client = client();
    let (go, gone) = std::sync::mpsc::channel();
    // The shard sleeps until all has happened, so that one event reports it.
    let script = Box::new(move |_: &mut crate::support::Probe, io: &mut Io<Conn>| {
        io.connect(address, &ConnectOptions::default(), Conn::default()).unwrap();
        gone.recv_timeout(WAIT_MAX).unwrap();
    });
    assert!(client.mailboxes[0].post_anyway(script));
    let (mut peer, _) = listener.accept().unwrap();
    write(&mut peer, b"welcome and farewell");
    drop(peer);
    go.send(()).unwrap();
    let Event::Connected(key) = client.event() else { panic!("it was not connected") };
    assert_eq!(client.read(key), b"welcome and farewell");
    assert_eq!(client.event(), Event::Closed(key, Closed::PeerEof));
}

#[test]
fn slow_reader_receives_all_queued_data_repeatedly() {
    let (listener, address) = listener();
    let config = Config { outbound_bytes_max: 64 << 20, ..Config::default() };
    let client = Server::start_client(&config);
    let key = connect(&client, address, ConnectOptions::default());
    let (mut peer, _) = listener.accept().unwrap();
    assert_eq!(client.event(), Event::Connected(key));
    for round in 0..3_u8 {
        // More than the buffers of both sides take; a later word has nothing before it.
        let queued = client.ask(move |_, io| {
            io.send(key, &vec![round; 16 << 20]);
            io.flush();
            io.queued(key)
        });
        assert!(queued > 0, "all of it was taken at once");
        assert!(read_exactly(&mut peer, 16 << 20).iter().all(|byte| *byte == round));
        client.ask(move |_, io| io.send(key, b"word"));
        assert_eq!(read_exactly(&mut peer, 4), b"word");
    }
    let counts = client.ask(|_, io| io.stats().read());
    assert_eq!(counts.queued_bytes, 0);
}

#[test]
fn outgoing_connection_uses_the_chosen_address_and_port() {
    let (listener, address) = listener();
    let client = client();
    let any_port = SocketAddr::from((SECOND_LOOPBACK, 0));
    let this_port = free_port(SECOND_LOOPBACK);
    for from in [any_port, this_port] {
        let how = ConnectOptions { from: Some(from), ..ConnectOptions::default() };
        let key = connect(&client, address, how);
        assert_eq!(client.event(), Event::Connected(key));
        let (peer, actual) = listener.accept().unwrap();
        assert_eq!(actual.ip(), from.ip());
        assert!(actual.port() == from.port() || from.port() == 0);
        drop(peer);
        assert_eq!(client.event(), Event::Closed(key, Closed::PeerEof));
    }
}

#[test]
fn one_source_port_serves_several_destinations() {
    let (one, two) = (listener(), listener());
    let client = client();
    let how =
        ConnectOptions { from: Some(free_port(SECOND_LOOPBACK)), ..ConnectOptions::default() };
    for to in [one.1, two.1] {
        let key = connect(&client, to, how);
        assert_eq!(client.event(), Event::Connected(key));
    }
    // But to one of them only once.
    assert_eq!(refusal(&client, one.1, how), (Errno::ADDRNOTAVAIL, 77));
}

#[test]
fn immediate_connect_error_returns_the_record() {
    let (_listener, address) = listener();
    let client = client();
    let from = |from| ConnectOptions { from: Some(from), ..ConnectOptions::default() };

    let listens = TcpListener::bind((SECOND_LOOPBACK, 0)).unwrap();
    let used = from(listens.local_addr().unwrap());
    assert_eq!(refusal(&client, address, used), (Errno::ADDRINUSE, 77));

    // A documentation address, which no host has.
    let foreign = from(SocketAddr::from((Ipv4Addr::new(203, 0, 113, 7), 0)));
    assert_eq!(refusal(&client, address, foreign), (Errno::ADDRNOTAVAIL, 77));

    let multicast = SocketAddr::from((Ipv4Addr::new(224, 0, 0, 1), 4000));
    assert_eq!(refusal(&client, multicast, ConnectOptions::default()), (Errno::NETUNREACH, 77));

    let counts = client.ask(|_, io| io.stats().read());
    assert_eq!((counts.connects, counts.connect_failed, counts.open), (0, 0, 0));
    client.assert_quiet();
    // The shard still works.
    let key = connect(&client, address, ConnectOptions::default());
    assert_eq!(client.event(), Event::Connected(key));
}

#[test]
fn connect_without_a_free_descriptor_fails_and_the_shard_continues() {
    let (_listener, address) = listener();
    let client = client();
    let key = client.ask(move |_, io| {
        let mut taken = Vec::new();
        while let Ok(file) = std::fs::File::open("/dev/null") {
            taken.push(file);
        }
        let how = ConnectOptions::default();
        let (error, conn) = io.connect(address, &how, Conn { bytes: 77 }).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(Errno::MFILE.raw_os_error()));
        assert_eq!((conn.bytes, io.len()), (77, 0));
        taken.pop();
        let key = io.connect(address, &how, Conn::default()).unwrap();
        assert!(io.connect(address, &how, Conn::default()).is_err());
        key
    });
    assert_eq!(client.event(), Event::Connected(key));
}

fn is_in_time_wait(local: SocketAddr) -> bool {
    const TIME_WAIT: &str = "06";
    let SocketAddr::V4(local) = local else { panic!("{local} is not of IPv4") };
    let ip = u32::from_le_bytes(local.ip().octets());
    let wanted = format!("{ip:08X}:{:04X}", local.port());
    let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
    table.lines().any(|line| {
        let mut fields = line.split_whitespace().skip(1);
        fields.next() == Some(&wanted) && fields.nth(1) == Some(TIME_WAIT)
    })
}

#[test]
fn reset_on_close_leaves_no_time_wait() {
    for reset_on_close in [false, true] {
        let server = Server::start(1, true, &Config::default());
        let client = client();
        let how =
            ConnectOptions { from: Some(free_port(SECOND_LOOPBACK)), ..ConnectOptions::default() };
        let key = connect(&client, server.address, ConnectOptions { reset_on_close, ..how });
        assert_eq!(client.event(), Event::Connected(key));
        assert!(matches!(server.event(), Event::Accepted { .. }));
        client.ask(move |_, io| io.close(key));
        assert_eq!(client.event(), Event::Closed(key, Closed::Local));
        let seen = if reset_on_close {
            Closed::Reset(ErrorKind::ConnectionReset)
        } else {
            Closed::PeerEof
        };
        assert!(matches!(server.event(), Event::Closed(_, why) if why == seen));
        // The server's end is closed by now, and over loopback its FIN has arrived.
        assert_eq!(is_in_time_wait(how.from.unwrap()), !reset_on_close);
    }
}

#[test]
fn source_ports_are_both_even_and_odd() {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut numbers = release.split(['.', '-']).map_while(|number| number.parse::<u32>().ok());
    if (numbers.next(), numbers.next()) < (Some(6), Some(8)) {
        return;
    }
    let (listener, address) = listener();
    let client = client();
    let mut odd = BTreeSet::new();
    for from in [None, Some(SocketAddr::from((SECOND_LOOPBACK, 0)))] {
        for _ in 0..64 {
            connect(&client, address, ConnectOptions { from, ..ConnectOptions::default() });
            odd.insert((from.is_some(), listener.accept().unwrap().1.port() % 2 == 1));
        }
    }
    assert_eq!(odd.len(), 4, "{odd:?}");
}

#[test]
fn ten_thousand_connections_from_shard_to_shard() {
    const ALL: usize = 10_000;
    let server = Server::start(1, true, &Config::default());
    let client = client();
    let address = server.address;
    let how = ConnectOptions { reset_on_close: true, ..ConnectOptions::default() };
    let mut keys = BTreeSet::new();
    while keys.len() < ALL {
        client.ask(move |_, io| {
            for _ in 0..100 {
                io.connect(address, &how, Conn::default()).unwrap();
            }
        });
        for _ in 0..100 {
            let Event::Connected(key) = client.event() else { panic!("it was not connected") };
            assert!(keys.insert(key), "told twice");
        }
    }
    let all: Vec<Key> = keys.iter().copied().collect();
    client.ask(move |_, io| {
        for key in all {
            io.send(key, &key.slot.to_le_bytes());
        }
    });
    let mut unheard = keys.clone();
    while !unheard.is_empty() {
        let Event::Read(key, bytes) = client.event() else { panic!("it was not read") };
        assert_eq!(bytes, key.slot.to_le_bytes());
        assert!(unheard.remove(&key));
    }
    let all: Vec<Key> = keys.iter().copied().collect();
    client.ask(move |_, io| all.into_iter().for_each(|key| io.close(key)));
    while !keys.is_empty() {
        let Event::Closed(key, Closed::Local) = client.event() else { panic!("not closed") };
        assert!(keys.remove(&key));
    }
    server.await_counts(|counts| counts.closed == ALL as u64);
    let (ours, theirs) = (client.ask(|_, io| io.stats().read()), server.shards[0].stats().read());
    assert_eq!((ours.connected, ours.closed, ours.open), (ALL as u64, ALL as u64, 0));
    assert_eq!((theirs.accepted, theirs.open), (ALL as u64, 0));
}

/// A protocol that implements only what it must.
struct Aloof;

impl Handler for Aloof {
    type Conn = ();
    type Mail = ();

    fn readable(&mut self, _: &mut Io<()>, _: Key, _: &mut [u8]) {}

    fn closed(&mut self, _: &mut Io<()>, _: Key, (): (), _: Closed) {}

    fn mail(&mut self, _: &mut Io<()>, (): ()) {}

    fn turn_end(&mut self, _: &mut Io<()>) -> Next {
        Next::Idle
    }

    fn slow(&mut self, _: &mut Io<()>, _: Key) -> Slow {
        Slow::Abort
    }
}

#[test]
fn handler_that_does_not_accept_closes_connections_at_once() {
    let mut set = ShardSet::prepare(1, 1024).unwrap();
    let address = set.bind(&["127.0.0.1:0".parse().unwrap()]).unwrap()[0];
    let mut ends = set.take_hand_off_ends();
    let shard = set.spawn("aloof", Config::default(), |_| Aloof).unwrap();
    for _ in 0..100 {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(WAIT_MAX)).unwrap();
        assert_eq!(stream.read(&mut [0; 1]).unwrap(), 0);
    }
    // It does not take what the other side gives it, either.
    let (listener, address) = listener();
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(WAIT_MAX)).unwrap();
    ends.remove(0).send(listener.accept().unwrap().0.into(), b"").unwrap();
    assert_eq!(stream.read(&mut [0; 1]).unwrap(), 0);
    shard.stop();
    let stats = std::sync::Arc::clone(shard.stats());
    shard.join().unwrap();
    let counts = stats.read();
    assert_eq!((counts.accepted, counts.adopted, counts.closed, counts.open), (100, 1, 101, 0));
}

#[test]
fn stop_ends_connections_that_are_still_opening() {
    let (_listener, address, _first) = mute_listener();
    let mut client = client();
    let key = connect(&client, address, ConnectOptions::default());
    client.stop();
    assert_eq!(client.events.recv_timeout(Duration::ZERO), Ok(Event::Closed(key, Closed::Local)));
}
