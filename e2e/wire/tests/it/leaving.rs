//! Rows 60–66 of PROTOCOL §14: leaving, and every other way a channel ends.

use serde_json::json;
use wire_tests::{Client, Server, Vsn, both, unique};

/// A client of this serializer that has joined a topic of its own; the topic and its join_ref.
#[track_caller]
fn joined(server: &Server, vsn: Vsn) -> (Client, String, String) {
    let mut client = Client::open(server, vsn);
    let topic = unique("test:leave");
    let join_ref = client.join(&topic, json!({}));
    (client, topic, join_ref)
}

/// Asserts that the channel is gone, and that joining its topic again works.
#[track_caller]
fn gone_and_joinable(client: &mut Client, topic: &str) {
    client.heartbeat_except("you_left");
    client.send((), "gone", topic, "echo", json!({}));
    client.recv().expect_unmatched("gone", topic);
    client.join(topic, json!({}));
    client.echo(topic);
}

/// Row 60. both; joined; phx_leave: reply ok, phx_close(ref=join_ref), then the last pushes.
#[test]
fn row_60_leave_gets_reply_phx_close_and_last_pushes() {
    let server = Server::shared_conformance();
    both(|vsn| {
        let mut client = Client::open(&server, vsn);
        let topic = unique("test:leave");
        client.send("4", "4", &topic, "phx_join", json!({}));
        client.recv().expect_reply("4", "4", &topic, "ok", json!({}));
        client.send("4", "9", &topic, "phx_leave", json!({}));
        client.recv().expect_reply("4", "9", &topic, "ok", json!({}));
        client.recv().expect_channel_close("4", &topic);
        client.recv().expect("4", (), &topic, "you_left", json!({"message": "bye!"}));
        client.expect_quiet();
    });
}

/// Row 61. both; not joined; phx_leave: ok `{}`.
#[test]
fn row_61_leaving_an_unjoined_topic_is_ok() {
    let server = Server::shared_conformance();
    both(|vsn| {
        let mut client = Client::open(&server, vsn);
        let topic = unique("test:leave");
        client.send("7", "9", &topic, "phx_leave", json!({}));
        client.recv().expect_reply("7", "9", &topic, "ok", json!({}));
        client.expect_quiet();
    });
}

/// Row 62. Joined; leave with stale / null join_ref: ignored / done.
#[test]
fn row_62_stale_leave_is_ignored_and_null_join_ref_leaves() {
    let server = Server::shared_conformance();
    let (mut client, topic, join_ref) = joined(&server, Vsn::V2);
    client.send("stale", "5", &topic, "phx_leave", json!({}));
    client.expect_quiet();
    client.echo(&topic);
    client.send((), "6", &topic, "phx_leave", json!({}));
    let reply = client.recv();
    let replied = reply.replied();
    assert_eq!((&reply.msg_ref, &*replied.status), (&json!("6"), "ok"), "{}", reply.raw);
    client.recv().expect_channel_close(&join_ref, &topic);
    gone_and_joinable(&mut client, &topic);
}

/// Row 63. both; left; push: unmatched topic.
#[test]
fn row_63_a_push_after_leaving_is_unmatched() {
    let server = Server::shared_conformance();
    both(|vsn| {
        let (mut client, topic, join_ref) = joined(&server, vsn);
        client.ask(&topic, "phx_leave", json!({}), "ok", json!({}));
        client.recv().expect_channel_close(&join_ref, &topic);
        client.heartbeat_except("you_left");
        client.send(join_ref, "5", &topic, "echo", json!({}));
        client.recv().expect_unmatched("5", &topic);
    });
}

/// Row 64. both; stop normal / shutdown: phx_close.
#[test]
fn row_64_a_normal_stop_closes_the_channel() {
    let server = Server::shared_conformance();
    both(|vsn| {
        for event in ["stop", "stop_shutdown"] {
            let (mut client, topic, join_ref) = joined(&server, vsn);
            client.push(&topic, event, json!({}));
            client.recv_except("you_left").expect_channel_close(&join_ref, &topic);
            gone_and_joinable(&mut client, &topic);
        }
    });
}

/// Row 65. Stop with reply: the reply, then phx_close.
#[test]
fn row_65_stop_with_a_reply_sends_the_reply_first() {
    let server = Server::shared_conformance();
    let (mut client, topic, join_ref) = joined(&server, Vsn::V2);
    client.ask(&topic, "stop_reply", json!({"last": "word"}), "ok", json!({"last": "word"}));
    client.recv_except("you_left").expect_channel_close(&join_ref, &topic);
    gone_and_joinable(&mut client, &topic);
}

/// Row 66. both; crash / abnormal stop: phx_error channel_crash; rejoin works.
#[test]
fn row_66_crashed_channel_sends_phx_error() {
    let server = Server::shared_conformance();
    both(|vsn| {
        for event in ["crash", "stop_bad"] {
            let (mut client, topic, join_ref) = joined(&server, vsn);
            client.push(&topic, event, json!({}));
            client.recv_except("you_left").expect_channel_error(&join_ref, &topic);
            gone_and_joinable(&mut client, &topic);
        }
    });
}
