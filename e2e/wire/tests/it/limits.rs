//! Rows 116–125 and 137 of PROTOCOL §14: what is said too much or too fast, who comes too often.

use std::net::{SocketAddr, TcpStream};
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::net::{AddressFamily, SocketType, bind, connect, socket};
use serde_json::{Value, json};
use wire_tests::{Client, Head, Msg, Poller, Raw, Server, Vsn, both, eventually, opcode};

const PATH: &str = "/socket/websocket?vsn=2.0.0";

/// `simurgh serve` with a channel `echo:*` that answers with what it is told.
fn serve(limits: &str, of_channel: &str) -> Server {
    let home = tempfile::tempdir().expect("a temporary directory");
    let file = home.path().join("limits.toml");
    let text = format!(
        "shards = 2\nlongpoll = \"2s\"\n{limits}\n[[channel]]\ntopic = \"echo:*\"\n{of_channel}\n\
         [[channel.event]]\nname = \"echo\"\nreply = \"$payload\"\n\
         [[channel.event]]\nname = \"tell\"\nbroadcast = \"all\"\n"
    );
    std::fs::write(&file, text).expect("a file");
    Server::serve().args(&format!("--config {}", file.display())).start()
}

fn metric(server: &Server, limit: &str) -> u64 {
    let text =
        server.http(&Head::new("GET", "/metrics").set("connection", "close"), "").text().to_owned();
    let label = format!("limit=\"{limit}\"");
    let lines = text.lines().filter(|it| it.starts_with("simurgh_limited_total{"));
    let own = lines.filter(|line| line.contains(&label));
    own.map(|line| line.rsplit_once(' ').unwrap().1.parse::<u64>().unwrap()).sum()
}

/// A reply that names the limit; when to try again.
#[track_caller]
fn limited(message: &Msg, msg_ref: &str, topic: &str, limit: &str) -> Duration {
    assert_eq!((&*message.topic, &*message.event), (topic, "phx_reply"), "{}", message.raw);
    assert_eq!(message.msg_ref, json!(msg_ref), "{}", message.raw);
    assert_eq!(message.payload["status"], json!("error"), "{}", message.raw);
    let response = &message.payload["response"];
    let named = (&response["reason"], &response["limit"]);
    assert_eq!(named, (&json!("rate_limited"), &json!(limit)), "{}", message.raw);
    Duration::from_millis(response["retry_after_ms"].as_u64().expect("when to try again"))
}

/// Joins `topic` and does what exceeds a limit of this kind, if it allows one in ten seconds; gives
/// the ref of what is too much.
fn exceed(client: &mut Client, topic: &str, limit: &str) -> String {
    let long = json!({"text": "x".repeat(200)});
    match limit {
        "joins" => client.push("echo:other", "phx_join", json!({})),
        "messages" => {
            client.echo(topic);
            client.push(topic, "tell", json!({}))
        }
        "bytes" => {
            client.ask(topic, "echo", long.clone(), "ok", long.clone());
            client.push(topic, "tell", long)
        }
        _ => client.push(topic, "tell", long),
    }
}

/// A server with one limit.
fn with(limit: &str, policy: &str) -> Server {
    let of_socket =
        |rate: &str| format!("{limit} = {{ rate = \"{rate}\", policy = \"{policy}\" }}");
    match limit {
        "joins" => serve(&format!("[limits]\n{}", of_socket("1/10s")), ""),
        "messages" => serve("", &format!("limits = {{ {} }}", of_socket("1/10s"))),
        "bytes" => serve(&format!("[limits]\n{}", of_socket("400/10s")), ""),
        _ => serve("", &format!("limits = {{ {limit} = {{ max = 100, policy = \"{policy}\" }} }}")),
    }
}

const LIMITS: [&str; 4] = ["joins", "messages", "bytes", "payload_bytes"];

