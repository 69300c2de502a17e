//! Every fault of a server is counted with its kind, once for each user, and the run ends.

use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::thread;
use std::time::{Duration, Instant};

use crate::outside::{Peer, Ran, Server, close, frame, of, raw_frame, run, steered};
use simurgh_load::record::{Count, Ending, ErrorKind as E, Metric};

const USERS: u32 = 20;
const N: u64 = USERS as u64;
const SHORT: &str = "[timeouts]\nconnect = \"10s\"\nreply = \"500ms\"";
const HELLO: &str =
    "steps = [{ connect = \"/\" }, { send = \"hello\", reply = true }, { close = true }]";

fn hello(server: SocketAddr) -> Ran {
    run(&of(server, USERS, "raw", SHORT, HELLO))
}

/// All users fail with the same error when they connect.
#[track_caller]
fn all_fail(ran: &Ran, kind: E) {
    ran.errors_are(&[(kind, N)]);
    ran.users_are(0, N);
    assert_eq!(ran.ending, Ending::Finished);
    assert!(ran.took < Duration::from_secs(20), "{}", ran.text());
}

/// Upgrades, then calls `then`.
fn after_upgrade(then: impl Fn(Peer) + Send + Sync + 'static) -> Server {
    Server::new(move |mut peer| {
        if peer.upgrade() {
            then(peer);
        }
    })
}

#[test]
fn correct_server_causes_no_errors() {
    let server = after_upgrade(|mut peer| peer.echo());
    let ran = hello(server.addr);
    ran.errors_are(&[]);
    ran.users_are(N, 0);
    assert_eq!(ran.count(Count::Requests), 2 * N);
    assert_eq!(ran.count(Count::ClosesIn), N);
    assert_eq!((ran.timed(Metric::Upgrade), ran.timed(Metric::Message)), (N, N));
}

#[test]
fn refused_connections_are_reported() {
    let addr = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let ran = hello(addr);
    all_fail(&ran, E::ConnectRefused);
    assert_eq!(ran.count(Count::ConnectsTried), N);
    assert_eq!(ran.count(Count::Requests), 0);
}

#[test]
fn users_retry_when_connections_are_refused() {
    let addr = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let head = "[timeouts]\nretries = 3\nretry_wait = \"10ms\"";
    let ran = run(&of(addr, USERS, "raw", head, HELLO));
    ran.errors_are(&[(E::ConnectRefused, 4 * N)]);
    ran.users_are(0, N);
    assert_eq!(ran.count(Count::ConnectsTried), 4 * N);
}

#[test]
fn retrying_users_find_a_server_that_starts_late() {
    let addr = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let head = "[timeouts]\nretries = 1000\nretry_wait = \"20ms\"";
    let mut late = None;
    let ran = steered(&of(addr, USERS, "raw", head, HELLO), 1, |run| {
        let record = run.record();
        late = Some(thread::spawn(move || {
            let began = Instant::now();
            while record.lock().unwrap().errors().of_kind(E::ConnectRefused) < N {
                assert!(began.elapsed() < Duration::from_secs(15), "all are refused");
                thread::sleep(Duration::from_millis(20));
            }
            Server::at(addr, |mut peer| {
                if peer.upgrade() {
                    peer.echo();
                }
            })
        }));
    });
    ran.users_are(N, 0);
    let refused = ran.errors(E::ConnectRefused);
    assert!(refused >= N, "{}", ran.text());
    ran.errors_are(&[(E::ConnectRefused, refused)]);
    drop(late.unwrap().join().unwrap());
}

#[test]
fn server_that_accepts_and_never_answers_times_out() {
    let server = Server::new(|mut peer| peer.drain());
    let ran = hello(server.addr);
    all_fail(&ran, E::UpgradeTimeout);
    assert_eq!(ran.count(Count::Connects), N);
    assert_eq!(ran.count(Count::RequestsUnanswered), N);
    // The time waited is a lower bound of the latency, and counts.
    assert!(ran.record.times(Metric::Upgrade).unwrap().min() >= 499_000);
}

