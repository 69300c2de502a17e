//! Requests that two parsers could read differently are refused and their connection is closed, as
//! the first of a connection, which a shard parses, or later. None hidden behind them is served.

use std::sync::{Arc, Mutex};

use crate::support::raw::Raw;
use crate::support::{start, without_channels};
use simurgh::Endpoint;
use simurgh::axum::Router;
use simurgh::axum::body::Bytes;
use simurgh::axum::extract::State;
use simurgh::axum::http::Uri;

type Seen = Arc<Mutex<Vec<String>>>;

struct Scene {
    endpoint: Endpoint,
    seen: Seen,
}

const OK: &str = "GET /before HTTP/1.1\r\nhost: a\r\n\r\n";
const HIDDEN: &str = "GET /hidden HTTP/1.1\r\nhost: a\r\n\r\n";

impl Scene {
    fn new() -> Self {
        let seen = Seen::default();
        let answer = async |State(seen): State<Seen>, uri: Uri, body: Bytes| {
            seen.lock().unwrap().push(format!("{uri} {}", String::from_utf8_lossy(&body)));
            format!("{} bytes\n", body.len())
        };
        let router = Router::new().fallback(answer).with_state(Arc::clone(&seen));
        Self { endpoint: start(without_channels().http(router)), seen }
    }

    fn raw(&self) -> Raw {
        Raw::connect(self.endpoint.addresses()[0])
    }

    /// Requests that the application has received since the last call.
    fn seen(&self) -> Vec<String> {
        std::mem::take(&mut *self.seen.lock().unwrap())
    }

    /// As the first, as a later and as a pipelined request, each with another behind it.
    fn refuses(&self, rule: &str, request: &str, status: u16) {
        let bad = format!("{request}{HIDDEN}");
        let mut first = self.raw();
        first.try_send(&bad);
        let answers = first.until_the_end();
        assert_eq!(answers.len(), 1, "{rule}, first: {request:?} {answers:?}");
        assert_eq!(answers[0].status, status, "{rule}, first: {request:?}");
        assert_eq!(answers[0].header("connection"), Some("close"), "{rule}, first: {request:?}");
        assert_eq!(self.seen(), [""; 0], "{rule}, first: {request:?}");

        let mut later = self.raw();
        assert_eq!(later.send(OK).answer().status, 200);
        later.try_send(&bad);
        let answers = later.until_the_end();
        assert_eq!(answers.len(), 1, "{rule}, later: {request:?} {answers:?}");
        assert_eq!(answers[0].status, status, "{rule}, later: {request:?}");
        assert_eq!(answers[0].header("connection"), Some("close"), "{rule}, later: {request:?}");
        assert_eq!(self.seen(), ["/before "], "{rule}, later: {request:?}");

        let mut pipelined = self.raw();
        pipelined.try_send(format!("{OK}{OK}{bad}"));
        let statuses: Vec<_> = pipelined.until_the_end().iter().map(|it| it.status).collect();
        assert_eq!(statuses, [200, 200, status], "{rule}, pipelined: {request:?}");
        assert_eq!(self.seen(), ["/before ", "/before "], "{rule}, pipelined: {request:?}");
    }
}

/// What each group of headers breaks, the headers, and the status.
const HEADERS: &[(&str, &[&str], u16)] = &[
    (
        "content-length and transfer-encoding exclude each other in both orders",
        &[
            "content-length: 5\r\ntransfer-encoding: chunked",
            "transfer-encoding: chunked\r\ncontent-length: 5",
            "Transfer-Encoding: chunked\r\nx: y\r\nContent-Length: 0",
        ],
        400,
    ),
    (
        "there is one content-length",
        &[
            "content-length: 5\r\ncontent-length: 5",
            "content-length: 5\r\ncontent-length: 6",
            "content-length: 5, 5",
            "content-length: 5,6",
        ],
        400,
    ),
    (
        "a content-length is digits",
        &[
            "content-length: +5",
            "content-length: -5",
            "content-length: 0x5",
            "content-length: 5a",
            "content-length: 5 5",
            "content-length: \"5\"",
            "content-length:",
            "content-length: 99999999999999999999",
        ],
        400,
    ),
    (
        "a transfer-encoding is chunked",
        &[
            "transfer-encoding: gzip, chunked",
            "transfer-encoding: chunked, identity",
            "transfer-encoding: identity",
            "transfer-encoding: xchunked",
            "transfer-encoding: chunked;x=y",
        ],
        501,
    ),
    (
        "there is one transfer-encoding",
        &[
            "transfer-encoding: chunked\r\ntransfer-encoding: chunked",
            "transfer-encoding: chunked\r\ntransfer-encoding: identity",
            "transfer-encoding: \x0bchunked",
            "transfer-encoding : chunked",
        ],
        400,
    ),
];

