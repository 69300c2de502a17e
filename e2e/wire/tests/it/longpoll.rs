//! Rows 92–105 of PROTOCOL §14: long polling, from the first request to the end of a session.

use std::time::{Duration, Instant};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::json;
use wire_tests::{
    BinaryFields, Client, Head, Polled, Poller, Raw, Response, Server, Vsn, binary_push, both,
    eventually, post, unique,
};

const V2: &str = "/socket/longpoll?vsn=2.0.0";
/// The poll window of `/short`.
const WINDOW: Duration = Duration::from_secs(1);

#[track_caller]
fn get(server: &Server, head: &Head) -> Response {
    Raw::connect(server.addr()).request(head)
}

#[track_caller]
fn status(server: &Server, target: &str) -> u16 {
    Polled::of(&get(server, &Head::new("GET", target))).status
}

/// Row 92. A GET without a token: HTTP 200, in the body 410, a token and no messages; all headers.
#[test]
fn row_92_a_get_without_token_begins_a_session() {
    let server = Server::shared_conformance();
    let response = get(&server, &Head::new("GET", V2));
    let answer = Polled::of(&response);
    assert_eq!((answer.status, answer.messages.len()), (410, 0));
    assert!(answer.token.unwrap().starts_with("SFMyNTY."));
    let keys: serde_json::Value = serde_json::from_slice(&response.body).unwrap();
    assert_eq!(keys.as_object().unwrap().len(), 3, "{keys}");
}

/// Row 93. A POST joins, a GET brings the reply; messages are texts, complete frames.
#[test]
fn row_93_posted_join_is_answered_by_the_next_get() {
    let server = Server::shared_conformance();
    both(|vsn| {
        let mut poller = Poller::open(server.addr(), "/socket", "", vsn);
        let topic = unique("test:poll");
        let join = poller.frame("1", "2", &topic, "phx_join", json!({}));
        assert_eq!(poller.post(&join), 200);
        let answer = poller.poll();
        assert_eq!((answer.status, answer.token.as_ref()), (200, Some(&poller.token)));
        assert_eq!(answer.messages.len(), 1, "{answer:?}");
        poller.recv().expect_reply("1", "2", &topic, "ok", json!({}));
        // The session speaks Channels like any other, and knows what carries it.
        let who = poller.frame("1", "3", &topic, "whoami", json!({}));
        assert_eq!(poller.post(&who), 200);
        let reply = poller.recv();
        assert_eq!(reply.payload["response"]["transport"], json!("longpoll"), "{reply:?}");
    });
}

/// Row 94. With nothing to say a GET is answered 204 at the end of the window, and not before.
#[test]
fn row_94_poll_without_messages_ends_with_204() {
    let server = Server::shared_conformance();
    let mut poller = Poller::open(server.addr(), "/short", "", Vsn::V2);
    for _ in 0..3 {
        let began = Instant::now();
        let answer = poller.poll();
        assert_eq!((answer.status, answer.messages.len()), (204, 0));
        assert_eq!(answer.token.as_ref(), Some(&poller.token));
        let took = began.elapsed();
        // The default window is 10 s.
        assert!(took >= WINDOW && took < Duration::from_secs(9), "{took:?}");
    }
}

/// Row 95. Without a token or with a forged one: a POST 410, a GET begins a new session.
#[test]
fn row_95_missing_or_forged_token_starts_a_new_session() {
    let server = Server::shared_conformance();
    let poller = Poller::open(server.addr(), "/socket", "", Vsn::V2);
    let last = if poller.token.ends_with('A') { 'B' } else { 'A' };
    let forged = format!("{}{last}", &poller.token[..poller.token.len() - 1]);
    let of_phoenix = "SFMyNTY.g2gDaAJhAXQAAAAA.xkT1a1jK2YdUHCO7yL5nZ8D1r0bPq9w2";
    for token in [
        "",
        "&token=",
        "&token=abc",
        &format!("&token={forged}"),
        &format!("&token={of_phoenix}"),
        "&token[]=a",
    ] {
        let target = format!("{V2}{token}");
        let answer = post(server.addr(), &target, "application/json", b"[]");
        assert_eq!(Polled::of(&answer).status, 410, "{token}");
        let answer = Polled::of(&get(&server, &Head::new("GET", &target)));
        assert_eq!(answer.status, 410, "{token}");
        assert!(answer.token.is_some_and(|new| new != poller.token), "{token}");
    }
    // A token is for the user socket it was given at.
    let target = format!("/short/longpoll?vsn=2.0.0&token={}", poller.token);
    let answer = post(server.addr(), &target, "application/json", b"[]");
    assert_eq!(Polled::of(&answer).status, 410);
}

