//! A server that stops answering for five seconds of ten: requests due in that time have waited,
//! and are recorded as having waited (coordinated omission).
//!
//! 500 requests, 50 a second; those of five seconds wait five seconds, four, ... none. So half of
//! all are evenly spread over 0 to 5 s, and the 90th percentile is 4 s. All runs happen at the same
//! time, whichever test needs its own first.

use std::sync::{LazyLock, Mutex, OnceLock};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::outside::{Peer, Ran, Server, frame, lock, run};
use simurgh_load::record::{Count, Metric};

/// When the server stalls, since its first request; a little longer than five seconds, so that the
/// figures are past the bounds and not on them.
const STALL: (Duration, Duration) = (Duration::from_millis(2400), Duration::from_millis(7600));

fn stall(first: &OnceLock<Instant>) {
    let now = first.get_or_init(Instant::now).elapsed();
    if now >= STALL.0 && now < STALL.1 {
        thread::sleep(STALL.1 - now);
    }
}

fn echo(peer: &mut Peer, first: &OnceLock<Instant>) {
    peer.messages(|peer, got| {
        stall(first);
        peer.send(frame(got.opcode, got.payload))
    });
}

type Started = Mutex<Option<JoinHandle<Ran>>>;

static RUNS: LazyLock<[Started; 5]> = LazyLock::new(|| {
    let runs: [fn() -> Ran; 5] = [
        open_websockets,
        open_http,
        || persistent(&over_websocket(500, 20), "ws", 1, &echo_server()),
        || persistent(&over_websocket(50, 200), "ws", 10, &echo_server()),
        || {
            let steps = "{ loop = 500, every = \"20ms\", steps = [{ get = \"/\" }] }";
            persistent(steps, "http", 1, &http_server())
        },
    ];
    runs.map(|run| Mutex::new(Some(thread::spawn(run))))
});

fn ran(number: usize) -> Ran {
    let started = lock(&RUNS[number]).take().expect("each run has one test");
    started.join().expect("its sums are right")
}

fn echo_server() -> Server {
    let first = OnceLock::new();
    Server::new(move |mut peer| echo(&mut peer, &first))
}

fn http_server() -> Server {
    let first = OnceLock::new();
    Server::new(move |mut peer| {
        while peer.head().is_some() {
            stall(&first);
            peer.send("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok");
        }
    })
}

#[track_caller]
fn shows_the_stall(ran: &Ran, metric: Metric, requests: u64) {
    ran.errors_are(&[]);
    let times = ran.record.times(metric).unwrap();
    assert_eq!(times.count(), requests, "{}", ran.text());
    let (p90, max) = (times.percentile(90.0), times.max());
    assert!(max >= 4_900_000, "max {max} µs\n{}", ran.text());
    assert!(p90 >= 4_000_000, "p90 {p90} µs\n{}", ran.text());
    // Half of the requests met a server that answers at once.
    assert!(times.percentile(40.0) < 1_000_000, "{:?}", times.stats());
    assert!(times.percentile(75.0) < 4_000_000, "{:?}", times.stats());
    // The server was late, not this tool: half of all steps were due in the stall. Some are late on
    // a busy machine.
    let late = ran.count(Count::LateSteps);
    assert!(late <= requests / 3, "{late} late steps\n{}", ran.text());
}

fn open_websockets() -> Ran {
    let server = echo_server();
    run(&format!(
        "[target]\nurl = \"ws://{}\"\n[[phase]]\nduration = \"10s\"\nrate = 50\n[[session]]\n\
         name = \"one\"\nprotocol = \"raw\"\nsteps = [{{ connect = \"/\" }}, \
         {{ send = \"hello\", reply = true }}, {{ close = true }}]",
        server.addr
    ))
}

fn open_http() -> Ran {
    let server = http_server();
    run(&format!(
        "[target]\nurl = \"http://{}\"\n[[phase]]\nduration = \"10s\"\nrate = 50\n[[session]]\n\
         name = \"one\"\nprotocol = \"raw\"\nsteps = [{{ get = \"/\" }}]",
        server.addr
    ))
}

/// Users who stay connected and send requests again and again, each at different times.
fn persistent(steps: &str, url: &str, users: u32, server: &Server) -> Ran {
    let rate = users * 10;
    run(&format!(
        "[target]\nurl = \"{url}://{}\"\n[[phase]]\nduration = \"100ms\"\nrate = {rate}\n\
         [[session]]\nname = \"one\"\nprotocol = \"raw\"\nsteps = [{steps}]",
        server.addr
    ))
}

fn over_websocket(rounds: u32, every_ms: u32) -> String {
    format!(
        "{{ connect = \"/\" }}, {{ loop = {rounds}, every = \"{every_ms}ms\", steps = \
         [{{ send = \"hello\", reply = true }}] }}, {{ close = true }}"
    )
}

#[test]
fn open_arrivals_over_websockets() {
    let ran = ran(0);
    ran.users_are(500, 0);
    shows_the_stall(&ran, Metric::Message, 500);
}

#[test]
fn open_arrivals_over_http() {
    let ran = ran(1);
    ran.users_are(500, 0);
    shows_the_stall(&ran, Metric::Http, 500);
}

#[test]
fn one_user_with_a_paced_loop() {
    let ran = ran(2);
    ran.users_are(1, 0);
    // After the stall come those that could not be sent in time, each counted from its due time;
    // the server answers them at once, so the last of them is hardly late.
    shows_the_stall(&ran, Metric::Message, 500);
}

#[test]
fn persistent_websockets_with_paced_loops() {
    let ran = ran(3);
    ran.users_are(10, 0);
    shows_the_stall(&ran, Metric::Message, 500);
}

#[test]
fn one_http_user_with_a_paced_loop() {
    let ran = ran(4);
    ran.users_are(1, 0);
    shows_the_stall(&ran, Metric::Http, 500);
}
