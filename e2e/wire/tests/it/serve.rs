//! `simurgh serve`: the chat it serves without a configuration, the traffic of the 2015 Phoenix
//! benchmark, Origin check, the publish API, health and metrics, and the way it stops.

use std::net::TcpStream;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use wire_tests::{Client, Head, Raw, Response, Server, Vsn, WAIT, opcode};

const LOBBY: &str = "rooms:lobby";

/// The join Tsung sends, word for word, the newline included.
const SEED_JOIN: &str = "{\"topic\":\"rooms:lobby\", \"event\":\"phx_join\", \"payload\":\n\
                         {\"user\":\"1\"}, \"ref\":\"1\"}";

/// The next message with this event; others are skipped.
#[track_caller]
fn next_of(client: &mut Client, event: &str) -> wire_tests::Msg {
    loop {
        let message = client.recv();
        if message.event == event {
            return message;
        }
    }
}

/// The status an upgrade with this Origin gets; Host is what was connected to.
#[track_caller]
fn origin(server: &Server, origin: &str) -> u16 {
    let head = Head::upgrade("/socket/websocket?vsn=2.0.0")
        .set("host", &server.addr().to_string())
        .set("origin", origin);
    Raw::connect(server.addr()).request(&head).status
}

/// Posts a body to the publish API, with this Authorization header if any.
#[track_caller]
fn publish(server: &Server, authorization: Option<&str>, body: &Value) -> Response {
    let mut head = Head::new("POST", "/api/broadcast").set("content-type", "application/json");
    if let Some(value) = authorization {
        head = head.set("authorization", value);
    }
    server.http(&head.set("connection", "close"), &body.to_string())
}

/// Tsung's traffic: a join in a binary frame, no vsn, Host without port, Origin without scheme, no
/// heartbeat. Without the time-out it stays, with it it is closed.
#[test]
fn tsung_client_stays_connected_without_idle_timeout() {
    let forever = Server::serve().args("--idle-timeout off").start();
    let limited = Server::serve().args("--idle-timeout 3s").start();
    let headers = [("host", "server_ip_address"), ("origin", "127.0.0.1")];
    let start = Instant::now();
    let mut clients = [&forever, &limited].map(|server| {
        let mut client = Client::connect_with(server, "/socket/websocket", &headers);
        client.send_binary(SEED_JOIN.as_bytes());
        client.recv().expect_reply((), "1", LOBBY, "ok", json!({}));
        client
    });
    assert_eq!(clients[1].skip_to_close(), 1002);
    assert!(start.elapsed() >= Duration::from_millis(2_900), "closed after {:?}", start.elapsed());
    thread::sleep(Duration::from_secs(2));
    clients[0].send((), "2", LOBBY, "new:msg", json!({"user": "1", "body": "still here"}));
    next_of(&mut clients[0], "new:msg");
    assert_eq!(clients[0].recv().replied().response, json!({"msg": "still here"}));

    // Tsung does this after its socket was closed.
    let mut raw = Raw::connect(limited.addr());
    raw.send_frame(&wire_tests::frame(opcode::BINARY, SEED_JOIN));
    assert_eq!(raw.answer().status, 400);
    raw.expect_end();
}

/// Listening on loopback alone any Origin may connect; else only one that names the host connected
/// to.
#[test]
fn origin_check_depends_on_the_address() {
    let loopback = Server::serve().start();
    let own_host = "http://127.0.0.1:1";
    for own in ["http://localhost:3000", "https://[::1]", own_host, "127.0.0.1"] {
        assert_eq!(origin(&loopback, own), 101, "Origin {own} on loopback");
    }
    for foreign in ["http://evil.com", "null", "http://127.0.0.1.evil.com"] {
        assert_eq!(origin(&loopback, foreign), 403, "Origin {foreign} on loopback");
    }
    let public = Server::serve().listen(&["0.0.0.0:0"]).start();
    let port = public.addr().port();
    assert_eq!(origin(&public, &format!("http://127.0.0.1:{port}")), 101);
    for foreign in [
        "http://evil.com".to_owned(),
        format!("http://evil.com:{port}"),
        format!("http://127.0.0.1:{}", port ^ 1),
        "http://127.0.0.1".to_owned(),
        "null".to_owned(),
    ] {
        assert_eq!(origin(&public, &foreign), 403, "Origin {foreign} on a public address");
    }
    let head = Head::upgrade("/socket/websocket");
    assert_eq!(Raw::connect(public.addr()).request(&head).status, 101, "no Origin at all");
    // Metrics are for loopback, or for admin_listen.
    assert_eq!(loopback.get("/metrics").status, 200);
    assert_eq!(public.get("/metrics").status, 404);
}

