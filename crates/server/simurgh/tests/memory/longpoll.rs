//! The memory of a waiting poll. How soon polls receive a broadcast is measured by the benchmarks.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use crate::support::{WAIT_MAX, metrics_at, start};
use crate::{alone, heap};
use serde_json::{Value, json};
use simurgh::{
    ChannelRoute, Endpoint, Join, LongPoll, Outcome, Payload, ShardChannel, ShardContext,
    UserSocket,
};

const POLLERS: usize = 5_000;
/// Of its session, its membership, its connection and everything for the wait.
const POLLER_BYTES_MAX: usize = 2_100;

struct Room;

impl ShardChannel for Room {
    fn handle_in(&mut self, _: &mut ShardContext<'_>, _: &str, _: Payload<'_>) -> Outcome {
        Outcome::NoReply
    }
}

struct Poller {
    stream: TcpStream,
    target: String,
}

impl Poller {
    fn join(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(WAIT_MAX)).unwrap();
        stream.set_nodelay(true).unwrap();
        let mut poller = Self { stream, target: "/socket/longpoll?vsn=2.0.0".to_owned() };
        poller.send("GET", "");
        let token = poller.answer()["token"].as_str().unwrap().to_owned();
        poller.target = format!("{}&token={token}", poller.target);
        poller.send("POST", r#"["1","1","room:all","phx_join",{}]"#);
        assert_eq!(poller.answer(), json!({"status": 200}));
        poller.send("GET", "");
        assert_eq!(poller.answer()["messages"].as_array().unwrap().len(), 1);
        poller
    }

    fn send(&mut self, method: &str, body: &str) {
        let request = format!(
            "{method} {} HTTP/1.1\r\nhost: a\r\ncontent-length: {}\r\n\r\n{body}",
            self.target,
            body.len()
        );
        self.stream.write_all(request.as_bytes()).unwrap();
    }

    fn answer(&mut self) -> Value {
        let mut bytes = [0; 2048];
        let mut length = 0;
        loop {
            length += self.stream.read(&mut bytes[length..]).unwrap();
            let text = std::str::from_utf8(&bytes[..length]).unwrap();
            if let Some((_, body)) = text.split_once("\r\n\r\n")
                && let Ok(body) = serde_json::from_str(body)
            {
                return body;
            }
        }
    }
}

#[test]
fn five_thousand_waiting_polls_take_two_kilobytes_each() {
    let _alone = alone();
    let user_socket = UserSocket::new("/socket")
        .longpoll(LongPoll::new().window(Duration::from_secs(120)))
        .channel(ChannelRoute::on_shard("room:*", |_, _| Join::ok(Room)));
    // One address may have half of the places.
    let builder = Endpoint::builder().socket(user_socket);
    let endpoint: Endpoint =
        start(builder.configure(|config| config.http.connections_max = 15_000));
    let address = endpoint.addresses()[0];
    // Allocations that happen once.
    let mut first = Poller::join(address);
    let before = heap();
    let mut pollers: Vec<Poller> = (0..POLLERS).map(|_| Poller::join(address)).collect();
    let own: usize = pollers.iter().map(|it| it.target.capacity() + size_of::<Poller>()).sum();
    pollers.iter_mut().for_each(|poller| poller.send("GET", ""));
    first.send("GET", "");
    let metric = |name: &str| {
        let metrics = metrics_at(address);
        let line = metrics.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.unwrap().parse::<usize>().unwrap()
    };
    let until = Instant::now() + 6 * WAIT_MAX;
    while metric("simurgh_longpoll_polls_waiting") < POLLERS + 1 {
        assert!(Instant::now() < until, "{} wait", metric("simurgh_longpoll_polls_waiting"));
        std::thread::sleep(Duration::from_millis(20));
    }
    let each = (heap() - before - own) / POLLERS;
    println!("a poll that waits takes {each} B, its session included");
    assert!((200..=POLLER_BYTES_MAX).contains(&each), "{each} B");

    endpoint.broadcast("room:all", "news", json!({"n": 1})).unwrap();
    for poller in &mut pollers {
        assert_eq!(poller.answer()["status"], json!(200));
    }
}
