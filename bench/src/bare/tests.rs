//! The answers of the bare server.

use std::time::Instant;

use super::*;
use crate::args::{Command, parse};

const CLIENTS: usize = 6;
const WAIT_MAX: Duration = Duration::from_secs(20);

/// A client that checks what it receives.
struct Client {
    socket: OwnedFd,
    got: Vec<u8>,
}

impl Client {
    fn dial(server: SocketAddrV4, index: usize) -> Self {
        let socket = net::dial(server, index, true).unwrap();
        let wait = Some(WAIT_MAX);
        sockopt::set_socket_timeout(&socket, sockopt::Timeout::Recv, wait).unwrap();
        Self { socket, got: Vec::new() }
    }

    fn joined(server: SocketAddrV4, index: usize) -> Self {
        let mut client = Self::dial(server, index);
        client.say(&frames::upgrade_request("/socket/websocket?vsn=2.0.0", "x", ""));
        client.expect(&frames::switching(frames::UPGRADE_KEY));
        client.send(frames::JOIN);
        client.expect(&frames::plain(frames::JOIN_REPLY));
        client
    }

    fn say(&self, bytes: &[u8]) {
        let sent = rustix::net::send(&self.socket, bytes, SendFlags::NOSIGNAL);
        assert_eq!(sent, Ok(bytes.len()));
    }

    fn send(&self, payload: &[u8]) {
        let mut frame = Vec::new();
        frames::masked(frames::TEXT, payload, &mut frame);
        self.say(&frame);
    }

    /// Exactly these bytes must come next.
    fn expect(&mut self, bytes: &[u8]) {
        let mut buf = vec![0; READ_BYTES];
        while self.got.len() < bytes.len() {
            let count = rustix::io::read(&self.socket, &mut *buf).unwrap();
            assert!(count > 0, "closed after {:?}", String::from_utf8_lossy(&self.got));
            self.got.extend_from_slice(&buf[..count]);
        }
        let rest = self.got.split_off(bytes.len());
        assert_eq!(String::from_utf8_lossy(&self.got), String::from_utf8_lossy(bytes));
        self.got = rest;
    }

    /// All bytes until the server closes.
    fn rest(mut self) -> String {
        let mut buf = vec![0; READ_BYTES];
        loop {
            match rustix::io::read(&self.socket, &mut *buf).unwrap() {
                0 => return String::from_utf8(self.got).unwrap(),
                count => self.got.extend_from_slice(&buf[..count]),
            }
        }
    }
}

fn start_on(flags: &str) -> SocketAddrV4 {
    let line = format!("bare-server --listen {flags}");
    let Ok(Command::BareServer(options)) = parse(line.split(' ').map(Into::into)) else {
        panic!("{line}")
    };
    start(&options).unwrap()
}

/// The answer to a push with this ref.
fn reply(push_ref: &str) -> Vec<u8> {
    let ok = r#"{"status":"ok","response":{}}"#;
    frames::plain(format!("[\"1\",\"{push_ref}\",\"rooms:lobby\",\"phx_reply\",{ok}]").as_bytes())
}

fn sum(server: SocketAddrV4, name: &str) -> u64 {
    let client = Client::dial(server, 0);
    // In parts, like programs that write a request while they make it.
    for part in ["GET ", "/metrics", " HTTP/1.1\r\n", "host: x\r\n\r\n"] {
        client.say(part.as_bytes());
    }
    let page = client.rest();
    let lines = page.lines().filter_map(|line| line.strip_prefix(name)?.split_once(' '));
    let values: Vec<u64> = lines.map(|(_, value)| value.parse().unwrap()).collect();
    assert!(!values.is_empty(), "{page}");
    values.iter().sum()
}

