//! The actions of a peer and their effects on its connection.

use std::net::Shutdown;
use std::time::Duration;

use crate::support::{Event, Server, WAIT_MAX, read_exactly, read_to_end, reset, write};
use simurgh_reactor::{Closed, Config, ShardSet};

#[test]
fn many_connections_are_echoed() {
    let server = Server::start(2, true, &Config::default());
    let mut streams: Vec<_> = (0..200).map(|_| server.connect()).collect();
    for round in 0..3 {
        for (index, stream) in streams.iter_mut().enumerate() {
            write(stream, format!("{round}:{index:08}").as_bytes());
        }
        for (index, stream) in streams.iter_mut().enumerate() {
            let expected = format!("{round}:{index:08}");
            assert_eq!(read_exactly(stream, expected.len()), expected.as_bytes());
        }
    }
    drop(streams);
    let mut per_shard = [0; 2];
    let (mut accepted, mut closed) = (0, 0);
    while closed < 200 {
        match server.event() {
            Event::Accepted { shard, .. } => {
                per_shard[shard] += 1;
                accepted += 1;
            }
            Event::Closed(_, Closed::PeerEof) => closed += 1,
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(accepted, 200);
    assert!(per_shard.iter().all(|count| *count > 40), "{per_shard:?} is no spread");
}

/// Ends cost more than messages: connections that stay must not wait for a crowd that leaves.
#[test]
fn active_connection_does_not_wait_behind_many_closing_ones() {
    const CROWD: usize = 900;
    let server = Server::start(1, false, &Config::default());
    let crowd: Vec<_> = (0..CROWD).map(|_| server.connect_with_key().0).collect();
    let (mut stays, key) = server.connect_with_key();
    // All of it happens while the shard is busy, so that it finds all of it at once.
    let (go_on, wait) = std::sync::mpsc::channel::<()>();
    let (begun, has_begun) = std::sync::mpsc::channel();
    assert!(server.mailboxes[0].post_anyway(Box::new(move |_, _| {
        begun.send(()).unwrap();
        wait.recv_timeout(WAIT_MAX).unwrap();
    })));
    has_begun.recv_timeout(WAIT_MAX).unwrap();
    drop(crowd);
    write(&mut stays, b"here");
    go_on.send(()).unwrap();
    let mut before = 0;
    loop {
        match server.event() {
            Event::Closed(_, Closed::PeerEof) => before += 1,
            Event::Read(from, bytes) => {
                assert_eq!((from, bytes.as_slice()), (key, &b"here"[..]));
                break;
            }
            other => panic!("{other:?}"),
        }
    }
    assert!(before < CROWD / 4, "{before} of {CROWD} went first");
    for _ in before..CROWD {
        assert!(matches!(server.event(), Event::Closed(_, Closed::PeerEof)));
    }
}

/// All that is accepted is soon served. Once a storm of 2.5 million clients let others wait 6.7 s.
#[test]
fn busy_shard_leaves_new_connections_in_the_backlog() {
    const CROWD: usize = 400;
    let server = Server::start(1, false, &Config::default());
    let (go_on, wait) = std::sync::mpsc::channel::<()>();
    assert!(server.mailboxes[0].post_anyway(Box::new(move |probe, _| {
        wait.recv_timeout(WAIT_MAX).unwrap();
        probe.takes = Duration::from_millis(1);
    })));
    let mut crowd: Vec<_> = (0..CROWD).map(|_| server.connect()).collect();
    crowd.iter_mut().for_each(|stream| write(stream, b"here"));
    go_on.send(()).unwrap();
    let (mut accepted, mut read, mut most) = (0, 0, 0);
    while read < CROWD {
        match server.event() {
            Event::Accepted { .. } => accepted += 1,
            Event::Read(..) => read += 1,
            other => panic!("{other:?}"),
        }
        most = most.max(accepted - read);
    }
    assert!(most < CROWD / 2, "{most} of {CROWD} waited for the shard");
}

#[test]
fn data_beyond_one_read_buffer_is_read_without_another_event() {
    let config = Config { read_buffer_bytes: 1024, ..Config::default() };
    let server = Server::start(1, true, &config);
    let mut stream = server.connect();
    let sent: Vec<u8> = (0..200_000_u32).map(|n| n as u8).collect();
    write(&mut stream, &sent);
    assert_eq!(read_exactly(&mut stream, sent.len()), sent);
    // Exact multiples too: the read that fills the buffer says nothing about the rest.
    write(&mut stream, &sent[..4096]);
    assert_eq!(read_exactly(&mut stream, 4096), &sent[..4096]);
}

#[test]
fn end_of_stream_behind_a_full_buffer_is_detected() {
    let config = Config { read_buffer_bytes: 1024, ..Config::default() };
    let server = Server::start(1, false, &config);
    for bytes in [0, 1, 1023, 1024, 1025, 2048, 5000] {
        let (mut stream, key) = server.connect_with_key();
        // Both in one event: the shard is busy while they come.
        server.mailboxes[0]
            .post_anyway(Box::new(|_, _| std::thread::sleep(Duration::from_millis(20))));
        write(&mut stream, &vec![7; bytes]);
        stream.shutdown(Shutdown::Write).unwrap();
        let mut read = 0;
        while read < bytes {
            read += server.read(key).len();
        }
        assert_eq!(server.event(), Event::Closed(key, Closed::PeerEof), "after {bytes} bytes");
        assert!(read_to_end(&mut stream).1);
    }
}

#[test]
fn connection_reset_is_reported_once() {
    let server = Server::start(1, false, &Config::default());
    let (stream, key) = server.connect_with_key();
    reset(stream);
    let expected = Closed::Reset(std::io::ErrorKind::ConnectionReset);
    assert_eq!(server.event(), Event::Closed(key, expected));
    server.assert_quiet();
}

#[test]
fn held_socket_is_read_only_after_its_release() {
    let server = Server::start(1, false, &Config::default());
    let (mut stream, key) = server.connect_with_key();
    server.ask(move |_, io| io.hold(key));
    write(&mut stream, b"meanwhile");
    server.assert_quiet();
    server.ask(move |_, io| io.release(key));
    assert_eq!(server.read(key), b"meanwhile");
    // Held from within the read, with more to come, then the peer's end.
    server.ask(move |_, io| io.hold(key));
    write(&mut stream, b"last");
    stream.shutdown(Shutdown::Write).unwrap();
    server.assert_quiet();
    server.ask(move |_, io| io.release(key));
    assert_eq!(server.read(key), b"last");
    assert_eq!(server.event(), Event::Closed(key, Closed::PeerEof));
}

#[test]
fn held_socket_that_is_reset_ends_at_once() {
    let server = Server::start(1, false, &Config::default());
    let (mut stream, key) = server.connect_with_key();
    server.ask(move |_, io| io.hold(key));
    write(&mut stream, b"unread");
    reset(stream);
    let expected = Closed::Reset(std::io::ErrorKind::ConnectionReset);
    assert_eq!(server.event(), Event::Closed(key, expected));
}

#[test]
fn close_delivers_what_was_sent_even_with_input_unread() {
    let server = Server::start(1, false, &Config::default());
    let (mut stream, key) = server.connect_with_key();
    server.ask(move |_, io| io.hold(key));
    write(&mut stream, &[1; 5000]);
    // The bytes are in the kernel's buffer of the shard before it closes.
    std::thread::sleep(Duration::from_millis(50));
    server.ask(move |_, io| {
        io.send(key, b"good");
        io.close(key);
        io.send(key, b"too late");
    });
    assert_eq!(read_to_end(&mut stream), (b"good".to_vec(), true));
    assert_eq!(server.event(), Event::Closed(key, Closed::Local));
    assert!(server.ask(move |_, io| io.conn(key).is_none()));
}

#[test]
fn shutdown_write_ends_one_direction() {
    let server = Server::start(1, false, &Config::default());
    let (mut stream, key) = server.connect_with_key();
    server.ask(move |_, io| {
        io.send(key, b"last words");
        io.shutdown_write(key);
    });
    assert_eq!(read_to_end(&mut stream), (b"last words".to_vec(), true));
    write(&mut stream, b"still heard");
    assert_eq!(server.read(key), b"still heard");
    drop(stream);
    assert_eq!(server.event(), Event::Closed(key, Closed::PeerEof));
}

#[test]
fn abort_resets_the_connection() {
    let server = Server::start(1, false, &Config::default());
    let (mut stream, key) = server.connect_with_key();
    server.ask(move |_, io| {
        io.send(key, b"never");
        io.abort(key);
        io.abort(key);
    });
    assert_eq!(read_to_end(&mut stream), (Vec::new(), false));
    assert_eq!(server.event(), Event::Closed(key, Closed::Local));
    server.assert_quiet();
}

#[test]
fn old_key_does_not_reach_a_new_connection() {
    let server = Server::start(1, false, &Config::default());
    let (old_stream, old) = server.connect_with_key();
    drop(old_stream);
    assert_eq!(server.event(), Event::Closed(old, Closed::PeerEof));
    let (mut stream, new) = server.connect_with_key();
    assert_eq!(old.slot, new.slot, "a freed slot is used next");
    server.ask(move |_, io| {
        io.send(old, b"astray");
        io.abort(old);
        io.close(old);
        assert!(io.conn(old).is_none());
        io.send(new, b"right");
    });
    assert_eq!(read_exactly(&mut stream, 5), b"right");
}

#[test]
fn stop_returns_every_record_and_ends_the_thread() {
    let mut server = Server::start(1, false, &Config::default());
    let keys: Vec<_> = (0..10).map(|_| server.connect_with_key()).collect();
    server.ask(|_, io| io.stop());
    let mut closed: Vec<_> = (0..10).map(|_| server.event()).collect();
    closed.sort_by_key(|event| match event {
        Event::Closed(key, Closed::Local) => *key,
        other => panic!("{other:?}"),
    });
    let mut keys: Vec<_> = keys.iter().map(|(_, key)| Event::Closed(*key, Closed::Local)).collect();
    keys.sort_by_key(|event| match event {
        Event::Closed(key, _) => *key,
        other => panic!("{other:?}"),
    });
    assert_eq!(closed, keys);
    server.stop();
    assert!(std::net::TcpStream::connect(server.address).is_err());
    assert!(!server.mailboxes[0].post_anyway(Box::new(|_, _| {})));
    assert!(server.mailboxes[0].post(Box::new(|_, _| {}), 10).is_err());
    assert_eq!(server.mailboxes[0].bytes(), 0, "a refused mail weighs nothing");
}

#[test]
fn server_that_stops_listening_serves_its_backlog() {
    let server = Server::start(1, true, &Config::default());
    // Connected while the shard is busy, so they are in the backlog.
    server.mailboxes[0].post_anyway(Box::new(|_, io| {
        std::thread::sleep(Duration::from_millis(200));
        io.stop_listening();
    }));
    let mut streams: Vec<_> = (0..100).map(|_| server.connect()).collect();
    for stream in &mut streams {
        write(stream, b"served");
        assert_eq!(read_exactly(stream, 6), b"served");
    }
    assert!(std::net::TcpStream::connect(server.address).is_err());
}

#[test]
fn a_used_address_is_refused() {
    let server = Server::start(2, true, &Config::default());
    let mut second = ShardSet::<crate::support::Script>::prepare(1, 1024).unwrap();
    let error = second.bind(&[server.address]).unwrap_err();
    assert_eq!(error.address, server.address);
    assert_eq!(error.source.kind(), std::io::ErrorKind::AddrInUse);
    assert!(error.to_string().contains(&server.address.to_string()), "{error}");
}

#[test]
fn address_is_free_again_after_the_stop() {
    let mut server = Server::start(1, true, &Config::default());
    let mut stream = server.connect();
    write(&mut stream, b"x");
    read_exactly(&mut stream, 1);
    server.stop();
    let mut second = ShardSet::<crate::support::Script>::prepare(1, 1024).unwrap();
    assert_eq!(second.bind(&[server.address]).unwrap(), [server.address]);
}

#[test]
#[ignore = "needs IPv6"]
fn ipv6_listens_beside_ipv4_on_the_same_port() {
    let mut set = ShardSet::<crate::support::Script>::prepare(1, 1024).unwrap();
    let six = set.bind(&["[::1]:0".parse().unwrap()]).unwrap();
    let four = std::net::SocketAddr::from(([127, 0, 0, 1], six[0].port()));
    // Another process may have the port on IPv4; then there is nothing to check.
    match set.bind(&[four]) {
        Ok(actual) => assert_eq!(actual, [four]),
        Err(error) => assert_eq!(error.source.kind(), std::io::ErrorKind::AddrInUse),
    }
}

#[test]
fn connection_over_capacity_is_accepted_and_flagged() {
    let config = Config { connections_max: Some(3), ..Config::default() };
    let server = Server::start(1, false, &config);
    let streams: Vec<_> = (0..5).map(|_| server.connect()).collect();
    let over: Vec<bool> = (0..5)
        .map(|_| match server.event() {
            Event::Accepted { over_capacity, .. } => over_capacity,
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(over, [false, false, false, true, true]);
    assert_eq!(server.ask(|_, io| io.capacity()), 3);
    drop(streams);
}

#[test]
fn accepted_sockets_know_their_peer() {
    let server = Server::start(1, false, &Config::default());
    let (stream, key) = server.connect_with_key();
    let peer = stream.local_addr().unwrap();
    assert_eq!(server.ask(move |_, io| io.peer_addr(key).unwrap()), peer);
}

#[test]
fn sweep_visits_every_record_once() {
    let server = Server::start(1, false, &Config::default());
    let streams: Vec<_> = (0..40).map(|_| server.connect_with_key()).collect();
    let seen = server.ask(|_, io| {
        let (mut cursor, mut out) = (0, Vec::new());
        loop {
            io.sweep(&mut cursor, 100, |key, _| key.slot % 2 == 0, &mut out);
            if cursor == 0 {
                return out;
            }
        }
    });
    assert_eq!(seen.len(), 20);
    assert!(streams.iter().all(|(_, key)| seen.contains(key) == (key.slot % 2 == 0)));
}

#[test]
fn many_simultaneous_senders_are_served_in_several_turns() {
    let server = Server::start(1, true, &Config::default());
    let mut streams: Vec<_> = (0..400).map(|_| server.connect_with_key().0).collect();
    server.mailboxes[0]
        .post_anyway(Box::new(|_, _| std::thread::sleep(Duration::from_millis(100))));
    let before = server.shards[0].stats().read().turns;
    for stream in &mut streams {
        write(stream, b"all at once");
    }
    for stream in &mut streams {
        assert_eq!(read_exactly(stream, 11), b"all at once");
    }
    let turns = server.ask(|_, io| io.stats().read().turns) - before;
    assert!(turns >= 400 / 64, "{turns} turns for 400 answers");
}
