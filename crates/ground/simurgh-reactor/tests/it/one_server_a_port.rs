//! Shards share a port (SO_REUSEPORT), servers do not. Two servers that were started on one port
//! within a few milliseconds both ran: sockets that may reuse an address can all be bound to it as
//! long as none of them listens, and neither server found the other listening yet. The kernel then
//! gave half of the clients to each of them.

use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Barrier;

use crate::support::{Probe, Script, Server, read_to_end};
use simurgh_reactor::{Config, ListenError, ShardSet};

/// More than a handful: the scheduler decides which of two comes first.
const ROUNDS: usize = 200;

/// A port that is unused at the moment.
fn free_port() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

/// A server that has its address, and no shards yet.
fn taken(address: SocketAddr) -> Result<ShardSet<Script>, ListenError> {
    let mut set = ShardSet::prepare(1, 1 << 20).unwrap();
    set.bind(&[address]).map(|_| set)
}

fn start(address: SocketAddr, running: impl FnOnce()) -> Result<(), ListenError> {
    let mut set = taken(address)?;
    let (events, _unheard) = std::sync::mpsc::channel();
    let shard = set
        .spawn("probe", Config::default(), move |shard| Probe {
            shard: shard.index,
            events,
            echo: false,
            slow: simurgh_reactor::Slow::Abort,
            next: simurgh_reactor::Next::Idle,
            takes: std::time::Duration::ZERO,
        })
        .unwrap();
    running();
    shard.stop();
    shard.join().unwrap();
    Ok(())
}

#[test]
fn exactly_one_of_two_servers_started_at_once_runs() {
    for round in 0..ROUNDS {
        let address = free_port();
        let (begin, end) = (Barrier::new(2), Barrier::new(2));
        let server = || {
            begin.wait();
            let outcome = start(address, || {
                TcpStream::connect(address).unwrap();
                end.wait();
            });
            if let Err(error) = &outcome {
                assert_eq!(error.source.kind(), ErrorKind::AddrInUse, "round {round}: {error}");
                end.wait();
            }
            outcome.is_ok()
        };
        let ran = std::thread::scope(|scope| {
            let other = scope.spawn(server);
            [server(), other.join().unwrap()]
        });
        assert_eq!(ran.iter().filter(|ran| **ran).count(), 1, "round {round}");
    }
}

#[test]
fn bound_port_is_reserved_before_it_listens() {
    for address in [free_port(), "127.0.0.1:0".parse().unwrap()] {
        let mut first = ShardSet::<Script>::prepare(1, 1 << 20).unwrap();
        let address = first.bind(&[address]).unwrap()[0];
        for other in [address, SocketAddr::from(([0, 0, 0, 0], address.port()))] {
            let error = taken(other).map(drop).expect_err("somebody has it already");
            assert_eq!(error.source.kind(), ErrorKind::AddrInUse, "{other}");
        }
        // A server that does not listen yet accepts no client, and leaves none waiting.
        let error = TcpStream::connect(address).expect_err("nobody listens yet");
        assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
        drop(first);
        drop(taken(address).expect("it is free again"));
    }
}

#[test]
fn server_restarts_while_old_connections_are_in_time_wait() {
    let mut server = Server::start(1, false, &Config::default());
    let address = server.address;
    let (mut stream, key) = server.connect_with_key();
    // The side that closes first keeps the connection for a minute.
    server.ask(move |_, io| io.close(key));
    assert_eq!(read_to_end(&mut stream), (Vec::new(), true));
    drop(stream);
    server.stop();
    drop(server);
    start(address, || ()).expect("old connections are no reason to stay away");
}
