//! Limits of HTTP requests and their times: one test for each.

use std::time::{Duration, Instant};

use crate::support::raw::Raw;
use crate::support::{Client, WAIT_MAX, metrics, start, until, without_channels};
use simurgh::Endpoint;
use simurgh::axum::Router;
use simurgh::axum::body::{Body, Bytes};
use simurgh::axum::extract::DefaultBodyLimit;
use simurgh::axum::routing::{get, post};
use simurgh::http::HttpConfig;

const OK: &str = "GET / HTTP/1.1\r\nhost: a\r\n\r\n";
const SHORT: Duration = Duration::from_millis(300);
/// Of a server whose client is in time, however busy the machine is.
const LONG: Duration = Duration::from_secs(3);
const LONGER: Duration = Duration::from_millis(3_500);
/// The limit for what follows it.
const SOON: Duration = Duration::from_secs(5);

fn server(change: impl FnOnce(&mut HttpConfig)) -> Endpoint {
    let large = || async { Body::from(vec![b'x'; 32 << 20]) };
    let length = |body: Bytes| async move { format!("{} bytes\n", body.len()) };
    let router = Router::new()
        .route("/", get(|| async { "ok\n" }))
        .route("/large", get(large))
        .route("/length", post(length))
        .route("/deaf", post(|| async { "did not listen\n" }))
        .layer(DefaultBodyLimit::disable());
    let builder = without_channels().http(router);
    start(builder.configure(|config| {
        change(&mut config.http);
        config.handshake_timeout = config.http.head_timeout;
    }))
}

fn connect(server: &Endpoint) -> Raw {
    Raw::connect(server.addresses()[0])
}

/// As the first request of a connection and as a later one: checks the status, and the close.
fn refuses(server: &Endpoint, request: &str, status: u16) {
    for is_first in [true, false] {
        let mut raw = connect(server);
        if !is_first {
            assert_eq!(raw.send(OK).answer().status, 200);
        }
        raw.try_send(request);
        let answers = raw.until_the_end();
        let statuses: Vec<_> = answers.iter().map(|it| it.status).collect();
        assert_eq!(statuses, [status], "first: {is_first}, {:.60}", request);
    }
}

fn takes(server: &Endpoint, request: &str) {
    for is_first in [true, false] {
        let mut raw = connect(server);
        if !is_first {
            assert_eq!(raw.send(OK).answer().status, 200);
        }
        assert_eq!(raw.send(request).answer().status, 200, "first: {is_first}, {:.60}", request);
    }
}

#[test]
fn long_head_gets_431() {
    let server = server(|http| http.head_bytes_max = 2_000);
    let head = |filler: usize| {
        let start = "GET / HTTP/1.1\r\nhost: a\r\nx: ";
        format!("{start}{}\r\n\r\n", "y".repeat(filler - start.len() - 4))
    };
    takes(&server, &head(2_000));
    refuses(&server, &head(2_001), 431);
    let endless = format!("GET / HTTP/1.1\r\n{}", "x: y\r\n".repeat(400));
    refuses(&server, &endless, 431);
}

#[test]
fn too_many_headers_get_431() {
    let server = server(|http| http.headers_max = 10);
    let head =
        |many: usize| format!("GET / HTTP/1.1\r\nhost: a\r\n{}\r\n", "x: y\r\n".repeat(many - 1));
    takes(&server, &head(10));
    refuses(&server, &head(11), 431);
}

#[test]
fn long_target_gets_414() {
    let server = server(|http| http.target_bytes_max = 100);
    let head =
        |bytes: usize| format!("GET /?{} HTTP/1.1\r\nhost: a\r\n\r\n", "x".repeat(bytes - 2));
    takes(&server, &head(100));
    refuses(&server, &head(101), 414);
    refuses(&server, &format!("GET /{}", "x".repeat(20_000)), 414);
}

#[test]
fn long_body_gets_413_before_it_is_sent() {
    let server = server(|http| http.body_bytes_max = 1_000);
    let head =
        |bytes| format!("POST /length HTTP/1.1\r\nhost: a\r\ncontent-length: {bytes}\r\n\r\n");
    takes(&server, &(head(1_000) + &"x".repeat(1_000)));
    refuses(&server, &head(1_001), 413);
    let expecting = head(1_001).replace("\r\n\r\n", "\r\nexpect: 100-continue\r\n\r\n");
    refuses(&server, &expecting, 413);
}

