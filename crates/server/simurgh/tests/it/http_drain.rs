//! A drain ended with the last socket and aborted running HTTP requests. Now they are finished
//! within its time and grace; kept-alive connections close with the next answer, and no new ones
//! are accepted.

use std::future::pending;
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::{Duration, Instant};

use crate::support::raw::Raw;
use crate::support::{Client, WAIT_MAX, start, until, without_channels};
use simurgh::Endpoint;
use simurgh::axum::Router;
use simurgh::axum::body::Body;
use simurgh::axum::routing::get;

const SOON: Duration = Duration::from_secs(4);
const LARGE: usize = 16 << 20;

struct Server {
    endpoint: Endpoint,
    go: Arc<AtomicBool>,
    has_come: Arc<AtomicBool>,
}

fn server(drain_time: Duration) -> Server {
    let go = Arc::new(AtomicBool::new(false));
    let held = {
        let go = Arc::clone(&go);
        move || async move {
            while !go.load(SeqCst) {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
            "finished\n"
        }
    };
    let has_come = Arc::new(AtomicBool::new(false));
    let never = {
        let has_come = Arc::clone(&has_come);
        move || async move {
            has_come.store(true, SeqCst);
            pending::<&str>().await
        }
    };
    let router = Router::new()
        .route("/", get(|| async { "ok\n" }))
        .route("/held", get(held))
        .route("/large", get(|| async { Body::from(vec![b'x'; LARGE]) }))
        .route("/never", get(never));
    let builder = without_channels().http(router);
    Server { endpoint: start(builder.configure(|it| it.drain_time = drain_time)), go, has_come }
}

impl Server {
    fn raw(&self) -> Raw {
        Raw::connect(self.endpoint.addresses()[0])
    }
}

fn ask<'a>(raw: &'a mut Raw, path: &str) -> &'a mut Raw {
    raw.send(format!("GET {path} HTTP/1.1\r\nhost: a\r\n\r\n"))
}

fn ask_forever(raw: &mut Raw, server: &Server) {
    ask(raw, "/never");
    until("the request has come", || server.has_come.load(SeqCst));
}

/// Returns how long it took.
fn drain(endpoint: Endpoint) -> std::thread::JoinHandle<Duration> {
    std::thread::spawn(|| {
        let began = Instant::now();
        endpoint.drain().unwrap();
        began.elapsed()
    })
}

#[test]
fn request_in_progress_gets_its_response_during_a_drain() {
    let server = server(Duration::ZERO);
    let (mut held, mut large, mut idle) = (server.raw(), server.raw(), server.raw());
    assert_eq!(ask(&mut idle, "/").answer().status, 200);
    assert_eq!(ask(&mut held, "/").answer().status, 200);
    ask(&mut held, "/held");
    ask(&mut large, "/large");
    until("the answer begins", || large.has_answer());
    let drained = drain(server.endpoint);
    assert!(idle.is_closed_within(SOON), "nobody waits for a next request");
    assert!(!drained.is_finished(), "two are under way");
    server.go.store(true, SeqCst);
    let answer = held.answer();
    assert_eq!((answer.text(), answer.header("connection")), ("finished\n", Some("close")));
    assert!(held.is_closed_within(SOON));
    assert_eq!(large.answer().body.len(), LARGE);
    drop((held, large, idle));
    assert!(drained.join().unwrap() < SOON, "it ends with the last answer");
}

#[test]
fn drain_closes_keep_alive_connections_and_refuses_new_ones() {
    // The socket stays open until its turn in the drain.
    let server = server(Duration::from_secs(6));
    let (mut early, mut late) = (server.raw(), server.raw());
    for raw in [&mut early, &mut late] {
        assert_eq!(ask(raw, "/").answer().header("connection"), None);
    }
    let _sockets: Vec<Client> = (0..2).map(|_| Client::v2(&server.endpoint)).collect();
    let address = server.endpoint.addresses()[0];
    let drained = drain(server.endpoint);
    until("it does not listen", || TcpStream::connect(address).is_err());
    let answer = ask(&mut early, "/").answer();
    assert_eq!((answer.text(), answer.header("connection")), ("ok\n", Some("close")));
    assert!(early.is_closed_within(SOON));
    assert!(late.is_closed_within(WAIT_MAX), "once the sockets have gone");
    drained.join().unwrap();
}

#[test]
fn endless_response_ends_with_the_grace_period() {
    let server = server(Duration::ZERO);
    let mut never = server.raw();
    ask_forever(&mut never, &server);
    let took = drain(server.endpoint).join().unwrap();
    assert!(took > SOON && took < 3 * SOON, "the grace is 5 s, and took {took:?}");
    assert!(never.is_closed_within(SOON));
}

#[test]
fn stopped_server_does_not_wait_for_requests() {
    let server = server(Duration::from_secs(60));
    let mut never = server.raw();
    ask_forever(&mut never, &server);
    let began = Instant::now();
    server.endpoint.handle().drain();
    server.endpoint.stop();
    assert!(began.elapsed() < SOON);
    assert!(never.is_closed_within(SOON));
}
