//! `simurgh serve`: declared channels, flags over file, logs, and shutdown.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::support::{Server, directory, run};
use serde_json::json;

const ANYWHERE: [&str; 2] = ["--listen", "127.0.0.1:0"];

#[test]
fn server_without_a_file_serves_the_built_in_chat() {
    let server = Server::start("", &ANYWHERE);
    for page in ["/", "/phoenix.min.js", "/healthz", "/metrics"] {
        assert_eq!(server.get(page), 200, "{page}");
    }
    assert_eq!(server.get("/api/broadcast"), 404, "no token is set");
    let (mut ann, mut bob) = (server.client(), server.client());
    ann.join("rooms:a", json!({"user": "ann", "more": 1}));
    ann.expect("rooms:a", "user:entered", json!({"user": "ann"}));
    bob.join("rooms:a", json!({}));
    ann.expect("rooms:a", "user:entered", json!({"user": null}));
    bob.expect("rooms:a", "user:entered", json!({"user": null}));
    let message = json!({"user": "ann", "body": ["hello", {"ü": 1.50}]});
    let msg_ref = ann.send("rooms:a", "new:msg", message.clone());
    ann.expect("rooms:a", "new:msg", message.clone());
    ann.expect_reply(msg_ref, "rooms:a", "ok", json!({"msg": ["hello", {"ü": 1.50}]}));
    bob.expect("rooms:a", "new:msg", message);
    bob.ask("rooms:a", "dance", json!({}), "error", json!({"reason": "unknown event"}));
    bob.ask("other:a", "phx_join", json!({}), "error", json!({"reason": "unmatched topic"}));
}

/// Every feature of a declared channel, over the wire.
const GAMES: &str = r#"
    shards = 2
    announce_joins_up_to = 2

    [[channel]]
    topic = "games:*"
    deny = ["games:private*"]
    join_reply = { room = "$subtopic", you = "$name" }
    members_max = 3
    payload_bytes_max = 100
    other_events = "crash"
    announce_join = "joined"

    [[channel.event]]
    name = "move"
    broadcast = "others"
    payload = { at = "$to", in = "$topic" }

    [[channel.event]]
    name = "check"
    payload_shape = "json"
    reply = "$payload"
    status = "mate"

    [[channel]]
    topic = "log"
    payload_shape = "any"
    events_per_second = 3
    [[channel.event]]
    name = "*"
    broadcast = "all"
"#;

#[test]
fn declared_channels_work_as_declared() {
    let server = Server::start(GAMES, &ANYWHERE);
    let room = "games:1";
    let welcome = |name: &str| json!({"room": "1", "you": name});
    let mut players: Vec<_> = (0..4).map(|_| server.client()).collect();
    let refused = json!({"reason": "unauthorized"});
    players[0].ask("games:private", "phx_join", json!({}), "error", refused);
    for (n, name) in ["a", "b", "c"].into_iter().enumerate() {
        let payload = json!({"name": name});
        players[n].ask(room, "phx_join", payload.clone(), "ok", welcome(name));
        // The first two are announced, to all members at that time.
        for player in players.iter_mut().take(if n < 2 { n + 1 } else { 0 }) {
            player.expect(room, "joined", payload.clone());
        }
    }
    players[3].ask(room, "phx_join", json!({}), "error", json!({"reason": "full"}));

    players[0].send(room, "move", json!({"to": [3, 4], "secret": 1}));
    players[1].expect(room, "move", json!({"at": [3, 4], "in": room}));
    players[2].expect(room, "move", json!({"at": [3, 4], "in": room}));
    players[0].expect_quiet();
    players[1].ask(room, "check", json!([1]), "mate", json!([1]));
    let long = json!("x".repeat(100));
    players[1].ask(room, "check", long, "error", json!({"reason": "payload_too_large"}));
    players[1].send(room, "dance", json!({}));
    assert_eq!(players[1].receive().2, "phx_error");
    // Its slot is free again.
    players[3].ask(room, "phx_join", json!({"name": "d"}), "ok", welcome("d"));
}

#[test]
fn member_above_a_limit_gets_an_error() {
    let server = Server::start(GAMES, &ANYWHERE);
    let mut busy = server.client();
    busy.join("log", json!({}));
    for n in 0..3 {
        busy.send("log", "any", json!(n));
        busy.expect("log", "any", json!(n));
    }
    busy.ask_too_much("log", "any", json!(4), "messages");
    std::thread::sleep(Duration::from_secs(2));
    busy.send("log", "other", json!(5));
    busy.expect("log", "other", json!(5));
    // If this were broadcast, it would end the channels of all members.
    busy.ask("log", "phx_close", json!({}), "error", json!({"reason": "unknown event"}));
}

