//! A client may send its requests, shut its side (FIN), and then read: `printf … | nc -N`, health
//! checks of load balancers, hurried back ends. Such a client was taken for one that had left, and
//! got no answers. Everything requested before the FIN is answered, and the connection closes after
//! the last answer; clients that have really left are still noticed.

use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};

use crate::support::raw::Raw;
use crate::support::{start, until, without_channels};
use simurgh::Endpoint;
use simurgh::axum::Router;
use simurgh::axum::body::{Body, Bytes};
use simurgh::axum::extract::DefaultBodyLimit;
use simurgh::axum::routing::{get, post};
use simurgh::http::HttpConfig;

const HEALTH: &str = "GET /healthz HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n";
/// The limit for what must happen at once.
const SOON: Duration = Duration::from_secs(5);
const SHORT: Duration = Duration::from_millis(300);
const LARGE: usize = 8 << 20;

struct Held(Arc<AtomicUsize>);

impl Drop for Held {
    fn drop(&mut self) {
        self.0.fetch_sub(1, SeqCst);
    }
}

struct Server {
    endpoint: Endpoint,
    held: Arc<AtomicUsize>,
}

fn server(change: impl FnOnce(&mut HttpConfig)) -> Server {
    let held = Arc::new(AtomicUsize::new(0));
    let never = {
        let held = Arc::clone(&held);
        move || {
            held.fetch_add(1, SeqCst);
            let held = Held(Arc::clone(&held));
            async move {
                let _held = held;
                pending::<&str>().await
            }
        }
    };
    let slow = |body: Bytes| async move {
        tokio::time::sleep(Duration::from_millis(10)).await;
        format!("{} bytes\n", body.len())
    };
    let router = Router::new()
        .route("/slow", post(slow))
        .route("/large", get(|| async { Body::from(vec![b'x'; LARGE]) }))
        .route("/never", get(never))
        .layer(DefaultBodyLimit::disable());
    let builder = without_channels().http(router);
    let builder = builder.configure(|config| change(&mut config.http));
    Server { endpoint: start(builder), held }
}

impl Server {
    fn raw(&self) -> Raw {
        Raw::connect(self.endpoint.addresses()[0])
    }

    /// Shuts the sending side, and reads until the server has closed.
    fn ask(&self, requests: &str) -> Vec<(u16, String)> {
        let mut raw = self.raw();
        raw.send(requests).finish();
        let answers = raw.until_the_end();
        answers.iter().map(|it| (it.status, it.text().to_owned())).collect()
    }

    fn wait_until_held(&self, wanted: usize) {
        until(&format!("{wanted} are held"), || self.held.load(SeqCst) == wanted);
    }
}

#[test]
fn request_followed_by_fin_always_gets_its_response() {
    let server = server(|_| {});
    for n in 0..100 {
        assert_eq!(server.ask(HEALTH), [(200, "ok\n".to_owned())], "the {n}th");
    }
}

#[test]
fn requests_before_a_fin_are_answered_in_order() {
    let server = server(|_| {});
    let body = |n: usize| "x".repeat(n);
    for _ in 0..20 {
        let mut requests = String::new();
        let mut wanted = Vec::new();
        for n in [3, 1, 4, 1, 5] {
            let length = format!("content-length: {n}");
            requests += &format!("POST /slow HTTP/1.1\r\nhost: a\r\n{length}\r\n\r\n{}", body(n));
            requests += HEALTH;
            wanted.extend([(200, format!("{n} bytes\n")), (200, "ok\n".to_owned())]);
        }
        assert_eq!(server.ask(&requests), wanted);
    }
    // An unfinished further request is not served.
    let half = format!("{HEALTH}{}", &HEALTH[..20]);
    assert_eq!(server.ask(&half), [(200, "ok\n".to_owned())]);
}

#[test]
fn fin_can_follow_bodies_of_both_kinds() {
    let server = server(|_| {});
    let head = "POST /slow HTTP/1.1\r\nhost: a\r\n";
    for _ in 0..20 {
        let whole = format!("{head}content-length: 5\r\n\r\nhello");
        assert_eq!(server.ask(&whole), [(200, "5 bytes\n".to_owned())]);
        let chunks = format!("{head}transfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n");
        assert_eq!(server.ask(&chunks), [(200, "5 bytes\n".to_owned())]);
    }
    // A truncated body is refused or dropped at once.
    for half in ["content-length: 5\r\n\r\nhel", "transfer-encoding: chunked\r\n\r\n5\r\nhel"] {
        let began = Instant::now();
        let answers = server.ask(&format!("{head}{half}"));
        assert!(answers.iter().all(|(status, _)| *status == 400), "{half:?}: {answers:?}");
        assert!(began.elapsed() < SOON, "{half:?} was waited for");
    }
}

#[test]
fn long_response_reaches_a_half_closed_client() {
    let server = server(|_| {});
    let mut raw = server.raw();
    raw.send("GET /large HTTP/1.1\r\nhost: a\r\n\r\n").finish();
    std::thread::sleep(Duration::from_millis(100));
    let answers = raw.until_the_end();
    assert_eq!(answers.len(), 1);
    assert_eq!((answers[0].status, answers[0].body.len()), (200, LARGE));
}

#[test]
fn idle_half_closed_connection_ends_at_once() {
    let server = server(|_| {});
    let mut raw = server.raw();
    assert_eq!(raw.send(HEALTH).answer().status, 200);
    raw.finish();
    assert!(raw.is_closed_within(SOON), "http_idle_timeout is 75 s");
}

#[test]
fn reset_during_a_handler_is_noticed() {
    let server = server(|_| {});
    let mut raw = server.raw();
    raw.send(HEALTH);
    until("it is answered", || raw.has_answer());
    raw.send("GET /never HTTP/1.1\r\nhost: a\r\n\r\n");
    server.wait_until_held(1);
    // Closing with an unread answer sends a reset.
    drop(raw);
    server.wait_until_held(0);
}

#[test]
fn half_closed_client_waits_at_most_the_idle_timeout() {
    let server = server(|http| http.idle_timeout = SHORT);
    let mut raw = server.raw();
    let began = Instant::now();
    raw.send("GET /never HTTP/1.1\r\nhost: a\r\n\r\n").finish();
    server.wait_until_held(1);
    assert!(raw.is_closed_within(SOON), "whether it is still there nobody can tell");
    assert!(began.elapsed() >= SHORT);
    server.wait_until_held(0);
}
