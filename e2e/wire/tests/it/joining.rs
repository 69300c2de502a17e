//! Rows 19–33 of PROTOCOL §14: joins, their replies, refusals and crashes, patterns, refs as
//! sent, joining twice, the limit of channels, and messages behind a slow join.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use wire_tests::{Client, Server, Vsn, both, unique};

/// A V2 client.
#[track_caller]
fn v2(server: &Server) -> Client {
    Client::open(server, Vsn::V2)
}

/// Row 19. both; join: reply ok, `{}`; refs as sent.
#[test]
fn row_19_join_is_answered_ok() {
    let server = Server::shared_conformance();
    both(|vsn| {
        let topic = unique("test:join");
        let mut client = Client::open(&server, vsn);
        client.send("7", "9", &topic, "phx_join", json!({}));
        client.recv().expect_reply("7", "9", &topic, "ok", json!({}));
        client.expect_quiet();
    });
}

/// Row 20. both; join replies a payload: the response is it.
#[test]
fn row_20_join_reply_has_the_payload_of_the_channel() {
    let server = Server::shared_conformance();
    both(|vsn| {
        let mut client = Client::open(&server, vsn);
        let payload = json!({"a": [1, "two", null], "ü": {"nested": true}});
        client.send("1", "2", "test:reply", "phx_join", payload.clone());
        client.recv().expect_reply("1", "2", "test:reply", "ok", json!({"got": payload}));
    });
}

/// Row 21. both; join refuses: error + payload; a push then gets unmatched topic.
#[test]
fn row_21_push_after_a_refused_join_is_unmatched() {
    let server = Server::shared_conformance();
    both(|vsn| {
        let mut client = Client::open(&server, vsn);
        let reason = json!({"reason": "not today"});
        client.send("1", "1", "test:error", "phx_join", reason.clone());
        client.recv().expect_reply("1", "1", "test:error", "error", reason);
        client.send("1", "2", "test:error", "echo", json!({}));
        client.recv().expect_unmatched("2", "test:error");
    });
}

/// Row 22. both; join raises: error join crashed; the socket lives.
#[test]
fn row_22_a_crashed_join_leaves_the_socket_alive() {
    let server = Server::shared_conformance();
    both(|vsn| {
        let mut client = Client::open(&server, vsn);
        client.send("1", "1", "test:crash", "phx_join", json!({}));
        let crashed = json!({"reason": "join crashed"});
        client.recv().expect_reply("1", "1", "test:crash", "error", crashed);
        client.heartbeat();
        let topic = unique("test:join");
        client.join(&topic, json!({}));
        client.echo(&topic);
    });
}

/// Row 23. both; no pattern: error unmatched topic, join_ref null.
#[test]
fn row_23_topic_that_matches_no_pattern_is_unmatched() {
    let server = Server::shared_conformance();
    both(|vsn| {
        let mut client = Client::open(&server, vsn);
        client.send("1", "5", "nothing:here", "phx_join", json!({}));
        client.recv().expect_unmatched("5", "nothing:here");
        client.heartbeat();
    });
}

/// Row 24. Literal pattern; join "exact1": unmatched.
#[test]
fn row_24_literal_pattern_matches_one_topic() {
    let server = Server::shared_conformance();
    let mut client = v2(&server);
    client.send("1", "1", "exact1", "phx_join", json!({}));
    client.recv().expect_unmatched("1", "exact1");
    client.send("2", "2", "exac", "phx_join", json!({}));
    client.recv().expect_unmatched("2", "exac");
    client.send("3", "3", "exact", "phx_join", json!({}));
    client.recv().expect_reply("3", "3", "exact", "ok", json!({}));
}

/// Row 25. `test:*`; join "test:", "test:a:b", "test": ok, ok, unmatched.
#[test]
fn row_25_star_pattern_matches_any_suffix() {
    let server = Server::shared_conformance();
    let mut client = v2(&server);
    client.send("1", "1", "test:", "phx_join", json!({}));
    client.recv().expect_reply("1", "1", "test:", "ok", json!({}));
    client.send("2", "2", "test:a:b", "phx_join", json!({}));
    client.recv().expect_reply("2", "2", "test:a:b", "ok", json!({}));
    client.send("3", "3", "test", "phx_join", json!({}));
    client.recv().expect_unmatched("3", "test");
}

