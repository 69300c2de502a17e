//! Ten thousand kept-alive idle connections took all slots: health checks, scrapes and publishers
//! got 503, and an orchestrator ended a healthy server. The server's own paths have slots of their
//! own, the longest idle connection is closed for a new one, and the admin address does not bypass
//! the limits.

use std::future::pending;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use crate::support::raw::{Answer, Raw, ask};
use crate::support::{start, until};
use simurgh::axum::Router;
use simurgh::axum::routing::get;
use simurgh::{Config, Endpoint};

/// The limit for what must happen soon.
const SOON: Duration = Duration::from_secs(5);
const BROADCAST: &str = "{\"topic\":\"a\",\"event\":\"b\",\"payload\":{},\"allow_unserved\":true}";

const BEARER: &str = "authorization: Bearer s3cret\r\n";

/// Requests for `/never`; only one test uses it.
static HELD: AtomicUsize = AtomicUsize::new(0);

async fn never() -> &'static str {
    HELD.fetch_add(1, SeqCst);
    pending().await
}

fn server(change: impl FnOnce(&mut Config)) -> Endpoint {
    let router = Router::new().route("/", get(|| async { "ok\n" })).route("/never", get(never));
    start(Endpoint::builder().http(router).configure(|config| {
        config.api_token = Some("s3cret".into());
        change(config);
    }))
}

fn get_at(address: SocketAddr, path: &str) -> Raw {
    let mut raw = Raw::connect(address);
    raw.send(format!("GET {path} HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n"));
    raw
}

/// A connection that is closed without an answer was refused, too.
fn status(mut raw: Raw) -> u16 {
    raw.answer_or_end().map_or(0, |answer| answer.status)
}

fn publish(address: SocketAddr) -> Answer {
    ask(address, "POST /api/broadcast", BEARER, BROADCAST)
}

fn figure(address: SocketAddr, name: &str) -> u64 {
    let answer = ask(address, "GET /metrics", BEARER, "");
    let line = answer.text().lines().find_map(|line| line.strip_prefix(name)).expect(name);
    line.trim().parse().unwrap()
}

#[test]
fn idle_crowd_does_not_block_health_publishers_and_pages() {
    let server = server(|config| config.http.connections_max = 256);
    let address = server.addresses()[0];
    let mut crowd: Vec<Raw> = Vec::new();
    for n in 0..800 {
        // Like one browser after the other: each is answered before the next connects.
        let mut raw = get_at(address, "/");
        assert_eq!(raw.answer().status, 200, "the {n}th");
        crowd.push(raw);
    }
    for _ in 0..20 {
        assert_eq!(get_at(address, "/healthz").answer().text(), "ok\n");
        assert_eq!(publish(address).status, 202);
    }
    assert!(figure(address, "simurgh_http_connections{listener=\"main\"}") <= 256);
    assert!(figure(address, "simurgh_http_evicted_total{listener=\"main\"}") >= 500);
    assert!(crowd[0].is_closed_within(SOON), "the longest idle went");
    let latest = crowd.last_mut().unwrap();
    let again = "GET / HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n";
    assert_eq!(latest.send(again).answer().text(), "ok\n", "the last one stays");
}

#[test]
fn busy_crowd_does_not_block_the_servers_own_paths() {
    let server = server(|config| config.http.connections_max = 8);
    let address = server.addresses()[0];
    let _crowd: Vec<Raw> = (0..8).map(|_| get_at(address, "/never")).collect();
    until("all places are taken", || HELD.load(SeqCst) == 8);
    assert_eq!(status(get_at(address, "/")), 503);
    for _ in 0..50 {
        let answer = get_at(address, "/healthz").answer();
        assert_eq!(answer.text(), "ok\n");
        assert_eq!(answer.header("connection"), Some("close"), "a place for one request");
        assert_eq!(publish(address).status, 202);
    }
    assert_eq!(status(get_at(address, "/")), 503);
    assert_eq!(figure(address, "simurgh_http_refused_total{listener=\"main\"}"), 2);
}

/// No connection was idle when the last one came, so none was closed then.
#[test]
fn refused_client_gets_a_place_when_a_connection_is_idle() {
    let server = server(|config| config.http.connections_max = 1);
    let address = server.addresses()[0];
    let mut first = get_at(address, "/");
    assert_eq!(first.answer().status, 200);
    until("the idle one leaves", || status(get_at(address, "/")) == 200);
    assert!(first.is_closed_within(SOON));
}

#[test]
fn full_admin_address_does_not_affect_the_main_port() {
    let server = server(|config| {
        config.http.connections_reserved = 16;
        config.admin_listen = Some("127.0.0.1:0".parse().unwrap());
    });
    let (main, admin) = (server.addresses()[0], server.admin_address().unwrap());
    let mut crowd: Vec<Raw> = Vec::new();
    for n in 0..100 {
        let mut raw = get_at(admin, "/metrics");
        assert_eq!(raw.answer().status, 200, "the {n}th");
        crowd.push(raw);
    }
    // A connection that sends nothing counts as idle, too.
    crowd.extend((0..100).map(|_| Raw::connect(admin)));
    until("the silent ones leave, too", || {
        let mut raw = get_at(admin, "/metrics");
        raw.answer_or_end().is_some_and(|answer| answer.status == 200)
    });
    assert!(figure(admin, "simurgh_http_connections{listener=\"admin\"}") <= 16);
    assert!(figure(admin, "simurgh_http_evicted_total{listener=\"admin\"}") >= 80);
    assert_eq!(get_at(main, "/healthz").answer().text(), "ok\n");
    assert!(crowd[0].is_closed_within(SOON));
}

