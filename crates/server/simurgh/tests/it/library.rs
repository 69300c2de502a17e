//! Failing callbacks affect only their channel, answers may come later, any thread may broadcast,
//! and nothing is lost or doubled across shards.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use crate::support::{Client, metric, start};
use serde_json::json;
use simurgh::{
    ChannelRoute, Connect, Endpoint, Join, Outcome, Payload, Reason, Reply, ShardChannel,
    ShardContext, ShardHandleInfo, Stop, UserSocket,
};

struct Room {
    panics_in_drop: bool,
}

fn join(ctx: &mut ShardContext<'_>, _: Payload<'_>) -> Join {
    match ctx.subtopic() {
        "crash" => panic!("join"),
        "later" => Join::later(async {
            tokio::time::sleep(Duration::from_millis(50)).await;
            Join::ok(Room { panics_in_drop: false }).reply(json!({"late": true}))
        }),
        "later_crash" => Join::later(async { panic!("later") }),
        _ => Join::ok(Room { panics_in_drop: false }),
    }
}

impl ShardChannel for Room {
    fn handle_in(
        &mut self,
        ctx: &mut ShardContext<'_>,
        event: &str,
        payload: Payload<'_>,
    ) -> Outcome {
        match event {
            "echo" => Outcome::ok(&payload),
            "crash" => {
                ctx.push("before", json!({}));
                panic!("handle_in")
            }
            "crash_twice" => {
                self.panics_in_drop = true;
                panic!("handle_in, and soon drop")
            }
            "sleep" => {
                std::thread::sleep(Duration::from_millis(30));
                Outcome::NoReply
            }
            "all" => {
                ctx.broadcast("news", &payload);
                Outcome::NoReply
            }
            "others" => {
                ctx.broadcast_from("news", &payload);
                Outcome::NoReply
            }
            "later" => {
                let (handle, to) = (ctx.handle::<Self>(), ctx.reply_ref().unwrap());
                let payload = Payload::from(&payload);
                ctx.spawn(async move {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                    handle.push("soon", json!({}));
                    handle.send(7_u32);
                    handle.reply(to, Reply::ok(payload));
                });
                Outcome::NoReply
            }
            "stop" => Outcome::ReplyAndStop(Reply::ok(json!({})), Stop::Normal),
            _ => Outcome::unknown_event(),
        }
    }

    fn terminate(&mut self, ctx: &mut ShardContext<'_>, reason: &Reason) {
        ctx.broadcast("left", json!({"reason": format!("{reason:?}")}));
    }
}

impl ShardHandleInfo<u32> for Room {
    fn handle_info(&mut self, ctx: &mut ShardContext<'_>, n: u32) -> Outcome {
        ctx.push("info", json!({"n": n}));
        Outcome::NoReply
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        assert!(!self.panics_in_drop, "drop panics");
    }
}

fn room(shards: usize) -> Endpoint {
    let user_socket = UserSocket::new("/socket").channel(ChannelRoute::on_shard("rooms:*", join));
    start(Endpoint::builder().socket(user_socket).configure(|config| config.shards = shards))
}

#[test]
fn a_panic_ends_its_channel_alone_and_keeps_what_was_pushed() {
    let endpoint = room(1);
    let (mut one, mut other) = (Client::v2(&endpoint), Client::v2(&endpoint));
    one.join("rooms:a");
    one.send(json!(["9", "9", "rooms:b", "phx_join", {}]));
    one.recv();
    other.join("rooms:a");
    one.push("2", "rooms:a", "crash", json!({}));
    assert_eq!(one.recv(), json!(["1", null, "rooms:a", "before", {}]));
    assert_eq!(one.recv(), json!(["1", "1", "rooms:a", "phx_error", {"reason": "channel_crash"}]));
    assert_eq!(other.recv()[4], json!({"reason": "Crashed"}));
    one.send(json!(["9", "3", "rooms:b", "echo", {"still": "there"}]));
    assert_eq!(one.recv()[4]["response"], json!({"still": "there"}));
    assert_eq!(one.join("rooms:a")[4]["status"], "ok");
    assert_eq!(metric(&endpoint, "simurgh_errors_callback_panic_total"), 1);
    assert_eq!(metric(&endpoint, "simurgh_channels"), 3);
}