/// Payloads that are not objects once broke the chat page.
#[test]
fn payloads_of_wrong_shape_are_refused_counted_and_not_broadcast() {
    let server = Server::start("shards = 1\n", &ANYWHERE);
    let (mut ann, mut bob) = (server.client(), server.client());
    let wrong = |found| json!({"reason": "wrong_payload", "expected": "object", "found": found});
    ann.join("rooms:a", json!({"user": "ann"}));
    ann.expect("rooms:a", "user:entered", json!({"user": "ann"}));
    for (payload, found) in [(json!(null), "null"), (json!([1]), "array"), (json!(7), "number")] {
        bob.ask("rooms:a", "phx_join", payload.clone(), "error", wrong(found));
        ann.ask("rooms:a", "new:msg", payload, "error", wrong(found));
    }
    bob.join("rooms:a", json!({}));
    bob.expect("rooms:a", "user:entered", json!({"user": null}));
    ann.expect("rooms:a", "user:entered", json!({"user": null}));
    ann.expect_quiet();
    assert_eq!(server.metric("simurgh_errors_wrong_payload_total"), 6);
}

#[test]
fn default_message_limit_suits_a_chat_and_is_configurable() {
    let body = |bytes: usize| json!({"body": "x".repeat(bytes)});
    let pushed = |file: &str, flags: &[&str], bytes: usize| {
        let server = Server::start(file, &[&ANYWHERE[..], flags].concat());
        let mut ann = server.client();
        ann.join("rooms:a", json!({}));
        let msg_ref = ann.send("rooms:a", "new:msg", body(bytes));
        (server, ann, msg_ref)
    };
    const DECLARED: &str = "[[channel]]\ntopic = \"rooms:*\"\n\
                            [[channel.event]]\nname = \"new:msg\"\nreply = {}\n";
    const SMALL: &str = "[[channel]]\ntopic = \"rooms:*\"\nmessage_bytes_max = \"1KiB\"\n\
                         [[channel.event]]\nname = \"new:msg\"\nreply = {}\n";
    for (file, flags, bytes) in [("", &[][..], 66_000), (SMALL, &[], 1_024)] {
        let (_server, mut ann, _) = pushed(file, flags, bytes);
        assert_eq!(ann.close_code(), 1009, "{file}");
    }
    let key = "message_bytes_max = \"1MB\"\n";
    let flag = ["--message-bytes-max", "1MB"];
    for (file, flags, bytes) in [("", &[][..], 60_000), (key, &[], 66_000), ("", &flag, 66_000)] {
        let (_server, mut ann, msg_ref) = pushed(file, flags, bytes);
        ann.expect("rooms:a", "user:entered", json!({"user": null}));
        ann.expect("rooms:a", "new:msg", body(bytes));
        ann.expect_reply(msg_ref, "rooms:a", "ok", json!({"msg": "x".repeat(bytes)}));
    }
    for (file, bytes) in [(DECLARED, 9_000_000), (SMALL, 900)] {
        let (_server, mut ann, msg_ref) = pushed(file, &[], bytes);
        ann.expect_reply(msg_ref, "rooms:a", "ok", json!({}));
    }
}

#[test]
fn flags_override_the_file() {
    let file = "listen = [\"256.0.0.1:1\"]\nmax_channels = 1\nidle_timeout = \"300ms\"\n";
    let dir = directory(&[("simurgh.toml", file)]);
    // Mistakes in the file are errors, even where a flag overrides it.
    assert_eq!(run(dir.path(), &["serve", "--listen", "127.0.0.1:0"]).status.code(), Some(2));

    let file = "listen = [\"127.0.0.1:0\"]\nmax_channels = 1\nidle_timeout = \"300ms\"\n";
    let full = json!({"reason": "too many channels joined"});
    let server = Server::start(file, &[]);
    let mut client = server.client();
    client.join("rooms:a", json!({}));
    client.receive();
    client.ask("rooms:b", "phx_join", json!({}), "error", full.clone());
    assert_eq!(client.close_code(), 1002, "idle for 300 ms");

    let flags = ["--max-channels", "2", "--idle-timeout", "off", "--announce-joins-up-to", "0"];
    let server = Server::start(file, &flags);
    let mut client = server.client();
    client.join("rooms:a", json!({}));
    client.join("rooms:b", json!({}));
    client.ask("rooms:c", "phx_join", json!({}), "error", full);
    std::thread::sleep(Duration::from_millis(800));
    client.expect_quiet();

    let other = directory(&[("other.toml", "listen = [\"127.0.0.1:0\", \"127.0.0.2:0\"]\n")]);
    let server = Server::start_in(other, &["--config", "other.toml"], 2);
    assert_eq!(server.addresses.len(), 2);
}