/// Row 26. Refs 7, 0, "", 300 chars: the same JSON values back.
#[test]
fn row_26_refs_keep_their_json_type() {
    let server = Server::shared_conformance();
    let long = "r".repeat(300);
    for reference in [json!(7), json!(0), json!(""), json!("7"), json!(long), json!("ü\"\\")] {
        both(|vsn| {
            let topic = unique("test:ref");
            let mut client = Client::open(&server, vsn);
            client.send(reference.clone(), reference.clone(), &topic, "phx_join", json!({}));
            let reply = client.recv();
            reply.expect_reply(reference.clone(), reference.clone(), &topic, "ok", json!({}));
            if vsn == Vsn::V2 {
                let start = format!("[{reference},{reference},\"{topic}\",");
                assert!(reply.raw.starts_with(&start), "{start} … {}", reply.raw);
            }
            // The channel's join_ref comes back the same way with every later message.
            client.send(reference.clone(), 12, &topic, "push_me", json!({}));
            client.recv().expect(reference.clone(), (), &topic, "pushed", json!({}));
        });
    }
}

/// Row 27. join_ref null: join ref "5", the server pushes: reply join_ref null; push join_ref "5".
#[test]
fn row_27_join_without_join_ref_gives_its_ref_to_pushes() {
    let server = Server::shared_conformance();
    let mut client = v2(&server);
    let topic = unique("test:null");
    client.send((), "5", &topic, "phx_join", json!({}));
    client.recv().expect_reply((), "5", &topic, "ok", json!({}));
    client.send((), "6", &topic, "push_me", json!({"a": 1}));
    client.recv().expect("5", (), &topic, "pushed", json!({"a": 1}));
}

/// Row 28. Payload null: the join is accepted, the payload passed on.
#[test]
fn row_28_null_join_payload_reaches_the_channel() {
    let server = Server::shared_conformance();
    let mut client = v2(&server);
    client.send("1", "1", "test:reply", "phx_join", Value::Null);
    client.recv().expect_reply("1", "1", "test:reply", "ok", json!({"got": null}));
    let topic = unique("test:null");
    client.join(&topic, Value::Null);
    client.echo(&topic);
}

/// Row 29. both; joined; join again: ok; the old one gets phx_close(old, old); deliveries are
/// single.
#[test]
fn row_29_joining_again_replaces_the_channel() {
    let server = Server::shared_conformance();
    both(|vsn| {
        let topic = unique("test:again");
        let mut client = Client::open(&server, vsn);
        let mut other = Client::open(&server, vsn);
        other.join(&topic, json!({}));
        client.send("1", "1", &topic, "phx_join", json!({"name": "first"}));
        client.recv().expect_reply("1", "1", &topic, "ok", json!({}));
        client.send("2", "2", &topic, "phx_join", json!({"name": "second"}));
        client.recv().expect_reply("2", "2", &topic, "ok", json!({}));
        client.recv_except("you_left").expect_channel_close("1", &topic);
        client.heartbeat_except("you_left");

        other.push(&topic, "bcast", json!({"n": 1}));
        other.recv().expect_broadcast(&topic, "news", json!({"n": 1}));
        client.recv().expect_broadcast(&topic, "news", json!({"n": 1}));
        client.expect_quiet();
        client.send("2", "3", &topic, "echo", json!({"x": 1}));
        client.recv().expect_reply("2", "3", &topic, "ok", json!({"x": 1}));
    });
}