#[test]
fn headers_with_two_lengths_are_refused() {
    let scene = Scene::new();
    for (rule, headers, status) in HEADERS {
        for headers in *headers {
            let body = "5\r\nhello\r\n0\r\n\r\n";
            let request = format!("POST / HTTP/1.1\r\nhost: a\r\n{headers}\r\n\r\n{body}");
            scene.refuses(rule, &request, *status);
        }
    }
    let request = "POST / HTTP/1.0\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n";
    scene.refuses("HTTP/1.0 has no transfer-encoding", request, 400);
}

/// What each group of requests breaks.
const HEADS: &[(&str, &[&str])] = &[
    (
        "folded lines, blanks before colons and bare line ends",
        &[
            "GET / HTTP/1.1\r\nhost: a\r\nx: y\r\n z\r\n\r\n",
            "GET / HTTP/1.1\r\nhost: a\r\n x: y\r\n\r\n",
            "GET / HTTP/1.1\r\nhost : a\r\n\r\n",
            "GET / HTTP/1.1\r\nhost\t: a\r\n\r\n",
            "GET / HTTP/1.1\nhost: a\r\n\r\n",
            "GET / HTTP/1.1\r\nhost: a\nx: y\r\n\r\n",
            "GET / HTTP/1.1\r\nhost: a\r\n\n",
            "GET / HTTP/1.1\r\nhost: a\rx: y\r\n\r\n",
            "GET / HTTP/1.1\r\nhost: a\r\nx: y\rz\r\n\r\n",
            "GET /\rx HTTP/1.1\r\nhost: a\r\n\r\n",
        ],
    ),
    (
        "NUL and other controls",
        &[
            "GET / HTTP/1.1\r\nhost: a\r\nx: y\0z\r\n\r\n",
            "GET / HTTP/1.1\r\nhost: a\r\nx\0: y\r\n\r\n",
            "GET /\0 HTTP/1.1\r\nhost: a\r\n\r\n",
            "GET / HTTP/1.1\r\nhost: a\r\nx: \x01\r\n\r\n",
            "GET / HTTP/1.1\r\nhost: a\r\nno colon\r\n\r\n",
            "GET / HTTP/1.1\r\nhost: a\r\n: y\r\n\r\n",
        ],
    ),
    (
        "a request has one host",
        &[
            "GET / HTTP/1.1\r\nx: y\r\n\r\n",
            "GET / HTTP/1.1\r\nhost: a\r\nhost: a\r\n\r\n",
            "GET / HTTP/1.1\r\nhost: a\r\nHost: b\r\n\r\n",
            "GET / HTTP/1.0\r\nhost: a\r\nhost: b\r\n\r\n",
            "GET / HTTP/1.1\r\nhost: a, b\r\n\r\n",
            "GET / HTTP/1.1\r\nhost: a/../b\r\n\r\n",
            "GET / HTTP/1.1\r\nhost: user@a\r\n\r\n",
        ],
    ),
    (
        "a target that is a URL names the same host",
        &[
            "GET http://b/ HTTP/1.1\r\nhost: a\r\n\r\n",
            "GET http://a@b/ HTTP/1.1\r\nhost: a\r\n\r\n",
            "GET ftp://a/ HTTP/1.1\r\nhost: a\r\n\r\n",
            "GET a HTTP/1.1\r\nhost: a\r\n\r\n",
            "GET * HTTP/1.1\r\nhost: a\r\n\r\n",
        ],
    ),
    (
        "another version of HTTP",
        &[
            "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
            "GET / HTTP/2.0\r\nhost: a\r\n\r\n",
            "GET / HTTP/1.2\r\nhost: a\r\n\r\n",
            "GET / HTTP/0.9\r\n\r\n",
            "GET / http/1.1\r\nhost: a\r\n\r\n",
            "GET /\r\n\r\n",
            "GET / HTTP/1.1 \r\nhost: a\r\n\r\n",
            "GET  / HTTP/1.1\r\nhost: a\r\n\r\n",
        ],
    ),
];

#[test]
fn heads_that_parsers_read_differently_are_refused() {
    let scene = Scene::new();
    for (rule, requests) in HEADS {
        requests.iter().for_each(|request| scene.refuses(rule, request, 400));
    }
    scene.refuses("CONNECT", "CONNECT a:80 HTTP/1.1\r\nhost: a:80\r\n\r\n", 501);
    let mut raw = scene.raw();
    assert_eq!(raw.send("GET http://A:80/x HTTP/1.1\r\nhost: a\r\n\r\n").answer().status, 200);
}

#[test]
fn get_with_a_body_is_refused() {
    let scene = Scene::new();
    for method in ["GET", "HEAD", "TRACE"] {
        let head = format!("{method} / HTTP/1.1\r\nhost: a\r\n");
        scene.refuses(method, &format!("{head}content-length: 5\r\n\r\nhello"), 400);
        let chunked = "transfer-encoding: chunked\r\n\r\n0\r\n\r\n";
        scene.refuses(method, &format!("{head}{chunked}"), 400);
    }
    let mut raw = scene.raw();
    let none = "GET / HTTP/1.1\r\nhost: a\r\ncontent-length: 0\r\n\r\n";
    assert_eq!(raw.send(none).answer().status, 200);
    assert_eq!(raw.send(OK).answer().status, 200, "kept alive");
}

