//! Rows 67–79 of PROTOCOL §14: heartbeats and time-outs, pings, and every way a whole socket
//! ends.

use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use wire_tests::{Client, Incoming, Raw, Server, Vsn, both, frame, opcode, unique};

/// A V2 client.
#[track_caller]
fn v2(server: &Server) -> Client {
    Client::open(server, Vsn::V2)
}

/// The code a socket of this serializer is closed with after sending this text.
#[track_caller]
fn code_after(server: &Server, vsn: Vsn, text: &str) -> u16 {
    let mut client = Client::open(server, vsn);
    client.heartbeat();
    client.send_text(text);
    client.expect_close()
}

/// Topics and events that are no texts.
const WRONG_TYPES: [(&str, &str); 4] =
    [("5", "\"e\""), ("null", "\"e\""), ("\"t\"", "7"), ("\"t\"", "[]")];

/// Row 67. Socket ids; `disconnect` broadcast: all of that id closed 1001, others not.
#[test]
fn row_67_disconnect_closes_all_sockets_of_an_id() {
    let server = Server::shared_conformance();
    let user = unique("u");
    let path = |user: &str, vsn: &str| format!("/socket/websocket?user_id={user}&vsn={vsn}");
    let mut same = ["2.0.0", "2.0.0", "1.0.0", "1.0.0"].map(|vsn| {
        let mut client = Client::connect(&server, &path(&user, vsn));
        client.join(&unique("test:id"), json!({}));
        client
    });
    let mut other = Client::connect(&server, &path(&format!("{user}0"), "2.0.0"));
    let mut anonymous = v2(&server);
    let mut sender = v2(&server);
    let topic = unique("test:id");
    sender.join(&topic, json!({}));
    sender.push(&topic, "disconnect_me", json!({"id": format!("user_sockets:{user}")}));
    for client in &mut same {
        assert_eq!(client.expect_close(), 1001);
    }
    other.heartbeat();
    anonymous.heartbeat();
}

/// Row 68. Drain: close 1012.
#[test]
fn row_68_drained_socket_is_closed_with_1012() {
    let server = Server::shared_conformance();
    both(|vsn| {
        let topic = unique("test:drain");
        let mut drained = Client::open(&server, vsn);
        let mut other = Client::open(&server, vsn);
        drained.join(&topic, json!({}));
        other.join(&topic, json!({}));
        drained.push(&topic, "drain_me", json!({}));
        assert_eq!(drained.skip_to_close(), 1012);
        assert!(matches!(drained.next(wire_tests::WAIT), Some(Incoming::Lost(_))));
        other.echo(&topic);
    });
}

/// Row 69. The client closes 1000: the close frame is answered.
#[test]
fn row_69_a_close_is_answered() {
    let server = Server::shared_conformance();
    let mut client = v2(&server);
    client.join(&unique("test:close"), json!({}));
    client.close(1000, "done");
    assert_eq!(client.expect_close(), 1000);

    // Without a code there is none in the answer either.
    let mut raw = Raw::websocket(server.addr(), &Vsn::V2.path());
    raw.send_frame(&frame(opcode::CLOSE, b""));
    assert!(matches!(raw.expect_close(), 1005 | 1000));
}

/// Row 70. Ping "abc": pong "abc".
#[test]
fn row_70_a_ping_is_answered() {
    let server = Server::shared_conformance();
    let mut client = v2(&server);
    for payload in [&b"abc"[..], b"", &[0xff; 125]] {
        client.ping(payload);
        assert_eq!(client.recv_pong(), payload);
    }
    client.heartbeat();
}

/// Row 71. both; heartbeat: ok `{}`, topic phoenix.
#[test]
fn row_71_a_heartbeat_is_answered() {
    let server = Server::shared_conformance();
    both(|vsn| {
        let mut client = Client::open(&server, vsn);
        client.send((), "5", "phoenix", "heartbeat", json!({}));
        client.recv().expect_reply((), "5", "phoenix", "ok", json!({}));
    });
}

/// Row 72. Heartbeat with payload null, join_ref "", ref null: answered.
#[test]
fn row_72_heartbeats_with_null_or_empty_fields_are_answered() {
    let server = Server::shared_conformance();
    both(|vsn| {
        let mut client = Client::open(&server, vsn);
        for (join_ref, msg_ref, payload) in [
            (json!(""), json!("1"), json!({})),
            (json!(""), Value::Null, Value::Null),
            (json!("3"), json!(0), json!([1, 2])),
            (Value::Null, json!(7), json!("x")),
        ] {
            client.send(join_ref, msg_ref.clone(), "phoenix", "heartbeat", payload);
            client.recv().expect_reply((), msg_ref, "phoenix", "ok", json!({}));
        }
    });
}

/// Row 73. Another event on phoenix: unmatched topic.
#[test]
fn row_73_phoenix_topic_accepts_only_heartbeats() {
    let server = Server::shared_conformance();
    let mut client = v2(&server);
    for event in ["echo", "phx_join", "Heartbeat"] {
        let msg_ref = client.fresh_ref();
        client.send("1", &*msg_ref, "phoenix", event, json!({}));
        client.recv().expect_unmatched(msg_ref, "phoenix");
    }
}

