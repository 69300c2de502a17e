//! Rows 80–85 of PROTOCOL §14: V2 binary frames, byte for byte.

use serde_json::json;
use wire_tests::{BinaryFields, Client, Server, Vsn, binary_push, unique};

/// A V2 client that has joined a topic of its own; the topic and its join_ref.
#[track_caller]
fn joined(server: &Server) -> (Client, String, String) {
    let mut client = Client::open(server, Vsn::V2);
    let topic = unique("test:bin");
    let join_ref = client.join(&topic, json!({}));
    (client, topic, join_ref)
}

/// A frame of the server: the kind, the length of each field, the fields, the data.
fn layout(kind: u8, fields: &[&str], data: &[u8]) -> Vec<u8> {
    let mut out = vec![kind];
    out.extend(fields.iter().map(|f| u8::try_from(f.len()).unwrap()));
    for field in fields {
        out.extend_from_slice(field.as_bytes());
    }
    out.extend_from_slice(data);
    out
}

/// Row 80. V2 joined; binary push, binary reply: the kind 1 layout byte for byte.
#[test]
fn row_80_a_binary_push_gets_a_binary_reply() {
    let server = Server::shared_conformance();
    let (mut client, topic, join_ref) = joined(&server);
    let data = b"\x00\x01\xff\xfe[\"not json";
    let msg_ref = client.push_binary(&topic, "bin", data);
    assert_eq!(client.recv_binary(), layout(1, &[&join_ref, &msg_ref, &topic, "ok"], data));
    // Once by hand, so that this test does not share a mistake with its helper.
    let mut client = Client::open(&server, Vsn::V2);
    client.send("12", "12", "test:bin", "phx_join", json!({}));
    client.recv().expect_reply("12", "12", "test:bin", "ok", json!({}));
    client.send_binary(b"\x00\x02\x03\x08\x0312345test:binbin\x01\x02");
    assert_eq!(client.recv_binary(), b"\x01\x02\x03\x08\x0212345test:binok\x01\x02");
    // Text and binary mix freely on one channel.
    client.send("12", "6", "test:bin", "echo", json!({}));
    client.recv().expect_reply("12", "6", "test:bin", "ok", json!({}));
}

/// Row 81. Binary server push: kind 0 without ref.
#[test]
fn row_81_a_binary_server_push_has_no_ref() {
    let server = Server::shared_conformance();
    let (mut client, topic, join_ref) = joined(&server);
    let data = [0, 159, 146, 150];
    client.push_binary(&topic, "bin_push", &data);
    assert_eq!(client.recv_binary(), layout(0, &[&join_ref, &topic, "bin_pushed"], &data));
    client.expect_quiet();
}

/// Row 82. Binary broadcast: kind 2 to all.
#[test]
fn row_82_a_binary_broadcast_reaches_all() {
    let server = Server::shared_conformance();
    let (mut sender, topic, _) = joined(&server);
    let mut other = Client::open(&server, Vsn::V2);
    other.join(&topic, json!({}));
    let data = [255, 0, 1, 2];
    sender.push_binary(&topic, "bin_bcast", &data);
    let expected = layout(2, &[&topic, "bin_news"], &data);
    assert_eq!(sender.recv_binary(), expected);
    assert_eq!(other.recv_binary(), expected);
    sender.expect_quiet();
    other.expect_quiet();
}

/// Row 83. Empty / 200 kB data: intact.
#[test]
fn row_83_empty_and_long_data_stay_intact() {
    let server = Server::shared_conformance();
    let (mut client, topic, join_ref) = joined(&server);
    let long: Vec<u8> = (0..200_000u32).map(|n| (n * 7 % 251) as u8).collect();
    for data in [&[][..], &long] {
        let msg_ref = client.push_binary(&topic, "bin", data);
        let expected = layout(1, &[&join_ref, &msg_ref, &topic, "ok"], data);
        assert!(client.recv_binary() == expected, "reply to {} bytes differs", data.len());
        client.push_binary(&topic, "bin_push", data);
        let expected = layout(0, &[&join_ref, &topic, "bin_pushed"], data);
        assert!(client.recv_binary() == expected, "push of {} bytes differs", data.len());
        client.push_binary(&topic, "bin_bcast", data);
        let expected = layout(2, &[&topic, "bin_news"], data);
        assert!(client.recv_binary() == expected, "broadcast of {} bytes differs", data.len());
    }
}

/// Row 84. Unknown kind (5 and up; 3 and 4 belong to §11 user sockets), truncated: 1011.
#[test]
fn row_84_unknown_and_truncated_frames_are_closed_with_1011() {
    let server = Server::shared_conformance();
    let fields = BinaryFields { join_ref: "1", msg_ref: "2", topic: "phoenix", event: "heartbeat" };
    let whole = binary_push(fields, b"");
    // 1 and 2 are kinds of the server; a client has no business sending them.
    let mut bad: Vec<Vec<u8>> = [1, 2, 5, 6, 100, 255]
        .into_iter()
        .map(|kind| {
            let mut frame = whole.clone();
            frame[0] = kind;
            frame
        })
        .collect();
    bad.extend([0, 1, 2, 4, 5, 6, whole.len() - 1].map(|end| whole[..end].to_vec()));
    for frame in bad {
        let mut client = Client::open(&server, Vsn::V2);
        client.send_binary(&frame);
        assert_eq!(client.expect_close(), 1011, "frame {frame:?}");
    }
}

/// Row 85. Binary heartbeat frame: text reply.
#[test]
fn row_85_a_binary_heartbeat_gets_a_text_reply() {
    let server = Server::shared_conformance();
    let mut client = Client::open(&server, Vsn::V2);
    let fields = BinaryFields { join_ref: "", msg_ref: "3", topic: "phoenix", event: "heartbeat" };
    client.send_binary(&binary_push(fields, b""));
    client.recv().expect_reply((), "3", "phoenix", "ok", json!({}));
}