/// Nothing after a chunked body is a request, wherever another parser sees its end.
#[test]
fn bytes_after_a_chunked_body_are_not_a_request() {
    let scene = Scene::new();
    let head = "POST /chunked HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n";
    for is_first in [true, false] {
        let mut raw = scene.raw();
        if !is_first {
            raw.send(OK).answer();
        }
        raw.try_send(format!("{head}5\r\nhello\r\n0\r\n\r\n{HIDDEN}"));
        let answers = raw.until_the_end();
        assert_eq!(answers.len(), 1, "{answers:?}");
        assert_eq!(answers[0].text(), "5 bytes\n");
        assert_eq!(answers[0].header("connection"), Some("close"));
        let seen = scene.seen();
        assert_eq!(seen.last().unwrap(), "/chunked hello");
        assert_eq!(seen.len(), 1 + usize::from(!is_first));
    }
}

#[test]
fn bad_chunk_sizes_are_refused_without_a_second_request() {
    let scene = Scene::new();
    let head = "POST /chunked HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n";
    for body in [
        "x\r\nhello\r\n0\r\n\r\n",
        "-5\r\nhello\r\n0\r\n\r\n",
        "+5\r\nhello\r\n0\r\n\r\n",
        "0x5\r\nhello\r\n0\r\n\r\n",
        "fffffffffffffffff\r\nhello\r\n0\r\n\r\n",
        "5\r\nhello, longer\r\n0\r\n\r\n",
        "\r\n\r\n",
    ] {
        for before in ["", OK] {
            let mut raw = scene.raw();
            raw.try_send(format!("{before}{head}{body}{HIDDEN}"));
            raw.finish();
            let statuses: Vec<_> = raw.until_the_end().iter().map(|it| it.status).collect();
            assert_eq!(statuses.last(), Some(&400), "{body:?}");
            assert_eq!(statuses.len(), 1 + usize::from(!before.is_empty()), "{body:?}");
            let seen = scene.seen();
            assert!(seen.iter().all(|it| it == "/before "), "{body:?}: {seen:?}");
        }
    }
}

/// Bytes within the declared length are body, those after it are the next request.
#[test]
fn request_within_a_body_is_not_handled() {
    let scene = Scene::new();
    let head = format!("POST /p HTTP/1.1\r\nhost: a\r\ncontent-length: {}\r\n\r\n", HIDDEN.len());
    let mut raw = scene.raw();
    raw.send(format!("{head}{HIDDEN}{OK}{head}"));
    assert_eq!(raw.answer().text(), format!("{} bytes\n", HIDDEN.len()));
    assert_eq!(raw.answer().status, 200);
    raw.send(HIDDEN).send(OK);
    assert_eq!(raw.answer().text(), format!("{} bytes\n", HIDDEN.len()));
    assert_eq!(raw.answer().status, 200);
    let hidden = format!("/p {HIDDEN}");
    assert_eq!(scene.seen(), [hidden.as_str(), "/before ", hidden.as_str(), "/before "]);
}

/// However the bytes are split, the requests are the same.
#[test]
fn requests_are_equal_in_pieces_of_any_size() {
    let scene = Scene::new();
    let post = "POST /p HTTP/1.1\r\nhost: a\r\ncontent-length: 3\r\n\r\nabc";
    let all = format!("{OK}{post}\r\n{OK}{post}");
    for step in [1, 2, 3, 7, 40, 64] {
        let mut raw = scene.raw();
        for part in all.as_bytes().chunks(step) {
            raw.send(part);
        }
        let statuses: Vec<_> = (0..4).map(|_| raw.answer().status).collect();
        assert_eq!(statuses, [200; 4], "in steps of {step}");
        assert_eq!(scene.seen(), ["/before ", "/p abc", "/before ", "/p abc"]);
    }
}

/// On a user socket the shard itself answers, with the same rules.
#[test]
fn upgrade_with_a_body_or_two_hosts_is_refused() {
    let scene = Scene::new();
    let upgrade = |headers: &str| {
        format!(
            "GET /socket/websocket?vsn=2.0.0 HTTP/1.1\r\nupgrade: websocket\r\nconnection: upgrade\
             \r\nsec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\
             {headers}\r\n\r\n"
        )
    };
    for headers in [
        "x: y",
        "host: a\r\nhost: a",
        "host: a\r\ncontent-length: 5",
        "host: a\r\ntransfer-encoding: chunked",
        "host: a\r\ncontent-length: 5\r\ntransfer-encoding: chunked",
    ] {
        scene.refuses("upgrade", &upgrade(headers), 400);
    }
    for before in ["", OK] {
        let mut raw = scene.raw();
        raw.send(format!("{before}{}", upgrade("host: a")));
        for _ in 0..before.len().min(1) {
            assert_eq!(raw.answer().status, 200);
        }
        assert_eq!(raw.answer_to_head().status, 101);
    }
}