#[test]
fn long_chunked_body_gets_413() {
    let server = server(|http| http.body_bytes_max = 1_000);
    let head = "POST /length HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n";
    let chunk = format!("64\r\n{}\r\n", "x".repeat(100));
    takes(&server, &format!("{head}{}0\r\n\r\n", chunk.repeat(10)));
    refuses(&server, &format!("{head}{}1\r\nx\r\n0\r\n\r\n", chunk.repeat(10)), 413);
}

#[test]
fn slow_head_gets_408() {
    let server = server(|http| http.head_timeout = SHORT);
    for before in ["", OK] {
        let mut raw = connect(&server);
        if !before.is_empty() {
            assert_eq!(raw.send(before).answer().status, 200);
        }
        let began = Instant::now();
        // A byte now and then does not extend the time.
        for byte in b"GET / HTTP/1.1\r\nhost: a\r\nx: yyyyyyyyyyyyyyyyyyyyyyyy".chunks(8) {
            raw.try_send(byte);
            std::thread::sleep(SHORT / 5);
        }
        let statuses: Vec<_> = raw.until_the_end().iter().map(|it| it.status).collect();
        assert_eq!(statuses, [408]);
        assert!(began.elapsed() >= SHORT && began.elapsed() < SOON, "{:?}", began.elapsed());
    }
}

#[test]
fn stalled_body_gets_408() {
    let server = server(|http| http.body_timeout = SHORT);
    for (head, before) in [
        ("content-length: 10\r\n\r\nhello", ""),
        ("content-length: 10\r\n\r\nhello", OK),
        ("transfer-encoding: chunked\r\n\r\n5\r\nhel", ""),
        ("transfer-encoding: chunked\r\n\r\n5\r\nhel", OK),
    ] {
        let mut raw = connect(&server);
        if !before.is_empty() {
            assert_eq!(raw.send(before).answer().status, 200);
        }
        let began = Instant::now();
        raw.send(format!("POST /length HTTP/1.1\r\nhost: a\r\n{head}"));
        let statuses: Vec<_> = raw.until_the_end().iter().map(|it| it.status).collect();
        assert_eq!(statuses, [408], "{head:?}");
        assert!(began.elapsed() >= SHORT && began.elapsed() < SOON, "{:?}", began.elapsed());
    }
}