#[test]
fn a_channel_that_panics_again_in_its_drop_harms_nobody() {
    let endpoint = room(1);
    let (mut one, mut other) = (Client::v2(&endpoint), Client::v2(&endpoint));
    one.join("rooms:a");
    other.join("rooms:b");
    one.push("2", "rooms:a", "crash_twice", json!({}));
    assert_eq!(one.recv()[3], "phx_error");
    one.heartbeat();
    other.heartbeat();
    assert_eq!(metric(&endpoint, "simurgh_errors_callback_panic_total"), 2);
}

#[test]
fn a_join_that_panics_is_answered_and_the_socket_lives() {
    let endpoint = room(1);
    let mut client = Client::v2(&endpoint);
    for topic in ["rooms:crash", "rooms:later_crash"] {
        assert_eq!(
            client.join(topic)[4],
            json!({"status": "error", "response": {"reason": "join crashed"}})
        );
    }
    client.heartbeat();
}

#[test]
fn messages_behind_a_join_that_is_decided_later_wait_for_it_in_order() {
    let endpoint = room(1);
    let mut client = Client::v2(&endpoint);
    client.send(json!(["1", "1", "rooms:later", "phx_join", {}]));
    for n in 0..20 {
        client.push(&n.to_string(), "rooms:later", "echo", json!({"n": n}));
    }
    assert_eq!(client.recv()[4]["response"], json!({"late": true}));
    for n in 0..20 {
        let answer = client.recv();
        assert_eq!((&answer[1], &answer[4]["response"]), (&json!(n.to_string()), &json!({"n": n})));
    }
}

#[test]
fn a_socket_that_vanishes_while_its_join_is_decided_leaves_nothing() {
    let endpoint = room(1);
    for _ in 0..10 {
        let mut client = Client::v2(&endpoint);
        client.send(json!(["1", "1", "rooms:later", "phx_join", {}]));
    }
    let mut client = Client::v2(&endpoint);
    assert_eq!(client.join("rooms:later")[4]["status"], "ok");
    drop(client);
    for _ in 0..100 {
        std::thread::sleep(Duration::from_millis(20));
        if metric(&endpoint, "simurgh_channels") == 0 && metric(&endpoint, "simurgh_sockets") == 0 {
            return;
        }
    }
    panic!("{} channels are left", metric(&endpoint, "simurgh_channels"));
}

#[test]
fn replies_pushes_and_infos_come_from_other_threads() {
    let endpoint = room(1);
    let mut client = Client::v2(&endpoint);
    client.join("rooms:a");
    client.push("5", "rooms:a", "later", json!({"x": 1}));
    client.push("6", "rooms:a", "echo", json!({}));
    assert_eq!(client.recv()[1], "6");
    assert_eq!(client.recv()[3], "soon");
    assert_eq!(client.recv()[4], json!({"n": 7}));
    assert_eq!(client.recv()[1], "5");
    client.push("7", "rooms:a", "later", json!({}));
    client.push("8", "rooms:a", "stop", json!({}));
    assert_eq!(client.recv()[1], "8");
    assert_eq!(client.recv()[3], "phx_close");
    // A message for the stopped channel must not reach another in its slot.
    client.join("rooms:b");
    std::thread::sleep(Duration::from_millis(60));
    client.heartbeat();
}

#[test]
fn a_callback_that_sleeps_is_counted() {
    let endpoint = room(1);
    let mut client = Client::v2(&endpoint);
    client.join("rooms:a");
    client.push("2", "rooms:a", "sleep", json!({}));
    client.heartbeat();
    assert_eq!(metric(&endpoint, "simurgh_slow_callbacks_total"), 1);
}