fn figure(server: SocketAddrV4, name: &str, expected: u64) {
    let begun = Instant::now();
    while sum(server, name) != expected {
        assert!(begun.elapsed() < WAIT_MAX, "{name} is {}", sum(server, name));
        thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn broadcast_reaches_all_members_and_heartbeats_are_answered() {
    let server = start_on("127.77.0.2:0 --shards 2");
    let mut clients: Vec<Client> =
        (0..CLIENTS).map(|index| Client::joined(server, index)).collect();
    figure(server, "simurgh_sockets", 6);
    figure(server, "simurgh_channels", 6);
    clients[0].send(&frames::push(1));
    for client in &mut clients {
        client.expect(&frames::plain(&frames::broadcast(1)));
    }
    clients[0].expect(&reply("000001"));
    // Longer than one read, so the frame is cut anywhere.
    let long = format!("{{\"body\":\"{}\"}}", "x".repeat(10_000));
    let mut frame = Vec::new();
    let push = format!("[\"1\",\"9\",\"rooms:lobby\",\"new:msg\",{long}]");
    frames::masked(frames::TEXT, push.as_bytes(), &mut frame);
    for part in frame.chunks(3_001) {
        clients[1].say(part);
        thread::sleep(Duration::from_millis(5));
    }
    let copy = format!("[null,null,\"rooms:lobby\",\"new:msg\",{long}]");
    for client in &mut clients {
        client.expect(&frames::plain(copy.as_bytes()));
    }
    clients[1].expect(&reply("9"));
    clients[2].send(frames::HEARTBEAT);
    clients[2].send(b"[null,\"77\",\"phoenix\",\"heartbeat\",{}]");
    clients[2].expect(&frames::plain(frames::HEARTBEAT_REPLY));
    let second = r#"[null,"77","phoenix","phx_reply",{"status":"ok","response":{}}]"#;
    clients[2].expect(&frames::plain(second.as_bytes()));
    figure(server, "simurgh_deliveries_total", 12);
    figure(server, "bare_refused_total", 0);
    clients.truncate(2);
    figure(server, "simurgh_sockets", 2);
    figure(server, "simurgh_channels", 2);
}

#[test]
fn broadcast_over_http_reaches_its_topic_only() {
    let server = start_on("127.77.0.3:0 --shards 2");
    let mut crowd = Client::joined(server, 0);
    let mut speaker = Client::joined(server, 1);
    speaker.send(b"[\"2\",\"2\",\"rooms:road\",\"phx_join\",{}]");
    let reply = br#"["2","2","rooms:road","phx_reply",{"status":"ok","response":{}}]"#;
    speaker.expect(&frames::plain(reply));
    figure(server, "simurgh_channels", 3);
    let body = r#"{"topic":"rooms:road","event":"new:msg","payload":{"body":"go"}}"#;
    let http = Client::dial(server, 2);
    let length = body.len();
    let head = format!("POST /api/broadcast HTTP/1.1\r\nContent-Length: {length}\r\n\r\n");
    http.say(head.as_bytes());
    http.say(body.as_bytes());
    let answer = http.rest();
    assert!(answer.starts_with("HTTP/1.1 200 ") && answer.ends_with("\r\n\r\n{}"), "{answer}");
    let copy = b"[null,null,\"rooms:road\",\"new:msg\",{\"body\":\"go\"}]";
    speaker.expect(&frames::plain(copy));
    crowd.send(frames::HEARTBEAT);
    crowd.expect(&frames::plain(frames::HEARTBEAT_REPLY));
    figure(server, "simurgh_deliveries_total", 1);
}

#[test]
fn slow_client_gets_everything_later() {
    let server = start_on("127.77.0.4:0 --shards 2");
    let mut slow = Client::joined(server, 0);
    let mut hearing = Client::joined(server, 1);
    let body = "y".repeat(60_000);
    let push = format!("[\"1\",\"9\",\"rooms:lobby\",\"new:msg\",\"{body}\"]");
    let copy = format!("[null,null,\"rooms:lobby\",\"new:msg\",\"{body}\"]");
    let copy = frames::plain(copy.as_bytes());
    for count in 1..=300 {
        hearing.send(push.as_bytes());
        hearing.expect(&copy);
        hearing.expect(&reply("9"));
        figure(server, "simurgh_deliveries_total", count * 2);
    }
    assert!(sum(server, "bare_refused_total") > 0, "everything was taken at once");
    for _ in 0..300 {
        slow.expect(&copy);
    }
}

#[test]
fn server_stops_when_told_and_goes_on() {
    let server = start_on("127.77.0.6:0 --shards 1 --stall-at 2 --stall-ms 300");
    let mut client = Client::joined(server, 0);
    let mut took = Vec::new();
    for text in ["hello", "again", "once more"] {
        let begun = Instant::now();
        client.send(text.as_bytes());
        client.expect(&frames::plain(text.as_bytes()));
        took.push(begun.elapsed());
    }
    let stall = Duration::from_millis(300);
    assert!(took[1] >= stall, "{took:?}");
    assert_eq!(sum(server, "bare_answered_total"), 3);
}