#[test]
fn server_with_a_full_backlog_times_out() {
    // The kernel accepts what fits in the backlog, so users connect and then receive nothing; the
    // others do not even connect. Either way each has one error.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    rustix::net::listen(&listener, 16).unwrap();
    let head = "[timeouts]\nconnect = \"700ms\"\nreply = \"500ms\"";
    let ran = run(&of(listener.local_addr().unwrap(), 400, "raw", head, HELLO));
    let (connect, upgrade) = (ran.errors(E::ConnectTimeout), ran.errors(E::UpgradeTimeout));
    assert_eq!(connect + upgrade, 400, "{}", ran.text());
    assert!(upgrade > 0 && connect > 0, "{}", ran.text());
    assert_eq!(ran.count(Count::RequestsUnanswered), upgrade);
    ran.users_are(0, 400);
}

#[test]
fn upgrade_response_with_an_error_status_is_reported() {
    for status in [200, 404, 426, 503] {
        let server = Server::new(move |mut peer| {
            if peer.head().is_some() {
                peer.send(format!("HTTP/1.1 {status} No\r\ncontent-length: 2\r\n\r\nno"));
                peer.drain();
            }
        });
        let ran = hello(server.addr);
        all_fail(&ran, E::UpgradeStatus(status));
        assert_eq!(ran.timed(Metric::Upgrade), N);
        assert_eq!(ran.count(Count::RequestsUnanswered), 0);
        assert_eq!(ran.count(Count::Upgrades), 0);
    }
}

#[test]
fn malformed_upgrade_response_is_reported() {
    let wrong: [fn(&Peer) -> String; 5] = [
        |peer| peer.switch().replace("Accept: ", "Accept: x"),
        |peer| peer.switch().replace("Upgrade: websocket", "Upgrade: h2c"),
        |peer| peer.switch().replace("\r\n\r\n", "\r\nSec-WebSocket-Extensions: x\r\n\r\n"),
        |_| "HTTP/1.1 abc\r\n\r\n".to_owned(),
        |_| format!("HTTP/1.1 101 x\r\nx: {}\r\n", "y".repeat(1 << 20)),
    ];
    for (number, wrong) in wrong.into_iter().enumerate() {
        let server = Server::new(move |mut peer| {
            if peer.head().is_some() {
                peer.send(wrong(&peer));
                peer.drain();
            }
        });
        let ran = hello(server.addr);
        all_fail(&ran, E::UpgradeWrong);
        assert!(!ran.record.details(E::UpgradeWrong).is_empty(), "{number}: {}", ran.text());
    }
}

#[test]
fn reset_during_the_upgrade_response_is_reported() {
    let server = Server::new(|mut peer| {
        if peer.head().is_some() {
            let half = peer.switch().into_bytes();
            peer.send(&half[..40]);
            thread::sleep(Duration::from_millis(50));
            peer.reset();
        }
    });
    let ran = hello(server.addr);
    all_fail(&ran, E::ConnectionReset);
    assert_eq!(ran.count(Count::RequestsUnanswered), N);
}

#[test]
fn immediate_close_or_reset_is_reported() {
    // The end may be noticed before or after the request was written.
    for server in [Server::new(drop), Server::new(Peer::reset)] {
        let ran = hello(server.addr);
        let (end, reset) = (ran.errors(E::EndOfStream), ran.errors(E::ConnectionReset));
        assert_eq!(end + reset + ran.errors(E::ConnectReset), N, "{}", ran.text());
        ran.users_are(0, N);
    }
}

