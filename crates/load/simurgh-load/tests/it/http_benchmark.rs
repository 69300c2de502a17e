//! The HTTP benchmark against servers that answer well, oddly, wrongly, late or not at all.

use std::io::{Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::thread;
use std::time::{Duration, Instant};

use crate::outside::{Peer, Server, certificate, close_notify, eventually, head, secure_server};
use simurgh_load::benchmark::{BenchmarkError, Job, Outcome, Plan, Runner};
use simurgh_load::scenario::Tls;

const HELLO: &str = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello";

fn plan(server: &Server) -> Plan {
    Plan {
        url: format!("http://{}/page?a=b", server.addr),
        connections: 4,
        duration: Duration::from_millis(400),
        timeout: Duration::from_secs(5),
        ..Plan::default()
    }
}

fn tried(plan: Plan) -> Result<Outcome, BenchmarkError> {
    let connections = plan.connections;
    Runner::default().run(&Job::new(plan).unwrap(), connections)
}

#[track_caller]
fn run(plan: Plan) -> Outcome {
    let run = tried(plan).unwrap();
    let entered = run.latency_histogram.count();
    match &run.open_loop {
        None => assert_eq!(entered, run.requests + run.socket_errors.timeout, "{run:#?}"),
        Some(open) => assert_eq!(entered, open.due, "{run:#?}"),
    }
    assert_eq!(run.statuses.values().sum::<u64>(), run.requests, "{run:#?}");
    assert_eq!(run.errors.values().sum::<u64>(), run.socket_errors.sum(), "{run:#?}");
    run
}

fn always(answer: impl Into<String>) -> Server {
    let answer = answer.into();
    Server::new(move |mut peer| while peer.head().is_some() && peer.send(&answer) {})
}

/// A server that counts its answers.
fn counting() -> (Server, Arc<AtomicU64>) {
    let answered = Arc::new(AtomicU64::new(0));
    let count = Arc::clone(&answered);
    let server = Server::new(move |mut peer| {
        while peer.head().is_some() && peer.send(HELLO) {
            count.fetch_add(1, SeqCst);
        }
    });
    (server, answered)
}

/// Waits until a run is under way, however late it began.
fn await_answers(answered: &AtomicU64) {
    eventually("100 answers", || answered.load(SeqCst) >= 100);
}

fn once(answer: &'static str) -> Server {
    Server::new(move |mut peer| {
        if peer.head().is_some() {
            peer.send(answer);
            peer.no_more();
            peer.drain();
        }
    })
}

/// All answers are counted, none is wrong, no connection is lost.
#[track_caller]
fn all_well(run: &Outcome) {
    assert!(run.requests > 20, "{run:#?}");
    assert!(run.errors.is_empty() && run.reconnects == 0, "{run:#?}");
}

#[test]
fn response_count_matches_the_server() {
    let served = Arc::new(AtomicU64::new(0));
    let count = Arc::clone(&served);
    let server = Server::new(move |mut peer| {
        while let Some(head) = peer.head() {
            assert!(head.starts_with("POST /page?a=b HTTP/1.1\r\n"), "{head}");
            assert!(head.contains("\r\nX-A: b\r\n"), "{head}");
            let mut body = [0; 3];
            (&*peer.stream).read_exact(&mut body).unwrap();
            assert_eq!(&body, b"abc");
            count.fetch_add(1, SeqCst);
            if !peer.send(HELLO) {
                return;
            }
        }
    });
    let mut plan = plan(&server);
    plan.method = "POST".to_owned();
    plan.headers = vec![("X-A".to_owned(), "b".to_owned())];
    plan.body = Some(b"abc".to_vec());
    let run = run(plan);
    all_well(&run);
    assert_eq!(run.statuses.keys().collect::<Vec<_>>(), [&200]);
    assert_eq!(server.accepted(), 4);
    // Open requests at the end of the run are not counted.
    let more = served.load(SeqCst) - run.requests;
    assert!(more <= 4, "{more}");
    assert_eq!(run.bytes_read, run.requests * HELLO.len() as u64);
    let expected = run.requests as f64 / run.elapsed_s;
    assert!((run.requests_per_second - expected).abs() < 1.0);
    assert!(run.elapsed_s >= 0.39, "{}", run.elapsed_s);
}

#[test]
fn each_status_is_counted_separately_and_redirects_are_not_followed() {
    let server = Server::new(|mut peer| {
        let statuses = ["200 OK", "301 Moved Permanently", "404 Not Found", "503 Busy"];
        for status in statuses.iter().cycle() {
            let answer =
                format!("HTTP/1.1 {status}\r\nLocation: /elsewhere\r\nContent-Length: 2\r\n\r\nok");
            if peer.head().is_none_or(|_| peer.path != "/page?a=b") || !peer.send(answer) {
                return;
            }
        }
    });
    let run = run(plan(&server));
    all_well(&run);
    assert_eq!(run.statuses.keys().copied().collect::<Vec<_>>(), [200, 301, 404, 503]);
    assert_eq!(run.non_2xx_or_3xx, run.statuses[&404] + run.statuses[&503]);
}

#[test]
fn connections_without_keep_alive_are_reopened_and_counted() {
    for answer in [
        "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 1\r\n\r\na",
        "HTTP/1.0 200 OK\r\nContent-Length: 1\r\n\r\na",
        // Without a length: all until the end.
        "HTTP/1.1 200 OK\r\n\r\nall of it",
    ] {
        let server = once(answer);
        let run = run(plan(&server));
        assert!(run.requests > 20 && run.errors.is_empty(), "{answer:?}: {run:#?}");
        let more = run.reconnects.abs_diff(run.requests);
        assert!(more <= 4, "{answer:?}: {run:#?}");
        assert!(server.accepted() >= run.reconnects, "{answer:?}");
    }
}

#[test]
fn connection_closed_between_requests_is_not_an_error() {
    let server = Server::new(|mut peer| {
        for _ in 0..3 {
            if peer.head().is_none() || !peer.send(HELLO) {
                return;
            }
        }
        // The next request may have come already, so that this is a reset.
    });
    let run = run(plan(&server));
    assert!(run.requests > 20 && run.errors.is_empty(), "{run:#?}");
    let expected = run.requests / 3;
    assert!(run.reconnects.abs_diff(expected) <= 4, "{run:#?}");
}

#[test]
fn truncated_response_is_a_read_error() {
    for answer in
        ["HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc", "HTTP/1.1 200 OK\r\nCont", ""]
    {
        let run = run(plan(&once(answer)));
        assert_eq!(run.requests, 0, "{answer:?}: {run:#?}");
        assert!(run.errors["end_of_stream"] > 4, "{answer:?}: {run:#?}");
        assert_eq!(run.errors.len(), 1, "{answer:?}: {run:#?}");
    }
    let resets = Server::new(|mut peer: Peer| {
        let _ = peer.head();
        peer.reset();
    });
    let run = run(plan(&resets));
    assert!(run.errors["connection_reset"] > 4 && run.requests == 0, "{run:#?}");
}

/// Answers with some bytes changed, left out, or sent in odd pieces: `run` checks the sums.
#[test]
fn sums_are_consistent_for_any_response_bytes() {
    let server = Server::new(|mut peer| {
        let mut random = fastrand::Rng::with_seed(peer.number);
        let answers = [
            HELLO,
            "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\na",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
            "HTTP/1.0 204 No Content\r\nConnection: keep-alive\r\n\r\n",
        ];
        while peer.head().is_some() {
            let mut answer = random.choice(answers).unwrap().as_bytes().to_vec();
            if random.u8(..) < 64 {
                let at = random.usize(..answer.len());
                answer[at] = random.u8(..);
            }
            if random.u8(..) < 32 {
                answer.truncate(random.usize(..answer.len()));
            }
            let (one, two) = answer.split_at(random.usize(..=answer.len()));
            if !peer.send(one) || !peer.send(two) || random.u8(..) < 16 {
                return;
            }
        }
    });
    for rate in [None, Some(500.0)] {
        let timeout = Duration::from_millis(50);
        let run = run(Plan { rate, timeout, connections: 16, ..plan(&server) });
        assert!(run.requests > 20 && run.socket_errors.read > 4, "{run:#?}");
        assert!(run.reconnects > 4, "{run:#?}");
    }
}

#[test]
fn bytes_after_the_response_are_an_error() {
    let run = run(plan(&always(format!("{HELLO}and more"))));
    assert!(run.requests > 4 && run.errors["http_malformed"] == run.requests, "{run:#?}");
}

#[test]
fn server_that_never_responds_causes_timeouts() {
    let server = Server::new(|mut peer| {
        let _ = peer.head();
        peer.drain();
    });
    let mut plan = plan(&server);
    plan.timeout = Duration::from_millis(100);
    plan.duration = Duration::from_millis(950);
    let run = run(plan);
    // Nine on each of four connections; fewer on a busy machine.
    assert!((4..=36).contains(&run.socket_errors.timeout), "{run:#?}");
    assert_eq!((run.requests, run.socket_errors.sum()), (0, run.socket_errors.timeout));
    assert!(run.latency_us.min >= 99_000, "{run:#?}");
}

#[test]
fn results_before_a_server_crash_are_reported() {
    let (server, answered) = counting();
    let mut plan = plan(&server);
    plan.duration = Duration::from_secs(4);
    let killer = thread::spawn(move || {
        await_answers(&answered);
        server.kill()
    });
    let run = run(plan);
    killer.join().unwrap();
    assert!(run.requests > 20 && run.errors["connect_refused"] >= 4, "{run:#?}");
    // Tried again each tenth of a second, not in a busy loop.
    assert!(run.errors["connect_refused"] <= 4 * 42, "{run:#?}");
}

#[test]
fn unreachable_server_is_reported_before_the_benchmark() {
    let server = always(HELLO);
    let plan = plan(&server);
    drop(server);
    let error = tried(plan).unwrap_err();
    assert!(matches!(error, BenchmarkError::Unreachable(_)), "{error:?}");
    assert!(error.to_string().contains("connection refused"), "{error}");
}

/// Repeats a run until its times are right: other programs may have needed the cores.
#[track_caller]
fn calmest(run: impl Fn() -> Outcome, is_right: impl Fn(&Outcome) -> bool) -> Outcome {
    let mut last = run();
    for _ in 0..20 {
        if is_right(&last) {
            return last;
        }
        last = run();
    }
    panic!("{last:#?}")
}

#[test]
fn closed_loop_rate_times_latency_equals_the_connections() {
    let server = Server::new(|mut peer| {
        while peer.head().is_some() {
            thread::sleep(Duration::from_millis(20));
            if !peer.send(HELLO) {
                return;
            }
        }
    });
    let mut plan = plan(&server);
    (plan.connections, plan.threads) = (6, Some(2));
    plan.duration = Duration::from_secs(1);
    // The last round of the run is cut off.
    let run = calmest(|| run(plan.clone()), |run| (5.6..=6.0).contains(&run.in_flight));
    assert_eq!(run.threads, 2);
    assert!(run.latency_us.p50 >= 20_000, "{run:#?}");
}

#[test]
fn open_loop_stall_delays_every_request_due_meanwhile() {
    // 80 of 300 were due during the stall, and waited for 200 ms on average.
    calmest(stalled, |run| {
        let slow = run.latency_histogram.share_between(20_000.0, 1e9) * 300.0;
        let open = run.open_loop.as_ref().unwrap();
        assert_eq!(open.due, 300, "{run:#?}");
        (70.0..=100.0).contains(&slow)
            && (300_000..=450_000).contains(&run.latency_us.max)
            && (open.unsent, open.rate_reached) == (0, true)
    });
}

/// The server is silent from 300 ms to 700 ms after the first request.
fn stalled() -> Outcome {
    let began = Arc::new(std::sync::OnceLock::<Instant>::new());
    let server = Server::new(move |mut peer| {
        while peer.head().is_some() {
            let since = began.get_or_init(Instant::now).elapsed();
            let stall = Duration::from_millis(300)..Duration::from_millis(700);
            if stall.contains(&since) {
                thread::sleep(stall.end - since);
            }
            if !peer.send(HELLO) {
                return;
            }
        }
    });
    let mut plan = plan(&server);
    (plan.connections, plan.rate) = (2, Some(200.0));
    plan.duration = Duration::from_millis(1500);
    run(plan)
}

/// Requests under way at the end are in the latency with the little that they waited.
#[test]
fn rate_counts_as_reached_if_only_the_last_requests_are_pending() {
    let server = Server::new(|mut peer| {
        while peer.head().is_some() {
            thread::sleep(Duration::from_millis(200));
            if !peer.send(HELLO) {
                return;
            }
        }
    });
    let mut plan = plan(&server);
    (plan.connections, plan.rate) = (50, Some(50.0));
    plan.duration = Duration::from_secs(1);
    calmest(
        || run(plan.clone()),
        |run| {
            let is_reached = run.open_loop.as_ref().is_some_and(|open| open.rate_reached);
            is_reached && run.latency_us.min < 100_000
        },
    );
}

#[test]
fn unreached_rate_is_reported_and_every_due_request_counts() {
    let server = Server::new(|mut peer| {
        while peer.head().is_some() {
            thread::sleep(Duration::from_millis(50));
            if !peer.send(HELLO) {
                return;
            }
        }
    });
    let mut plan = plan(&server);
    (plan.connections, plan.rate) = (1, Some(100.0));
    plan.duration = Duration::from_secs(1);
    let run = run(plan);
    let open = run.open_loop.as_ref().unwrap();
    assert_eq!((open.due, open.rate_reached), (100, false), "{run:#?}");
    assert!(run.requests <= 20 && open.unsent >= 78, "{run:#?}");
    assert!(run.latency_us.p50 > 300_000, "{run:#?}");
    let text = simurgh_load::benchmark::text(&run);
    assert!(text.contains("The rate was not reached: 100 requests were due"), "{text}");
}

#[test]
fn stopped_benchmark_reports_its_results_so_far() {
    let (server, answered) = counting();
    let mut plan = plan(&server);
    plan.duration = Duration::from_secs(60);
    let connections = plan.connections;
    let mut runner = Runner::default();
    let control = runner.control();
    let stopper = thread::spawn(move || {
        await_answers(&answered);
        control.stop();
    });
    let run = runner.run(&Job::new(plan).unwrap(), connections).unwrap();
    stopper.join().unwrap();
    assert!(run.interrupted && runner.is_stopped() && run.requests > 20, "{run:#?}");
    assert!(run.elapsed_s < 30.0, "{run:#?}");
}

/// The PEM of a self-signed certificate for 127.0.0.1, and a server that uses it.
fn secure() -> (String, Server) {
    let (pem, config) = certificate();
    let server = secure_server(config, |mut stream| {
        while head(&mut stream).is_some() && stream.write_all(HELLO.as_bytes()).is_ok() {}
    });
    (pem, server)
}

#[test]
fn https_is_measured_and_an_untrusted_certificate_is_refused() {
    let (pem, server) = secure();
    let with = |tls: Tls| {
        let url = format!("https://{}/", server.addr);
        tried(Plan { url, tls, ..plan(&server) })
    };
    for tls in
        [Tls { roots_pem: vec![pem], ..Tls::default() }, Tls { insecure: true, ..Tls::default() }]
    {
        let run = with(tls).unwrap();
        all_well(&run);
        assert_eq!(run.bytes_read, run.requests * HELLO.len() as u64, "{run:#?}");
    }
    let error = with(Tls::default()).unwrap_err().to_string();
    assert!(error.contains("certificate is not accepted") && error.contains("--roots"), "{error}");
    // Plain HTTP instead of TLS.
    let plain = always("HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n");
    let url = format!("https://{}/", plain.addr);
    let timeout = Duration::from_millis(300);
    let tls = Tls { insecure: true, ..Tls::default() };
    let error = tried(Plan { url, tls, timeout, ..self::plan(&plain) }).unwrap_err().to_string();
    assert!(error.contains("cannot connect"), "{error}");
}

#[test]
fn close_notify_ends_a_response_without_a_length() {
    let (_, config) = certificate();
    let server = secure_server(config, |mut stream| {
        if head(&mut stream).is_some() {
            stream.write_all(b"HTTP/1.1 200 OK\r\n\r\nhello").unwrap();
            close_notify(stream);
        }
    });
    let tls = Tls { insecure: true, ..Tls::default() };
    let run = tried(Plan { url: format!("https://{}/", server.addr), tls, ..plan(&server) });
    let run = run.unwrap();
    assert!(run.requests > 4 && run.socket_errors.sum() == 0, "{run:#?}");
}