/// Row 96. Connect refuses, a foreign Origin, an unknown `vsn`: 403 in the body; a status of the
/// application's own is passed on.
#[test]
fn row_96_refused_session_has_403_in_the_body() {
    let server = Server::shared_conformance();
    for (query, refused) in [
        ("vsn=2.0.0&reject=true", 403),
        ("vsn=2.0.0&ratelimit=true", 429),
        ("vsn=3.0.0", 403),
        ("vsn=abc", 403),
        ("vsn[]=2.0.0", 403),
        ("vsn=2.0.0", 410),
        ("", 410),
    ] {
        assert_eq!(status(&server, &format!("/socket/longpoll?{query}")), refused, "{query}");
    }
    let poller = Poller::open(server.addr(), "/socket", "", Vsn::V2);
    for (origin, allowed) in [
        ("https://example.com", true),
        ("http://localhost:1234", true),
        ("https://evil.com", false),
        ("null", false),
    ] {
        let wanted = if allowed { 410 } else { 403 };
        let answer = get(&server, &Head::new("GET", V2).set("origin", origin));
        assert_eq!(Polled::of(&answer).status, wanted, "{origin}");
        // Also with a token, and before anything is handled.
        let head = Head::new("POST", &poller.target())
            .set("origin", origin)
            .set("content-length", "0")
            .set("content-type", "application/x-ndjson");
        let wanted = if allowed { 200 } else { 403 };
        assert_eq!(Polled::of(&get(&server, &head)).status, wanted, "{origin}");
    }
}

/// Row 97. 11 lines of ndjson: all handled, in order.
#[test]
fn row_97_lines_are_handled_in_order() {
    let server = Server::shared_conformance();
    let mut poller = Poller::open(server.addr(), "/socket", "", Vsn::V2);
    let topic = unique("test:lines");
    let mut lines = vec![poller.frame("1", "0", &topic, "phx_join", json!({}))];
    for n in 1..11 {
        lines.push(poller.frame("1", &n.to_string(), &topic, "echo", json!({"n": n})));
    }
    assert_eq!(poller.post_lines(&lines), 200);
    poller.recv().expect_reply("1", "0", &topic, "ok", json!({}));
    for n in 1..11 {
        poller.recv().expect_reply("1", n.to_string(), &topic, "ok", json!({"n": n}));
    }
    // A file of lines ends with one; and the other line end.
    let echo = |n: &str| poller.frame("1", n, &topic, "echo", json!({}));
    let body = format!("{}\r\n\r\n{}\n", echo("20"), echo("21"));
    let answer = poller.post_raw("application/x-ndjson; charset=utf-8", body);
    assert_eq!(Polled::of(&answer).status, 200);
    for n in ["20", "21"] {
        poller.recv().expect_reply("1", n, &topic, "ok", json!({}));
    }
}

/// Row 98. A line of base64 is a binary push; binary never flows to a poller.
#[test]
fn row_98_a_line_of_base64_is_a_binary_push() {
    let server = Server::shared_conformance();
    let mut poller = Poller::open(server.addr(), "/socket", "", Vsn::V2);
    let mut other = Client::open(&server, Vsn::V2);
    let topic = unique("test:binary");
    poller.join(&topic, json!({}));
    other.join(&topic, json!({}));
    let push = |event, msg_ref| {
        let fields = BinaryFields { join_ref: "1", msg_ref, topic: &topic, event };
        STANDARD.encode(binary_push(fields, &[0, 255, 7]))
    };
    let dropped = || server.counter("longpoll_binary_dropped");
    let before = dropped();
    let echo = poller.frame("1", "9", &topic, "echo", json!({}));
    assert_eq!(poller.post_lines(&[push("bin_bcast", "2"), push("bin", "3"), echo]), 200);
    let binary = other.recv_binary();
    assert!(binary.ends_with(&[0, 255, 7]) && binary[0] == 2, "{binary:?}");
    // Neither the broadcast nor the reply has a form for this session.
    poller.recv().expect_reply("1", "9", &topic, "ok", json!({}));
    assert!(poller.is_done());
    assert_eq!(dropped() - before, 2.0);
    // A line that is neither an array nor base64 is not a request; the session lives on.
    let echo = poller.frame("1", "10", &topic, "echo", json!({}));
    let answer = poller.post_raw("application/x-ndjson", format!("{echo}\n%%%\n{echo}"));
    assert_eq!(answer.status, 400);
    poller.recv().expect_reply("1", "10", &topic, "ok", json!({}));
}

