//! Failing callbacks affect only their channel, and threads that broadcast, join and leave at once
//! neither lose nor double a message.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use crate::support::{Client, Ends, metric, serving, start, until};
use rustix::net::sockopt::set_socket_linger;
use serde_json::json;
use simurgh::{ChannelRoute, Endpoint, Join, Outcome, Payload, ShardChannel, ShardContext};
use tungstenite::WebSocket;
use tungstenite::protocol::Role;

#[derive(Default)]
struct Room {
    panics_in_drop: bool,
}

impl ShardChannel for Room {
    fn after_join(&mut self, ctx: &mut ShardContext<'_>) {
        if ctx.topic() != "rooms:quiet" {
            ctx.presence().track("one key", json!({})).unwrap();
        }
    }

    fn handle_in(
        &mut self,
        ctx: &mut ShardContext<'_>,
        event: &str,
        payload: Payload<'_>,
    ) -> Outcome {
        match event {
            "all" => ctx.broadcast("news", &payload),
            "others" => ctx.broadcast_from("news", &payload),
            _ => {
                self.panics_in_drop = true;
                panic!("handle_in, and soon drop")
            }
        }
        Outcome::NoReply
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        assert!(!self.panics_in_drop, "drop panics");
    }
}

fn room(shards: usize) -> Endpoint {
    let join = |ctx: &mut ShardContext<'_>, _: Payload<'_>| {
        let room = Room::default();
        match ctx.subtopic() {
            "later" => Join::later(async {
                tokio::time::sleep(Duration::from_millis(1)).await;
                Join::ok(room)
            }),
            _ => Join::ok(room),
        }
    };
    start(
        serving(ChannelRoute::on_shard("rooms:*", join)).configure(|config| config.shards = shards),
    )
}

#[test]
fn channel_that_panics_again_in_its_drop_harms_no_other() {
    let endpoint = room(1);
    let (mut one, mut other) = (Client::v2(&endpoint), Client::v2(&endpoint));
    one.join("rooms:quiet");
    other.join("rooms:quiet");
    one.push("2", "rooms:quiet", "crash", json!({}));
    assert_eq!(one.recv()[3], "phx_error");
    one.heartbeat();
    other.heartbeat();
    assert_eq!(metric(&endpoint, "simurgh_errors_callback_panic_total"), 2);
}

const TOPICS: [&str; 3] = ["rooms:a", "rooms:b", "rooms:later"];
const MESSAGES: u64 = 300;
/// Members of each topic that stay.
const MEMBERS: usize = 12;

/// The next number of each sender, as one membership has received them.
#[derive(Default)]
struct Heard(HashMap<String, u64>);

impl Heard {
    /// Takes one message; a sender's numbers have no gap. The first may be any, unless all are
    /// wanted.
    #[track_caller]
    fn take(&mut self, message: &serde_json::Value, wants_all: bool) {
        if message[3] != "news" {
            return;
        }
        let sender = message[4]["by"].as_str().unwrap();
        let n = message[4]["n"].as_u64().unwrap();
        let first = if wants_all { 0 } else { n };
        let next = self.0.entry(sender.to_owned()).or_insert(first);
        assert_eq!(n, *next, "{message}");
        *next += 1;
    }
}

/// Joins and leaves in every way until all is said. The gaps it may see are before its joins.
fn churns(endpoint: &Endpoint, number: usize, is_over: &AtomicBool) {
    let topic = TOPICS[number % TOPICS.len()];
    for turn in (number..).take_while(|_| !is_over.load(Relaxed)) {
        let mut client = Client::v2(endpoint);
        let mut heard = Heard::default();
        client.join(topic);
        for _ in 0..20 {
            heard.take(&client.recv(), false);
        }
        match turn % 4 {
            0 => client.push("2", topic, "phx_leave", json!({})),
            1 => client.send(json!(["9", "9", topic, "phx_join", {}])),
            2 => set_socket_linger(client.0.get_ref(), Some(Duration::ZERO)).unwrap(),
            _ => {}
        }
    }
}

/// Publishes over a second handle of a member's connection, whose answers another thread reads.
fn publishes(client: &Client, topic: &str, event: &str, by: &str) {
    let stream = client.0.get_ref().try_clone().unwrap();
    let mut client = Client(WebSocket::from_raw_socket(stream, Role::Client, None));
    for n in 0..MESSAGES {
        client.push("2", topic, event, json!({"by": by, "n": n}));
    }
}

/// Broadcasts on all topics until it is to end.
fn speaks_on(endpoint: &Endpoint, is_over: &AtomicBool) {
    for n in 0.. {
        for topic in TOPICS {
            while endpoint.broadcast(topic, "news", json!({"by": "api", "n": n})).is_err() {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        if is_over.load(Relaxed) {
            return;
        }
        std::thread::sleep(Duration::from_micros(500));
    }
}

#[test]
fn members_get_each_broadcast_once_in_order_during_joins_and_leaves() {
    let endpoint = room(4);
    let join = |topic: &'static str| {
        let mut client = Client::v2(&endpoint);
        assert_eq!(client.join(topic)[4]["status"], "ok");
        (topic, client)
    };
    // The first of a topic broadcasts, the second broadcasts from itself, the others only read.
    let mut members: Vec<_> =
        TOPICS.iter().map(|topic| [(); MEMBERS].map(|()| join(topic))).collect();
    let (leave, fall_silent) = (AtomicBool::new(false), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let _ends = [Ends(&leave), Ends(&fall_silent)];
        let churning: Vec<_> = (0..8)
            .map(|number| (number, &endpoint, &leave))
            .map(|it| scope.spawn(move || churns(it.1, it.0, it.2)))
            .collect();
        scope.spawn(|| speaks_on(&endpoint, &fall_silent));
        let mut reading = Vec::new();
        for (at, (topic, client)) in members.iter_mut().flat_map(|it| it.iter_mut().enumerate()) {
            match at {
                0 => publishes(client, topic, "all", "one"),
                1 => publishes(client, topic, "others", "two"),
                _ => {}
            }
            reading.push(scope.spawn(move || {
                let senders = if at == 1 { &["api", "one"][..] } else { &["api", "one", "two"] };
                let mut heard = Heard::default();
                while !senders.iter().all(|by| heard.0.get(*by) >= Some(&MESSAGES)) {
                    heard.take(&client.recv(), true);
                }
                assert_eq!(heard.0.len(), senders.len(), "a sender hears itself");
            }));
        }
        reading.into_iter().for_each(|reader| reader.join().unwrap());
        leave.store(true, Relaxed);
        churning.into_iter().for_each(|it| it.join().unwrap());
    });
    let comes_to = |gauge: &str, wanted: u64| {
        let name = format!("simurgh_{gauge}");
        until(&format!("{gauge} come to {wanted}"), || metric(&endpoint, &name) == wanted);
    };
    comes_to("presences", (TOPICS.len() * MEMBERS) as u64);
    drop(members);
    for gauge in ["sockets", "channels", "topics", "presences", "fanout_bytes", "inbound_bytes"] {
        comes_to(gauge, 0);
    }
}

#[test]
fn second_server_on_the_same_port_is_refused() {
    let endpoint = room(1);
    let address = endpoint.addresses()[0].to_string();
    let error = Endpoint::builder().listen(&address).start().unwrap_err().to_string();
    assert!(error.contains(&address), "{error}");
    let error = Endpoint::builder().listen("nowhere").start().unwrap_err().to_string();
    assert!(error.contains("nowhere") && error.contains("127.0.0.1:4000"), "{error}");
}
