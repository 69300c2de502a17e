//! Connections that change sides.

use std::io::ErrorKind;
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use crate::support::{Event, Server, WAIT_MAX, read_exactly, write};
use simurgh_reactor::{Closed, Config, HandOffEnd, HandOffError, READ_AHEAD_BYTES_MAX};

fn receive(end: &HandOffEnd) -> Option<(OwnedFd, Vec<u8>)> {
    let until = Instant::now() + WAIT_MAX;
    loop {
        match end.recv() {
            Ok(Some((descriptor, bytes))) => return Some((descriptor.unwrap(), bytes)),
            Ok(None) => return None,
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                assert!(Instant::now() < until, "nothing was handed over");
                std::thread::sleep(Duration::from_millis(1));
            }
            Err(error) => panic!("{error}"),
        }
    }
}

#[test]
fn connection_is_handed_off_and_returned() {
    let server = Server::start(1, false, &Config::default());
    let (mut client, key) = server.connect_with_key();
    write(&mut client, b"GET / HTTP/1.1");
    let read_ahead = server.read(key);
    let copy = read_ahead.clone();
    let record = server.ask(move |_, io| io.hand_off(key, &copy).unwrap());
    assert_eq!(record.bytes, read_ahead.len());
    let (fd, received) = receive(&server.ends[0]).unwrap();
    assert_eq!(received, read_ahead);
    assert!(server.ask(move |_, io| io.conn(key).is_none() && io.is_empty()));

    // It works on this side, and no event reaches the shard.
    let mut side = TcpStream::from(fd);
    side.set_nonblocking(false).unwrap();
    write(&mut client, b"more");
    assert_eq!(read_exactly(&mut side, 4), b"more");
    write(&mut side, b"page");
    assert_eq!(read_exactly(&mut client, 4), b"page");
    server.assert_quiet();

    // Back again, with what was read meanwhile.
    server.ends[0].send(side.into(), b"Upgrade: websocket").unwrap();
    let Event::Adopted(key) = server.event() else { panic!("it was not adopted") };
    assert_eq!(server.read(key), b"Upgrade: websocket");
    write(&mut client, b"frame");
    assert_eq!(server.read(key), b"frame");
    server.ask(move |_, io| io.send(key, b"answer"));
    assert_eq!(read_exactly(&mut client, 6), b"answer");
    drop(client);
    assert_eq!(server.event(), Event::Closed(key, Closed::PeerEof));
    let counts = server.ask(|_, io| io.stats().read());
    assert_eq!((counts.accepted, counts.taken, counts.adopted, counts.closed), (1, 1, 1, 1));
}

#[test]
fn failed_hand_off_to_a_full_queue_keeps_the_connection() {
    let server = Server::start(1, false, &Config::default());
    let keys: Vec<_> = (0..200).map(|_| server.connect_with_key()).collect();
    let mut handed = 0;
    let mut refused = None;
    for (_, key) in &keys {
        let key = *key;
        match server.ask(move |_, io| io.hand_off(key, &[1; 16 << 10]).map(|_| ())) {
            Ok(()) => handed += 1,
            Err(error) => {
                refused = Some((key, error));
                break;
            }
        }
    }
    let (key, error) = refused.expect("a bounded queue");
    assert_eq!(error, HandOffError::Full);
    assert!(handed > 5, "only {handed} fit");
    assert!(server.ask(move |_, io| io.conn(key).is_some()), "it can still be answered");
    for _ in 0..handed {
        assert_eq!(receive(&server.ends[0]).unwrap().1.len(), 16 << 10);
    }
    server.ask(move |_, io| io.hand_off(key, b"now").map(|_| ()).unwrap());
    assert_eq!(receive(&server.ends[0]).unwrap().1, b"now");
}

#[test]
fn impossible_hand_off_returns_the_reason() {
    let mut server = Server::start(1, false, &Config::default());
    let (_client, key) = server.connect_with_key();
    let too_long = vec![0; READ_AHEAD_BYTES_MAX + 1];
    let refused =
        move |io: &mut simurgh_reactor::Io<_>, bytes: &[u8]| io.hand_off(key, bytes).err();
    assert_eq!(server.ask(move |_, io| refused(io, &too_long)), Some(HandOffError::TooLong));
    server.ask(move |_, io| io.send_with(key, |out| out.resize(out.len() + (16 << 20), 1)));
    assert_eq!(server.ask(move |_, io| refused(io, b"")), Some(HandOffError::OutputQueued));
    server.ends.clear();
    let (_other, key) = server.connect_with_key();
    let gone = server.ask(move |_, io| io.hand_off(key, b"").err());
    assert_eq!(gone, Some(HandOffError::Gone));
    server.ask(move |_, io| io.abort(key));
    assert_eq!(server.event(), Event::Closed(key, Closed::Local));
    let closed = server.ask(move |_, io| io.hand_off(key, b"").err());
    assert_eq!(closed, Some(HandOffError::NotOpen));
}

#[test]
fn hand_off_receiver_learns_that_the_shard_has_ended() {
    let mut server = Server::start(1, false, &Config::default());
    assert_eq!(server.ends[0].recv().unwrap_err().kind(), ErrorKind::WouldBlock);
    server.stop();
    assert!(receive(&server.ends[0]).is_none());
}

#[test]
fn connections_returned_all_at_once_are_adopted() {
    let server = Server::start(1, false, &Config::default());
    let mut clients: Vec<_> = (0..60).map(|_| server.connect_with_key()).collect();
    for (_, key) in &clients {
        let key = *key;
        server.ask(move |_, io| io.hand_off(key, b"").map(|_| ()).unwrap());
    }
    // More at once than one turn takes: the shard is busy while they are handed back.
    server.mailboxes[0].post_anyway(Box::new(|_, _| std::thread::sleep(Duration::from_millis(50))));
    for _ in 0..60 {
        let (fd, _) = receive(&server.ends[0]).unwrap();
        server.ends[0].send(fd, b"").unwrap();
    }
    for _ in 0..60 {
        assert!(matches!(server.event(), Event::Adopted(_)));
    }
    write(&mut clients[59].0, b"here");
    assert!(matches!(server.event(), Event::Read(_, bytes) if bytes == b"here"));
}
