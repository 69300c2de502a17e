//! Ends of connections that take long are spread over turns.
#![cfg(target_os = "linux")]

use std::collections::HashSet;
use std::net::TcpStream;
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

use simurgh_reactor::{Accepted, Closed, Config, Handler, Io, Key, Next, ShardSet, Slow};

const CLIENTS: usize = 60;
const END: Duration = Duration::from_micros(200);
const WAIT_MAX: Duration = Duration::from_secs(10);

/// Closes all at once, and reports when the turn of each end began.
struct Ender {
    keys: Vec<Key>,
    ended: Sender<u64>,
}

impl Handler for Ender {
    type Conn = ();
    type Mail = ();

    fn accepted(&mut self, _: &mut Io<()>, from: Accepted) -> Option<()> {
        self.keys.push(from.key);
        Some(())
    }

    fn readable(&mut self, _: &mut Io<()>, _: Key, _: &mut [u8]) {}

    fn closed(&mut self, io: &mut Io<()>, _: Key, (): (), _: Closed) {
        let until_ns = io.clock_ns() + END.as_nanos() as u64;
        while io.clock_ns() < until_ns {}
        let _ = self.ended.send(io.now().ns);
    }

    fn mail(&mut self, _: &mut Io<()>, (): ()) {}

    fn turn_end(&mut self, io: &mut Io<()>) -> Next {
        if self.keys.len() == CLIENTS {
            self.keys.drain(..).for_each(|key| io.abort(key));
        }
        Next::Idle
    }

    fn slow(&mut self, _: &mut Io<()>, _: Key) -> Slow {
        Slow::Abort
    }
}

#[test]
fn closing_many_connections_at_once_takes_several_turns() {
    let (ended, ends) = channel();
    let mut set = ShardSet::prepare(1, 1024).unwrap();
    let address = set.bind(&["127.0.0.1:0".parse().unwrap()]).unwrap()[0];
    let shard =
        set.spawn("ender", Config::default(), move |_| Ender { keys: Vec::new(), ended }).unwrap();
    let clients: Vec<_> = (0..CLIENTS).map(|_| TcpStream::connect(address).unwrap()).collect();
    let turns: HashSet<u64> = (0..CLIENTS).map(|_| ends.recv_timeout(WAIT_MAX).unwrap()).collect();
    assert!(turns.len() >= 5, "{} turns for 12 ms", turns.len());
    drop(clients);
    shard.stop();
    shard.join().unwrap();
}
