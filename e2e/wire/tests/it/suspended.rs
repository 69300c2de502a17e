//! A server that was stopped for longer than the idle time-out (a suspended machine, SIGSTOP)
//! closed everybody when it went on, with their heartbeats unread in its sockets. The gap is
//! nobody's silence, and what waits is read before anybody is judged.

use std::time::Duration;

use serde_json::json;
use wire_tests::{Client, Server, Vsn, eventually};

#[test]
fn client_active_during_a_server_suspension_stays_connected() {
    const CLIENTS: usize = 60;
    let server = Server::serve().args("--idle-timeout 2s").start();
    let mut clients: Vec<Client> = (0..CLIENTS).map(|_| Client::open(&server, Vsn::V2)).collect();
    let (before, after) = clients.split_at_mut(CLIENTS / 2);
    std::thread::scope(|scope| {
        scope.spawn(|| server.suspend(Duration::from_secs(6)));
        std::thread::sleep(Duration::from_secs(1));
        for client in before.iter_mut() {
            client.send(serde_json::Value::Null, "1", "phoenix", "heartbeat", json!({}));
        }
    });
    for client in before {
        assert_eq!(client.recv().msg_ref, json!("1"));
    }
    // Whoever said nothing meanwhile has not used up its time either.
    for client in after {
        client.heartbeat();
    }
    assert_eq!(server.counter("idle_timeouts"), 0.0);
    eventually("silence to be noticed all the same", || {
        server.counter("idle_timeouts") == CLIENTS as f64
    });
}
