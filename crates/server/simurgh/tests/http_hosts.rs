//! A server on loopback was open to other sites: their pages could connect to its sockets, and
//! `/metrics` answered for any host name. Any name can resolve to 127.0.0.1, and a proxy on this
//! machine forwards requests from anywhere.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::disallowed_types)]

mod support;

use serde_json::Value;
use simurgh::axum::Router;
use simurgh::axum::routing::get;
use simurgh::{Builder, CheckOrigin, Config, Endpoint, UserSocket};
use support::raw::{Answer, Raw};
use support::start;

const BROADCAST: &str = "{\"topic\":\"a\",\"event\":\"b\",\"payload\":{}}";
const OWN: [(&str, u16); 3] = [("/metrics", 200), ("/observer/", 200), ("/api/broadcast", 202)];

fn builder(change: impl FnOnce(&mut Config)) -> Builder {
    let user_socket = UserSocket::new("/socket").channel("room:*", support::no_channel);
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
    let mut raw = Raw::connect(endpoint.addresses()[0]);
    raw.send(format!(
        "{method} {path} HTTP/1.1\r\nhost: {host}\r\nauthorization: Bearer s3cret\r\n\
         content-length: {}\r\n\r\n{body}",
        body.len()
    ));
    raw.answer()
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
fn on_loopback_the_servers_own_paths_answer_for_this_machine_alone() {
    let server = start(builder(|_| {}));
    for (path, status) in OWN {
        for host in ["127.0.0.1:4000", "localhost", "[::1]:4000"] {
            assert_eq!(ask(&server, path, host).status, status, "{path} of {host}");
        }
        for host in ["rebound.example:4000", "chat.example", "127.0.0.1.evil.example"] {
            let answer = ask(&server, path, host);
            assert_eq!(answer.status, 421, "{path} of {host}");
            let said: Value = serde_json::from_slice(&answer.body).unwrap();
            let said = said["error"].as_str().unwrap();
            assert!(said.contains("trusted_hosts"), "what would help is not said: {said}");
        }
    }
    for path in ["/", "/healthz"] {
        assert_eq!(ask(&server, path, "chat.example").status, 200, "{path} is everybody's");
    }
}

#[test]
fn a_host_that_is_listed_is_answered_for() {
    let server = start(builder(|config| {
        config.trusted_hosts = vec!["chat.example".into()];
        config.observer = true;
    }));
    for (path, status) in OWN {
        assert_eq!(ask(&server, path, "Chat.example:80").status, status, "{path}");
        assert_eq!(ask(&server, path, "other.example").status, 421, "{path}");
    }
}

#[test]
fn on_loopback_pages_of_this_machine_and_of_the_host_itself_may_connect() {
    let server = start(builder(|_| {}));
    let host = "127.0.0.1:4000";
    for origin in ["http://localhost:5173", "https://127.0.0.1", "http://[::1]:1"] {
        assert_eq!(connect(&server, host, origin), 101, "{origin}");
    }
    for origin in ["http://evil.example", "https://localhost.evil.example", "null", "file://"] {
        assert_eq!(connect(&server, host, origin), 403, "{origin}");
    }
    // A proxy on this machine forwards the browser's host, and terminates TLS.
    assert_eq!(connect(&server, "chat.example", "https://chat.example"), 101);
    assert_eq!(connect(&server, "chat.example", "https://evil.example"), 403);
    // Tsung sends no scheme; browsers always do.
    assert_eq!(connect(&server, "127.0.0.1", "127.0.0.1"), 101);
    assert_eq!(connect(&server, "127.0.0.1", "evil.example"), 403);
}

#[test]
fn the_check_can_be_switched_off() {
    let server = start(builder(|config| config.check_origin = Some(CheckOrigin::Off)));
    for origin in ["http://evil.example", "null", "evil.example", ""] {
        assert_eq!(connect(&server, "127.0.0.1", origin), 101, "{origin}");
    }
}
