//! A server on loopback was open to other sites: their pages could connect to its sockets, and
//! `/metrics` answered for any host name. Any name can resolve to 127.0.0.1, and a proxy on this
//! machine forwards requests from anywhere.

use crate::support::raw::{self, Answer, Raw};
use crate::support::start;
use simurgh::axum::Router;
use simurgh::axum::routing::get;
use simurgh::{Builder, ChannelRoute, Config, Endpoint, LongPoll, UserSocket};

const BROADCAST: &str = "{\"topic\":\"a\",\"event\":\"b\",\"payload\":{},\"allow_unserved\":true}";
const OWN: [(&str, u16); 3] = [("/metrics", 200), ("/observer/", 200), ("/api/broadcast", 202)];

fn builder(change: impl FnOnce(&mut Config)) -> Builder {
    let user_socket = UserSocket::new("/socket")
        .channel(ChannelRoute::on_shard("room:*", crate::support::no_channel))
        .longpoll(LongPoll::new());
    let page = Router::new().route("/", get(|| async { "page\n" }));
    Endpoint::builder().socket(user_socket).http(page).configure(|config| {
        config.api_token = Some("s3cret".into());
        change(config);
    })
}

fn ask(endpoint: &Endpoint, path: &str, host: &str) -> Answer {
    let (method, body) = match path {
        "/api/broadcast" => ("POST", BROADCAST),
        _ => ("GET", ""),
    };
    let headers = format!("host: {host}\r\nauthorization: Bearer s3cret\r\n");
    raw::ask(endpoint.addresses()[0], &format!("{method} {path}"), &headers, body)
}

fn connect(endpoint: &Endpoint, host: &str, origin: &str) -> u16 {
    let mut raw = Raw::connect(endpoint.addresses()[0]);
    raw.send(format!(
        "GET /socket/websocket?vsn=2.0.0 HTTP/1.1\r\nhost: {host}\r\norigin: {origin}\r\n\
         upgrade: websocket\r\nconnection: upgrade\r\nsec-websocket-version: 13\r\n\
         sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    ));
    raw.answer_to_head().status
}

#[test]
fn own_paths_on_loopback_need_a_loopback_host() {
    let server = start(builder(|_| {}));
    for (path, status) in OWN {
        for host in ["127.0.0.1:4000", "localhost", "[::1]:4000"] {
            assert_eq!(ask(&server, path, host).status, status, "{path} of {host}");
        }
        for host in ["rebound.example:4000", "chat.example", "127.0.0.1.evil.example"] {
            let answer = ask(&server, path, host);
            assert_eq!(answer.status, 421, "{path} of {host}");
            let said = answer.json();
            let said = said["error"].as_str().unwrap();
            assert!(said.contains("trusted_hosts"), "what would help is not said: {said}");
        }
    }
    for path in ["/", "/healthz"] {
        assert_eq!(ask(&server, path, "chat.example").status, 200, "{path} is everybody's");
    }
}

#[test]
fn trusted_host_is_accepted() {
    let server = start(builder(|config| {
        config.trusted_hosts = vec!["chat.example".into()];
        config.observer = true;
    }));
    for (path, status) in OWN {
        assert_eq!(ask(&server, path, "Chat.example:80").status, status, "{path}");
        assert_eq!(ask(&server, path, "other.example").status, 421, "{path}");
    }
}

/// The status of a new session, as an answer's body has it.
fn poll(endpoint: &Endpoint, host: &str, headers: &str) -> u64 {
    let mut raw = Raw::connect(endpoint.addresses()[0]);
    raw.send(format!("GET /socket/longpoll?vsn=2.0.0 HTTP/1.1\r\nhost: {host}\r\n{headers}\r\n"));
    raw.answer().json()["status"].as_u64().unwrap()
}

#[test]
fn long_polls_on_loopback_need_a_local_page() {
    let server = start(builder(|_| {}));
    for host in ["127.0.0.1:4000", "localhost", "app.localhost:4000", "[::1]:4000"] {
        assert_eq!(poll(&server, host, ""), 410, "{host}");
        assert_eq!(poll(&server, host, "origin: http://localhost:5173\r\n"), 410, "{host}");
    }
    let rebound = "origin: http://rebound.example\r\n";
    for headers in [rebound, &format!("{rebound}x-forwarded-for: 192.0.2.1\r\n")] {
        assert_eq!(poll(&server, "rebound.example", headers), 403, "{headers}");
    }
    assert_eq!(poll(&server, "rebound.example", ""), 410, "a client that is no browser");
}

#[test]
fn trusted_local_proxy_can_forward_its_host() {
    let listing = start(builder(|config| config.trusted_hosts = vec!["chat.example".into()]));
    assert_eq!(connect(&listing, "chat.example", "https://chat.example"), 101);
    assert_eq!(connect(&listing, "chat.example", "https://evil.example"), 403);
    let page = "origin: https://chat.example\r\n";
    assert_eq!(poll(&listing, "chat.example", page), 410);
    let trusting = start(builder(|config| {
        config.trusted_proxies = vec!["127.0.0.0/8".parse().unwrap()];
    }));
    let own = "https://chat.example";
    let forwarded = format!("{own}\r\nx-forwarded-for: 192.0.2.1\r\nx-forwarded-proto: https");
    assert_eq!(connect(&trusting, "chat.example", &forwarded), 101);
    assert_eq!(connect(&trusting, "chat.example", own), 403, "no proxy names a client");
    let forwarded = format!("{page}x-forwarded-for: 192.0.2.1\r\n");
    assert_eq!(poll(&trusting, "chat.example", &forwarded), 410);
    assert_eq!(poll(&trusting, "chat.example", page), 403);
    let proxied = start(builder(|config| {
        config.trusted_proxies = vec!["127.0.0.0/8".parse().unwrap()];
        config.proxy_protocol = true;
    }));
    let mut raw = Raw::connect(proxied.addresses()[0]);
    raw.send("PROXY TCP4 192.0.2.1 192.0.2.2 5000 80\r\n");
    raw.send(format!(
        "GET /socket/longpoll?vsn=2.0.0 HTTP/1.1\r\nhost: chat.example\r\n{page}\r\n"
    ));
    assert!(raw.answer().text().contains("\"status\":410"));
}

#[test]
fn options_is_answered_without_a_handler() {
    let server = start(builder(|_| {}));
    let pageless = start(Endpoint::builder());
    for (endpoint, line, status) in [
        (&server, "OPTIONS / HTTP/1.0", 204),
        (&server, "OPTIONS / HTTP/1.1\r\nhost: a", 204),
        (&server, "OPTIONS * HTTP/1.1\r\nhost: a", 204),
        (&server, "OPTIONS /healthz HTTP/1.1\r\nhost: a", 204),
        (&server, "OPTIONS /nothing HTTP/1.1\r\nhost: localhost", 404),
        (&server, "DELETE / HTTP/1.1\r\nhost: a", 405),
        (&pageless, "OPTIONS / HTTP/1.0", 204),
    ] {
        let mut raw = Raw::connect(endpoint.addresses()[0]);
        raw.send(format!("{line}\r\n\r\n"));
        let answer = raw.answer();
        assert_eq!(answer.status, status, "{line}: {answer:?}");
        assert_eq!(answer.header("allow").is_some(), matches!(status, 204 | 405), "{answer:?}");
    }
}