#[test]
fn invalid_frames_are_reported() {
    let masked = {
        let mut masked = raw_frame(0x81, 5, &[1, 2, 3, 4, b'h' ^ 1, 0, 0, 0, 0]);
        masked[1] |= 0x80;
        masked
    };
    let wrong: [(&str, Vec<u8>, E); 8] = [
        ("garbage", b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec(), E::FrameError),
        ("masked", masked, E::FrameError),
        ("not UTF-8", frame(1, [0xff, 0xfe]), E::FrameError),
        ("reserved bits", raw_frame(0xf1, 1, b"x"), E::FrameError),
        ("no such opcode", raw_frame(0x83, 1, b"x"), E::FrameError),
        ("a long ping", raw_frame(0x89, 126, &[0; 126]), E::FrameError),
        ("a rest of nothing", raw_frame(0x80, 1, b"x"), E::FrameError),
        ("too large", raw_frame(0x82, 1 << 40, &[0; 64]), E::MessageTooLarge),
    ];
    for (what, bytes, kind) in wrong {
        let closes = Arc::new(AtomicU64::new(0));
        let seen = Arc::clone(&closes);
        let server = after_upgrade(move |mut peer| {
            peer.frame();
            peer.send(&bytes);
            // The user reports the fault once, and leaves.
            while let Some(got) = peer.frame() {
                if got.opcode == 8 {
                    seen.fetch_add(1, SeqCst);
                    peer.no_more();
                }
            }
        });
        let ran = hello(server.addr);
        ran.errors_are(&[(kind, N)]);
        ran.users_are(0, N);
        assert_eq!(ran.count(Count::RequestsUnanswered), N, "{what}");
        drop(server);
        assert_eq!(closes.load(SeqCst), N, "{what}");
    }
}

#[test]
fn fragmented_message_over_the_limit_is_reported() {
    let server = after_upgrade(|mut peer| {
        peer.frame();
        let piece = vec![b'x'; 1 << 20];
        let mut more = peer.send(raw_frame(0x01, 1 << 20, &piece));
        while more {
            more = peer.send(raw_frame(0x00, 1 << 20, &piece));
        }
    });
    let head = "[timeouts]\nreply = \"30s\"";
    let ran = run(&of(server.addr, 2, "raw", head, HELLO));
    ran.errors_are(&[(E::MessageTooLarge, 2)]);
    ran.users_are(0, 2);
}

#[test]
fn close_code_during_a_session_is_reported() {
    for code in [1000, 1001, 1011, 1012, 1013, 4000] {
        let server = after_upgrade(move |mut peer| {
            peer.frame();
            peer.send(close(code));
            assert_eq!(peer.frame().map(|got| got.opcode), Some(8), "a close is answered");
        });
        let ran = hello(server.addr);
        all_fail(&ran, E::Closed(code));
        assert_eq!(ran.count(Count::ClosesIn), N);
        assert_eq!(ran.count(Count::RequestsUnanswered), N);
    }
}

#[test]
fn end_of_stream_during_a_think_time_is_reported() {
    let server = after_upgrade(|mut peer| {
        thread::sleep(Duration::from_millis(200));
        // Nothing is unread, so this is an end and not a reset.
        peer.no_more();
        peer.drain();
    });
    let steps = "steps = [{ connect = \"/\" }, { think = \"20s\" }]";
    let ran = run(&of(server.addr, USERS, "raw", SHORT, steps));
    all_fail(&ran, E::EndOfStream);
    assert!(ran.took < Duration::from_secs(15), "{}", ran.text());
}

#[test]
fn bad_connection_does_not_disturb_others() {
    // Every fourth user meets a different fault; the others work normally.
    let server = Server::new(|mut peer| match peer.number % 8 {
        0 => drop(peer),
        4 => {
            peer.upgrade();
            peer.send([0xff; 100]);
            peer.drain();
        }
        _ if peer.upgrade() => peer.echo(),
        _ => {}
    });
    let steps = "steps = [{ connect = \"/\" }, { loop = 5, every = \"50ms\", steps = \
                 [{ send = \"hello\", reply = true }] }, { close = true }]";
    let ran = run(&of(server.addr, 80, "raw", "", steps));
    ran.users_are(60, 20);
    assert_eq!(ran.errors(E::FrameError), 10, "{}", ran.text());
    assert_eq!(ran.record.errors().total(), 20, "{}", ran.text());
    assert!(ran.timed(Metric::Message) >= 60 * 5);
}