/// Row 116. Over a limit whose policy is to reply: an error that names it; neighbours go on.
#[test]
fn row_116_reply_policy_answers_messages_over_a_limit() {
    for limit in LIMITS {
        let server = with(limit, "reply");
        both(|vsn| {
            let before = metric(&server, limit);
            let mut neighbour = Client::open(&server, vsn);
            neighbour.join("echo:room", json!({}));
            let mut client = Client::open(&server, vsn);
            client.join("echo:room", json!({}));
            let msg_ref = exceed(&mut client, "echo:room", limit);
            let answer = client.recv();
            if limit == "payload_bytes" {
                let reason = json!({"reason": "payload_too_large"});
                assert_eq!(answer.payload, json!({"status": "error", "response": reason}));
            } else {
                let topic = if limit == "joins" { "echo:other" } else { "echo:room" };
                let wait = limited(&answer, &msg_ref, topic, limit);
                assert!(wait > Duration::from_millis(1) && wait <= Duration::from_secs(10));
            }
            // The client was not told, the socket lives, and its other messages are still handled.
            client.heartbeat();
            neighbour.echo("echo:room");
            neighbour.expect_quiet();
            assert_eq!(metric(&server, limit), before + 1);
        });
    }
}

/// Row 117. Over a limit whose policy is to drop: nothing is heard of it.
#[test]
fn row_117_drop_policy_ignores_messages_over_a_limit() {
    for limit in LIMITS {
        let server = with(limit, "drop");
        let mut client = Client::open(&server, Vsn::V2);
        client.join("echo:room", json!({}));
        exceed(&mut client, "echo:room", limit);
        client.expect_quiet();
        assert_eq!(metric(&server, limit), 1);
    }
}

/// Row 118. Over a limit whose policy is to close: 1008 and a reason that names it.
#[test]
fn row_118_close_policy_closes_with_1008_and_the_limit() {
    for limit in LIMITS {
        let server = with(limit, "close");
        let mut neighbour = Client::open(&server, Vsn::V2);
        neighbour.join("echo:room", json!({}));
        let mut client = Client::open(&server, Vsn::V2);
        client.join("echo:room", json!({}));
        exceed(&mut client, "echo:room", limit);
        assert_eq!(client.expect_close(), 1008, "{limit}");
        neighbour.echo("echo:room");
        neighbour.expect_quiet();
        assert_eq!(metric(&server, limit), 1);
    }
    let server = serve("[limits]\nmessages = { rate = \"1/h\", policy = \"close\" }", "");
    let mut raw = Raw::websocket(server.addr(), PATH);
    let beat = r#"[null,"1","phoenix","heartbeat",{}]"#;
    for _ in 0..2 {
        raw.send_frame(&wire_tests::frame(opcode::TEXT, beat));
    }
    assert!(String::from_utf8_lossy(&raw.frame().payload).contains("phx_reply"));
    let close = raw.frame();
    assert_eq!(close.close_code(), 1008);
    assert_eq!(close.payload[2..], *b"rate_limited: messages");
}

/// Row 119. A burst passes at once; then who waits as long as it is told passes again.
#[test]
fn row_119_burst_is_accepted_and_refills_at_the_rate() {
    let channel = "limits = { messages = { rate = \"4/s\", burst = 12 } }";
    let server = serve("", channel);
    let mut client = Client::open(&server, Vsn::V2);
    client.join("echo:a", json!({}));
    client.join("echo:b", json!({}));
    let start = Instant::now();
    let sent: Vec<String> = (0..40).map(|_| client.push("echo:a", "echo", json!({}))).collect();
    let answers = client.recv_many(40);
    let passed = |it: &&Msg| it.payload["status"] == json!("ok");
    let count = answers.iter().filter(passed).count() as u64;
    let back = start.elapsed().as_millis() as u64 * 4 / 1_000 + 1;
    assert!((12..=12 + back).contains(&count), "{count} of 40");
    assert!(answers.iter().take(12).all(|it| passed(&it)));
    // Another topic has its own.
    client.echo("echo:b");
    let wait = limited(&answers[39], &sent[39], "echo:a", "messages");
    assert!(wait <= Duration::from_millis(250), "{wait:?}");
    sleep(wait + Duration::from_millis(20));
    let since = Instant::now();
    client.echo("echo:a");
    // A user that leaves and comes again has what was left, not another burst.
    client.ask("echo:a", "phx_leave", json!({}), "ok", json!({}));
    assert_eq!(client.recv().event, "phx_close");
    client.join("echo:a", json!({}));
    (0..12).for_each(|_| _ = client.push("echo:a", "echo", json!({})));
    let count = client.recv_many(12).iter().filter(passed).count() as u64;
    assert!(count <= 1 + since.elapsed().as_millis() as u64 * 4 / 1_000, "{count} of 12");
}

