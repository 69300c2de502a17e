//! Local connections: records without a descriptor that are treated as all others are.

use crate::support::{Conn, Event, Server};
use simurgh_reactor::{Closed, Config, Key, Shared};

fn server(config: &Config) -> Server {
    Server::start_client(config)
}

fn open(server: &Server) -> Key {
    server.ask(|_, io| io.open_local(Conn::default()).ok()).unwrap()
}

#[test]
fn local_connection_output_reaches_the_handler_in_order_before_its_end() {
    let server = server(&Config::default());
    let key = open(&server);
    server.await_counts(|counts| (counts.open, counts.local) == (0, 1));
    server.ask(move |_, io| {
        assert!(io.peer_addr(key).is_err());
        io.send(key, b"one ");
        io.send_shared(key, &Shared::from(b"two ".to_vec()));
        io.send_with(key, |out| out.extend_from_slice(b"three"));
        io.close(key);
        io.send(key, b"too late");
    });
    assert_eq!(server.event(), Event::Local(key, b"one two three".to_vec()));
    assert_eq!(server.event(), Event::Closed(key, Closed::Local));
    server.await_counts(|counts| counts.local == 0 && counts.closed == 1);
    assert!(server.ask(move |_, io| io.conn(key).is_none()));
}

#[test]
fn fan_out_reaches_local_connections_without_a_system_call() {
    let server = server(&Config::default());
    let keys: Vec<Key> = (0..100).map(|_| open(&server)).collect();
    let all = keys.clone();
    server.ask(move |_, io| {
        let frame = Shared::from(b"news".to_vec());
        for key in &all {
            io.send_shared(*key, &frame);
        }
    });
    for key in keys {
        assert_eq!(server.event(), Event::Local(key, b"news".to_vec()));
    }
    assert_eq!(server.shards[0].stats().read().writes, 0);
}

#[test]
fn announcement_of_a_held_local_connection_waits_for_its_release() {
    let server = server(&Config::default());
    let key = open(&server);
    server.ask(move |_, io| {
        io.hold(key);
        io.announce_local(key);
    });
    server.assert_quiet();
    server.ask(move |_, io| io.release(key));
    assert_eq!(server.event(), Event::Read(key, Vec::new()));
    server.ask(move |_, io| io.announce_local(key));
    assert_eq!(server.event(), Event::Read(key, Vec::new()));
    server.ask(move |_, io| io.abort(key));
    assert_eq!(server.event(), Event::Closed(key, Closed::Local));
}

#[test]
fn half_close_of_a_local_connection_closes_it_completely() {
    let server = server(&Config::default());
    let key = open(&server);
    server.ask(move |_, io| {
        io.send(key, b"bye");
        io.shutdown_write(key);
    });
    assert_eq!(server.event(), Event::Local(key, b"bye".to_vec()));
    assert_eq!(server.event(), Event::Closed(key, Closed::Local));
}

#[test]
fn local_connections_do_not_count_against_the_connection_limit() {
    let config = Config { connections_max: Some(1), ..Config::default() };
    let server = Server::start(1, false, &config);
    for _ in 0..100 {
        open(&server);
    }
    let (_client, key) = server.connect_with_key();
    assert!(server.ask(move |_, io| io.peer_addr(key).is_ok()));
    assert_eq!(server.shards[0].stats().read().over_capacity, 0);
    let second = server.connect();
    match server.event() {
        Event::Accepted { over_capacity, .. } => assert!(over_capacity),
        other => panic!("{other:?} instead of a second connection"),
    }
    drop(second);
}