/// Row 99. Of 101 lines 100 are handled, the rest is dropped without a word.
#[test]
fn row_99_the_101st_line_is_dropped() {
    let server = Server::shared_conformance();
    let mut poller = Poller::open(server.addr(), "/socket", "", Vsn::V2);
    let topic = unique("test:many");
    poller.join(&topic, json!({}));
    let echo = |n: usize| poller.frame("1", &n.to_string(), &topic, "echo", json!({}));
    let lines: Vec<String> = (1..=101).map(echo).collect();
    assert_eq!(poller.post_lines(&lines), 200);
    for n in 1..=100 {
        poller.recv().expect_reply("1", n.to_string(), &topic, "ok", json!({}));
    }
    assert_eq!(poller.post(&poller.frame("1", "last", &topic, "echo", json!({}))), 200);
    poller.recv().expect_reply("1", "last", &topic, "ok", json!({}));
}

/// Row 100. A poll that waits is answered by a broadcast at once; without one, messages queue in
/// order.
#[test]
fn row_100_a_broadcast_answers_a_poll_that_waits() {
    let server = Server::shared_conformance();
    both(|vsn| {
        let mut poller = Poller::open(server.addr(), "/socket", "", vsn);
        let topic = unique("test:news");
        poller.join(&topic, json!({}));
        let mut other = Client::open(&server, vsn);
        other.join(&topic, json!({}));
        let mut waiting = poller.begin_poll();
        assert!(waiting.is_silent_for(Duration::from_millis(200)), "nothing is said yet");
        let began = Instant::now();
        other.push(&topic, "bcast", json!({"n": 0}));
        let answer = Polled::of(&waiting.answer());
        assert!(began.elapsed() < Duration::from_secs(9), "{:?}", began.elapsed());
        assert_eq!((answer.status, answer.messages.len()), (200, 1));
        for n in 1..=20 {
            other.push(&topic, "bcast", json!({"n": n}));
        }
        for n in 1..=20 {
            poller.recv().expect_broadcast(&topic, "news", json!({"n": n}));
        }
        assert!(poller.is_done());
    });
}

/// Row 101. The token in the header counts before the one in the address.
#[test]
fn row_101_token_in_the_header_takes_precedence() {
    let server = Server::shared_conformance();
    let mut poller = Poller::open(server.addr(), "/socket", "", Vsn::V2);
    let topic = unique("test:header");
    poller.join(&topic, json!({}));
    let echo = poller.frame("1", "5", &topic, "echo", json!({}));
    let head = |header: &str, query: &str| {
        Head::new("POST", &format!("{V2}&token={query}"))
            .set("x-phoenix-longpoll-token", header)
            .set("content-type", "application/json")
            .set("content-length", &echo.len().to_string())
    };
    let posted = |head: &Head| {
        let mut raw = Raw::connect(server.addr());
        raw.send(format!("{}{echo}", head.text()).as_bytes());
        Polled::of(&raw.answer()).status
    };
    assert_eq!(posted(&head(&poller.token, "stale")), 200);
    assert_eq!(posted(&head("stale", &poller.token)), 410);
    poller.recv().expect_reply("1", "5", &topic, "ok", json!({}));
    let head = Head::new("GET", V2).set("x-phoenix-longpoll-token", &poller.token);
    poller.post(&echo);
    let answer = Polled::of(&get(&server, &head));
    assert_eq!((answer.status, answer.messages.len()), (200, 1));
}

