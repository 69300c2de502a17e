//! A client that fills a queue is the one that waits; only trusted proxies are believed.

use std::time::Duration;

use crate::support::raw::{self, Raw};
use crate::support::{Client, handled, metric, metrics_at, serving, start};
use serde_json::json;
use simurgh::{Connect, Endpoint, Outcome, Payload, ShardContext, UserSocket};

fn room(ctx: &mut ShardContext<'_>, event: &str, payload: Payload<'_>) -> Outcome {
    match event {
        "all" => ctx.broadcast("news", &payload),
        "who" => return Outcome::ok(json!({"peer": ctx.assigns::<String>()})),
        _ => {}
    }
    Outcome::NoReply
}

fn small_mailboxes() -> Endpoint {
    start(serving(handled("rooms:*", room)).configure(|config| {
        config.shards = 2;
        config.mailbox_bytes_max = 64 << 10;
    }))
}

#[test]
fn publisher_above_the_limit_is_paused_without_loss() {
    const MEMBERS: usize = 20;
    const MESSAGES: usize = 400;
    let endpoint = small_mailboxes();
    let mut members: Vec<Client> = (0..MEMBERS).map(|_| Client::v2(&endpoint)).collect();
    for member in &mut members {
        member.join("rooms:a");
    }
    let mut publisher = Client::v2(&endpoint);
    publisher.join("rooms:a");
    let body = "x".repeat(4000);
    let reader = std::thread::spawn(move || {
        for (at, member) in members.iter_mut().enumerate() {
            for n in 0..MESSAGES {
                assert_eq!(member.recv()[4]["n"], n, "member {at}");
            }
        }
    });
    for n in 0..MESSAGES {
        publisher.push("2", "rooms:a", "all", json!({"n": n, "body": body}));
    }
    for n in 0..MESSAGES {
        assert_eq!(publisher.recv()[4]["n"], n, "the publisher itself");
    }
    reader.join().unwrap();
    assert!(metric(&endpoint, "simurgh_publishers_held_total") > 0, "it was never held back");
    assert_eq!(metric(&endpoint, "simurgh_fanout_bytes"), 0);
}

#[test]
fn other_threads_get_an_error_when_too_much_is_in_flight() {
    let endpoint = small_mailboxes();
    let mut members: Vec<Client> = (0..50).map(|_| Client::v2(&endpoint)).collect();
    for member in &mut members {
        member.join("rooms:a");
    }
    let body = "x".repeat(1000);
    let refused = (0..100_000)
        .find(|n| endpoint.broadcast("rooms:a", "news", json!({"n": n, "body": body})).is_err());
    let taken = refused.expect("it takes some, then refuses");
    assert!(taken > 0);
    for member in &mut members {
        for n in 0..taken {
            assert_eq!(member.recv()[4]["n"], n);
        }
        member.heartbeat();
    }
    endpoint.broadcast("rooms:a", "news", json!({})).unwrap();
}

fn who(endpoint: &Endpoint, before_upgrade: &[u8], header: &str) -> String {
    who_behind(Raw::connect(endpoint.addresses()[0]).send(before_upgrade), header)
}

fn who_behind(raw: &mut Raw, header: &str) -> String {
    let request = format!(
        "GET /socket/websocket?vsn=2.0.0 HTTP/1.1\r\nhost: x\r\nupgrade: websocket\r\n\
         connection: upgrade\r\nsec-websocket-version: 13\r\n\
         sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n{header}\r\n"
    );
    // In two parts: a PROXY header and a head may be cut anywhere.
    let (one, two) = request.split_at(20);
    raw.send(one);
    std::thread::sleep(Duration::from_millis(20));
    assert_eq!(raw.send(two).answer_to_head().status, 101);
    let role = tungstenite::protocol::Role::Client;
    let stream = raw.stream().try_clone().unwrap();
    let mut client = Client(tungstenite::WebSocket::from_raw_socket(stream, role, None));
    client.join("rooms:a");
    client.push("2", "rooms:a", "who", json!({}));
    client.recv()[4]["response"]["peer"].as_str().unwrap().to_owned()
}

fn tells_peers(trusted: &[&str], proxy_protocol: bool) -> Endpoint {
    let user_socket = UserSocket::new("/socket")
        .connect_on_shard(|info| Connect::ok().assign(info.peer().to_string()))
        .channel(handled("rooms:*", room));
    start(Endpoint::builder().socket(user_socket).configure(|config| {
        config.trusted_proxies = trusted.iter().map(|net| net.parse().unwrap()).collect();
        config.proxy_protocol = proxy_protocol;
    }))
}

#[test]
fn proxy_headers_of_both_versions_name_the_client() {
    let endpoint = tells_peers(&["127.0.0.0/8"], true);
    let v1 = b"PROXY TCP4 198.51.100.7 203.0.113.1 5000 80\r\n";
    assert_eq!(who(&endpoint, v1, ""), "198.51.100.7:5000");
    let mut v2 = b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c".to_vec();
    v2.extend_from_slice(&[198, 51, 100, 8, 203, 0, 113, 1, 0x13, 0x88, 0, 80]);
    assert_eq!(who(&endpoint, &v2, ""), "198.51.100.8:5000");
    // An upgrade as a later request of the same connection.
    let page = [&v1[..], b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n"].concat();
    let mut raw = Raw::connect(endpoint.addresses()[0]);
    assert_eq!(raw.send(&page).answer().text(), "ok\n");
    assert_eq!(who_behind(&mut raw, ""), "198.51.100.7:5000");
    let unknown = b"PROXY UNKNOWN\r\n";
    assert!(who(&endpoint, unknown, "").starts_with("127.0.0.1:"));
}

#[test]
fn slow_reader_that_still_sends_gets_1013() {
    let endpoint = start(serving(handled("rooms:*", room)).configure(|config| {
        config.shards = 1;
        config.outbound_bytes_max = 256 << 10;
    }));
    let mut slow = Client::v2(&endpoint);
    slow.join("rooms:a");
    // The rest of an open frame is kept up to 64 KiB: a longer one ends in a reset.
    let body = "x".repeat(50_000);
    for n in 0..4_000 {
        while endpoint.broadcast("rooms:a", "news", json!({"n": n, "body": body})).is_err() {
            std::thread::sleep(Duration::from_millis(1));
        }
        slow.push("2", "rooms:a", "ignored", json!({"n": n}));
        if n % 20 == 0 && metric(&endpoint, "simurgh_slow_peer_disconnects_total") == 1 {
            break;
        }
    }
    assert_eq!(metric(&endpoint, "simurgh_slow_peer_disconnects_total"), 1);
    for n in 0..50 {
        slow.push("2", "rooms:a", "ignored", json!({"n": n}));
    }
    assert_eq!(slow.recv_close(), 1013);
    Client::v2(&endpoint).heartbeat();
}

#[test]
fn metrics_move_to_the_admin_address_if_configured() {
    let endpoint = start(Endpoint::builder().configure(|config| {
        config.admin_listen = Some("127.0.0.1:0".parse().unwrap());
    }));
    assert_eq!(raw::ask(endpoint.addresses()[0], "GET /metrics", "", "").status, 404);
    let admin = metrics_at(endpoint.admin_address().unwrap());
    assert!(admin.contains("simurgh_joins_total"), "{admin}");
    let taken = endpoint.admin_address();
    let error = Endpoint::builder()
        .listen("127.0.0.1:0")
        .configure(|config| config.admin_listen = taken)
        .start()
        .unwrap_err();
    assert!(error.to_string().contains(&taken.unwrap().to_string()), "{error}");
}
