//! The bare server with the clients that verify every delivery, and with requests.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;

use simurgh_bench_kit::clients::{Script, VerifiedClients};

use super::*;
use crate::args::{Command, Helper, parse};

const WAIT_MAX: Duration = Duration::from_secs(20);

fn start_on(flags: &str) -> SocketAddrV4 {
    let line = format!("bare-server --listen {flags}");
    let Ok(Command::Help(Helper::BareServer(options))) = parse(line.split(' ').map(Into::into))
    else {
        panic!("{line}")
    };
    start(&options).unwrap()
}

fn joined(server: SocketAddrV4) -> VerifiedClients {
    let mut clients = VerifiedClients::new(server, Script::lobby(server)).unwrap();
    clients.grow(6, WAIT_MAX).unwrap();
    clients
}

fn request(server: SocketAddrV4, text: &str) -> String {
    let mut stream = TcpStream::connect(server).unwrap();
    stream.write_all(text.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn broadcast_reaches_members_of_all_threads_and_heartbeats_are_answered() {
    let server = start_on("127.77.0.2:0 --shards 2");
    let mut clients = joined(server);
    clients.broadcast(3, WAIT_MAX).unwrap();
    clients.heartbeat_all().unwrap();
    assert_eq!((clients.behind(), clients.tally().delivered), (0, 18));
    let page = request(server, "GET /metrics HTTP/1.1\r\n\r\n");
    let lines = page.lines().filter_map(|line| line.strip_prefix("simurgh_deliveries_total{"));
    let counts = lines.filter_map(|line| line.split_once(' ')?.1.parse::<u64>().ok());
    assert_eq!(counts.sum::<u64>(), 18, "{page}");
}

#[test]
fn broadcast_over_http_reaches_its_topic_only() {
    let server = start_on("127.77.0.3:0 --shards 2");
    let mut clients = joined(server);
    for (topic, expected) in [("rooms:road", 0), ("rooms:lobby", 6)] {
        let payload = r#"{"user":"b","body":"000000"}"#;
        let body = format!(r#"{{"topic":"{topic}","event":"new:msg","payload":{payload}}}"#);
        let length = body.len();
        let head = format!("POST /api/broadcast HTTP/1.1\r\nContent-Length: {length}\r\n\r\n");
        let answer = request(server, &(head + &body));
        assert!(answer.starts_with("HTTP/1.1 200 ") && answer.ends_with("\r\n\r\n{}"), "{answer}");
        clients.heartbeat_all().unwrap();
        let tally = clients.tally();
        // The order of a payload's keys is not kept.
        assert_eq!(tally.delivered + tally.odd, expected, "{tally:?}");
    }
}