/// Row 30. joined; join again: the new reply precedes the old phx_close.
#[test]
fn row_30_reply_of_a_rejoin_precedes_the_old_phx_close() {
    let server = Server::shared_conformance();
    let mut client = v2(&server);
    let topic = unique("test:again");
    client.send("1", "1", &topic, "phx_join", json!({}));
    client.recv().expect_reply("1", "1", &topic, "ok", json!({}));
    for (old, new) in [("1", "2"), ("2", "3"), ("3", "4")] {
        client.send(new, new, &topic, "phx_join", json!({}));
        client.recv().expect_reply(new, new, &topic, "ok", json!({}));
        client.recv_except("you_left").expect_channel_close(old, &topic);
        client.heartbeat_except("you_left");
    }
}

/// Row 31. 100 joined; join a 101st; leave one; join: too many channels joined; then ok.
#[test]
fn row_31_a_socket_holds_100_channels() {
    let server = Server::shared_conformance();
    let mut client = v2(&server);
    let prefix = unique("test:many");
    let topics: Vec<_> = (0..100).map(|n| format!("{prefix}:{n}")).collect();
    for topic in &topics {
        client.join(topic, json!({}));
    }
    let one_more = format!("{prefix}:more");
    let refused = |client: &mut Client, msg_ref: &str| {
        client.send(msg_ref, msg_ref, &one_more, "phx_join", json!({}));
        let reply = client.recv();
        assert_eq!((&reply.msg_ref, reply.topic.as_str()), (&json!(msg_ref), one_more.as_str()));
        let replied = reply.replied();
        assert_eq!(replied.status, "error");
        assert_eq!(replied.response, json!({"reason": "too many channels joined"}));
    };
    refused(&mut client, "900");
    refused(&mut client, "901");
    // The hundred are as they were.
    client.echo(&topics[0]);
    client.echo(&topics[99]);

    client.push(&topics[50], "phx_leave", json!({}));
    assert_eq!(client.recv().replied().status, "ok");
    assert_eq!(client.recv_except("you_left").event, "phx_close");
    client.heartbeat_except("you_left");
    client.join(&one_more, json!({}));
    client.echo(&one_more);
    client.send("902", "902", &format!("{prefix}:again"), "phx_join", json!({}));
    assert_eq!(client.recv().replied().response, json!({"reason": "too many channels joined"}));
}

/// Row 32. Two topics; one crashes: the other still answers.
#[test]
fn row_32_crash_of_one_channel_leaves_others_running() {
    let server = Server::shared_conformance();
    let mut client = v2(&server);
    let (good, bad) = (unique("test:good"), unique("test:bad"));
    client.join(&good, json!({}));
    let join_ref = client.join(&bad, json!({}));
    client.push(&bad, "crash", json!({}));
    client.recv_except("you_left").expect_channel_error(&join_ref, &bad);
    client.heartbeat_except("you_left");
    client.echo(&good);
}

/// Row 33. Slow join; push right behind: handled after the join, in order.
#[test]
fn row_33_messages_are_handled_after_a_slow_join() {
    let server = Server::shared_conformance();
    let mut other = v2(&server);
    // Only this socket waits. A busy machine may be slower than the join, but not always.
    let at_once = (0..10).any(|_| waits_for_a_slow_join(v2(&server), &mut other));
    assert!(at_once, "another socket had to wait as well");
}

/// Whether the other socket was served long before the join was over.
fn waits_for_a_slow_join(mut client: Client, other: &mut Client) -> bool {
    let start = Instant::now();
    client.send("1", "1", "test:slow", "phx_join", json!({}));
    client.send("1", "2", "test:slow", "echo", json!({"n": 2}));
    client.send((), "3", "phoenix", "heartbeat", json!({}));
    client.send("1", "4", "test:slow", "echo", json!({"n": 4}));
    other.heartbeat();
    let at_once = start.elapsed() < Duration::from_millis(1200);
    client.recv().expect_reply("1", "1", "test:slow", "ok", json!({}));
    assert!(start.elapsed() >= Duration::from_millis(1400), "the join was not slow");
    client.recv().expect_reply("1", "2", "test:slow", "ok", json!({"n": 2}));
    client.recv().expect_reply((), "3", "phoenix", "ok", json!({}));
    client.recv().expect_reply("1", "4", "test:slow", "ok", json!({"n": 4}));
    at_once
}