/// Row 120. A flood that is dropped costs its neighbours nothing.
#[test]
fn row_120_flood_does_not_delay_other_clients() {
    let server = serve("[limits]\nmessages = { rate = \"50/s\", policy = \"drop\" }", "");
    let mut neighbour = Client::open(&server, Vsn::V2);
    neighbour.join("echo:room", json!({}));
    let mut flood = Client::open(&server, Vsn::V2);
    flood.join("echo:room", json!({}));
    let start = Instant::now();
    let mut told = 0;
    for round in 0..20 {
        for _ in 0..500 {
            flood.push("echo:room", "tell", json!({"flood": true}));
        }
        neighbour.push("echo:room", "echo", json!(round));
        while neighbour.recv().event != "phx_reply" {
            told += 1;
        }
        sleep(Duration::from_millis(25));
    }
    let most = 50 + start.elapsed().as_millis() as u64 * 50 / 1_000 + 1;
    assert!(told <= most, "told {told} times, at most {most}");
    eventually("10,000 were counted", || metric(&server, "messages") >= 10_000 - most);
    flood.heartbeat_except("tell");
}

/// Row 121. Limits hold for a long-poll session, which ends where a socket would be closed.
#[test]
fn row_121_limits_apply_to_long_poll_sessions() {
    let server = serve("", "limits = { messages = \"2/10s\" }");
    let mut poller = Poller::open(server.addr(), "/socket", "", Vsn::V2);
    poller.join("echo:a", json!({}));
    for n in 2..5 {
        let msg_ref = n.to_string();
        let frame = poller.frame("1", &msg_ref, "echo:a", "echo", json!({}));
        assert_eq!(poller.post(&frame), 200);
        let answer = poller.recv();
        match n {
            4 => drop(limited(&answer, "4", "echo:a", "messages")),
            _ => answer.expect_reply("1", &*msg_ref, "echo:a", "ok", json!({})),
        }
    }
    let server = serve("", "limits = { messages = { rate = \"1/h\", policy = \"close\" } }");
    let mut poller = Poller::open(server.addr(), "/socket", "", Vsn::V2);
    poller.join("echo:a", json!({}));
    let echo = poller.frame("1", "2", "echo:a", "echo", json!({}));
    assert_eq!(poller.post(&echo), 200);
    // What closes it may be answered as handled, or find it gone.
    assert!(matches!(poller.post(&echo), 200 | 410));
    assert_eq!(poller.post(&echo), 410);
    assert_eq!(metric(&server, "messages"), 1);
}

/// Connects from an address of its own.
fn from(source: &str, server: &Server) -> TcpStream {
    let fd = socket(AddressFamily::INET, SocketType::STREAM, None).expect("a socket");
    let source: SocketAddr = format!("{source}:0").parse().unwrap();
    bind(&fd, &source).expect("an address of loopback");
    connect(&fd, &server.addr()).expect("it listens");
    TcpStream::from(fd)
}

/// The status and body of an upgrade.
fn upgrade(stream: TcpStream, head: &Head) -> (Raw, u16, String) {
    let mut raw = Raw::over(stream);
    let response = raw.request(head);
    let (status, body) = (response.status, response.text().to_owned());
    (raw, status, body)
}

const REFUSED: &str = "this address has too many connections\n";

/// Row 122. More connections of one address than it may have: 429, until one has gone.
#[test]
fn row_122_connections_per_address_are_limited() {
    let server = serve("max_connections_per_address = 2", "");
    let head = Head::upgrade(PATH);
    let try_one = |source| upgrade(from(source, &server), &head);
    let (one, two) = (try_one("127.0.0.2"), try_one("127.0.0.2"));
    assert_eq!((one.1, two.1), (101, 101));
    for _ in 0..3 {
        let (_, status, body) = try_one("127.0.0.2");
        assert_eq!((status, &*body), (429, REFUSED));
    }
    let other = try_one("127.0.0.3");
    assert_eq!(other.1, 101);
    assert_eq!(metric(&server, "address_connections"), 3);
    // Pages are not sockets.
    assert_eq!(upgrade(from("127.0.0.2", &server), &Head::new("GET", "/healthz")).1, 200);
    one.0.reset();
    eventually("its place is free", || try_one("127.0.0.2").1 == 101);
}