#[test]
fn response_sent_byte_by_byte_is_parsed() {
    let server = Server::new(|mut peer| {
        if peer.head().is_none() {
            return;
        }
        let mut all = peer.switch().into_bytes();
        all.extend(frame(1, "early"));
        for byte in all {
            peer.send([byte]);
        }
        while let Some(got) = peer.frame() {
            for byte in frame(got.opcode, &got.payload) {
                peer.send([byte]);
            }
            if got.opcode == 8 {
                return;
            }
        }
    });
    let ran = hello(server.addr);
    ran.errors_are(&[]);
    ran.users_are(N, 0);
    assert_eq!(ran.count(Count::FramesInText), 2 * N, "{}", ran.text());
}

#[test]
fn messages_sent_during_a_think_time_are_all_received() {
    const FRAMES: u64 = 4096;
    let server = after_upgrade(|mut peer| {
        let text = frame(1, [b'x'; 1024]);
        for _ in 0..FRAMES {
            if !peer.send(&text) {
                return;
            }
        }
        peer.echo();
    });
    let steps = "steps = [{ connect = \"/\" }, { think = \"3s\" }, { close = true }]";
    let ran = run(&of(server.addr, 4, "raw", "[timeouts]\nreply = \"20s\"", steps));
    ran.errors_are(&[]);
    ran.users_are(4, 0);
    assert_eq!(ran.count(Count::FramesInText), 4 * FRAMES);
    assert_eq!(ran.count(Count::FramesUnsolicited), 4 * FRAMES);
    assert!(ran.count(Count::BytesIn) >= 4 * FRAMES * 1028);
}

#[test]
fn run_ends_in_time_during_an_endless_flood() {
    let server = after_upgrade(|mut peer| {
        let text = frame(2, [7; 16 << 10]);
        while peer.send(&text) {}
    });
    let head = "duration = \"2s\"";
    let steps = "steps = [{ connect = \"/\" }, { receive = \"end\" }]";
    let ran = run(&of(server.addr, 4, "raw", head, steps));
    ran.errors_are(&[]);
    ran.users_are(4, 0);
    assert_eq!(ran.ending, Ending::Duration);
    assert!(ran.took < Duration::from_secs(20), "{}", ran.text());
}

#[test]
fn server_that_reads_nothing_stalls_sending() {
    // Users send without waiting until the buffers of the kernel and then of this tool are full.
    let server = after_upgrade(|_peer| thread::sleep(Duration::from_secs(90)));
    let body = "x".repeat(64 << 10);
    let steps = format!(
        "steps = [{{ connect = \"/\" }}, {{ loop = \"forever\", every = \"1ms\", steps = \
         [{{ send = \"{body}\" }}] }}]"
    );
    let ran = run(&of(server.addr, 3, "raw", "duration = \"80s\"", &steps));
    ran.errors_are(&[(E::SendStalled, 3)]);
    ran.users_are(0, 3);
    assert_eq!(ran.ending, Ending::Finished);
}

#[test]
fn every_ping_is_answered() {
    const PINGS: u64 = 3000;
    let pongs = Arc::new(AtomicU64::new(0));
    let seen = Arc::clone(&pongs);
    let server = after_upgrade(move |mut peer| {
        let reader = Arc::clone(&peer.stream);
        let seen = Arc::clone(&seen);
        let pongs = thread::spawn(move || {
            let mut peer =
                Peer { stream: reader, number: 0, key: String::new(), path: String::new() };
            let mut expected = 0_u64;
            while let Some(got) = peer.frame() {
                if got.opcode == 10 {
                    assert_eq!(got.payload, expected.to_be_bytes());
                    expected += 1;
                    seen.fetch_add(1, SeqCst);
                }
                if expected == PINGS {
                    peer.text("enough");
                }
            }
        });
        for number in 0..PINGS {
            peer.send(frame(9, number.to_be_bytes()));
        }
        pongs.join().unwrap();
    });
    let steps = "steps = [{ connect = \"/\" }, { receive = \"20s\", count = 1 }]";
    let ran = run(&of(server.addr, 3, "raw", "", steps));
    ran.errors_are(&[]);
    ran.users_are(3, 0);
    assert_eq!(ran.count(Count::PingsIn), 3 * PINGS);
    assert_eq!(pongs.load(SeqCst), 3 * PINGS);
}
