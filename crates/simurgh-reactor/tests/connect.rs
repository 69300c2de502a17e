//! Connections that a shard opens.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener};

use simurgh_reactor::{Closed, Config, Key, Outgoing};
use support::{Conn, Event, Server};

/// Opens a connection from the first shard.
fn connect(client: &Server, to: SocketAddr, how: Outgoing) -> Key {
    client.ask(move |_, io| io.connect(to, &how, Conn::default()).unwrap())
}

#[test]
fn a_connection_comes_up_and_carries_bytes() {
    let server = Server::start(1, true, &Config::default());
    let client = Server::start_client(&Config::default());
    let key = connect(&client, server.address, Outgoing::default());
    assert_eq!(client.event(), Event::Connected(key));
    client.ask(move |_, io| io.send(key, b"there and back"));
    assert_eq!(client.read(key), b"there and back");
    client.ask(move |_, io| io.close(key));
    assert_eq!(client.event(), Event::Closed(key, Closed::Local));
    let counts = client.ask(|_, io| io.stats().read());
    assert_eq!((counts.connects, counts.connected, counts.connect_failed), (1, 1, 0));
}

#[test]
fn a_refusal_is_told_once_and_later() {
    let nobody = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let client = Server::start_client(&Config::default());
    let key = connect(&client, nobody, Outgoing::default());
    let refused = Closed::Unconnected(ErrorKind::ConnectionRefused);
    assert_eq!(client.event(), Event::Closed(key, refused));
    client.assert_quiet();
    let counts = client.ask(|_, io| io.stats().read());
    assert_eq!((counts.connects, counts.connected, counts.connect_failed), (1, 0, 1));
    assert_eq!((counts.open, counts.closed), (0, 1));
}