#[test]
fn every_member_on_every_shard_gets_every_broadcast_once_and_in_order() {
    const CLIENTS: usize = 40;
    const MESSAGES: usize = 100;
    let endpoint = room(4);
    let mut clients: Vec<Client> = (0..CLIENTS).map(|_| Client::v2(&endpoint)).collect();
    for client in &mut clients {
        client.join("rooms:lobby");
    }
    for n in 0..MESSAGES {
        clients[0].push("2", "rooms:lobby", "all", json!({"n": n}));
        clients[1].push("2", "rooms:lobby", "others", json!({"n": n}));
        endpoint.broadcast("rooms:lobby", "api", json!({"n": n})).unwrap();
    }
    for (at, client) in clients.iter_mut().enumerate() {
        // Each sender's messages are in order; between senders no order is promised.
        let expected = if at == 1 { 2 * MESSAGES } else { 3 * MESSAGES };
        let (mut api, mut news) = (Vec::new(), vec![0_usize; MESSAGES]);
        for _ in 0..expected {
            let message = client.recv();
            let n = message[4]["n"].as_u64().unwrap() as usize;
            match message[3].as_str().unwrap() {
                "api" => api.push(n),
                _ => news[n] += 1,
            }
        }
        assert!(api.iter().copied().eq(0..MESSAGES), "client {at}: {api:?}");
        let copies = if at == 1 { 1 } else { 2 };
        assert!(news.iter().all(|&count| count == copies), "client {at}: {news:?}");
        client.heartbeat();
    }
}

#[test]
fn a_member_who_joins_gets_exactly_the_broadcasts_after_its_join() {
    let endpoint = room(2);
    let mut sender = Client::v2(&endpoint);
    sender.join("rooms:a");
    for round in 0..50 {
        sender.push("2", "rooms:a", "all", json!({"n": round}));
        sender.recv();
        let mut late = Client::v2(&endpoint);
        late.join("rooms:a");
        sender.push("2", "rooms:a", "all", json!({"n": "after"}));
        assert_eq!(late.recv()[4], json!({"n": "after"}), "round {round}");
        sender.recv();
        late.send(json!(["1", "9", "rooms:a", "phx_leave", {}]));
        late.recv();
        // The broadcast that the leave makes.
        sender.recv();
    }
}

#[test]
fn connect_decides_later_assigns_and_gives_ids() {
    struct Known;
    impl ShardChannel for Known {
        fn handle_in(&mut self, ctx: &mut ShardContext<'_>, _: &str, _: Payload<'_>) -> Outcome {
            Outcome::ok(json!({"id": ctx.socket_id(), "name": ctx.assigns::<String>()}))
        }
    }
    let user_socket = UserSocket::new("/socket/:tenant")
        .connect_on_shard(|info| {
            let name = info.param("tenant").unwrap_or_default();
            Connect::later(async move {
                tokio::time::sleep(Duration::from_millis(20)).await;
                match name.as_str() {
                    "nobody" => Connect::refuse(404),
                    "crash" => panic!("connect"),
                    _ => Connect::ok().id(format!("user:{name}")).assign(name),
                }
            })
        })
        .channel(ChannelRoute::on_shard("rooms:*", |_, _| Join::ok(Known)));
    let endpoint = start(Endpoint::builder().socket(user_socket));
    let address = endpoint.addresses()[0];
    let path = |tenant: &str| format!("/socket/{tenant}/websocket?vsn=2.0.0");
    let refused = Client::try_connect(address, &path("nobody")).err().unwrap();
    assert!(refused.contains("404"), "{refused}");
    let crashed = Client::try_connect(address, &path("crash")).err().unwrap();
    assert!(crashed.contains("500"), "{crashed}");
    let (mut ann, mut bob) =
        (Client::connect(address, &path("ann")), Client::connect(address, &path("bob")));
    ann.join("rooms:a");
    ann.push("2", "rooms:a", "who", json!({}));
    assert_eq!(ann.recv()[4]["response"], json!({"id": "user:ann", "name": "ann"}));
    endpoint.disconnect("user:ann").unwrap();
    assert_eq!(ann.recv_close(), 1001);
    bob.heartbeat();
}

