//! A client cannot take anything from others. Each test is an attack that cost others their place,
//! or the server its memory, before it was prevented.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use crate::support::{Client, WAIT_MAX, handled, metric, serving, start, until};
use serde_json::json;
use simurgh::{ChannelRoute, Endpoint, Join, Outcome, Payload, ShardContext, UserSocket};
use tungstenite::Message;
use wire_tests::{frame, opcode};

fn room(ctx: &mut ShardContext<'_>, event: &str, payload: Payload<'_>) -> Outcome {
    match event {
        "all" => ctx.broadcast("news", &payload),
        "echo" => return Outcome::ok(payload.into_owned()),
        "sleep" => std::thread::sleep(Duration::from_millis(payload.parse().unwrap())),
        _ => {}
    }
    Outcome::NoReply
}

fn server(configure: impl FnOnce(&mut simurgh::Config)) -> Endpoint {
    start(serving(handled("rooms:*", room)).configure(|config| {
        config.shards = 1;
        configure(config);
    }))
}

fn member(endpoint: &Endpoint, topic: &str) -> Client {
    let mut client = Client::v2(endpoint);
    assert_eq!(client.join(topic)[4]["status"], "ok");
    client
}

#[test]
fn steady_readers_are_not_closed_by_a_fast_publisher() {
    const READERS: usize = 20;
    // In one write each: many small ones, and two of nearly the maximum size.
    for (count, bytes) in [(6_000, 1_000), (2, 9_900_000)] {
        let endpoint = server(|_| {});
        let body = "x".repeat(bytes);
        let readers: Vec<Client> = (0..READERS).map(|_| member(&endpoint, "rooms:a")).collect();
        let mut publisher = member(&endpoint, "rooms:a");
        let read = |mut reader: Client| {
            std::thread::spawn(move || (0..count).all(|n| reader.recv()[4]["n"] == n))
        };
        let readers: Vec<_> = readers.into_iter().map(read).collect();
        let mut probe = member(&endpoint, "rooms:b");
        let mut writer = publisher.0.get_ref().try_clone().unwrap();
        let mut all = Vec::new();
        for n in 0..count {
            let text = json!(["1", "2", "rooms:a", "all", {"n": n, "body": body}]).to_string();
            all.extend(text_frame(text));
        }
        let writing = std::thread::spawn(move || writer.write_all(&all).unwrap());
        for n in 0..count {
            assert_eq!(publisher.recv()[4]["n"], n, "the publisher itself");
            if n % 500 == 0 {
                probe.push("2", "rooms:b", "all", json!({"n": n}));
                assert_eq!(probe.recv()[4]["n"], n);
            }
        }
        writing.join().unwrap();
        assert!(readers.into_iter().all(|reader| reader.join().unwrap()));
        assert_eq!(metric(&endpoint, "simurgh_slow_peer_disconnects_total"), 0);
        until("everything to be given back", || {
            metric(&endpoint, "simurgh_fanout_bytes") == 0
                && metric(&endpoint, "simurgh_waiting_bytes") == 0
        });
    }
}

#[test]
fn flood_in_one_topic_does_not_delay_another() {
    let endpoint = server(|config| config.mailbox_bytes_max = 1 << 20);
    // These do not read: everything is queued until they are closed.
    let _deaf: Vec<Client> = (0..5).map(|_| member(&endpoint, "rooms:a")).collect();
    let mut flooding = member(&endpoint, "rooms:a");
    let body = "x".repeat(500_000);
    for n in 0..10 {
        flooding.push("2", "rooms:a", "all", json!({"n": n, "body": body}));
    }
    until("it to be held back", || metric(&endpoint, "simurgh_publishers_held_total") > 0);
    let mut other = member(&endpoint, "rooms:b");
    for n in 0..50 {
        other.push("2", "rooms:b", "all", json!({"n": n}));
        assert_eq!(other.recv()[4]["n"], n);
    }
}