#[test]
fn address_in_use_exits_with_status_1() {
    let server = Server::start("", &ANYWHERE);
    let ran = run(directory(&[]).path(), &["serve", "--listen", &server.addresses[0]]);
    assert_eq!((ran.status.code(), &*ran.stdout), (Some(1), ""));
    assert!(ran.stderr.contains(&server.addresses[0]), "{}", ran.stderr);
}

#[test]
fn signal_starts_a_logged_drain() {
    for (signal, format) in [("TERM", "text"), ("INT", "json")] {
        let args = ["--drain-time", "0s", "--log-format", format];
        let server = Server::start("", &[&ANYWHERE[..], &args].concat());
        let mut client = server.client();
        client.expect_quiet();
        server.signal(signal);
        assert_eq!(client.close_code(), 1012);
        drop(client);
        let (status, log) = server.ended();
        assert_eq!(status.code(), Some(0), "{log}");
        let lines: Vec<_> = log.lines().collect();
        assert_eq!(lines.len(), 7, "settings, socket, pages, tokens, serving, drain, end: {log}");
        assert!(lines[5].contains("draining") && lines[5].contains(signal), "{log}");
        for line in lines {
            let json = serde_json::from_str::<serde_json::Value>(line);
            assert_eq!(json.is_ok(), format == "json", "{line}");
        }
    }
}

#[test]
fn simultaneous_signals_start_one_drain() {
    let server = Server::start("", &[&ANYWHERE[..], &["--drain-time", "0s"]].concat());
    // As `timeout` sends them, to the process and to its group.
    server.signal("TERM");
    server.signal("TERM");
    let (status, log) = server.ended();
    assert_eq!(status.code(), Some(0), "{log}");
    assert!(log.trim_end().ends_with("stopped"), "{log}");
}

/// Fifty runs, eight at a time.
#[test]
fn last_line_of_the_log_is_stopped() {
    let next = AtomicUsize::new(0);
    let run = || {
        while next.fetch_add(1, Ordering::Relaxed) < 50 {
            let server = Server::start("", &[&ANYWHERE[..], &["--drain-time", "0s"]].concat());
            server.signal("TERM");
            let (status, log) = server.ended();
            assert_eq!(status.code(), Some(0), "{log}");
            assert!(log.ends_with("INFO stopped\n"), "{log}");
        }
    };
    std::thread::scope(|scope| (0..8).for_each(|_| drop(scope.spawn(run))));
}

#[test]
fn log_is_flushed_before_a_second_signal_ends_the_process() {
    let server = Server::start("", &[&ANYWHERE[..], &["--drain-time", "60s"]].concat());
    let mut client = server.client();
    client.expect_quiet();
    server.signal("TERM");
    std::thread::sleep(Duration::from_secs(2));
    server.signal("TERM");
    let (status, log) = server.ended();
    assert_eq!(status.code(), Some(143), "{log}");
    assert!(log.contains("draining") && log.trim_end().ends_with("second signal"), "{log}");
}

#[test]
fn second_signal_exits_at_once_with_the_signal_number() {
    for (signal, code) in [("TERM", 143), ("INT", 130)] {
        let args = ["--drain-time", "60s", "--log", "off"];
        let server = Server::start("", &[&ANYWHERE[..], &args].concat());
        let mut clients: Vec<_> = (0..8).map(|_| server.client()).collect();
        clients.iter_mut().for_each(|client| client.expect_quiet());
        server.signal(signal);
        // After the first was handled: two pending signals of a kind are merged.
        std::thread::sleep(Duration::from_secs(2));
        server.signal(signal);
        let (status, log) = server.ended();
        assert_eq!((status.code(), &*log), (Some(code), ""));
    }
}
