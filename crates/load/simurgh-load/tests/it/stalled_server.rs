//! A server that stops answering for five seconds of ten: requests due in that time have waited,
//! and are recorded as having waited (coordinated omission).
//!
//! 500 requests, 50 a second; those of five seconds wait five seconds, four, ... none. So half of
//! all are evenly spread over 0 to 5 s, and the 90th percentile is 4 s.

use std::sync::OnceLock;
use std::thread;
use std::time::{Duration, Instant};

use crate::outside::{Peer, Ran, Server, frame, run};
use simurgh_load::record::{Count, Metric};

/// When the server stalls, since its first request; a little longer than five seconds, so that the
/// figures are past the bounds and not on them.
const STALL: (Duration, Duration) = (Duration::from_millis(2400), Duration::from_millis(7600));
const REQUESTS: u64 = 500;

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

fn answer(peer: &mut Peer, first: &OnceLock<Instant>) {
    while peer.head().is_some() {
        stall(first);
        peer.send("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok");
    }
}

/// Who sends the requests to a server of its own, and when.
struct Case {
    name: &'static str,
    users: u64,
    phase: &'static str,
    scheme: &'static str,
    steps: &'static str,
}

const AT_ONCE: &str = "duration = \"100ms\"\nrate = ";
const CASES: [Case; 5] = [
    Case {
        name: "open arrivals over WebSockets",
        users: REQUESTS,
        phase: "duration = \"10s\"\nrate = 50",
        scheme: "ws",
        steps: "{ connect = \"/\" }, { send = \"hello\", reply = true }, { close = true }",
    },
    Case {
        name: "open arrivals over HTTP",
        users: REQUESTS,
        phase: "duration = \"10s\"\nrate = 50",
        scheme: "http",
        steps: "{ get = \"/\" }",
    },
    // After the stall come the requests that could not be sent in time, each counted from its due
    // time; the server answers them at once, so the last of them is hardly late.
    Case {
        name: "one user with a paced loop",
        users: 1,
        phase: AT_ONCE,
        scheme: "ws",
        steps: "{ connect = \"/\" }, { loop = 500, every = \"20ms\", steps = [\
                { send = \"hello\", reply = true }] }, { close = true }",
    },
    Case {
        name: "persistent WebSockets with paced loops",
        users: 10,
        phase: AT_ONCE,
        scheme: "ws",
        steps: "{ connect = \"/\" }, { loop = 50, every = \"200ms\", steps = [\
                { send = \"hello\", reply = true }] }, { close = true }",
    },
    Case {
        name: "one HTTP user with a paced loop",
        users: 1,
        phase: AT_ONCE,
        scheme: "http",
        steps: "{ loop = 500, every = \"20ms\", steps = [{ get = \"/\" }] }",
    },
];

fn ran(case: &Case) -> Ran {
    let (first, is_http) = (OnceLock::new(), case.scheme == "http");
    let server =
        Server::new(
            move |mut peer| {
                if is_http { answer(&mut peer, &first) } else { echo(&mut peer, &first) }
            },
        );
    let Case { users, phase, scheme, steps, .. } = case;
    let rate = if *phase == AT_ONCE { (users * 10).to_string() } else { String::new() };
    run(&format!(
        "[target]\nurl = \"{scheme}://{}\"\n[[phase]]\n{phase}{rate}\n\
         [[session]]\nname = \"one\"\nprotocol = \"raw\"\nsteps = [{steps}]",
        server.addr
    ))
}

#[test]
fn stall_delays_every_request_due_meanwhile() {
    let runs: Vec<_> = CASES.iter().map(|case| thread::spawn(move || ran(case))).collect();
    for (Case { name, users, scheme, .. }, run) in CASES.iter().zip(runs) {
        let ran = run.join().expect("its sums are right");
        ran.users_are(*users, 0);
        ran.errors_are(&[]);
        let metric = if *scheme == "http" { Metric::Http } else { Metric::Message };
        let times = ran.record.times(metric).unwrap();
        assert_eq!(times.count(), REQUESTS, "{name}: {}", ran.text());
        let (p90, max) = (times.percentile(90.0), times.max());
        assert!(max >= 4_900_000, "{name}: max {max} µs\n{}", ran.text());
        assert!(p90 >= 4_000_000, "{name}: p90 {p90} µs\n{}", ran.text());
        // Half of the requests met a server that answers at once.
        assert!(times.percentile(40.0) < 1_000_000, "{name}: {:?}", times.stats());
        assert!(times.percentile(75.0) < 4_000_000, "{name}: {:?}", times.stats());
        // The server was late, not this tool: half of all steps were due in the stall. Some are
        // late on a busy machine.
        let late = ran.count(Count::LateSteps);
        assert!(late <= REQUESTS / 3, "{name}: {late} late steps\n{}", ran.text());
    }
}