#[test]
fn broadcast_is_stored_once_for_all_readers() {
    const MEMBERS: usize = 60;
    let endpoint = server(|_| {});
    let mut deaf: Vec<Client> = (0..MEMBERS).map(|_| member(&endpoint, "rooms:a")).collect();
    let mut publisher = member(&endpoint, "rooms:a");
    let long = "x".repeat(5_000_000);
    publisher.push("2", "rooms:a", "all", json!({"body": long}));
    assert_eq!(publisher.recv()[3], "news");
    // Each receives a push of its own behind a different number of broadcasts.
    for (n, member) in deaf.iter_mut().enumerate() {
        member.push("2", "rooms:a", "all", json!({"n": n}));
        member.push("3", "rooms:a", "echo", json!({"n": n}));
        assert_eq!(publisher.recv()[4]["n"], n);
    }
    until("all to be behind", || {
        metric(&endpoint, "simurgh_queued_bytes") > (MEMBERS * 500_000) as u64
    });
    let waiting = metric(&endpoint, "simurgh_waiting_bytes");
    assert!(waiting < 5_000_000 + 200_000, "{waiting} bytes for 5 MB and some more");
    // A client that reads at last has missed nothing.
    let mut last = deaf.pop().unwrap();
    drop(deaf);
    assert_eq!(last.recv()[4]["body"].as_str().map(str::len), Some(5_000_000));
    let mut own_reply = false;
    for n in 0..MEMBERS {
        let message = last.recv();
        assert_eq!(message[4]["n"], n);
    }
    own_reply |= last.recv()[3] == "phx_reply";
    assert!(own_reply);
}

#[test]
fn slow_reader_is_closed_with_1013() {
    let endpoint = server(|config| {
        config.slow_after = Duration::from_millis(500);
        config.close_timeout = Duration::from_millis(200);
    });
    let mut probe = member(&endpoint, "rooms:b");
    let long = "x".repeat(9_900_000);
    let _deaf: Vec<Client> = (0..4)
        .map(|n| {
            let room = format!("rooms:{n}");
            let mut client = member(&endpoint, &room);
            let event = if n % 2 == 0 { "echo" } else { "all" };
            client.push("2", &room, event, json!({"body": long}));
            client
        })
        .collect();
    until("all of them to be cut", || {
        probe.heartbeat();
        metric(&endpoint, "simurgh_slow_stalled_total") == 4
    });
    until("what waited for them to be free", || {
        metric(&endpoint, "simurgh_waiting_bytes") == 0
            && metric(&endpoint, "simurgh_queued_bytes") == 0
    });
    probe.heartbeat();
}

#[test]
fn largest_reader_is_closed_above_the_outbound_budget() {
    let endpoint = server(|config| config.outbound_budget_bytes = 16 << 20);
    let mut probe = member(&endpoint, "rooms:b");
    let long = "x".repeat(9_000_000);
    let mut deaf: Vec<Client> = (0..12).map(|_| member(&endpoint, "rooms:a")).collect();
    for client in &mut deaf {
        client.push("2", "rooms:a", "echo", json!({"body": long}));
        until("what waits to be within its budget", || {
            metric(&endpoint, "simurgh_waiting_bytes") <= 16 << 20
        });
    }
    assert!(metric(&endpoint, "simurgh_slow_shed_total") > 0);
    probe.heartbeat();
}

fn text_frame(text: String) -> Vec<u8> {
    frame(opcode::TEXT, text).bytes()
}

fn raw(endpoint: &Endpoint) -> TcpStream {
    let client = Client::v2(endpoint);
    client.0.get_ref().try_clone().unwrap()
}

#[test]
fn oldest_incomplete_message_is_closed_above_the_inbound_budget() {
    const HOLDERS: usize = 12;
    let endpoint = server(|config| config.inbound_budget_bytes = 4 << 20);
    let mut holders: Vec<TcpStream> = (0..HOLDERS).map(|_| raw(&endpoint)).collect();
    for holder in &mut holders {
        let half = text_frame(" ".repeat(1_000_000));
        holder.write_all(&half[..200_000]).unwrap();
    }
    until("all halves to be there", || {
        metric(&endpoint, "simurgh_inbound_bytes") >= (HOLDERS * 200_000) as u64
    });
    let mut others: Vec<Client> = (0..20).map(|_| member(&endpoint, "rooms:a")).collect();
    let text = json!(["1", "2", "rooms:a", "echo", "x".repeat(150_000)]).to_string();
    let frame = text_frame(text);
    let (one, two) = frame.split_at(100_000);
    for other in &mut others {
        other.0.get_mut().write_all(one).unwrap();
    }
    for other in &mut others {
        other.0.get_mut().write_all(two).unwrap();
        assert_eq!(other.recv()[4]["response"].as_str().map(str::len), Some(150_000));
    }
    let cut = metric(&endpoint, "simurgh_errors_inbound_budget_total");
    assert!((1..=HOLDERS as u64).contains(&cut), "{cut}");
}