/// Row 74. Timeout 2 s; silence / heartbeats: closed / kept.
#[test]
fn row_74_silent_socket_is_closed_and_heartbeats_prevent_it() {
    let server = Server::shared_conformance();
    let short = "/short/websocket?vsn=2.0.0";
    let mut silent = Client::connect(&server, short);
    let start = Instant::now();
    let mut lively = Client::connect(&server, short);
    let lively = thread::spawn(move || {
        // Any inbound frame counts: a ping does as well.
        for turn in 0..13 {
            thread::sleep(Duration::from_millis(300));
            if turn % 2 == 0 {
                lively.heartbeat();
            } else {
                lively.ping(b"x");
                assert_eq!(lively.recv_pong(), b"x");
            }
        }
    });
    assert_eq!(silent.expect_close(), 1002);
    let after = start.elapsed();
    // The default is 60 s.
    let allowed = Duration::from_millis(1_990)..Duration::from_secs(30);
    assert!(allowed.contains(&after), "closed after {after:?}");
    lively.join().expect("heartbeats and pings keep a socket open");
}

/// Row 75. Text that is not JSON: close 1011.
#[test]
fn row_75_invalid_json_is_closed_with_1011() {
    let server = Server::shared_conformance();
    both(|vsn| {
        for text in ["not json", "", " ", "{", "[", "[1,2", "nul", "{\"topic\":"] {
            assert_eq!(code_after(&server, vsn, text), 1011, "text {text:?}");
        }
        let head = r#"[null,"1","phoenix","heartbeat","#;
        for rest in [
            "{}",
            "{}]]",
            "{},]",
            r#"{"a":}]"#,
            "01]",
            "1e]",
            "nil]",
            "'x']",
            r#""\x"]"#,
            r#""\ud83"]"#,
            "\"a\nb\"]",
        ] {
            let text = format!("{head}{rest}");
            assert_eq!(code_after(&server, vsn, &text), 1011, "text {text:?}");
        }
    });
}

/// Row 76. V2; object, 4 elements / 7 elements: 1011 / accepted.
#[test]
fn row_76_v2_message_needs_at_least_five_elements() {
    let server = Server::shared_conformance();
    let object = r#"{"topic":"phoenix","event":"heartbeat","payload":{},"ref":"1"}"#;
    assert_eq!(code_after(&server, Vsn::V2, object), 1011);
    for text in ["1", "null", "true", "\"text\"", "{}", "[[]]"] {
        assert_eq!(code_after(&server, Vsn::V2, text), 1011, "{text}");
    }
    for (topic, event) in WRONG_TYPES {
        let text = format!(r#"["1","1",{topic},{event},{{}}]"#);
        assert_eq!(code_after(&server, Vsn::V2, &text), 1011, "{text}");
    }
    let fields = ["null", "\"1\"", "\"phoenix\"", "\"heartbeat\"", "{}"];
    for count in 0..fields.len() {
        let text = format!("[{}]", fields[..count].join(","));
        assert_eq!(code_after(&server, Vsn::V2, &text), 1011, "{text}");
    }

    let mut client = v2(&server);
    client.send_text(r#"[null,"1","phoenix","heartbeat",{},{"six":[6]},"seven"]"#);
    client.recv().expect_reply((), "1", "phoenix", "ok", json!({}));
}

/// Row 77. V1; key missing, array: 1011.
#[test]
fn row_77_v1_message_needs_its_four_keys() {
    let server = Server::shared_conformance();
    let whole = json!({"topic": "phoenix", "event": "heartbeat", "payload": {}, "ref": "1"});
    for key in ["topic", "event", "payload", "ref"] {
        let mut message = whole.clone();
        message.as_object_mut().unwrap().remove(key);
        assert_eq!(code_after(&server, Vsn::V1, &message.to_string()), 1011, "without {key}");
    }
    let array = r#"[null,"1","phoenix","heartbeat",{}]"#;
    for text in [array, "1", "null", "true", "\"text\"", "{}", "[]", "[[]]"] {
        assert_eq!(code_after(&server, Vsn::V1, text), 1011, "{text}");
    }
    for (topic, event) in WRONG_TYPES {
        let text = format!(r#"{{"topic":{topic},"event":{event},"payload":{{}},"ref":"1"}}"#);
        assert_eq!(code_after(&server, Vsn::V1, &text), 1011, "{text}");
    }
    // The same in a binary frame, which V1 reads like text.
    let mut client = Client::open(&server, Vsn::V1);
    client.send_binary(whole.to_string().as_bytes());
    client.recv().expect_reply((), "1", "phoenix", "ok", json!({}));
    client.send_binary(b"{}");
    assert_eq!(client.expect_close(), 1011);
}

/// Row 78. Two sockets; one sends garbage: the other is unharmed.
#[test]
fn row_78_garbage_harms_only_its_sender() {
    let server = Server::shared_conformance();
    let topic = unique("test:two");
    let mut good = v2(&server);
    let mut bad = v2(&server);
    good.join(&topic, json!({}));
    bad.join(&topic, json!({}));
    bad.send_text("garbage");
    // No phx_error comes before the close.
    assert_eq!(bad.expect_close(), 1011);
    good.echo(&topic);
    good.push(&topic, "bcast", json!({"n": 1}));
    good.recv().expect_broadcast(&topic, "news", json!({"n": 1}));
    good.expect_quiet();
}

/// Row 79. Invalid UTF-8 in text: close 1007.
#[test]
fn row_79_invalid_utf8_is_closed_with_1007() {
    let server = Server::shared_conformance();
    for bytes in
        [&b"[null,\"1\",\"phoenix\",\"heartbeat\",\"\xff\"]"[..], b"\xc0\xaf", b"\xed\xa0\x80"]
    {
        let mut raw = Raw::websocket(server.addr(), &Vsn::V2.path());
        raw.send_frame(&frame(opcode::TEXT, bytes));
        assert_eq!(raw.expect_close(), 1007, "{bytes:?}");
    }
}