/// `--check-origin` says it outright, whatever the address.
#[test]
fn origin_check_is_configurable() {
    let conn = Server::serve().args("--check-origin conn").start();
    assert_eq!(origin(&conn, &format!("http://{}", conn.addr())), 101);
    assert_eq!(origin(&conn, "http://evil.com"), 403);
    let off = Server::serve().listen(&["0.0.0.0:0"]).args("--check-origin off").start();
    assert_eq!(origin(&off, "http://evil.com"), 101);
    assert_eq!(origin(&off, "null"), 101);
    let list = Server::serve().args("--check-origin //example.com").start();
    assert_eq!(origin(&list, "https://example.com:99"), 101);
    assert_eq!(origin(&list, "http://x-example.com"), 403);
    assert_eq!(origin(&list, "http://127.0.0.1"), 403);
}

/// The publish API delivers one or many messages to members of both serializers, for bearers of the
/// token.
#[test]
fn publish_api_delivers_to_members() {
    let server = Server::serve().args("--api-token s3cret").start();
    let bearer = Some("Bearer s3cret");
    let mut members = [Vsn::V1, Vsn::V2].map(|vsn| {
        let mut client = Client::open(&server, vsn);
        client.join("rooms:a", json!({"user": "a"}));
        client.join_among("rooms:b", json!({"user": "b"}));
        client
    });
    let one = json!({"topic": "rooms:a", "event": "news", "payload": {"n": 1, "s": "ü"}});
    let answer = publish(&server, bearer, &one);
    assert!(matches!(answer.status, 200 | 202), "{answer:?}");
    for client in &mut members {
        let news = next_of(client, "news");
        news.expect_broadcast("rooms:a", "news", json!({"n": 1, "s": "ü"}));
        if client.vsn() == Vsn::V2 {
            assert_eq!(news.raw, r#"[null,null,"rooms:a","news",{"n":1,"s":"ü"}]"#);
        }
    }
    let message = |topic: &str, n| json!({"topic": topic, "event": "news", "payload": {"n": n}});
    let many = [message("rooms:b", 2), message("rooms:a", 3), message("rooms:none", 4)];
    let answer = publish(&server, bearer, &json!({"messages": many}));
    assert!(matches!(answer.status, 200 | 202), "{answer:?}");
    for client in &mut members {
        let mut got = [next_of(client, "news"), next_of(client, "news")];
        got.sort_by_key(|news| news.payload["n"].as_u64());
        got[0].expect_broadcast("rooms:b", "news", json!({"n": 2}));
        got[1].expect_broadcast("rooms:a", "news", json!({"n": 3}));
        client.expect_quiet();
    }
}

/// Without the right token, or with a body that is none, nothing is published.
#[test]
fn publish_api_refuses_invalid_requests() {
    let server = Server::serve().args("--api-token s3cret").start();
    let mut member = Client::open(&server, Vsn::V2);
    member.join(LOBBY, json!({"user": "a"}));
    // The newcomer's own announcement, and a welcome if there is one.
    while member.next(Duration::from_millis(200)).is_some() {}
    let one = json!({"topic": LOBBY, "event": "news", "payload": {}});
    for wrong in [
        None,
        Some("Bearer wrong"),
        Some("Bearer s3cre"),
        Some("Bearer s3cret2"),
        Some("Bearer "),
        Some("s3cret"),
        Some("Basic s3cret"),
    ] {
        assert_eq!(publish(&server, wrong, &one).status, 401, "Authorization {wrong:?}");
    }
    let bearer = Some("Bearer s3cret");
    for wrong in [
        json!({}),
        json!([]),
        json!({"topic": LOBBY, "event": "news"}),
        json!({"topic": 5, "event": "news", "payload": {}}),
        // One bad message spoils the batch: it is checked whole before anything is sent.
        json!({"messages": [one, {"topic": LOBBY}]}),
        json!({"messages": 1}),
        // What the room's members may not send either.
        json!({"topic": LOBBY, "event": "new:msg", "payload": null}),
        json!({"topic": LOBBY, "event": "new:msg", "payload": [1]}),
        json!({"messages": [one, {"topic": LOBBY, "event": "new:msg", "payload": 7}]}),
    ] {
        let status = publish(&server, bearer, &wrong).status;
        assert!(matches!(status, 400 | 422), "body {wrong}: {status}");
    }
    let get = Head::new("GET", "/api/broadcast").set("connection", "close");
    let get = get.set("authorization", "Bearer s3cret");
    assert_eq!(server.http(&get, "").status, 405);
    member.expect_quiet();

    let without = Server::serve().start();
    assert_eq!(publish(&without, bearer, &one).status, 404, "no token is configured");
    assert_eq!(publish(&without, Some("Bearer "), &one).status, 404, "no token is configured");
}

/// Several addresses, IPv4 and IPv6, one line of output each, one room for all.
#[test]
fn server_listens_on_several_addresses() {
    let mut addresses = vec!["127.0.0.1:0", "127.0.0.2:0"];
    if std::net::TcpListener::bind("[::1]:0").is_ok() {
        addresses.push("[::1]:0");
    }
    let server = Server::serve().listen(&addresses).start();
    let mut clients: Vec<_> = server
        .addrs()
        .iter()
        .map(|addr| {
            let mut client = Client::connect_to(*addr, &Vsn::V2.path(), &[]);
            client.join(LOBBY, json!({"user": "a"}));
            client
        })
        .collect();
    assert_eq!(clients.len(), addresses.len());
    clients[0].push(LOBBY, "new:msg", json!({"user": "a", "body": "b"}));
    for client in &mut clients {
        next_of(client, "new:msg");
    }
}

/// SIGTERM: no new connections, all clients closed 1012 spread over the drain time, exit status 0.
#[test]
fn sigterm_starts_a_drain() {
    let server = Server::serve().args("--drain-time 4s").start();
    let clients: Vec<_> = (0..20)
        .map(|n| {
            let mut client = Client::open(&server, if n % 2 == 0 { Vsn::V1 } else { Vsn::V2 });
            client.join(LOBBY, json!({"user": n}));
            client
        })
        .collect();
    let start = Instant::now();
    server.terminate();
    let waiting: Vec<_> = clients
        .into_iter()
        .map(|mut client| thread::spawn(move || (client.skip_to_close(), start.elapsed())))
        .collect();
    thread::sleep(Duration::from_millis(200));
    assert!(server.is_running(), "it waits for its clients");
    assert!(!upgrades(&server), "a new client was accepted while draining");
    let closed: Vec<_> = waiting.into_iter().map(|w| w.join().expect("a client")).collect();
    assert!(closed.iter().all(|(code, _)| *code == 1012), "{closed:?}");
    let times = || closed.iter().map(|(_, time)| *time);
    let (first, last) = (times().min().unwrap(), times().max().unwrap());
    assert!(last - first >= Duration::from_millis(400), "all at once: {first:?} to {last:?}");
    assert!(last < Duration::from_secs(20), "the last after {last:?}");
    let status = server.wait_exit(Duration::from_secs(20));
    assert_eq!(status.code(), Some(0), "{status}");
}

/// Whether a new client gets in.
fn upgrades(server: &Server) -> bool {
    use std::io::{Read, Write};
    let Ok(mut stream) = TcpStream::connect_timeout(&server.addr(), WAIT) else { return false };
    stream.set_read_timeout(Some(WAIT)).expect("a read time limit");
    let head = Head::upgrade(&Vsn::V2.path()).text();
    let mut answer = [0; 12];
    let got = stream.write_all(head.as_bytes()).and_then(|()| stream.read_exact(&mut answer));
    got.is_ok() && answer == *b"HTTP/1.1 101"
}