#[test]
fn stalled_message_is_closed_after_message_timeout() {
    let endpoint = server(|config| config.message_timeout = Duration::from_secs(3));
    let mut trickling = raw(&endpoint);
    let mut getting_on = member(&endpoint, "rooms:a");
    let half = text_frame(" ".repeat(1_000_000));
    trickling.write_all(&half[..100]).unwrap();
    let text = json!(["1", "2", "rooms:a", "echo", "x".repeat(600_000)]).to_string();
    let frame = text_frame(text);
    let begun = Instant::now();
    for (piece, byte) in frame.chunks(frame.len() / 30).zip(&half[100..]) {
        getting_on.0.get_mut().write_all(piece).unwrap();
        // A byte now and then is not progress. The connection may be closed by now.
        let _ = trickling.write_all(&[*byte]);
        std::thread::sleep(Duration::from_millis(150));
    }
    assert!(begun.elapsed() > Duration::from_secs(3), "longer than the time for one");
    assert_eq!(getting_on.recv()[4]["response"].as_str().map(str::len), Some(600_000));
    assert_eq!(metric(&endpoint, "simurgh_errors_message_timeout_total"), 1);
    let mut answer = Vec::new();
    trickling.set_read_timeout(Some(WAIT_MAX)).unwrap();
    match trickling.read_to_end(&mut answer) {
        Ok(_) => assert_eq!(&answer[..4], [0x88, answer[1], 0x03, 0xf5], "1013"),
        Err(error) => assert_eq!(error.kind(), ErrorKind::ConnectionReset),
    }
}

#[test]
fn messages_before_a_half_close_get_replies() {
    let endpoint = server(|_| {});
    for bytes in [10, 9_000_000] {
        let mut client = member(&endpoint, "rooms:a");
        client.push("2", "rooms:a", "echo", json!("x".repeat(bytes)));
        client.0.get_ref().shutdown(std::net::Shutdown::Write).unwrap();
        let reply = client.recv();
        assert_eq!(reply[4]["response"].as_str().map(str::len), Some(bytes));
        assert!(client.0.read().is_err(), "then it is over");
    }
    until("both to be gone", || metric(&endpoint, "simurgh_sockets") == 0);
}

fn joins_never(decision_timeout: Duration) -> Endpoint {
    let user_socket = UserSocket::new("/socket")
        .channel(ChannelRoute::on_shard("never:*", |_, _| Join::later(std::future::pending())))
        .channel(handled("rooms:*", room));
    start(Endpoint::builder().socket(user_socket).configure(|config| {
        config.shards = 1;
        config.decision_timeout = decision_timeout;
        config.close_timeout = Duration::from_millis(300);
    }))
}

#[test]
fn client_that_disconnects_while_paused_is_noticed() {
    let endpoint = joins_never(Duration::from_secs(3600));
    for is_reset in [false, true] {
        let mut client = Client::v2(&endpoint);
        client.send(json!(["1", "1", "never:a", "phx_join", {}]));
        until("it to be waited for", || metric(&endpoint, "simurgh_messages_in_total") > 0);
        let stream = client.0.get_ref().try_clone().unwrap();
        if is_reset {
            rustix::net::sockopt::set_socket_linger(&stream, Some(Duration::ZERO)).unwrap();
        }
        drop((client, stream));
        until("it to be given up", || metric(&endpoint, "simurgh_sockets") == 0);
    }
}

#[test]
fn long_message_is_handled_in_order() {
    let endpoint = server(|_| {});
    let mut client = member(&endpoint, "rooms:a");
    let escapes = "\n".repeat(1_000_000);
    let (told, tell) = channel();
    let mut probe = member(&endpoint, "rooms:b");
    for n in 0..3 {
        client.push("2", "rooms:a", "echo", json!(escapes));
        client.push("3", "rooms:a", "echo", json!(n));
    }
    std::thread::spawn(move || {
        for _ in 0..20 {
            probe.heartbeat();
        }
        told.send(()).unwrap();
    });
    for n in 0..3 {
        assert_eq!(client.recv()[4]["response"].as_str(), Some(&*escapes));
        assert_eq!(client.recv()[4]["response"], n);
    }
    tell.recv_timeout(WAIT_MAX).unwrap();
    // An invalid message is noticed there, too.
    client.0.send(Message::text(format!("[1,{}", " ".repeat(100_000)))).unwrap();
    assert_eq!(client.recv_close(), 1011);
}