/// Row 102. OPTIONS is answered with what other origins' pages may do; other methods are 400.
#[test]
fn row_102_options_is_answered_and_put_gets_400() {
    let server = Server::shared_conformance();
    let wanted = "x-phoenix-longpoll-token, content-type";
    let head = Head::new("OPTIONS", V2).set("access-control-request-headers", wanted);
    let response = get(&server, &head.set("origin", "https://example.com"));
    assert_eq!((response.status, response.body.len()), (200, 0));
    for (name, value) in [
        ("access-control-allow-origin", "*"),
        ("access-control-allow-headers", wanted),
        ("access-control-allow-methods", "get, post, options"),
        ("access-control-max-age", "3600"),
    ] {
        assert_eq!(response.header(name), Some(value), "{name}");
    }
    for method in ["PUT", "DELETE", "PATCH"] {
        let response = get(&server, &Head::new(method, V2).set("content-length", "0"));
        assert_eq!((response.status, response.body.len()), (400, 0), "{method}");
    }
    let foreign = Head::new("OPTIONS", V2).set("origin", "https://evil.com");
    assert_eq!(Polled::of(&get(&server, &foreign)).status, 403);
}

/// Row 103. The auth token in `X-Phoenix-AuthToken` reaches connect.
#[test]
fn row_103_connect_receives_the_auth_token_header() {
    let server = Server::shared_conformance();
    let head = Head::new("GET", V2).set("X-Phoenix-AuthToken", "s3cret");
    let answer = Polled::of(&get(&server, &head));
    let mut poller = Poller::open(server.addr(), "/socket", "", Vsn::V2);
    poller.token = answer.token.unwrap();
    let topic = unique("test:auth");
    poller.join(&topic, json!({}));
    poller.post(&poller.frame("1", "2", &topic, "whoami", json!({})));
    assert_eq!(poller.recv().payload["response"]["auth"], json!("s3cret"));
}

/// Row 104. A session without a poll for 1.5 windows ends, its channels too; a POST gets 410.
/// Posts alone do not keep it.
#[test]
fn row_104_an_unpolled_session_ends() {
    let server = Server::conformance().start();
    let mut poller = Poller::open(server.addr(), "/short", "", Vsn::V2);
    let topic = unique("test:left");
    poller.join(&topic, json!({}));
    let gauge = |name: &str| server.metrics(|it| it == format!("simurgh_{name}"));
    assert_eq!((gauge("sockets"), gauge("channels"), gauge("longpoll_sessions")), (1., 1., 1.));
    // Polled, it outlives its idle timeout of 2 s.
    for _ in 0..4 {
        assert_eq!(poller.poll().status, 204);
    }
    let began = Instant::now();
    let echo = poller.frame("1", "9", &topic, "noreply", json!({}));
    eventually("the end of the session", || poller.post(&echo) == 410);
    let took = began.elapsed();
    assert!(took > WINDOW, "{took:?}");
    assert_eq!((gauge("sockets"), gauge("channels"), gauge("longpoll_sessions")), (0., 0., 0.));
    assert_eq!(server.counter("longpoll_expired"), 1.0);
    let answer = poller.poll();
    assert!(answer.status == 410 && answer.token.unwrap() != poller.token);
}

/// Row 105. `disconnect` for its id ends a session: the next POST gets 410, a poll that waits too.
#[test]
fn row_105_disconnect_ends_a_session() {
    let server = Server::shared_conformance();
    let id = unique("");
    let mut poller = Poller::open(server.addr(), "/socket", &format!("&user_id=poll{id}"), Vsn::V2);
    let probe = Poller::open(server.addr(), "/socket", "&user_id=probe", Vsn::V2);
    let topic = unique("test:kicked");
    poller.join(&topic, json!({}));
    let mut waiting = poller.begin_poll();
    assert!(waiting.is_silent_for(Duration::from_millis(100)));
    let mut other = Client::open(&server, Vsn::V2);
    other.join(&topic, json!({}));
    other.push(&topic, "disconnect_me", json!({"id": format!("user_sockets:poll{id}")}));
    let answer = Polled::of(&waiting.answer());
    assert_eq!((answer.status, answer.messages.len()), (410, 0));
    let heartbeat = r#"[null,"1","phoenix","heartbeat",{}]"#;
    assert_eq!(poller.post(heartbeat), 410);
    assert_eq!(probe.post(heartbeat), 200);
}