/// A connection from another loopback address.
fn get_from(source: &str, address: SocketAddr, path: &str) -> Raw {
    let mut raw = Raw::connect_from(source, address);
    raw.send(format!("GET {path} HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n"));
    raw
}

#[test]
fn one_address_leaves_half_of_the_connections_to_others() {
    let server = server(|config| config.http.connections_max = 40);
    let address = server.addresses()[0];
    let _crowd: Vec<Raw> = (0..24).map(|_| get_from("127.0.0.2", address, "/never")).collect();
    until("the address has its share", || {
        figure(address, "simurgh_http_refused_total{listener=\"main\"}") >= 1
    });
    // The scrapes have had places, too.
    let mut more: Vec<Raw> = (0..5).map(|_| get_from("127.0.0.2", address, "/never")).collect();
    let one_more = more.last_mut().unwrap().answer();
    assert_eq!(
        (one_more.status, one_more.text()),
        (429, "this address has too many connections\n")
    );
    let others: Vec<Raw> = (0..8).map(|_| get_from("127.0.0.3", address, "/")).collect();
    for mut raw in others {
        assert_eq!(raw.answer().status, 200);
    }
    assert_eq!(get_from("127.0.0.2", address, "/healthz").answer().status, 200);
}

#[test]
fn one_address_leaves_reserved_connections_to_others() {
    let server = server(|config| {
        config.http.connections_max = 8;
        config.http.connections_reserved = 8;
    });
    let address = server.addresses()[0];
    let _crowd: Vec<Raw> = (0..8).map(|_| get_from("127.0.0.2", address, "/never")).collect();
    until("all places are taken", || status(get_from("127.0.0.3", address, "/")) == 503);
    // They are answered, and their clients do not close.
    let mut open = Vec::new();
    for _ in 0..100 {
        let mut raw = get_from("127.0.0.2", address, "/healthz");
        assert_eq!(raw.answer().status, 200, "an answered one gives its place back");
        open.push(raw);
    }
    let body = "POST /api/broadcast HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: 9\r\n\r\n";
    let mut slow: Vec<Raw> = (0..30).map(|_| Raw::connect_from("127.0.0.2", address)).collect();
    for raw in &mut slow {
        raw.try_send(body);
    }
    for _ in 0..20 {
        assert_eq!(get_from("127.0.0.3", address, "/healthz").answer().status, 200);
    }
    let refused = slow.into_iter().filter_map(|mut raw| raw.answer_or_end());
    assert!(refused.filter(|answer| answer.status == 429).count() > 20);
}

#[test]
fn connections_wait_for_the_hand_off_instead_of_being_refused() {
    let server = server(|_| {});
    let address = server.addresses()[0];
    let head = "GET / HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n";
    let behind = format!("{head}GET / HTTP/1.1\r\nx-a: {}", "y".repeat(15_000));
    let mut crowd: Vec<Raw> = (0..400).map(|_| Raw::connect_from("127.0.0.2", address)).collect();
    for raw in &mut crowd {
        raw.send(&behind);
    }
    for _ in 0..20 {
        assert_eq!(get_from("127.0.0.3", address, "/healthz").answer().status, 200);
    }
    for mut raw in crowd {
        assert_eq!(raw.answer().status, 200);
    }
}

#[test]
fn unfinished_bodies_over_the_budget_are_refused_with_503_the_largest_first() {
    let server = server(|config| {
        config.inbound_budget_bytes = 4 << 20;
        config.http.body_timeout = Duration::from_secs(60);
    });
    let address = server.addresses()[0];
    let begin = |bytes: usize| {
        let mut raw = Raw::connect(address);
        let head = "POST /api/broadcast HTTP/1.1\r\nhost: 127.0.0.1\r\n\
                    authorization: Bearer s3cret\r\ncontent-length: 7900000\r\n\r\n";
        raw.send(head).send(vec![b' '; bytes]);
        raw
    };
    let mut small = begin(100_000);
    let mut large = begin(3_900_000);
    let held = || figure(address, "simurgh_http_held_bytes{listener=\"main\"}");
    until("both are held", || held() >= 3_900_000);
    let other = begin(300_000);
    assert_eq!(large.answer().status, 503);
    assert_eq!(figure(address, "simurgh_http_shed_total{listener=\"main\"}"), 1);
    until("its memory is free", || held() <= 500_000);
    assert!(!small.is_closed_within(Duration::from_millis(50)), "a small one stays");
    drop((small, other));
    until("nothing is held", || held() == 0);
}
