//! Peers that take more than their share, by reading too little, sending halves, or being too many:
//! each is cut by a limit, is counted, and others are served meanwhile. Every test has a server of
//! its own.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use serde_json::json;
use wire_tests::{Client, Frame, Head, Raw, Server, Vsn, WAIT, eventually, frame, opcode};

/// A reader that stops reading during broadcasts is cut with 1013 at the byte limit, and counted.
#[test]
fn reader_that_stops_reading_is_closed_with_1013() {
    const ROOM: &str = "rooms:slow";
    let server = Server::serve().args("--outbound-bytes-max 64KiB").start();
    let cuts = || server.metrics(|name| name == "simurgh_slow_peer_disconnects_total");
    assert_eq!(cuts(), 0.0);
    let mut probe = Client::open(&server, Vsn::V2);
    // A kernel gives a socket that is not read a small window, but the sender's buffer may take
    // megabytes.
    let mut slow = Raw::websocket(server.addr(), &Vsn::V2.path());
    slow.send_frame(&frame(opcode::TEXT, r#"["1","1","rooms:slow","phx_join",{"user":"slow"}]"#));
    assert_eq!(slow.frame().opcode, opcode::TEXT);
    let mut sender = Client::open(&server, Vsn::V2);
    sender.join(ROOM, json!({"user": "fast"}));
    let body = "x".repeat(16 * 1024);
    let mut sent = 0;
    while cuts() == 0.0 {
        for _ in 0..20 {
            let msg_ref = sender.push(ROOM, "new:msg", json!({"user": "fast", "body": body}));
            // Whoever reads is not cut, and gets everything.
            let mut replied = false;
            let mut heard = false;
            while !(replied && heard) {
                let message = sender.recv();
                replied |= message.msg_ref == json!(msg_ref);
                heard |= message.event == "new:msg";
            }
            sent += body.len();
        }
        assert!(sent < 64 << 20, "{sent} bytes broadcast and the slow reader is still there");
    }
    assert_eq!(cuts(), 1.0, "only the slow reader is slow");
    sender.heartbeat();
    probe.heartbeat();

    // What the peer finds when it reads at last: whole frames and then 1013, or a reset.
    let deadline = Instant::now() + 2 * WAIT;
    let mut last = None;
    while let Some(frame) = slow.next_frame(deadline) {
        last = Some(frame);
    }
    if let Some(last) = last.filter(|frame| frame.opcode == opcode::CLOSE) {
        assert_eq!(last.close_code(), 1013);
    }
}

/// Hundreds of half-sent 9 MB messages: memory stays within the budget, those beyond it are refused
/// with 1013, a probe is served, and the budget comes back when they go.
#[test]
fn half_sent_messages_stay_within_the_memory_budget() {
    const PEERS: usize = 300;
    const SENT: usize = 1_000_000;
    let server =
        Server::serve().args("--shards 1 --inbound-budget 32MiB --message-bytes-max 10MB").start();
    let mut probe = Client::open(&server, Vsn::V2);
    probe.heartbeat();
    let before = server.peak_rss_bytes();
    let start = Frame { declared: Some(9_000_000), ..frame(opcode::TEXT, vec![b' '; SENT]) };
    let start = start.bytes();
    let mut peers: Vec<TcpStream> = (0..PEERS)
        .map(|_| {
            let mut stream = TcpStream::connect(server.addr()).expect("connect");
            stream.set_read_timeout(Some(WAIT)).expect("a read time limit");
            stream.set_write_timeout(Some(WAIT)).expect("a write time limit");
            let head = Head::upgrade(&Vsn::V2.path()).text();
            stream.write_all(head.as_bytes()).expect("send the upgrade");
            read_head(&mut stream);
            match stream.write_all(&start) {
                Ok(()) => {}
                // Refused while it was still sending.
                Err(error) if is_end(error.kind()) => {}
                Err(error) => panic!("neither taken nor refused: {error}"),
            }
            stream
        })
        .collect();
    probe.heartbeat();

    let (mut held, mut told, mut reset) = (0, 0, 0);
    for stream in &mut peers {
        stream.set_read_timeout(Some(Duration::from_millis(10))).expect("a read time limit");
        let mut bytes = [0; 64];
        match stream.read(&mut bytes) {
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                held += 1;
            }
            Err(error) if is_end(error.kind()) => reset += 1,
            Ok(count) if count >= 4 => {
                assert_eq!(bytes[0], 0x80 | opcode::CLOSE, "{:?}", &bytes[..count]);
                assert_eq!(u16::from_be_bytes([bytes[2], bytes[3]]), 1013);
                told += 1;
            }
            other => panic!("a peer was cut without a close frame: {other:?}"),
        }
    }
    let counts = format!("{held} held, {told} told 1013, {reset} reset");
    assert!(held * SENT <= 40 << 20, "more is held than the budget allows: {counts}");
    assert!(held >= 10, "the budget is hardly used: {counts}");
    assert!(told > reset, "most should learn why they are refused: {counts}");
    let grown = server.peak_rss_bytes().saturating_sub(before);
    assert!(grown < 96 << 20, "resident memory grew by {} MiB; {counts}", grown >> 20);

    drop(peers);
    probe.heartbeat();
    // A long message of an honest client fits again.
    let long = format!(r#"[null,"1","nothing:here","e","{}"]"#, "x".repeat(9_000_000));
    let long = frame(opcode::TEXT, long).bytes();
    eventually("the budget to come back", || {
        let mut raw = Raw::websocket(server.addr(), &Vsn::V2.path());
        let answer = raw.try_send(&long).then(|| raw.frame());
        answer.is_some_and(|frame| frame.opcode == opcode::TEXT)
    });
    probe.heartbeat();
}

fn is_end(kind: ErrorKind) -> bool {
    matches!(
        kind,
        ErrorKind::ConnectionReset | ErrorKind::BrokenPipe | ErrorKind::ConnectionAborted
    )
}

fn read_head(stream: &mut TcpStream) {
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") {
        stream.read_exact(&mut byte).expect("the answer to the upgrade");
        head.push(byte[0]);
    }
    assert!(head.starts_with(b"HTTP/1.1 101"), "{}", String::from_utf8_lossy(&head));
}

/// A full shard answers 503 with Retry-After from its reserve, and serves again when there is room.
#[test]
fn full_shard_answers_503() {
    let server = Server::serve().args("--shards 1").nofile(256).start();
    let mut probe = Client::open(&server, Vsn::V2);
    let head = Head::upgrade(&Vsn::V2.path());
    let mut served = Vec::new();
    let refusal = loop {
        assert!(served.len() < 256, "more connections than descriptors");
        let mut raw = Raw::connect(server.addr());
        let response = raw.request(&head);
        if response.status != 101 {
            raw.expect_end();
            break response;
        }
        served.push(raw);
    };
    assert_eq!(refusal.status, 503, "{refusal:?}");
    let wait = refusal.header("retry-after").expect("503 says when to come back");
    assert!(wait.parse::<u32>().is_ok(), "Retry-After: {wait}");
    assert!(served.len() >= 100, "only {} of 256 descriptors serve", served.len());
    probe.heartbeat();
    let last = served.last_mut().expect("some are served");
    last.send_frame(&frame(opcode::TEXT, r#"[null,"1","phoenix","heartbeat",{}]"#));
    assert_eq!(last.frame().opcode, opcode::TEXT);

    served.truncate(served.len() - 20);
    eventually("room for a new connection", || {
        Raw::connect(server.addr()).request(&head).status == 101
    });
    probe.heartbeat();
}

/// Beyond `max_connections` an upgrade gets 503 with Retry-After, exactly and on whichever shard,
/// is counted, and gets in once somebody has left. Pages are served all the same.
#[test]
fn full_server_answers_503() {
    let server = Server::serve().args("--shards 3 --max-connections 40").start();
    let refused = || server.metrics(|name| name == "simurgh_refused_full_total");
    let head = Head::upgrade(&Vsn::V2.path());
    let mut served = Vec::new();
    for _ in 0..40 {
        served.push(Raw::websocket(server.addr(), &Vsn::V2.path()));
    }
    for number in 1..=5 {
        let mut raw = Raw::connect(server.addr());
        let response = raw.request(&head);
        assert_eq!(response.status, 503, "{response:?}");
        assert!(response.header("retry-after").is_some_and(|wait| wait.parse::<u32>().is_ok()));
        raw.expect_end();
        assert_eq!(refused(), f64::from(number));
    }
    let sockets = || server.metrics(|name| name == "simurgh_sockets");
    assert_eq!(sockets(), 40.0);
    served.pop();
    eventually("room for a new connection", || {
        Raw::connect(server.addr()).request(&head).status == 101
    });
}

/// A peer that vanished without a word is found by the idle time-out, closed with 1002, and given
/// up.
#[test]
fn silent_client_is_closed_with_1002() {
    let server = Server::serve().args("--idle-timeout 500ms").start();
    // The request for the metrics may be a connection of its own; it is one both times.
    let open = || server.metrics(|name| name == "simurgh_connections");
    let before = open();
    let mut silent = Raw::websocket(server.addr(), &Vsn::V2.path());
    assert_eq!(open(), before + 1.0, "open connections");
    assert_eq!(silent.frame().close_code(), 1002);
    // It does not answer the close frame; the server does not wait for it for ever.
    eventually("the connection to be given up", || open() == before);
}