/// Row 123. Behind a trusted proxy the address is the one that it names; others are not believed.
#[test]
fn row_123_client_address_is_taken_from_trusted_proxies() {
    let proxy = "max_connections_per_address = 1\ntrusted_proxies = [\"127.0.0.9\"]";
    let server = serve(proxy, "");
    let of = |source, client: &str| {
        upgrade(from(source, &server), &Head::upgrade(PATH).set("x-forwarded-for", client))
    };
    let (ann, bob) = (of("127.0.0.9", "192.0.2.1"), of("127.0.0.9", "192.0.2.2"));
    assert_eq!((ann.1, bob.1), (101, 101));
    assert_eq!(of("127.0.0.9", "192.0.2.1").1, 429);
    let (six, neighbour) = (of("127.0.0.9", "2001:db8::1"), of("127.0.0.9", "2001:db8::2"));
    assert_eq!((six.1, neighbour.1), (101, 429), "one household");
    let stranger = of("127.0.0.8", "192.0.2.3");
    assert_eq!((stranger.1, of("127.0.0.8", "192.0.2.4").1), (101, 429));
}

/// Row 124. Long-poll sessions count as connections of their address.
#[test]
fn row_124_long_poll_sessions_count_as_connections() {
    let server = serve("max_connections_per_address = 2", "");
    let _poller = Poller::open(server.addr(), "/socket", "", Vsn::V2);
    let client = Client::open(&server, Vsn::V2);
    let target = "/socket/longpoll?vsn=2.0.0";
    let status = || {
        let response = Raw::connect(server.addr()).request(&Head::new("GET", target));
        serde_json::from_slice::<Value>(&response.body).expect("JSON")["status"].as_u64()
    };
    assert_eq!(status(), Some(500), "after which the official client tries again");
    assert_eq!(upgrade(TcpStream::connect(server.addr()).unwrap(), &Head::upgrade(PATH)).1, 429);
    drop(client);
    eventually("a place is free", || status() == Some(410));
}

/// Row 125. More connections of one user than it may have: 429, until one has gone.
#[test]
fn row_125_connections_per_user_are_limited() {
    let server = Server::conformance().args("--max-connections-per-user 2 --shards 2").start();
    let of = |user: &str| {
        let path = format!("{PATH}&user_id={user}");
        upgrade(TcpStream::connect(server.addr()).unwrap(), &Head::upgrade(&path))
    };
    let (one, two) = (of("7"), of("7"));
    assert_eq!((one.1, two.1), (101, 101));
    let (_, status, body) = of("7");
    assert_eq!((status, &*body), (429, "this user has too many connections\n"));
    assert_eq!(metric(&server, "user_connections"), 1);
    let other = of("8");
    assert_eq!(other.1, 101);
    // A socket without an id is not counted.
    let strangers = [(); 4].map(|()| Client::open(&server, Vsn::V2));
    drop(one);
    eventually("its place is free", || of("7").1 == 101);
    drop((strangers, two));
}

/// Row 137. Presence calls that a channel makes for a client have a limit apart.
#[test]
fn row_137_presence_changes_have_their_own_limit() {
    let home = tempfile::tempdir().unwrap();
    let file = home.path().join("limits.toml");
    let text = "[limits]\npresence_calls = \"2/10s\"\n[[channel]]\nkind = \"supabase\"\n";
    std::fs::write(&file, text).unwrap();
    let server = Server::serve().args(&format!("--config {}", file.display())).start();
    both(|vsn| {
        let before = metric(&server, "presence_calls");
        let mut client = Client::open(&server, vsn);
        let topic = "realtime:limited";
        let config = json!({"config": {"presence": {"key": format!("{vsn:?}")}}});
        let joined = client.push(topic, "phx_join", config);
        assert_eq!(client.recv().msg_ref, json!(joined));
        let track = |n: u32| json!({"event": "track", "payload": {"n": n}});
        for n in 0..2 {
            let msg_ref = client.push(topic, "presence", track(n));
            assert_eq!(client.recv_except("presence_diff").msg_ref, json!(msg_ref));
        }
        let msg_ref = client.push(topic, "presence", track(2));
        limited(&client.recv_except("presence_diff"), &msg_ref, topic, "presence_calls");
        // To end one is everybody's at any time.
        let msg_ref = client.push(topic, "presence", json!({"event": "untrack"}));
        let answer = client.recv_except("presence_diff");
        assert_eq!((&answer.msg_ref, &answer.payload["status"]), (&json!(msg_ref), &json!("ok")));
        assert_eq!(metric(&server, "presence_calls") - before, 1);
    });
}
