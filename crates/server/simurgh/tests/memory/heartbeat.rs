//! A heartbeat on an idle connection allocates nothing: with millions of connections that is most
//! of the server's work.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use crate::alone;
use crate::support::{Handles, serving, start};
use simurgh::{ChannelRoute, Join, Outcome};

/// A masked text frame (the mask is zero, which the protocol allows).
fn frame(text: &str) -> Vec<u8> {
    let mut frame = vec![0x81, 0x80 | u8::try_from(text.len()).unwrap(), 0, 0, 0, 0];
    frame.extend_from_slice(text.as_bytes());
    frame
}

fn exchange(stream: &mut TcpStream, request: &[u8], answer: &mut [u8]) -> usize {
    stream.write_all(request).unwrap();
    stream.read(answer).unwrap()
}

#[test]
fn heartbeat_on_an_idle_connection_allocates_nothing() {
    let _alone = alone();
    let builder = serving(ChannelRoute::on_shard("rooms:*", |_, _| {
        Join::ok(Handles(|_, _, _| Outcome::NoReply))
    }));
    let endpoint = start(builder.configure(|config| config.shards = 1));
    let mut stream = TcpStream::connect(endpoint.addresses()[0]).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let mut answer = [0_u8; 4096];
    let upgrade = b"GET /socket/websocket?vsn=2.0.0 HTTP/1.1\r\nhost: x\r\nupgrade: websocket\r\n\
        connection: upgrade\r\nsec-websocket-version: 13\r\n\
        sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";
    let count = exchange(&mut stream, upgrade, &mut answer);
    assert!(answer[..count].starts_with(b"HTTP/1.1 101"));
    let join = frame(r#"["1","1","rooms:a","phx_join",{}]"#);
    exchange(&mut stream, &join, &mut answer);
    let heartbeat = frame(r#"[null,"2","phoenix","heartbeat",{}]"#);
    for _ in 0..10 {
        exchange(&mut stream, &heartbeat, &mut answer);
    }
    // The minimum of several rounds: other threads of the process may allocate now and then.
    let rounds = (0..5).map(|_| {
        let before = dhat::HeapStats::get().total_blocks;
        for _ in 0..100 {
            exchange(&mut stream, &heartbeat, &mut answer);
        }
        dhat::HeapStats::get().total_blocks - before
    });
    assert_eq!(rounds.min(), Some(0), "blocks allocated by 100 heartbeats");
    let count = exchange(&mut stream, &heartbeat, &mut answer);
    let expected = br#"[null,"2","phoenix","phx_reply",{"status":"ok","response":{}}]"#;
    assert!(answer[..count].ends_with(expected));
}