#[test]
fn terminate_runs_once_for_every_end() {
    static ENDS: AtomicUsize = AtomicUsize::new(0);
    struct Counted(mpsc::Sender<Reason>);
    impl ShardChannel for Counted {
        fn handle_in(&mut self, _: &mut ShardContext<'_>, event: &str, _: Payload<'_>) -> Outcome {
            match event {
                "stop" => Outcome::Stop(Stop::Shutdown),
                "bad" => Outcome::Stop(Stop::Abnormal),
                _ => panic!("crash"),
            }
        }
        fn terminate(&mut self, _: &mut ShardContext<'_>, reason: &Reason) {
            ENDS.fetch_add(1, Ordering::SeqCst);
            self.0.send(*reason).unwrap();
        }
    }
    let (sender, reasons) = mpsc::channel();
    let user_socket = UserSocket::new("/socket")
        .channel(ChannelRoute::on_shard("rooms:*", move |_, _| Join::ok(Counted(sender.clone()))));
    let endpoint = start(Endpoint::builder().socket(user_socket));
    let mut client = Client::v2(&endpoint);
    let ends = [
        ("stop", Reason::Stopped(Stop::Shutdown)),
        ("bad", Reason::Stopped(Stop::Abnormal)),
        ("crash", Reason::Crashed),
        ("phx_leave", Reason::Left),
        ("phx_join", Reason::Rejoined),
    ];
    for (event, reason) in ends {
        client.send(json!(["1", "1", "rooms:a", "phx_join", {}]));
        client.push("2", "rooms:a", event, json!({}));
        assert_eq!(reasons.recv_timeout(crate::support::WAIT_MAX).unwrap(), reason);
    }
    drop(client);
    assert_eq!(reasons.recv_timeout(crate::support::WAIT_MAX).unwrap(), Reason::Closed);
    assert_eq!(ENDS.load(Ordering::SeqCst), ends.len() + 1);
}

#[test]
fn an_upgrade_as_second_request_of_a_kept_connection_finds_its_shard() {
    use std::io::{Read, Write};
    let endpoint = room(2);
    let mut stream = Client::connect(endpoint.addresses()[0], "/socket/websocket");
    stream.0.close(None).unwrap();
    #[allow(clippy::disallowed_types, reason = "a test's socket")]
    let mut stream = std::net::TcpStream::connect(endpoint.addresses()[0]).unwrap();
    stream.set_read_timeout(Some(crate::support::WAIT_MAX)).unwrap();
    stream.write_all(b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n").unwrap();
    let mut buffer = [0_u8; 4096];
    let count = stream.read(&mut buffer).unwrap();
    let answer = String::from_utf8_lossy(&buffer[..count]).into_owned();
    assert!(answer.starts_with("HTTP/1.1 200") && answer.ends_with("ok\n"), "{answer}");
    let url = "ws://x/socket/websocket?vsn=2.0.0";
    let (socket, _) = tungstenite::client(url, stream).unwrap();
    let mut client = Client(socket);
    client.join("rooms:a");
    client.heartbeat();
    assert_eq!(metric(&endpoint, "simurgh_handed_back_total"), 1);
}

#[test]
fn a_second_server_on_the_same_port_is_refused() {
    let endpoint = room(1);
    let address = endpoint.addresses()[0].to_string();
    let error = Endpoint::builder().listen(&address).start().unwrap_err().to_string();
    assert!(error.contains(&address), "{error}");
    let error = Endpoint::builder().listen("nowhere").start().unwrap_err().to_string();
    assert!(error.contains("nowhere") && error.contains("127.0.0.1:4000"), "{error}");
}

#[test]
fn a_drain_closes_everybody_with_1012_and_ends() {
    let endpoint = {
        let user_socket =
            UserSocket::new("/socket").channel(ChannelRoute::on_shard("rooms:*", join));
        start(Endpoint::builder().socket(user_socket).configure(|config| {
            config.shards = 2;
            config.drain_time = Duration::from_millis(300);
        }))
    };
    let address = endpoint.addresses()[0];
    let mut clients: Vec<Client> = (0..30).map(|_| Client::v2(&endpoint)).collect();
    let drained = std::thread::spawn(move || endpoint.drain());
    for client in &mut clients {
        assert_eq!(client.recv_close(), 1012);
        // Answers the close, as every client does.
        let _ = client.0.read();
    }
    drained.join().unwrap().unwrap();
    assert!(Client::try_connect(address, "/socket/websocket").is_err());
}