#[test]
fn body_below_the_minimum_rate_gets_408() {
    let server = server(|http| {
        http.body_timeout = LONG;
        http.body_rate_min = 100;
    });
    let head = "POST /length HTTP/1.1\r\nhost: a\r\ncontent-length: 1000\r\n\r\n";
    // 100 bytes every 50 ms are 2,000 a second; one byte is 20.
    for (bytes, status) in [(100, 200), (1, 408)] {
        let mut raw = connect(&server);
        raw.send(head);
        for _ in 0..1_000 / bytes {
            if !raw.try_send("x".repeat(bytes)) || raw.has_answer() {
                break;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        assert_eq!(raw.answer().status, status, "{bytes} bytes at a time");
    }
}

#[test]
fn unread_response_closes_the_connection() {
    let server = server(|http| http.write_timeout = LONG);
    let mut raw = connect(&server);
    raw.send("GET /large HTTP/1.1\r\nhost: a\r\n\r\n");
    let asker = "simurgh_http_connections{listener=\"main\"} 1\n";
    until("it is cut", || metrics(&server).contains(asker));
    let received = raw.count_until_the_end();
    assert!(received > 0 && received < 32 << 20, "{received} bytes of an answer not read");
    // A slow client that keeps reading gets all of it.
    let mut raw = connect(&server);
    raw.send("GET /large HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n");
    std::thread::sleep(SHORT / 3);
    assert!(raw.count_until_the_end() > 32 << 20);
}

#[test]
fn unused_connection_is_closed() {
    let server = server(|http| http.idle_timeout = LONG);
    let mut raw = connect(&server);
    for _ in 0..4 {
        assert_eq!(raw.send(OK).answer().status, 200);
        std::thread::sleep(Duration::from_millis(900));
    }
    assert!(raw.is_closed_within(WAIT_MAX), "without a word");
}

#[test]
fn the_last_request_of_a_connection_closes_it() {
    let server = server(|http| http.requests_max = 3);
    let mut raw = connect(&server);
    raw.send(OK.repeat(5));
    let answers = raw.until_the_end();
    let closes: Vec<_> = answers.iter().map(|it| it.header("connection").is_some()).collect();
    assert_eq!(closes, [false, false, true]);
}

#[test]
fn connections_above_the_limit_get_503_and_sockets_continue() {
    let server = server(|http| http.connections_max = 2);
    // Each has an open request; an idle one would be closed for the new one.
    let half = "POST /length HTTP/1.1\r\nhost: a\r\ncontent-length: 5\r\n\r\nhe";
    let mut kept: Vec<Raw> = (0..2).map(|_| connect(&server)).collect();
    for raw in &mut kept {
        assert_eq!(raw.send(OK).answer().status, 200);
        raw.send(half);
    }
    let mut more = connect(&server);
    more.send(OK);
    let answers = more.until_the_end();
    assert_eq!(answers.len(), 1);
    assert_eq!(answers[0].status, 503);
    assert_eq!(answers[0].header("retry-after"), Some("1"));
    // A WebSocket does not count as a plain connection.
    let _socket = Client::v2(&server);
    assert_eq!(kept[0].send("llo").answer().text(), "5 bytes\n", "those that are there stay");
    kept[0].send(half);
    // An upgraded connection leaves the HTTP side, and frees its slot.
    kept.pop();
    until("a place is free", || connect(&server).send(OK).answer().status == 200);
}

#[test]
fn upgraded_connections_free_their_places() {
    let server = server(|http| http.connections_max = 1);
    let upgrade = "GET /socket/websocket?vsn=2.0.0 HTTP/1.1\r\nhost: a\r\nupgrade: websocket\r\n\
                   connection: upgrade\r\nsec-websocket-version: 13\r\n\
                   sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";
    let mut sockets = Vec::new();
    let until = Instant::now() + SOON;
    while sockets.len() < 3 {
        let mut raw = connect(&server);
        match raw.send(OK).answer().status {
            200 => assert_eq!(raw.send(upgrade).answer_to_head().status, 101),
            _ => {
                assert!(Instant::now() < until, "{} sockets hold places", sockets.len());
                std::thread::sleep(Duration::from_millis(5));
                continue;
            }
        }
        sockets.push(raw);
    }
}

/// A body that the application does not read is not slow: the time counts only while it is awaited.
#[test]
fn slow_handler_does_not_time_out_the_client() {
    let slow = |body: Bytes| async move {
        tokio::time::sleep(LONGER).await;
        format!("{} bytes\n", body.len())
    };
    let router = Router::new().route("/slow", post(slow));
    let server = start(Endpoint::builder().http(router).configure(|config| {
        config.http.body_timeout = LONG;
        config.http.head_timeout = LONG;
        config.http.idle_timeout = LONG;
        config.http.write_timeout = LONG;
    }));
    let mut raw = connect(&server);
    let request = "POST /slow HTTP/1.1\r\nhost: a\r\ncontent-length: 5\r\n\r\nhello";
    for _ in 0..2 {
        assert_eq!(raw.send(request).answer().text(), "5 bytes\n");
    }
}

/// A response that comes in parts, with long pauses, is not a slow client.
#[test]
fn silent_response_stream_is_not_idle() {
    let parts = || async {
        let parts = futures_util::stream::unfold(0, |part| async move {
            tokio::time::sleep(LONGER).await;
            (part < 2).then(|| (Ok::<_, std::io::Error>(format!("part {part}\n")), part + 1))
        });
        Body::from_stream(parts)
    };
    let router = Router::new().route("/parts", get(parts));
    let server = start(Endpoint::builder().http(router).configure(|config| {
        config.http.head_timeout = LONG;
        config.http.idle_timeout = LONG;
        config.http.write_timeout = LONG;
    }));
    let mut raw = connect(&server);
    assert_eq!(
        raw.send("GET /parts HTTP/1.1\r\nhost: a\r\n\r\n").answer().text(),
        "part 0\npart 1\n"
    );
    assert!(raw.is_closed_within(SOON), "idle from then on");
}

#[test]
fn unread_body_does_not_lose_the_response() {
    let server = server(|_| {});
    let mut raw = connect(&server);
    let head = "POST /deaf HTTP/1.1\r\nhost: a\r\ncontent-length: 3000000\r\n\r\n";
    raw.send(head);
    raw.try_send("x".repeat(3_000_000));
    assert_eq!(raw.answer().text(), "did not listen\n");
}
