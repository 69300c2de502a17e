//! Links that break, and engines that are killed or frozen.

use std::time::Duration;

use simurgh_cluster::adapter::{Adapter as _, Down};
use simurgh_cluster::{Interest, Space};

use crate::support::{Engine, Node, prefix, runtime};

#[test]
#[ignore = "needs nats-server"]
fn measures_stay_without_a_link() {
    let mut engine = Engine::start("");
    let mut one = Node::plain(1, &engine.address());
    one.wait("up", |it| it.is_up && it.adapter.measures().round_trip.is_some());
    let before = one.adapter.measures().round_trips;
    engine.kill();
    one.wait("down", |it| !it.is_up);
    let measured = one.adapter.measures();
    assert_eq!((measured.engine, measured.round_trip), (None, None));
    assert!(measured.round_trips.sum_ns >= before.sum_ns && before.sum_ns > 0);
}

#[test]
#[ignore = "needs nats-server"]
fn node_that_pauses_keeps_its_link() {
    let engine = Engine::start("");
    let (mut one, mut other) =
        (Node::plain(1, &engine.address()), Node::plain(2, &engine.address()));
    other.want("t");
    one.publish("t", 1_000);
    one.wait("nothing under way", |it| it.adapter.in_flight() == 0);
    std::thread::sleep(Duration::from_secs(7));
    other.wait("all", |it| it.received.len() == 1_000);
    other.pass(Duration::from_millis(2_500));
    assert_eq!((one.downs, other.downs), (vec![], vec![]));
}

#[test]
#[ignore = "needs nats-server"]
fn announced_servers_are_tried_when_a_server_ends() {
    let mut servers = Engine::three();
    let mut node = Node::plain(1, &servers[0].address());
    node.wait("up", |it| it.is_up);
    // The servers need a moment to find each other.
    node.pass(Duration::from_secs(1));
    servers[0].kill();
    node.wait("down", |it| !it.is_up);
    node.wait("up", |it| it.is_up);
    let (server, _) = node.adapter.server().unwrap();
    assert!(servers[1..].iter().any(|it| server.ends_with(&it.address())), "{server}");
}

#[test]
#[ignore = "needs nats-server"]
fn server_with_a_low_max_payload_is_reported() {
    let engine = Engine::start("max_payload: 100000");
    let mut node = Node::plain(1, &engine.address());
    let Down::Refused(why) = node.why_down() else { panic!("{:?}", node.downs) };
    assert!(why.contains("max_payload is 100000"), "{why}");
}

#[test]
fn missing_listener_is_reported_once() {
    let mut node = Node::plain(1, "nats://127.0.0.1:1");
    node.pass(Duration::from_secs(2));
    let [Down::Broken(why)] = &node.downs[..] else { panic!("{:?}", node.downs) };
    assert!(why.contains("nats://127.0.0.1:1: Connection refused"), "{why}");
}

#[test]
#[ignore = "needs nats-server"]
fn message_above_the_envelope_limit_is_lost_and_the_link_stays_up() {
    let engine = Engine::start("max_payload: 4194304");
    let (mut one, mut other) =
        (Node::plain(1, &engine.address()), Node::plain(2, &engine.address()));
    other.want("t");
    other.want("u");
    let subject = prefix().topic(Space::Broadcast, "t");
    publish_raw(&engine, subject.as_str(), 3 << 20);
    other.wait("its loss", |it| !it.lost.is_empty());
    assert_eq!(other.lost, [Interest::Exact(Space::Broadcast, "t".into())]);
    one.publish("t", 1);
    one.wait("nothing under way", |it| it.adapter.in_flight() == 0);
    other.wait("the next", |it| it.received.len() == 1);
    assert_eq!(other.downs, []);
    assert_eq!(other.adapter.statistics().too_large, 1);
}

fn publish_raw(engine: &Engine, subject: &str, bytes: usize) {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let address = engine.address();
    runtime().block_on(async {
        #[allow(clippy::disallowed_types, reason = "a test has no reactor")]
        let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
        let mut text = format!("CONNECT {{}}\r\nPUB {subject} {bytes}\r\n").into_bytes();
        text.resize(text.len() + bytes, b'x');
        text.extend_from_slice(b"\r\nPING\r\n");
        stream.write_all(&text).await.unwrap();
        let mut said = Vec::new();
        while !said.windows(6).any(|it| it == b"PONG\r\n") {
            assert!(stream.read_buf(&mut said).await.unwrap() > 0, "{said:?}");
        }
    });
}
